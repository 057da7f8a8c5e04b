package quorum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd"
)

// TestTransfereeIsInReach: the quorum's leadership goes to a voter in reach, a witness first.
func TestTransfereeIsInReach(t *testing.T) {
	voters := []ag.Replica{
		{ID: "n1", EtcdID: 1},
		{ID: "n2", EtcdID: 2},
		{ID: "n3"},
		{ID: "w", EtcdID: 4, AvailabilityMode: ag.ConfigurationOnly},
	}
	for _, c := range []struct {
		self  ag.ReplicaID
		among []ag.ReplicaID
		want  uint64
	}{
		{"n1", []ag.ReplicaID{"n2", "n3", "w"}, 4},
		{"n1", []ag.ReplicaID{"n2", "n3"}, 2},
		{"n2", []ag.ReplicaID{"n1"}, 1},
		{"n2", []ag.ReplicaID{"n3"}, 0}, // not a member of the quorum yet
		{"n2", nil, 0},
		{"n1", []ag.ReplicaID{"n1"}, 0},
	} {
		if got := transferee(voters, c.self, c.among); got != c.want {
			t.Errorf("from %s, with %v in reach: %d, want %d", c.self, c.among, got, c.want)
		}
	}
}

// TestHintsRememberFewNames: names that somebody invents fill no memory, and a report that says something new in one of
// them is still a change.
func TestHintsRememberFewNames(t *testing.T) {
	said := map[ag.ReplicaID]string{}
	for i := range 10 * saidMost {
		e := etcd.Event{Reports: map[ag.ReplicaID]json.RawMessage{ag.ReplicaID(fmt.Sprintf("x%d", i)): json.RawMessage("{}")}}
		if h := hintOf(e, said); !h.Changed || len(said) > saidMost {
			t.Fatalf("changed %t, %d names are remembered", h.Changed, len(said))
		}
	}
}

// TestWitnessesAreAskedLast: the member of a witness, which may be stolen, is asked if no replica's member answers.
func TestWitnessesAreAskedLast(t *testing.T) {
	voters := []ag.Replica{
		{ID: "a", EtcdID: 1, AvailabilityMode: ag.ConfigurationOnly},
		{ID: "n1", EtcdID: 2, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n2", EtcdID: 3, AvailabilityMode: ag.SynchronousCommit},
	}
	for _, c := range []struct {
		self, primary ag.ReplicaID
		runs          bool
		names, last   string
	}{
		{"n1", "n1", true, "[n2 n1]", "[a]"},
		{"n1", "n2", true, "[n1 n2]", "[a]"},
		{"n1", "n1", false, "[n2]", "[a]"},
		{"n3", "n1", false, "[n1 n2]", "[a]"},
		{"a", "n1", true, "[a n1 n2]", "[]"},
	} {
		s := &Store{self: c.self, voters: func() []ag.Replica { return voters }, member: func() member {
			if c.runs {
				return &fakeMember{}
			}
			return nil
		}}
		if names, last := s.endpoints(c.primary); fmt.Sprint(names) != c.names || fmt.Sprint(last) != c.last {
			t.Errorf("%s asks %v, then %v, while %s is the primary", c.self, names, last, c.primary)
		}
	}
}

// told is a client whose reads are answered by one member.
type told struct {
	client
	from string
}

func (c told) Read(context.Context) (etcd.Snapshot, error) { return etcd.Snapshot{From: c.from}, nil }

// TestAnswerOfAWitnessIsMarked: the agent learns that no replica's member has answered. A witness believes its own.
func TestAnswerOfAWitnessIsMarked(t *testing.T) {
	voters := []ag.Replica{{ID: "w", AvailabilityMode: ag.ConfigurationOnly}, {ID: "n1", AvailabilityMode: ag.SynchronousCommit}}
	for _, c := range []struct {
		self     ag.ReplicaID
		from     string
		external bool
		want     bool
	}{{"n1", "w", false, true}, {"n1", "n1", false, false}, {"w", "w", false, false}, {"w", "n1", false, false}, {"n1", "w", true, false}} {
		s := &Store{etcd: told{from: c.from}, self: c.self, external: c.external, voters: func() []ag.Replica { return voters }}
		if x, err := s.Read(t.Context()); err != nil || x.ByWitness != c.want {
			t.Errorf("%s, told by %s: marked %t, %v", c.self, c.from, x.ByWitness, err)
		}
	}
}

// TestReplacedMemberReadsNothing holds that a machine which comes back after its successor has joined by its name does
// not take what the record says of that one for itself. An administrator's etcd would let it.
func TestReplacedMemberReadsNothing(t *testing.T) {
	b := newBed(t)
	for pin, want := range map[string]error{"new": nil, "old": errSucceeded} {
		b.etcd.group.Replicas[0].KeyPin = "new"
		s := &Store{etcd: b.etcd, self: "n1", external: true, voters: b.Members.Voters, pin: func() string { return pin }}
		if x, err := s.Read(t.Context()); !errors.Is(err, want) || (len(x.Group.Replicas) > 0) != (want == nil) {
			t.Errorf("with the %s key: %+v, %v", pin, x.Group, err)
		}
	}
}

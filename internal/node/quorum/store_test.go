package quorum

import (
	"encoding/json"
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

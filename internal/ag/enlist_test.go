package ag

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// member returns a joining replica, or a witness where the name begins with w.
func member(id ReplicaID) Replica {
	r := Replica{ID: id, Endpoint: string(id) + ":7400", KeyPin: "pin of " + string(id), Major: 17}
	if strings.HasPrefix(string(id), "w") {
		r.AvailabilityMode, r.Major = ConfigurationOnly, 0
	}
	return r
}

// enlisted returns a group to which members were added in this order.
func enlisted(t *testing.T, ids ...ReplicaID) *Group {
	t.Helper()
	g := &Group{}
	for _, id := range ids {
		if err := g.Enlist(member(id)); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// Enlist gives a new member the settings of its kind, and takes no others from the request.
func TestEnlistSettings(t *testing.T) {
	full := Replica{
		ID: "a", Endpoint: "a:1", Listener: "a:2", ReadOnly: "a:3", HTTP: "a:4", KeyPin: "p", Major: 17,
		FailoverMode: Manual, Suspended: true, SuspendedBy: SuspendPartner, Voter: false, EtcdID: 9, Allow: AllowNo,
		Options: ReplicaOptions{SessionTimeout: 1},
	}
	replica := Replica{
		ID: "a", Endpoint: "a:1", Listener: "a:2", ReadOnly: "a:3", HTTP: "a:4", KeyPin: "p", Major: 17,
		AvailabilityMode: SynchronousCommit, FailoverMode: Automatic, Allow: AllowReadOnly, Voter: true,
	}
	detached := replica
	detached.Join, detached.Suspended = Detached, true
	witness := Replica{
		ID: "a", Endpoint: "a:1", Listener: "a:2", ReadOnly: "a:3", HTTP: "a:4", KeyPin: "p",
		AvailabilityMode: ConfigurationOnly, FailoverMode: Manual, Voter: true,
	}
	for name, c := range map[string]struct {
		mode  AvailabilityMode
		draft bool
		want  Replica
	}{
		"a replica":                {"", false, replica},
		"an asynchronous replica":  {AsynchronousCommit, false, replica},
		"a replica of a draft":     {"", true, detached},
		"a witness":                {ConfigurationOnly, false, witness},
		"a witness beside a draft": {ConfigurationOnly, true, witness},
	} {
		g := &Group{Draft: c.draft}
		r := full
		r.AvailabilityMode = c.mode
		if err := g.Enlist(r); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if len(g.Replicas) != 1 || !reflect.DeepEqual(g.Replicas[0], c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, g.Replicas, c.want)
		}
	}
}

// A refusal names its reason and leaves the group unchanged.
func TestEnlistRefuses(t *testing.T) {
	ten := []ReplicaID{"a", "b", "c", "d", "e", "f", "g", "h", "i", "w"}
	change := func(r Replica, edit func(*Replica)) Replica { edit(&r); return r }
	for name, c := range map[string]struct {
		group  []ReplicaID
		joiner Replica
		reason RefusalReason
		text   string
	}{
		"the name of another node": {
			[]ReplicaID{"a", "b"}, change(member("b"), func(r *Replica) { r.KeyPin = "other" }), RefusedName, "already has a member b",
		},
		"the name of another node in a full group": {
			ten, change(member("b"), func(r *Replica) { r.KeyPin = "other" }), RefusedName, "already has a member b",
		},
		"the name of a witness": {
			[]ReplicaID{"a", "w"}, change(member("w"), func(r *Replica) { r.KeyPin = "other" }), RefusedName, "already has a member w",
		},
		"a full group":               {ten, member("x"), RefusedFull, "remove a member first"},
		"a witness for a full group": {ten, member("w2"), RefusedFull, "remove a member first"},
		"another major version": {
			[]ReplicaID{"w", "a"},
			change(member("b"), func(r *Replica) { r.Major = 16 }), RefusedVersion,
			"this node has PostgreSQL 16 and the group has 17; install PostgreSQL 17",
		},
		"an unknown major version": {
			[]ReplicaID{"a"}, change(member("b"), func(r *Replica) { r.Major = 0 }), RefusedVersion, "this node has PostgreSQL 0",
		},
		"the endpoint of another member": {
			[]ReplicaID{"a", "b"}, change(member("c"), func(r *Replica) { r.Endpoint = "b:7400" }), RefusedName, "b:7400 is the endpoint of b already",
		},
		"a witness at the endpoint of a replica": {
			[]ReplicaID{"a"}, change(member("w"), func(r *Replica) { r.Endpoint = "a:7400" }), RefusedName, "a:7400 is the endpoint of a already",
		},
	} {
		g := enlisted(t, c.group...)
		before := slices.Clone(g.Replicas)
		err := g.Enlist(c.joiner)
		var refused *EnlistError
		if !errors.As(err, &refused) || refused.Reason != c.reason || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(g.Replicas, before) {
			t.Errorf("%s: the group changed to %+v", name, g.Replicas)
		}
	}
}

// A repeated request changes nothing, even where a new one would be refused or the member was configured meanwhile.
func TestEnlistAgain(t *testing.T) {
	g := enlisted(t, "a", "b", "c", "d", "e", "f", "g", "h", "i", "w")
	g.Replicas[1].AvailabilityMode, g.Replicas[1].Major, g.Replicas[1].Endpoint = AsynchronousCommit, 18, "elsewhere:7400"
	before := slices.Clone(g.Replicas)
	if err := g.Enlist(member("b")); err != nil || !reflect.DeepEqual(g.Replicas, before) {
		t.Errorf("%v, %+v", err, g.Replicas)
	}
}

// The largest group has MaxReplicas replicas and a witness, of which MaxVoters vote.
func TestEnlistUntilFull(t *testing.T) {
	g := &Group{}
	for i := range MaxMembers {
		name := ReplicaID(fmt.Sprintf("n%d", i))
		if i == MaxReplicas {
			refusedFor(t, g.Enlist(member(name)), "only a witness can join")
			name = "w"
		}
		if err := g.Enlist(member(name)); err != nil {
			t.Fatal(err)
		}
		if v := g.Voters(); v%2 == 0 || v > MaxVoters || v < min(i, MaxVoters) {
			t.Errorf("%d members: %d voters", i+1, v)
		}
	}
	refusedFor(t, g.Enlist(member("w2")), "eight secondaries and a witness")
}

func refusedFor(t *testing.T, err error, why string) {
	t.Helper()
	if refused := (*EnlistError)(nil); !errors.As(err, &refused) || refused.Reason != RefusedFull || !strings.Contains(refused.Message, why) {
		t.Errorf("%v, not refused for %q", err, why)
	}
}

// AssignVotes gives an odd number of votes, keeps those in use, and prefers a witness to a replica. In a case, upper
// case marks a member that votes by now; w begins the name of a witness.
func TestAssignVotes(t *testing.T) {
	for name, c := range map[string]struct {
		members  string
		external int
		want     string
	}{
		"nobody":                                    {"", 0, ""},
		"one member":                                {"a", 0, "a"},
		"two members":                               {"A b", 0, "A"},
		"two members, the second votes":             {"a B", 0, "B"},
		"three members":                             {"A b c", 0, "A b c"},
		"four members":                              {"A B C d", 0, "A B C"},
		"two replicas and a witness":                {"A b w", 0, "A b w"},
		"a witness before an older replica":         {"A b c w", 0, "A b w"},
		"a vote in use before a witness":            {"A B C w", 0, "A B C"},
		"the first of four is gone":                 {"B C d", 0, "B C d"},
		"a vote too many after a removal":           {"A B c D", 0, "A B D"},
		"five members":                              {"A B C d e", 0, "A B C d e"},
		"six members":                               {"A B C D E f", 0, "A B C D E"},
		"nine members":                              {"a b c d e f g h i", 0, "a b c d e"},
		"nine members, the last five vote":          {"a b c d E F G H I", 0, "E F G H I"},
		"a witness replaces no vote of five":        {"A B C D E w", 0, "A B C D E"},
		"an external quorum":                        {"a b c d", 3, "a b c"},
		"an external quorum and a witness":          {"a b c w", 3, "a b w"},
		"an external quorum keeps the votes it has": {"a B C D", 3, "B C D"},
	} {
		g := &Group{External: c.external}
		for _, id := range strings.Fields(c.members) {
			r := Replica{ID: ReplicaID(id), AvailabilityMode: SynchronousCommit}
			if strings.HasPrefix(id, "w") {
				r.AvailabilityMode = ConfigurationOnly
			}
			if id != strings.ToLower(id) {
				r.Voter = true
				if c.external == 0 {
					r.EtcdID = 7
				}
			}
			g.Replicas = append(g.Replicas, r)
		}
		for range 2 { // the second time changes nothing
			g.AssignVotes()
			var got []string
			for _, r := range g.Replicas {
				if r.Voter {
					got = append(got, string(r.ID))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %v votes, want %s", name, got, c.want)
			}
		}
	}
}

// A member that is to vote and has not joined the quorum yet loses its turn to a witness; one that votes does not.
func TestAssignVotesPending(t *testing.T) {
	g := &Group{Replicas: []Replica{
		{ID: "a", Voter: true, EtcdID: 1}, {ID: "b", Voter: true}, {ID: "c", Voter: true}, {ID: "w", AvailabilityMode: ConfigurationOnly},
	}}
	g.AssignVotes()
	if !g.Replicas[0].Voter || !g.Replicas[1].Voter || g.Replicas[2].Voter || !g.Replicas[3].Voter {
		t.Errorf("%+v", g.Replicas)
	}
}

// SynchronousBeside counts suspended replicas, and neither the one named, asynchronous ones nor witnesses.
func TestSynchronousBeside(t *testing.T) {
	g := Group{Replicas: []Replica{
		{ID: "a", AvailabilityMode: SynchronousCommit},
		{ID: "b", AvailabilityMode: SynchronousCommit, Suspended: true},
		{ID: "c", AvailabilityMode: AsynchronousCommit},
		{ID: "w", AvailabilityMode: ConfigurationOnly},
	}}
	for id, want := range map[ReplicaID]int{"": 2, "a": 1, "b": 1, "c": 2, "x": 2} {
		if got := g.SynchronousBeside(id); got != want {
			t.Errorf("beside %q: %d, want %d", id, got, want)
		}
	}
}

// TestEnlistInPlace holds that a node which joins by the name of an awaited member takes its settings and nothing else
// of it, that another kind of node does not, and that a member can be awaited again.
func TestEnlistInPlace(t *testing.T) {
	g := enlisted(t, "a", "b", "c", "w")
	lost := &g.Replicas[1]
	lost.AvailabilityMode, lost.FailoverMode, lost.Allow, lost.EtcdID, lost.Suspended = AsynchronousCommit, Manual, AllowNo, 7, true
	lost.Options = ReplicaOptions{SessionTimeout: 3, Maintenance: &Maintenance{}}
	before := slices.Clone(g.Replicas)
	g.Await("b")
	if _, in := g.Replica("b"); in || len(g.Replicas) != 3 || len(before) != 4 || before[1].ID != "b" {
		t.Fatalf("listed still, or another copy of the configuration was changed: %+v", g.Replicas)
	}
	if g.Await("b"); len(g.Awaited) != 1 {
		t.Errorf("awaited: %+v", g.Awaited)
	}
	witness := Replica{ID: "b", Endpoint: "b2:1", KeyPin: "new", AvailabilityMode: ConfigurationOnly}
	var refused *EnlistError
	if err := g.Enlist(witness); !errors.As(err, &refused) || refused.Reason != RefusedName || !strings.Contains(err.Error(), "coterie member remove b") {
		t.Errorf("a witness in the place of a replica: %v", err)
	}
	next := Replica{ID: "b", Endpoint: "b2:1", Listener: "b2:2", KeyPin: "new", Major: 17}
	if err := g.Enlist(next); err != nil {
		t.Fatal(err)
	}
	got, _ := g.Replica("b")
	got.Voter = false // as AssignVotes has it
	want := Replica{
		ID: "b", Endpoint: "b2:1", Listener: "b2:2", KeyPin: "new", Major: 17,
		AvailabilityMode: AsynchronousCommit, FailoverMode: Manual, Allow: AllowNo, Options: ReplicaOptions{SessionTimeout: 3},
	}
	if !reflect.DeepEqual(got, want) || len(g.Awaited) != 0 {
		t.Errorf("%+v, awaited %v; want %+v", got, g.Awaited, want)
	}
	if err := g.Enlist(next); err != nil {
		t.Errorf("the answer was lost, and it asks again: %v", err)
	}
	g.Await("w")
	if !g.Forget("w") || g.Forget("w") {
		t.Error("a member is not forgotten once")
	}
	for i := range 2 * MaxMembers {
		id := ReplicaID(fmt.Sprintf("x%d", i))
		g.Replicas = append(g.Replicas, member(id))
		g.Await(id)
	}
	if len(g.Awaited) != MaxMembers {
		t.Errorf("%d are awaited", len(g.Awaited))
	}
}

// TestSuccessorKeepsNoAddress holds that the settings which say where the lost member was do not pass to its successor.
func TestSuccessorKeepsNoAddress(t *testing.T) {
	g := Group{Replicas: []Replica{member("a"), member("b")}}
	g.Replicas[1].Options = ReplicaOptions{EndpointURL: "TCP://b:5022", ReadOnlyURL: "TCP://b:5433", ReadWriteURL: "TCP://b:5432", ManualSeeding: true}
	g.Await("b")
	if err := g.Enlist(Replica{ID: "b", Endpoint: "b2:1", KeyPin: "new", Major: g.Replicas[0].Major}); err != nil {
		t.Fatal(err)
	}
	got, _ := g.Replica("b")
	if want := (ReplicaOptions{ManualSeeding: true}); !reflect.DeepEqual(got.Options, want) {
		t.Errorf("%+v", got.Options)
	}
}

// TestSuccessorRotatesItself holds that a node which joins by the name of a former member has no part of a rotation
// behind it: it does not trust the new authority yet.
func TestSuccessorRotatesItself(t *testing.T) {
	for name, takeOut := range map[string]func(g *Group){
		"replaced": func(g *Group) { g.Await("b") },
		"removed":  func(g *Group) { g.Replicas = g.Replicas[:1] },
	} {
		done := []ReplicaID{"b"}
		g := Group{Replicas: []Replica{member("a"), member("b")}, Rotation: &Rotation{Pin: "p", Phase: RotationTrust, Done: done}}
		takeOut(&g)
		if err := g.Enlist(Replica{ID: "b", Endpoint: "b2:1", KeyPin: "new", Major: g.Replicas[0].Major}); err != nil {
			t.Fatal(err)
		}
		if waits := g.RotationWaits(); !slices.Equal(waits, []ReplicaID{"a", "b"}) || len(done) != 1 {
			t.Errorf("%s: the rotation waits for %v", name, waits)
		}
		if g.RotationStep("a", "p", RotationTrust); g.Rotation.Phase != RotationTrust {
			t.Errorf("%s: the rotation goes on without it", name)
		}
	}
}

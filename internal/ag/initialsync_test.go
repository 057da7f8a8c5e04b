package ag

import (
	"slices"
	"testing"
)

// TestInitialSyncSet: the epoch starts with the sealed members whose log is a beginning of the chosen one, and knows
// how many have all that counts.
func TestInitialSyncSet(t *testing.T) {
	both := []Member{{"c", "C"}}
	for _, tt := range []struct {
		name string
		edit func(*View)
		v    []Member
		k    int
	}{
		{"who lacks the end may lack what was acknowledged", func(*View) {}, both, 0},
		{"who stands where the chosen one stands has everything", func(v *View) { v.Seals[1].Position.LSN = 200 }, both, 1},
		{"what is acknowledged is on both: the shorter log has it", func(v *View) { v.Record.State.K = 2 }, both, 1},
		{"with k of 2 and one of three not sealed, the longer log may have it alone", func(v *View) {
			v.Record.State.V, v.Record.State.K = append(v.Record.State.V, Member{"d", "D"}), 2
		}, both, 0},
		{"another copy than V counts is none of it", func(v *View) { v.Seals[1].Position.LSN, v.Seals[1].Copy = 200, "C2" }, nil, 0},
		{"the last leader, sealed where the chosen one stands", func(v *View) {
			v.Seals = append(v.Seals, SealReport{Member: "a", Copy: "A", Epoch: 4, Position: Position{4, 200}})
		}, []Member{{"c", "C"}, {"a", "A"}}, 1},
		{"the last leader went on", func(v *View) {
			v.Seals = append(v.Seals, SealReport{Member: "a", Copy: "A", Epoch: 4, Position: Position{4, 210}})
		}, both, 0},
		{"asynchronous", func(v *View) {
			v.Seals[1].Position.LSN, v.Group.Replicas[2].AvailabilityMode = 200, AsynchronousCommit
		}, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := sealing()
			tt.edit(&v)
			if ms, k := v.initialSyncSet(v.Seals[0]); !slices.Equal(ms, tt.v) || k != tt.k {
				t.Errorf("%v, %d; want %v, %d", ms, k, tt.v, tt.k)
			}
		})
	}
	v := sealing()
	v.Seals[1].Position.LSN = 200
	if e := Decide(v).Commit.Epoch; e.Phase != PhasePromote || !slices.Equal(e.V, both) || e.K != 1 {
		t.Errorf("chosen: %+v", e)
	}
}

// TestFirstSyncSet: (V, k) of LEAD is what the choice knew, as far as the setting keeps it true; and then the members
// of V may lead.
func TestFirstSyncSet(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    []Member
		k    int
		set  Sync
		want int
	}{
		{"one of one", []Member{{"c", "C"}}, 1, Sync{P: []ReplicaID{"c"}, N: 1}, 1},
		{"one of two", []Member{{"a", "A"}, {"c", "C"}}, 2, Sync{P: []ReplicaID{"a", "c"}, N: 1}, 1},
		{"an acknowledgement may come from outside", []Member{{"c", "C"}}, 1, Sync{P: []ReplicaID{"a", "c"}, N: 1}, 0},
		{"who was sealed may lack something", []Member{{"c", "C"}}, 0, Sync{P: []ReplicaID{"c"}, N: 1}, 0},
		{"nobody is waited for", []Member{{"c", "C"}}, 1, Sync{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := promoting()
			promoted(&v)
			v.Record.Epoch.V, v.Record.Epoch.K, v.Local.Sync = tt.v, tt.k, tt.set
			c := Decide(v).Commit
			if st := c.State; st.K != tt.want || (st.K > 0) != slices.Equal(st.V, tt.v) || !st.Holds(tt.set) || c.Epoch.V != nil || c.Epoch.K != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestFirstSyncWaitsForTheHeirs(t *testing.T) {
	v := promoting()
	v.Reach = []ReplicaID{"a", "c"}
	v.Record.Epoch.V = []Member{{"c", "C"}}
	if s := v.FirstSync(); s.N != 1 || !slices.Equal(s.P, []ReplicaID{"c"}) {
		t.Errorf("%+v", s)
	}
	two := 2
	v.Group.Required = &two
	if s := v.FirstSync(); s.N != 2 || !slices.Equal(s.P, []ReplicaID{"a", "c"}) {
		t.Errorf("with two required: %+v", s)
	}
}

// TestExpectedSync: while a failover is near, the guess is the setting that the promotion needs. Otherwise there is
// none.
func TestExpectedSync(t *testing.T) {
	withheld := suspicious()
	withheld.Voting.Quiet = 0
	for _, tt := range []struct {
		name  string
		view  View
		edit  func(*View)
		epoch Epoch // 0: none is expected
	}{
		{"a vote is near", withheld, func(*View) {}, 4},
		{"it has sealed", sealing(), func(*View) {}, 4},
		{"another's candidate", sealing(), func(v *View) { v.Record.Epoch.Leader = "c" }, 4},
		{"nothing is wrong", following(), func(*View) {}, 0},
		{"it has promised nothing yet", sealing(), func(v *View) { v.Local.Promised = 3 }, 0},
		{"its copy is not in V", sealing(), func(v *View) { v.Record.State.V = v.Record.State.V[1:] }, 0},
		{"its copy may not be promoted", sealing(), func(v *View) { v.Local.Quarantine = "broken" }, 0},
		{"its server is down", sealing(), func(v *View) { v.Local.Server = ServerDown }, 0},
		{"no quorum", sealing(), func(v *View) { v.Quorum = false }, 0},
		{"it was chosen: the promotion itself does it", promoting(), func(*View) {}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.view
			tt.edit(&v)
			e, s, ok := v.Expected()
			if e != tt.epoch || ok != (tt.epoch != 0) {
				t.Fatalf("expects epoch %d (%v), want %d", e, ok, tt.epoch)
			}
			if !ok {
				return
			}
			chosen := promoting()
			chosen.Record.Epoch.V = []Member{{"c", "C"}} // c has sealed, too
			if want := chosen.FirstSync(); s.N != want.N || !slices.Equal(s.P, want.P) {
				t.Errorf("expects %+v, and the promotion needs %+v", s, want)
			}
		})
	}
}

// TestHandoverSyncSet holds that the stopped primary has everything, and that the members that streamed from it have a
// prefix of its log.
func TestHandoverSyncSet(t *testing.T) {
	v := leading()
	if ms, k := v.HandoverSyncSet("b"); k != 1 || !slices.Equal(ms, []Member{{"a", "A"}, {"c", "C"}}) {
		t.Errorf("%v, %d", ms, k)
	}
	v.Streams[1].Copy = "C2"
	if ms, k := v.HandoverSyncSet("b"); k != 1 || !slices.Equal(ms, []Member{{"a", "A"}}) {
		t.Errorf("c has another copy: %v, %d", ms, k)
	}
	v.Group.Replicas[0].AvailabilityMode = AsynchronousCommit
	if ms, k := v.HandoverSyncSet("b"); k != 0 || len(ms) != 0 {
		t.Errorf("a is asynchronous: %v, %d", ms, k)
	}
}

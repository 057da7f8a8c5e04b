package availability

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// automatic returns what the judgement says of an automatic failover, where every member that answers is well.
func automatic(v ag.View) string {
	v.Record.State.V = slices.Clone(v.Record.State.V)
	for i, m := range v.Record.State.V {
		v.Record.State.V[i].Copy = ag.CopyID("copy of " + m.ID)
	}
	f := Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{}}
	for _, r := range v.Group.Replicas {
		m := Member{Copy: ag.CopyID("copy of " + r.ID), Data: ag.DataPresent, Server: ag.ServerRecovery}
		if r.ID == v.Record.Epoch.Leader {
			m.Server = ag.ServerWritable
			for _, x := range v.Record.State.V {
				m.Sync.P, m.Sync.N = append(m.Sync.P, x.ID), v.Record.State.K
			}
			for _, x := range v.Group.Replicas {
				if x.ID == v.Self || slices.Contains(v.Reach, x.ID) {
					m.Streams = append(m.Streams, x.ID)
				}
			}
		}
		f.Members[r.ID] = m
	}
	return Assess(f).Automatic
}

// TestReadyMeansThatSomebodyTakesOver holds that the agents act as the status says. Of two replicas, the one with the
// only vote takes over from the other, and not the other way round.
func TestReadyMeansThatSomebodyTakesOver(t *testing.T) {
	r := func(id ag.ReplicaID, voter bool) ag.Replica {
		out := ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: voter}
		if voter {
			out.EtcdID = 7
		}
		return out
	}
	view := func(leader ag.ReplicaID, v ag.ReplicaID, members ...ag.Replica) ag.View {
		out := ag.View{Quorum: true, Group: ag.Group{Replicas: members, SessionTimeout: 10 * time.Second}}
		for i := range members {
			members[i].EtcdID *= uint64(i + 1)
		}
		for _, m := range members {
			out.Reach = append(out.Reach, m.ID)
		}
		out.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: leader}
		out.Record.State.Epoch, out.Record.State.Leader = 1, leader
		if v != "" {
			out.Record.State.V, out.Record.State.K = []ag.Member{{ID: v}}, 1
		}
		return out
	}
	without := func(v ag.View, id ag.ReplicaID) ag.View {
		v.Reach = slices.DeleteFunc(slices.Clone(v.Reach), func(x ag.ReplicaID) bool { return x == id })
		return v
	}
	loose := view("a", "b", r("a", true), r("b", true), r("c", true), r("d", true), r("e", true))
	loose.Record.State.V = append(loose.Record.State.V, ag.Member{ID: "c"}) // one of both: a seal of each is needed
	external := view("a", "b", r("a", true), r("b", true), r("c", true))
	external.Group.External = 3
	alone := without(external, "c")
	alone.Group.Required = new(int)
	manual, suspended, pending := r("b", true), r("b", true), r("c", true)
	manual.FailoverMode, suspended.Suspended, pending.EtcdID = ag.Manual, true, 0
	maintained := r("b", true)
	maintained.Options.Maintenance = &ag.Maintenance{Reason: "new memory"}
	work := view("a", "b", r("a", true), r("b", true), r("c", true))
	work.Group.Maintenance = &ag.Maintenance{Reason: "new switches"}
	for name, c := range map[string]struct {
		v    ag.View
		want string
	}{
		"three":                                   {view("a", "b", r("a", true), r("b", true), r("c", true)), "ready"},
		"two, the primary votes":                  {view("a", "b", r("a", true), r("b", false)), "add a witness"},
		"two, the secondary votes":                {view("a", "b", r("a", false), r("b", true)), "ready"},
		"two votes and one not there":             {view("a", "b", r("a", true), r("b", true), pending), "add a witness"},
		"nobody is counted":                       {view("a", "", r("a", true), r("b", true), r("c", true)), "no secondary"},
		"the only secondary is under maintenance": {view("a", "b", r("a", true), maintained, r("c", true)), "under maintenance"},
		"the group is under maintenance":          {work, "switched off for maintenance with no end set: new switches"},
		"the only secondary is manual":            {view("a", "b", r("a", true), manual, r("c", true)), "FAILOVER_MODE"},
		"the only secondary is held off":          {view("a", "b", r("a", true), suspended, r("c", true)), "suspended"},
		"the third is dead":                       {without(view("a", "b", r("a", true), r("b", true), r("c", true)), "c"), "1 of 3 votes"},
		"the only synchronized is dead":           {without(view("a", "b", r("a", true), r("b", true), r("c", true), r("d", true), r("e", true)), "b"), "and 0 do"},
		"two of five, both answer":                {loose, "ready"},
		"two of five, one is dead":                {without(loose, "c"), "2 of the synchronized"},
		"an external quorum":                      {external, "ready"},
		"nobody would be left to commit":          {without(external, "c"), "b would not take writes"},
		"commits may be on one copy":              {alone, "ready"},
	} {
		for _, self := range c.v.Reach { // each member that answers says the same
			v := without(c.v, self) // a node does not hear itself
			v.Self = self
			if got := automatic(v); !strings.Contains(got, c.want) || (c.want == "ready") != (got == "ready") {
				t.Errorf("%s, says %s: %s", name, self, got)
			}
		}
	}
}

// threeReplicas returns the facts of a healthy group, which a leads, as a sees them.
func threeReplicas() Facts {
	g := ag.Group{Name: "g", SessionTimeout: 10 * time.Second}
	for i, id := range []ag.ReplicaID{"a", "b", "c"} {
		g.Replicas = append(g.Replicas, ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, EtcdID: uint64(i + 1)})
	}
	v := ag.View{Self: "a", Quorum: true, Group: g, Reach: []ag.ReplicaID{"b", "c"}}
	v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
	v.Record.State = ag.State{Epoch: 1, Leader: "a", V: []ag.Member{{ID: "b", Copy: "b"}, {ID: "c", Copy: "c"}}, K: 1, Setting: ag.Setting{P: []ag.ReplicaID{"b", "c"}, N: 1}}
	return Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{
		"a": {Copy: "a", Data: ag.DataPresent, Server: ag.ServerWritable, Sync: ag.Sync{P: []ag.ReplicaID{"b", "c"}, N: 1}, Streams: []ag.ReplicaID{"b", "c"}},
		"b": {Copy: "b", Data: ag.DataPresent, Server: ag.ServerRecovery}, "c": {Copy: "c", Data: ag.DataPresent, Server: ag.ServerRecovery},
	}}
}

func edit(f Facts, id ag.ReplicaID, change func(*Member)) Facts {
	m := f.Members[id]
	change(&m)
	f.Members[id] = m
	return f
}

// TestRootCauses holds that one cause is one problem, the worst first, and that a difference between the quorum and the
// configuration is critical and not ready.
func TestRootCauses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(Facts) Facts
		level  Level
		want   []string // the findings begin so
		ready  bool
	}{
		"all is well": {func(f Facts) Facts { return f }, Healthy, nil, true},
		"one is dead": {func(f Facts) Facts {
			f.View.Reach = []ag.ReplicaID{"b"}
			f = edit(f, "a", func(m *Member) { m.Streams = []ag.ReplicaID{"b"} })
			return edit(f, "c", func(m *Member) { m.Silent = 10 * time.Second })
		}, Degraded, []string{"Warning c does not answer for 10 s", "Warning automatic failover is not ready: without the primary 1 of 3 votes"}, false},
		"the old primary turns into a secondary": {func(f Facts) Facts {
			f.View.Since = time.Second
			return edit(f, "c", func(m *Member) { m.Server = ag.ServerDown })
		}, Degraded, []string{"Warning the server of c is DOWN", "Warning automatic failover is not ready"}, false},
		"the server of a secondary is down": {func(f Facts) Facts {
			f.View.Since = time.Minute
			return edit(f, "c", func(m *Member) { m.Server = ag.ServerDown })
		}, Degraded, []string{"Warning the server of c is DOWN", "Warning automatic failover is not ready"}, false},
		"a secondary has no room to start": {func(f Facts) Facts {
			return edit(f, "c", func(m *Member) { m.Server, m.Progress = ag.ServerDown, "not started: no room for WAL" })
		}, Degraded, []string{"Warning the server of c is DOWN, not started: no room for WAL", "Warning automatic failover is not ready"}, false},
		"of two, the secondary has the only vote": {func(f Facts) Facts {
			g := slices.Clone(f.View.Group.Replicas[:2])
			g[0].Voter, g[0].EtcdID = false, 0
			f.View.Group.Replicas, f.View.Reach, f.View.Record.State.V = g, []ag.ReplicaID{"b"}, f.View.Record.State.V[:1]
			delete(f.Members, "c")
			return edit(f, "a", func(m *Member) { m.Streams, m.Sync = []ag.ReplicaID{"b"}, ag.Sync{P: []ag.ReplicaID{"b"}, N: 1} })
		}, Degraded, []string{"Warning the death of b, which is not the primary, would end writes: without b 0 of 1 votes would be left"}, true},
		"commits wait": {func(f Facts) Facts {
			return edit(f, "a", func(m *Member) { m.Waits, m.WaitsWhy, m.Streams = 20*time.Second, "nobody acknowledges", nil })
		}, Down, []string{"Critical no commit is acknowledged for 20 s: nobody acknowledges", "Warning b receives nothing", "Warning c receives nothing", "Warning automatic failover"}, false},
		"the quorum has another member": {func(f Facts) Facts { f.Stray = "the quorum has no such member"; return f }, Degraded, []string{"Critical the quorum has no such member"}, false},
		"half of the votes are gone":    {func(f Facts) Facts { f.Voters = []uint64{1, 2}; return f }, Degraded, []string{"Warning automatic failover is not ready: without the primary 1 of 2 votes"}, false},
		"this node was removed":         {func(f Facts) Facts { f.Removed = true; return f }, Down, []string{"Critical this node is no member of the group any more"}, false},
		"no majority": {func(f Facts) Facts {
			f.View.Quorum, f.View.Reach, f.Open = false, nil, false
			return f
		}, Down, []string{"Critical no primary takes writes: no majority of the quorum answers this node", "Warning b does not answer", "Warning c does not answer"}, false},
		"no majority, and a secondary answers": {func(f Facts) Facts {
			f.View.Quorum, f.View.Reach, f.Open = false, []ag.ReplicaID{"b"}, false
			return edit(f, "a", func(m *Member) { m.Server, m.Streams = ag.ServerRecovery, nil })
		}, Down, []string{"Critical no primary takes writes: no majority of the quorum answers this node", "Warning c does not answer"}, false},
		"the store has gone back, and a secondary still knows who led": {func(f Facts) Facts {
			f.View.Self, f.View.Reach, f.View.Quorum, f.View.Untrusted = "b", []ag.ReplicaID{"a", "c"}, false, "the store is older"
			return f
		}, Down, []string{"Critical no primary takes writes: the store is older"}, false},
		"a copy under quarantine": {func(f Facts) Facts {
			return edit(f, "b", func(m *Member) { m.Quarantine = "a lost write" })
		}, Degraded, []string{"Warning the copy of b is under quarantine", "Warning automatic failover is not ready: c would claim"}, false},
	} {
		r := Assess(c.change(threeReplicas()))
		got := len(r.Problems) == len(c.want)
		for i := 0; got && i < len(c.want); i++ {
			got = strings.HasPrefix(string(r.Problems[i].Severity)+" "+r.Problems[i].Finding, c.want[i])
		}
		if !got || r.Level != c.level || r.Ready() != c.ready || strings.HasPrefix(r.Next, "wait") != (name == "the old primary turns into a secondary") {
			t.Errorf("%s: %s, ready %q, problems %+v", name, r.Level, r.Automatic, r.Problems)
		}
	}
}

// TestNextWithoutPrimary holds that a forced failover is advised only where nothing else helps: not while a planned one
// is under way, not while a new primary opens, and not where the end of maintenance lets a replica take over.
func TestNextWithoutPrimary(t *testing.T) {
	seenFromB := func() Facts {
		f := edit(threeReplicas(), "a", func(m *Member) { m.Streams = nil })
		f.View.Self, f.View.Reach, f.Open = "b", []ag.ReplicaID{"a", "c"}, false
		return f
	}
	primary := func(f Facts, change func(m *Member)) Facts { return edit(f, "a", change) }
	dead := func(f Facts) Facts { f.View.Reach = []ag.ReplicaID{"c"}; return f }
	for name, c := range map[string]struct {
		change        func(Facts) Facts
		because, next string
		others        bool // problems beside it
	}{
		"a planned failover stops the server": {func(f Facts) Facts {
			f.View.Op = ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 1}
			return primary(f, func(m *Member) { m.Server = ag.ServerDown })
		}, "a planned failover is under way: a hands the leadership over", "wait some seconds", true},
		"by its own report alone": {func(f Facts) Facts {
			return primary(f, func(m *Member) { m.Busy = "hand-over" })
		}, "a planned failover is under way", "wait some seconds", false},
		"a request of an earlier epoch": {func(f Facts) Facts {
			f.View.Op = ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 0}
			return primary(f, func(m *Member) { m.Streams = []ag.ReplicaID{"b", "c"} })
		}, "a has become the primary and is not open for writes yet", "wait some seconds", false},
		"fewer secondaries answer than are required": {
			func(f Facts) Facts {
				f.View.Group.Required, f.View.Reach = new(2), []ag.ReplicaID{"a"}
				return f
			}, "a has become the primary and is not open for writes yet: commits must wait for 2 (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT), and of its synchronous secondaries 1 can acknowledge, without c",
			"start c (a suspended one: coterie replica resume NAME); or have commits wait for fewer, so that it opens at once: coterie group set required_synchronized_secondaries_to_commit=1", true,
		},
		"fewer stream than are required, and it has had its time": {
			func(f Facts) Facts {
				f.View.Group.Required, f.View.Since = new(1), time.Minute
				return f
			}, "a has become the primary and is not open for writes yet: commits must wait for 1 (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT), and of its synchronous secondaries 0 can acknowledge, without b, c",
			"start b, c (a suspended one: coterie replica resume NAME); or have commits wait for fewer, so that it opens at once: coterie group set required_synchronized_secondaries_to_commit=0", true,
		},
		"the primary is dead": {dead, "the primary a does not answer", "wait: a failover is under way", true},
		"the same in maintenance": {func(f Facts) Facts {
			f.View.Group.Maintenance = &ag.Maintenance{Reason: "new switches"}
			return dead(f)
		}, "the primary a does not answer", "start a; or coterie maintenance off, and b takes over without loss", true},
		"a replica in maintenance": {func(f Facts) Facts {
			for i := range f.View.Group.Replicas[1:] {
				f.View.Group.Replicas[i+1].Options.Maintenance = &ag.Maintenance{Reason: "a new disk"}
			}
			return dead(f)
		}, "the primary a does not answer", "start a; or coterie maintenance off b, and b takes over without loss", true},
		"all of it": {func(f Facts) Facts {
			f.View.Group.Maintenance = &ag.Maintenance{}
			for i := range f.View.Group.Replicas[1:] {
				f.View.Group.Replicas[i+1].Options.Maintenance = &ag.Maintenance{}
			}
			return dead(f)
		}, "the primary a does not answer", "start a; or coterie maintenance off --all, and b takes over without loss", true},
		"the first promotion": {func(f Facts) Facts {
			f.View.Record.Epoch.Phase, f.View.Record.State.V, f.View.Record.State.K = ag.PhasePromote, nil, 0
			return f
		}, "a failover is under way: PROMOTE of epoch", "wait: it takes some seconds; if it lasts: coterie explain, the members that do not answer, and log/postgres.log on a", false},
		"nobody is counted": {func(f Facts) Facts {
			f.View.Record.State.V, f.View.Record.State.K, f.View.Group.Maintenance = nil, 0, &ag.Maintenance{}
			return dead(f)
		}, "the primary a does not answer", "with the loss accepted: coterie failover --to NAME --allow-data-loss", true},
		"the primary has lost its copy": {func(f Facts) Facts {
			return primary(f, func(m *Member) { m.Server = ag.ServerRecovery })
		}, "the server of the primary a is RECOVERY", "with the loss accepted: coterie failover --to NAME --allow-data-loss", false},
	} {
		r := Assess(c.change(seenFromB()))
		if !strings.HasPrefix(r.Because, c.because) || !strings.HasPrefix(r.Next, c.next) && !strings.HasSuffix(r.Next, c.next) || len(r.Problems) > 1 != c.others {
			t.Errorf("%s: because %q, next %q, %+v", name, r.Because, r.Next, r.Problems)
		}
	}
}

// TestWithoutQuorumNobodyIsSaidToLead holds that a node which has had no quorum for longer than a lease lasts does not
// say that a primary which answers it takes writes: that one is fenced, or about to be. A slow read alone says nothing.
func TestWithoutQuorumNobodyIsSaidToLead(t *testing.T) {
	v := ag.View{Self: "b", Reach: []ag.ReplicaID{"a"}, Quorum: true, Profile: ag.Profile{Observer: 6 * time.Second}}
	v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
	for name, tt := range map[string]struct {
		change   func(v *ag.View)
		writable bool
	}{
		"with a quorum":                     {func(v *ag.View) { v.Silence = time.Minute }, true},
		"a read was slow":                   {func(v *ag.View) { v.Quorum, v.Silence = false, 2*time.Second }, true},
		"no quorum for longer than a lease": {func(v *ag.View) { v.Quorum, v.Silence = false, 6*time.Second }, false},
		"the leader itself has its gate":    {func(v *ag.View) { v.Quorum, v.Silence, v.Self, v.Reach = false, 6*time.Second, "a", nil }, true},
	} {
		v := v
		tt.change(&v)
		r := Assess(Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{"a": {Server: ag.ServerWritable}}})
		if r.Writable != tt.writable || (r.Primary == "a") != tt.writable || !tt.writable && (r.Level != Down || !strings.Contains(r.Because, "no majority of the quorum answers")) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestAge(t *testing.T) {
	for want, d := range map[string]time.Duration{"8 s": 8500 * time.Millisecond, "3 min": 200 * time.Second, "2 h": 150 * time.Minute, "4 d": 100 * time.Hour} {
		if got := Age(d); got != want {
			t.Errorf("%v: %s, not %s", d, got, want)
		}
	}
}

// TestRemovalIsNotUndone holds that the first advice of a member which is being taken out is not to keep it.
func TestRemovalIsNotUndone(t *testing.T) {
	for why, want := range map[ag.SuspendReason]string{ag.SuspendUser: "coterie replica resume c", ag.SuspendRemoval: "wait until the removal or replacement is done"} {
		f := threeReplicas()
		f.View.Group.Replicas = slices.Clone(f.View.Group.Replicas)
		f.View.Group.Replicas[2].Suspended, f.View.Group.Replicas[2].SuspendedBy = true, why
		problems := Assess(f).Problems
		if len(problems) == 0 || problems[0].Target != "c" || !strings.HasPrefix(problems[0].Run, want) {
			t.Errorf("%s: %+v", why, problems)
		}
	}
}

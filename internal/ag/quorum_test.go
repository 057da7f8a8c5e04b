package ag

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// group has n synchronous replicas and, if wanted, a witness; all vote, except in a pair, where only the primary does.
func group(n int, witness bool, rule CommitRule) Group {
	g := Group{CommitRule: rule, SessionTimeout: 10 * time.Second}
	for i := range n {
		g.Replicas = append(g.Replicas, Replica{ID: name(i), AvailabilityMode: SynchronousCommit, FailoverMode: Automatic, Voter: n != 2 || witness || i == 0})
	}
	if witness {
		g.Replicas = append(g.Replicas, Replica{ID: "w", AvailabilityMode: ConfigurationOnly, Voter: true})
	}
	return g
}

func name(i int) ReplicaID { return ReplicaID(rune('a' + i)) }

// TestCommitTarget follows the table of docs/internals/safety.md, "Commit rule".
func TestCommitTarget(t *testing.T) {
	two := 2
	for _, tt := range []struct {
		name                     string
		group                    Group
		secondaries, n, required int
		seals                    int // with every secondary in V and k = n
	}{
		{"2, no witness", group(2, false, RuleQuorum), 1, 1, 0, 1},
		{"2 + witness", group(2, true, RuleQuorum), 1, 1, 0, 1},
		{"3", group(3, false, RuleQuorum), 2, 1, 1, 2},
		{"3, ALL", group(3, false, RuleAll), 2, 2, 1, 1},
		{"4 + witness", group(4, true, RuleQuorum), 3, 2, 1, 2},
		{"5", group(5, false, RuleQuorum), 4, 2, 2, 3},
		{"nobody", group(1, false, RuleQuorum), 0, 0, 0, 1},
		{"3, two required", Group{Replicas: three().Replicas, Required: &two}, 2, 2, 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, required := tt.group.CommitTarget(tt.secondaries)
			if n != tt.n || required != tt.required {
				t.Errorf("CommitTarget(%d) = %d, %d, want %d, %d", tt.secondaries, n, required, tt.n, tt.required)
			}
			s := State{K: n}
			for i := range tt.secondaries {
				s.V = append(s.V, Member{ID: name(i + 1)})
			}
			if got := s.SealsNeeded(); got != tt.seals {
				t.Errorf("seals needed = %d, want %d", got, tt.seals)
			}
		})
	}
}

// TestSuspendedAndRequired holds that a suspended member is not waited for, unless too few others are left for the
// REQUIRED that a person has set.
func TestSuspendedAndRequired(t *testing.T) {
	suspended := func(why SuspendReason, required int, which ...int) Group {
		g := group(3, false, RuleQuorum)
		for _, i := range which {
			g.Replicas[i].Suspended, g.Replicas[i].SuspendedBy = true, why
		}
		if required >= 0 {
			g.Required = &required
		}
		return g
	}
	for _, tt := range []struct {
		name           string
		group          Group
		want           []ReplicaID
		required, part int
	}{
		{"nobody is", suspended(SuspendUser, 2), []ReplicaID{"b", "c"}, 2, 2},
		{"by default they are not waited for", suspended(SuspendUser, -1, 1, 2), nil, 0, 0},
		{"nor while another one is enough", suspended(SuspendUser, 1, 1), []ReplicaID{"c"}, 1, 1},
		{"where two are asked for", suspended(SuspendUser, 2, 1), []ReplicaID{"c", "b"}, 2, 1},
		{"one of two", suspended("", 1, 1, 2), []ReplicaID{"b"}, 1, 0},
		{"after a forced failover", suspended(SuspendPartner, 1, 1, 2), nil, 0, 0},
		{"that are to be removed", suspended(SuspendRemoval, 1, 1, 2), nil, 0, 0},
	} {
		if got := tt.group.syncSecondaries("a"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if r, part := tt.group.RequiredBeside("a"), tt.group.TakePart("a"); r != tt.required || part != tt.part {
			t.Errorf("%s: %d required, %d take part, want %d, %d", tt.name, r, part, tt.required, tt.part)
		}
	}
}

// TestHoldsAgainstEnumeration compares the arithmetic with an enumeration of all sets. Holds is true exactly when each
// acknowledging set has k members of V, and then each sealing set meets each acknowledging set.
func TestHoldsAgainstEnumeration(t *testing.T) {
	const members = 4
	for v := range uint(1 << members) {
		for p := range uint(1 << members) {
			for k := 0; k <= bits.OnesCount(v); k++ {
				for n := 0; n <= bits.OnesCount(p); n++ {
					s := State{K: k}
					for _, id := range ids(v) {
						s.V = append(s.V, Member{ID: id})
					}
					want, meets := true, true
					for ack := range uint(1 << members) {
						if ack&^p != 0 || bits.OnesCount(ack) < n {
							continue
						}
						want = want && bits.OnesCount(ack&v) >= k
						for seal := range uint(1 << members) {
							if seal&^v == 0 && bits.OnesCount(seal) >= s.SealsNeeded() {
								meets = meets && seal&ack != 0
							}
						}
					}
					got := s.Holds(Sync{P: ids(p), N: n})
					if got != want {
						t.Fatalf("V %v k %d, waiting for %d of %v: Holds = %v, enumeration says %v", s.V, k, n, ids(p), got, want)
					}
					if got && k >= 1 && !meets {
						t.Fatalf("V %v k %d, waiting for %d of %v: a seal of %d misses an acknowledged commit", s.V, k, n, ids(p), s.SealsNeeded())
					}
				}
			}
		}
	}
}

func ids(set uint) (out []ReplicaID) {
	for i := range 8 {
		if set>>i&1 == 1 {
			out = append(out, name(i))
		}
	}
	return out
}

// TestNextSyncStepsAreTrue takes random situations and checks each step against its meaning. A setting is given only
// when the record covers it. A record that is written while a setting is unproven follows from the old record alone.
// The members of a published one have flushed the barrier.
func TestNextSyncStepsAreTrue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		v := randomLeader(r)
		step := NextSync(&v)
		st, cur := v.Record.State, v.Local.Sync
		switch {
		case step.Set != nil:
			if !st.Holds(*step.Set) || !st.Setting.Same(step.Set.Setting()) {
				t.Fatalf("%+v set although the record says V %v k %d and announces %v", *step.Set, st.V, st.K, st.Setting)
			}
		case step.State != nil && !follows(st, *step.State):
			flushed := 0
			for _, m := range step.State.V {
				s, ok := v.stream(m.ID)
				if ok && s.Open && s.Copy == m.Copy && s.Flush >= cur.Barrier {
					flushed++
				}
			}
			if !cur.Proven || !step.State.Holds(cur) || flushed < step.State.K {
				t.Fatalf("published V %v k %d from V %v k %d under %+v with %d flushed: %s", step.State.V, step.State.K, st.V, st.K, cur, flushed, step.Because)
			}
		}
	}
}

// follows reports whether the new (V, k) is a consequence of the old: k less one for every copy that is no longer
// counted.
func follows(old, next State) bool {
	shed := 0
	for _, m := range old.V {
		if !slices.Contains(next.V, m) {
			shed++
		}
	}
	return next.K <= max(0, old.K-shed)
}

func randomLeader(r *rand.Rand) View {
	v := leading()
	v.Group = group(4, r.IntN(2) == 0, []CommitRule{RuleQuorum, RuleAll}[r.IntN(2)])
	v.Record.State.V = nil
	for _, id := range ids(uint(r.IntN(8) << 1)) {
		v.Record.State.V = append(v.Record.State.V, Member{id, CopyID(fmt.Sprint(id, r.IntN(4)/3))})
	}
	v.Record.State.K = r.IntN(len(v.Record.State.V) + 1)
	p := ids(uint(r.IntN(8) << 1))
	v.Local.Sync = Sync{P: p, N: r.IntN(len(p) + 1), Proven: r.IntN(2) == 0, Barrier: LSN(100 + r.IntN(50))}
	v.Record.State.Setting = v.Local.Sync.Setting()
	if r.IntN(2) == 0 {
		p := ids(uint(r.IntN(8) << 1))
		v.Record.State.Setting = Setting{p, min(len(p), 1+r.IntN(2))}
	}
	v.Streams = nil
	for _, id := range ids(uint(r.IntN(8) << 1)) {
		v.Streams = append(v.Streams, Stream{
			Member: id, Copy: CopyID(fmt.Sprint(id, r.IntN(4)/3)), Open: r.IntN(4) > 0, Close: r.IntN(4) > 0,
			Flush: LSN(90 + r.IntN(70)), Silent: time.Duration(r.IntN(20)) * time.Second, Refused: r.IntN(4) == 0,
			Gone: r.IntN(3) == 0,
		})
	}
	return v
}

// promotedAlone: leads since then, nothing is promised yet, and none of the members that commits wait for has streamed.
func promotedAlone(v *View, since time.Duration) {
	v.Group.Required = new(int)
	v.Record.State.V, v.Record.State.K = nil, 0
	v.Local.Sync.Proven = false
	v.Streams = []Stream{{Member: "b", Silent: since}, {Member: "c", Silent: since}}
}

// requiredGone: b and c are required, and b's copy does not exist any more.
func requiredGone(v *View) {
	two := 2
	v.Group.Required = &two
	v.Streams[0] = Stream{Member: "b", Copy: "B", Gone: true}
	v.Record.State.K, v.Local.Sync.N = 2, 2
	v.Record.State.Setting = v.Local.Sync.Setting()
}

func TestNextSync(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edit  func(*View)
		check func(SyncStep) bool
	}{
		{"nothing to do", func(*View) {}, func(s SyncStep) bool { return s == SyncStep{} }},
		{"an unproven setting is proven", func(v *View) { v.Local.Sync.Proven = false }, func(s SyncStep) bool { return s.Prove }},
		{
			"after promotion one member past the barrier raises k", func(v *View) { v.Record.State.V, v.Record.State.K = nil, 0 },
			func(s SyncStep) bool { return s.State != nil && s.State.K == 1 && len(s.State.V) == 2 },
		},
		{
			"nobody is past the barrier", func(v *View) { v.Record.State.V, v.Record.State.K, v.Local.Sync.Barrier = nil, 0, 900 },
			func(s SyncStep) bool { return s.State == nil && s.Because != "" },
		},
		{
			"REQUIRED keeps the last ones, lost as they are, and it says so", func(v *View) {
				one := 1
				v.Group.Required = &one
				v.Local.Sync.P, v.Local.Sync.N, v.Local.Sync.Proven = []ReplicaID{"b"}, 1, true
				v.Record.State.V, v.Record.State.K, v.Record.State.Setting = []Member{{"b", "B"}}, 1, Setting{[]ReplicaID{"b"}, 1}
				v.Streams = []Stream{{Member: "b", Copy: "B", Silent: time.Hour}, {Member: "c", Copy: "C", Silent: time.Hour}}
			},
			func(s SyncStep) bool {
				return s.State == nil && s.Set == nil && strings.Contains(s.Because, "REQUIRED")
			},
		},
		{
			"a lost member leaves the setting first while enough remain, announced", func(v *View) { v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: time.Hour} },
			func(s SyncStep) bool {
				return s.State != nil && s.State.Setting.Same(Setting{[]ReplicaID{"c"}, 1}) && len(s.State.V) == 2 && s.State.K == 1
			},
		},
		{"then given", func(v *View) {
			v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: time.Hour}
			v.Record.State.Setting = Setting{[]ReplicaID{"c"}, 1}
		}, func(s SyncStep) bool { return s.Set != nil && slices.Equal(s.Set.P, []ReplicaID{"c"}) && s.Set.N == 1 }},
		{"then the record waits for the rest to flush the barrier", func(v *View) {
			v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: time.Hour}
			v.Local.Sync = Sync{P: []ReplicaID{"c"}, N: 1, Proven: true, Barrier: 195}
			v.Record.State.Setting = v.Local.Sync.Setting()
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil && s.Because != "" }},
		{"and drops it", func(v *View) {
			v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: time.Hour}
			v.Local.Sync = Sync{P: []ReplicaID{"c"}, N: 1, Proven: true, Barrier: 190}
			v.Record.State.Setting = v.Local.Sync.Setting()
		}, func(s SyncStep) bool { return s.State != nil && len(s.State.V) == 1 && s.State.K == 1 }},
		{"an announcement that was not followed is taken back before anything is published", func(v *View) {
			v.Record.State.Setting, v.Record.State.V, v.Record.State.K = Setting{[]ReplicaID{"c"}, 1}, nil, 0
		}, func(s SyncStep) bool {
			return s.State != nil && s.State.K == 0 && s.State.Setting.Same(Setting{[]ReplicaID{"b", "c"}, 1})
		}},
		{"an open stream that is silent for SESSION_TIMEOUT leaves the setting", func(v *View) {
			v.Streams[0].Silent = 10 * time.Second
		}, func(s SyncStep) bool { return s.State != nil && slices.Equal(s.State.Setting.P, []ReplicaID{"c"}) }},
		{"the replica's own timeout counts", func(v *View) {
			v.Group.Replicas = slices.Clone(v.Group.Replicas)
			v.Group.Replicas[1].Options.SessionTimeout = 3 * time.Second
			v.Streams[0].Silent, v.Streams[1].Silent = 3*time.Second, 3*time.Second
		}, func(s SyncStep) bool { return s.State != nil && slices.Equal(s.State.Setting.P, []ReplicaID{"c"}) }},
		{"a silent stream is not admitted", func(v *View) {
			v.Streams[0].Silent = 10 * time.Second
			v.Local.Sync.P, v.Record.State.Setting.P = []ReplicaID{"c"}, []ReplicaID{"c"}
			v.Record.State.V = []Member{{"c", "C"}}
		}, func(s SyncStep) bool {
			return s.Set == nil && (s.State == nil || !slices.Contains(s.State.Setting.P, "b"))
		}},
		{"a refused endpoint is enough after a second", func(v *View) {
			v.Streams[0] = Stream{Member: "b", Copy: "B", Refused: true, Silent: RefusedTimeout}
		}, func(s SyncStep) bool { return s.State != nil && len(s.State.Setting.P) == 1 }},
		{"a member that says its copy is gone is waited for no longer", func(v *View) {
			v.Streams[0] = Stream{Member: "b", Copy: "B", Gone: true}
		}, func(s SyncStep) bool {
			return s.State != nil && slices.Equal(s.State.Setting.P, []ReplicaID{"c"}) && len(s.State.V) == 2 && s.State.K == 1
		}},
		{"and streams all the same", func(v *View) { v.Streams[0].Gone = true }, func(s SyncStep) bool { return s == SyncStep{} }},
		{"and is required: it leaves the record, with one acknowledgement fewer promised", func(v *View) { requiredGone(v) }, func(s SyncStep) bool {
			return s.State != nil && s.State.K == 1 && slices.Equal(s.State.V, []Member{{"c", "C"}}) && len(s.State.Setting.P) == 2
		}},
		{"and has left the record: it is not counted again", func(v *View) {
			requiredGone(v)
			v.Record.State.V, v.Record.State.K = []Member{{"c", "C"}}, 1
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil && s.Because != "" }},
		{"its copy is gone, and nobody streams with whom a setting could be proven", func(v *View) {
			v.Streams = []Stream{{Member: "b", Copy: "B", Gone: true}, {Member: "c", Copy: "C"}}
			v.Local.Sync = Sync{P: []ReplicaID{"c"}, N: 1}
			v.Record.State.Setting = v.Local.Sync.Setting()
		}, func(s SyncStep) bool {
			return s.State != nil && s.State.K == 0 && slices.Equal(s.State.V, []Member{{"c", "C"}})
		}},
		{"joint drop: the record first when every member is waited for", func(v *View) {
			v.Group.CommitRule, v.Record.State.K, v.Local.Sync.N = RuleAll, 2, 2
			v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: time.Hour}
			v.Group.Required = new(int)
		}, func(s SyncStep) bool {
			return s.State != nil && s.State.K == 1 && slices.Equal(s.State.V, []Member{{"c", "C"}})
		}},
		{"when all are lost and one is required, whoever comes back first will do", func(v *View) {
			v.Streams = []Stream{{Member: "b", Copy: "B", Silent: time.Hour}, {Member: "c", Copy: "C", Silent: time.Hour}}
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil && s.Because != "" }},
		{"of a new primary's members none has come yet", func(v *View) { promotedAlone(v, FirstMemberTimeout-1) }, func(s SyncStep) bool {
			return s.State == nil && s.Set == nil && s.Because != ""
		}},
		{"none has come within 3 s: degraded, on the record first", func(v *View) { promotedAlone(v, FirstMemberTimeout) }, func(s SyncStep) bool {
			return s.Set == nil && s.State != nil && s.State.K == 0 && s.State.Setting.N == 0
		}},
		{"those that say they have no copy of this cluster are not waited for: degraded at once, on the record first", func(v *View) {
			promotedAlone(v, 0)
			v.Streams[0].Bare, v.Streams[1].Bare = true, true
		}, func(s SyncStep) bool {
			return s.Set == nil && s.State != nil && s.State.K == 0 && s.State.Setting.N == 0
		}},
		{"one says so: the other is waited for", func(v *View) {
			promotedAlone(v, 0)
			v.Streams[0].Bare = true
		}, func(s SyncStep) bool { return s.State != nil && s.State.Setting.Same(Setting{[]ReplicaID{"c"}, 1}) }},
		{"they say so, and one is required", func(v *View) {
			promotedAlone(v, 0)
			one := 1
			v.Group.Required = &one
			v.Streams[0].Bare, v.Streams[1].Bare = true, true
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil && s.Because != "" }},
		{"one says so that the epoch started with: what V says of it stays", func(v *View) {
			first := v.Record.State.V
			promotedAlone(v, 0)
			v.Record.State.V, v.Record.State.K, v.Local.Opened = first, 1, 0
			v.Streams[0].Bare, v.Streams[1].Bare = true, true
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil && s.Because != "" }},
		{"one says so whose stream is open", func(v *View) { v.Streams[0].Bare = true }, func(s SyncStep) bool { return s == SyncStep{} }},
		{"nor any of those whom the epoch started with", func(v *View) {
			first := v.Record.State.V
			promotedAlone(v, FirstMemberTimeout)
			v.Record.State.V, v.Record.State.K, v.Local.Opened = first, 1, 0
		}, func(s SyncStep) bool {
			return s.Set == nil && s.State != nil && s.State.K == 0 && s.State.Setting.N == 0
		}},
		{"and not while one is required", func(v *View) {
			promotedAlone(v, time.Hour)
			one := 1
			v.Group.Required = &one
		}, func(s SyncStep) bool { return s.State == nil && s.Set == nil }},
		{"one has come: the other is given half a second", func(v *View) {
			promotedAlone(v, FirstStreamTimeout)
			v.Streams[1] = Stream{Member: "c", Copy: "C", Open: true, Close: true, Flush: 200}
		}, func(s SyncStep) bool { return s.State != nil && s.State.Setting.Same(Setting{[]ReplicaID{"c"}, 1}) }},
		{"an agent that took a primary over records nothing before the proof", func(v *View) {
			v.Local.Attached, v.Local.Sync.Proven = true, false
			v.Record.State.Setting = Setting{[]ReplicaID{"c"}, 1}
		}, func(s SyncStep) bool { return s.Prove }},
		{"nor while nobody streams with whom to prove it", func(v *View) {
			v.Local.Attached, v.Local.Sync.Proven = true, false
			v.Record.State.Setting = Setting{[]ReplicaID{"c"}, 1}
			v.Streams = []Stream{{Member: "b", Copy: "B"}, {Member: "c", Copy: "C"}}
		}, func(s SyncStep) bool {
			return s.State == nil && s.Set == nil && !s.Prove && strings.Contains(s.Because, "waiting for one of b, c to stream")
		}},
		{"but degrades when all are lost", func(v *View) {
			v.Local.Attached, v.Local.Sync.Proven = true, false
			v.Group.Required = new(int)
			v.Streams = []Stream{{Member: "b", Copy: "B", Silent: time.Hour}, {Member: "c", Copy: "C", Silent: time.Hour}}
		}, func(s SyncStep) bool { return s.State != nil && s.State.K == 0 && s.State.Setting.N == 0 }},
		{
			"another copy counts for nothing", func(v *View) { v.Streams[0].Copy = "B2" },
			func(s SyncStep) bool {
				return s.State != nil && s.State.K == 0 && slices.Equal(s.State.V, []Member{{"c", "C"}})
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := leading()
			tt.edit(&v)
			if s := NextSync(&v); !tt.check(s) {
				t.Errorf("NextSync = %+v (state %+v)", s, s.State)
			}
		})
	}
}

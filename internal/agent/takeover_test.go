package agent_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// A dead node whose death the network shows is replaced once no answer of it can be on its way, not after a silence of
// O.
func TestKilledPrimaryIsReplacedByVotes(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		answers, was, at := l.agents["a"].Gate(), l.epoch(), boottime.Now()
		l.kill("a")
		l.wait("the epoch is claimed", 2*time.Second, func() bool { return l.epoch() > was })
		if now := boottime.Now(); now < answers {
			t.Errorf("claimed at %v, and answers may leave until %v", now, answers)
		}
		next := l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > 800*time.Millisecond {
			t.Errorf("%s took %v", next, took)
		}
		l.write(next)
		l.start("a")
		l.formed(next, time.Minute)
		l.write(next)
	})
}

// The synchronous setting of the coming epoch is put before the servers of those that may be promoted while votes are
// waited for: the promotion need not put it there.
func TestSettingIsThereBeforeTheClaim(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was := l.epoch()
		l.kill("a")
		l.wait("the epoch is claimed", 2*time.Second, func() bool { return l.epoch() > was })
		for _, id := range []ag.ReplicaID{"b", "c"} {
			l.Node(id).Fail("set-sync", errors.New("no setting is taken after the claim"))
		}
		next := l.leader(10*time.Second, "a")
		l.write(next)
	})
}

// A vote, a claim or a choice that was decided by another configuration than the present one is void. It is decided
// again at once, so that a configuration that changes again and again costs no silence.
func TestTakeoverWhileTheConfigurationChanges(t *testing.T) {
	const changes = 5
	inBubble(t, func(l *lab) {
		l.write("a")
		changed := agenttest.Fault{Before: func() { l.Record.SetGroup(func(*ag.Group) {}) }}
		before := map[ag.ReplicaID]int{}
		for _, id := range []ag.ReplicaID{"b", "c"} {
			before[id] = l.Node(id).Store.Calls("commit")
			l.Node(id).Store.Inject("commit", slices.Repeat([]agenttest.Fault{changed}, changes)...)
		}
		was, at := l.epoch(), boottime.Now()
		l.kill("a")
		l.wait("the epoch is claimed", 3*time.Second, func() bool { return l.epoch() > was })
		for id, n := range before {
			if n = l.Node(id).Store.Calls("commit") - n; n <= changes {
				t.Errorf("%s has tried %d changes of the record: one took effect under another configuration than it was decided by", id, n)
			}
		}
		next := l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > 1500*time.Millisecond {
			t.Errorf("%s took %v", next, took)
		}
		l.write(next)
	})
}

func TestVotesNeedFast(t *testing.T) {
	for name, set := range map[string]func(*ag.Group){
		"strict detection": func(g *ag.Group) { g.Options.FailureDetection = ag.DetectStrict },
		"strict barrier":   func(g *ag.Group) { g.Options.CommitBarrier = ag.BarrierStrict },
		"one vote":         func(g *ag.Group) { g.Replicas[1].Voter, g.Replicas[2].Voter = false, false },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.Record.SetGroup(set)
				time.Sleep(2 * time.Second)
				if g, lease := l.agents["a"].Gate(), l.agents["a"].LeaseUntil(); g != lease {
					t.Errorf("the gate is open until %v, the lease until %v: no answer lease is wanted", g, lease)
				}
				at := boottime.Now()
				l.kill("a")
				l.wait("b or c leads", 20*time.Second, func() bool { return l.leads("b") || l.leads("c") })
				if took := boottime.Now() - at; took < ag.Profiles["default"].Lease {
					t.Errorf("replaced after %v, within the lease", took)
				}
			})
		})
	}
}

// A firewall that refuses everything around the primary, both ways, looks like its death. It is replaced, and by then
// it holds its answers.
func TestRejectedPrimaryHoldsItsAnswers(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		for _, id := range []ag.ReplicaID{"b", "c"} {
			l.Reject("a", id, true)
			l.Reject(id, "a", true)
		}
		was := l.epoch()
		l.wait("the epoch is claimed", 2*time.Second, func() bool {
			claimed := l.epoch() > was
			if g := l.agents["a"].Gate(); claimed && g > boottime.Now() {
				t.Errorf("the old primary answers until %v", g)
			}
			return claimed
		})
		next := l.leader(5*time.Second, "a")
		l.write(next)
		for _, id := range []ag.ReplicaID{"b", "c"} {
			l.Reject("a", id, false)
			l.Reject(id, "a", false)
		}
		l.formed(next, time.Minute)
	})
}

// One voter's view is not a majority. Its vote is taken back when it gets a heartbeat of the primary again, and only
// then does it acknowledge.
func TestOneSidedRejectChangesNothing(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		votes := func() []ag.Vote { return l.Record.Snapshot().Record.Votes }
		l.Reject("b", "a", true)
		l.Reject("a", "b", true)
		l.wait("b votes", 3*time.Second, func() bool { return len(votes()) == 1 && votes()[0].Member == "b" })
		time.Sleep(20 * time.Second)
		if l.epoch() != was {
			t.Fatal("deposed by one voter of three")
		}
		l.write("a")
		l.Reject("b", "a", false)
		l.Reject("a", "b", false)
		l.wait("b takes its vote back", 5*time.Second, func() bool { return len(votes()) == 0 })
		l.write("a")
		if n := len(l.Node("a").State().Fences); n != 0 || l.epoch() != was {
			t.Errorf("%d fences, epoch %d", n, l.epoch())
		}
	})
}

// While only one other voter acknowledges, the answer lease rests on it; without any the gate shuts, and opens again.
func TestAnswerLeaseNeedsAMajority(t *testing.T) {
	inBubble(t, func(l *lab) {
		a := l.agents["a"]
		l.Cut("a", "b", true)
		time.Sleep(2 * time.Second)
		if a.Gate() < boottime.Now() {
			t.Error("shut with one voter of two in reach")
		}
		l.Cut("a", "c", true)
		time.Sleep(ag.Profiles["default"].Answer + 10*time.Millisecond)
		if g := a.Gate(); g > boottime.Now() {
			t.Errorf("open until %v with no voter in reach", g)
		}
		if s := l.Node("a").State(); !s.Running || s.Recovery {
			t.Error("the end of an answer lease fenced the server")
		}
		l.Cut("a", "b", false)
		l.Cut("a", "c", false)
		l.wait("the gate opens again", time.Second, func() bool { return a.Gate() > boottime.Now() })
		l.write("a")
	})
}

func TestResetStreamsAreNoEvidence(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		for range 20 {
			l.Reset("a", "b")
			l.Reset("a", "c")
			l.write("a")
			time.Sleep(time.Second)
		}
		r := l.Record.Snapshot().Record
		if r.Epoch.Epoch != was || len(r.Votes) != 0 || len(l.Node("a").State().Fences) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// An agent that begins acknowledges nothing until it has undone what an earlier one voted: that one may have voted in
// this very epoch.
func TestVoteOfAnEarlierAgentIsVoid(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Reject("b", "a", true)
		l.Reject("a", "b", true)
		votes := func() []ag.Vote { return l.Record.Snapshot().Record.Votes }
		l.wait("b votes", 3*time.Second, func() bool { return len(votes()) == 1 })
		l.kill("b")
		l.Reject("b", "a", false)
		l.Reject("a", "b", false)
		l.Cut("a", "c", true)
		l.Node("b").Store.Cut(true)
		l.agents["b"] = nil
		b := l.start("b") // it cannot undo the vote: its way to the record is cut
		time.Sleep(2 * time.Second)
		if g := l.agents["a"].Gate(); g > boottime.Now() {
			t.Errorf("the gate is open until %v on the word of a voter whose vote stands", g)
		}
		l.Node("b").Store.Cut(false)
		l.wait("the vote is void and the gate open", 10*time.Second, func() bool { return len(votes()) == 0 && l.agents["a"].Gate() > boottime.Now() })
		_ = b
		l.Cut("a", "c", false)
		l.write("a")
	})
}

// The death of the new primary, at any moment after it leads, loses nothing that either acknowledged.
func TestDoubleFailover(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				l.kill("a")
				next := l.leader(10*time.Second, "a")
				time.Sleep(after)
				_ = l.WriteWithin(next, after)
				l.kill(next)
				l.start("a")
				third := l.leader(time.Minute, next)
				l.start(next)
				l.formed(third, time.Minute)
				l.write(third)
			})
		})
	}
}

// The new primary dies as soon as the record says that it leads, before any member streams from it, and never comes
// back. A member that was sealed with it has everything, and leads.
func TestPrimaryDiesAsItLeads(t *testing.T) {
	for _, planned := range []bool{false, true} {
		inBubble(t, func(l *lab) {
			l.write("a")
			time.Sleep(time.Second) // all stand at the same position
			was := l.epoch()
			if planned {
				l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: was})
			} else {
				l.kill("a")
			}
			l.wait("somebody leads", 30*time.Second, func() bool {
				e := l.Record.Snapshot().Record.Epoch
				return e.Epoch > was && e.Phase == ag.PhaseLead
			})
			next := l.Record.Snapshot().Record.Epoch.Leader
			l.kill(next)
			past := l.Record.Past()
			i := slices.IndexFunc(past, func(r ag.Record) bool { return r.Epoch.Epoch > was && r.Epoch.Phase == ag.PhaseLead })
			if r := past[i]; r.State.K != 1 {
				t.Errorf("planned: %t; the record says when %s begins to lead: %+v", planned, next, r)
			}
			if !planned {
				l.start("a")
			}
			l.write(l.leader(time.Minute, next))
		})
	}
}

// A member that acknowledges twice: answers are held until both walsenders are gone and the setting is proven anew
// (docs/internals/safety.md, "Streams").
func TestDoubledMemberHoldsAnswers(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		n := l.Node("a")
		n.Fail("end-walsenders", errors.New("no answer"))
		n.Double("b")
		l.wait("answers are held", 3*time.Second, func() bool { return l.agents["a"].Gate() <= boottime.Now() })
		for range 200 {
			time.Sleep(10 * time.Millisecond)
			if l.agents["a"].Gate() > boottime.Now() {
				t.Fatal("answers leave while a member acknowledges twice")
			}
		}
		n.Fail("end-walsenders", nil)
		l.wait("answers leave again", 10*time.Second, func() bool { return l.agents["a"].Gate() > boottime.Now() })
		if v := l.agents["a"].View(); !v.Local.Sync.Proven || len(v.Local.Doubled) != 0 {
			t.Errorf("%+v", v.Local)
		}
		l.write("a")
		if f := n.State().Fences; len(f) != 0 {
			t.Errorf("fenced: %v", f)
		}
	})
}

// A walsender in a member's name that no agent opened is noticed within a tenth of a second. If it ends before the loop
// sees it, answers are held all the same until the setting is proven anew.
func TestStrayWalsenderHoldsAnswers(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		n := l.Node("a")
		time.Sleep(time.Second)
		barrier := l.agents["a"].View().Local.Sync.Barrier
		n.Fail("end-walsenders", errors.New("no answer"))
		n.Double("b")
		time.Sleep(110 * time.Millisecond)
		if l.agents["a"].Gate() > boottime.Now() {
			t.Error("answers leave a tenth of a second after the stray began")
		}
		n.Fail("end-walsenders", nil)
		if err := n.Instance().EndWalsenders(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		l.wait("answers leave again", 10*time.Second, func() bool { return l.agents["a"].Gate() > boottime.Now() })
		if v := l.agents["a"].View(); !v.Local.Sync.Proven || v.Local.Sync.Barrier <= barrier {
			t.Errorf("the setting was not proven anew: %+v, barrier before %s", v.Local.Sync, barrier)
		}
		l.write("a")
	})
}

// A promotion that was begun and did not come to lead may have written, even if the files do not show it: the copy is
// rewound (docs/internals/safety.md, "Timelines").
func TestBegunPromotionIsDiverged(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		for _, id := range []ag.ReplicaID{"b", "c"} {
			l.Node(id).Fail("promote", errors.New("no space left on device"))
		}
		l.kill("a")
		l.wait("somebody began a promotion", 5*time.Second, func() bool {
			for _, id := range []ag.ReplicaID{"b", "c"} {
				if m, err := marks.Open(l.dirs[id]).Promoting(); err == nil && m.TLI != 0 {
					return true
				}
			}
			return false
		})
		began := l.Record.Snapshot().Record.Epoch.Leader
		other := map[ag.ReplicaID]ag.ReplicaID{"b": "c", "c": "b"}[began]
		l.Node(other).Fail("promote", nil)
		l.wait(string(other)+" leads", time.Minute, func() bool { return l.leads(other) })
		l.wait(string(began)+" is rewound", time.Minute, func() bool { return l.Node(began).State().Rewinds > 0 })
		l.wait(string(began)+" is counted", time.Minute, func() bool { return l.counted(began) })
		if m, err := marks.Open(l.dirs[began]).Promoting(); err != nil || m.TLI != 0 {
			t.Errorf("%+v, %v", m, err)
		}
		l.write(other)
	})
}

// A promotion that makes no progress is outbid, also by a candidate that is not better; one that replays for long is
// not.
func TestHungPromotionIsOutbid(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("b").Stall("promote", true)
		l.Node("c").Fail("promote", errors.New("no space left on device"))
		l.kill("a")
		l.wait("somebody is to be promoted", 5*time.Second, func() bool { return l.Record.Snapshot().Record.Epoch.Phase == ag.PhasePromote })
		first := l.Record.Snapshot().Record.Epoch
		l.wait("another bids more", 30*time.Second, func() bool { return l.epoch() > first.Epoch })
		l.Node("b").Stall("promote", false)
		l.Node("c").Fail("promote", nil)
		next := l.leader(time.Minute, "a")
		l.write(next)
		l.start("a")
		l.formed(next, time.Minute)
	})
}

// The start of a server may take long, and the loop continues meanwhile: the member to be promoted reports its
// progress, and no member outbids it.
func TestSlowStartIsNotOutbid(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Cut("a", "c", true)
		l.write("a") // so that b is ahead of c
		before := l.epoch()
		b := l.Node("b")
		b.Before("start", func() { time.Sleep(20 * time.Second) })
		b.Crash()
		l.wait("b's server is being started", 5*time.Second, func() bool { return l.agents["b"].View().Busy == "start" })
		l.kill("a")
		l.leader(time.Minute, "a", "c")
		if now := l.epoch(); now != before+1 {
			t.Errorf("epoch %d after %d: it was outbid while its server started", now, before)
		}
		l.write("b")
	})
}

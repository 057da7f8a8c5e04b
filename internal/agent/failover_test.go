package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

func TestGroupForms(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		for _, id := range []ag.ReplicaID{"b", "c"} {
			if s := l.Node(id).State(); s.Seeds != 1 || !s.Receiving || s.Position != l.Node("a").State().Position {
				t.Errorf("%s: %+v", id, s)
			}
		}
		if f := l.Node("a").State().Fences; len(f) > 1 {
			t.Errorf("fenced while forming: %v", f)
		}
	})
}

func TestSilentPrimaryIsReplaced(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		cut := boottime.Now()
		l.Isolate("a", true)
		next := l.leader(15*time.Second, "a")
		if took := boottime.Now() - cut; took < ag.Profiles["default"].Lease {
			t.Errorf("replaced after %v, within the lease", took)
		}
		if s := l.Node("a").State(); s.Running && !s.Recovery {
			t.Error("the old primary still takes writes")
		}
		l.write(next)
		l.Isolate("a", false)
		l.wait("a streams again", time.Minute, func() bool { return l.Node("a").State().Receiving })
		l.formed(next, time.Minute)
		l.write(next)
	})
}

func TestGateShutsAtTheDeadline(t *testing.T) {
	inBubble(t, func(l *lab) {
		a := l.agents["a"]
		l.Node("a").Store.Cut(true)
		time.Sleep(2 * time.Second) // all messages under way have arrived
		deadline := a.LeaseUntil()
		time.Sleep(boottime.Until(deadline) - time.Millisecond)
		l.write("a")
		if g := a.Gate(); g != deadline {
			t.Errorf("the gate is open until %v, the lease until %v", g, deadline)
		}
		time.Sleep(time.Millisecond)
		if boottime.Now() < a.Gate() {
			t.Error("the gate is open past the deadline")
		}
		if s := l.Node("a").State(); s.Running && !s.Recovery {
			time.Sleep(time.Millisecond)
			if s := l.Node("a").State(); s.Running && !s.Recovery {
				t.Error("the keeper let the server live past the deadline")
			}
		}
		l.leader(15*time.Second, "a")
	})
}

func TestStoreAnswersLateOrNever(t *testing.T) {
	late, lost := agenttest.Fault{Late: 700 * time.Millisecond}, agenttest.Fault{LoseReply: true}
	inBubble(t, func(l *lab) {
		s := l.Node("a").Store
		s.Inject("renew", late, lost, late, late, lost)
		s.Inject("read", late, lost, late)
		s.Inject("status", lost, lost)
		for range 20 {
			l.write("a")
			time.Sleep(500 * time.Millisecond)
		}
		if f := l.Node("a").State().Fences; len(f) != 0 {
			t.Errorf("fenced: %v", f)
		}
		for _, id := range []ag.ReplicaID{"b", "c"} { // claim, choice and lead
			l.Node(id).Store.Inject("commit", lost, late, lost, lost)
			l.Node(id).Store.Inject("renew", lost, late)
		}
		l.Isolate("a", true)
		l.write(l.leader(30*time.Second, "a"))
	})
}

func TestCrashedServerIsReplacedWithoutSilence(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		at := boottime.Now()
		l.Node("a").Crash()
		next := l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > 2*time.Second {
			t.Errorf("%s took %v", next, took)
		}
		l.write(next)
		l.formed(next, time.Minute)
		for _, f := range l.Node("a").State().Fences {
			t.Errorf("the standby was fenced: %s", f)
		}
	})
}

func TestForcedFailoverDeposesAPrimaryWithinItsLease(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "b", Epoch: l.epoch()})
		l.wait("a is fenced", time.Second, func() bool { return len(l.Node("a").State().Fences) > 0 })
		if g := l.agents["a"].Gate(); g > boottime.Now() {
			t.Error("the gate of the deposed primary is open")
		}
		l.leader(5*time.Second, "a", "c")
		l.formed("b", time.Minute)
	})
}

// startWhileSeeding starts the group: b is synchronized, and the copy of c does not end until its stall does.
func (l *lab) startWhileSeeding() {
	l.Helper()
	l.Node("c").Stall("seed", true)
	for _, id := range l.ids {
		l.start(id)
	}
	l.wait("b is synchronized and c is being seeded", time.Minute, func() bool {
		s := l.Record.Snapshot().Record.State
		return len(s.V) == 1 && s.K == 1 && l.Node("c").State().Seeds == 1 && l.leads("a")
	})
}

// TestForcedFailoverIsRefused: a target that has nothing to lead with ends the request. It does not carry it out later,
// when its copy is whole and nobody expects it any more.
func TestForcedFailoverIsRefused(t *testing.T) {
	inBubbleUnformed(t, func(l *lab) {
		l.startWhileSeeding()
		was := l.epoch()
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "c", Epoch: was})
		l.wait("the request is ended", time.Minute, func() bool { return l.Record.Snapshot().OpRev == 0 })
		l.wait("c says why", time.Minute, func() bool {
			o := l.Record.Snapshot().Statuses["c"].HandOver
			return o != nil && o.Op == "1" && o.Refused && strings.Contains(o.Error, "data directory is")
		})
		l.Node("c").Stall("seed", false)
		l.formed("a", time.Minute)
		if l.epoch() != was {
			t.Errorf("epoch %d, and it was %d", l.epoch(), was)
		}
	})
}

func TestForeignSettingFences(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("a")
		n.Fail("fence", errors.New("the keeper is busy"))
		n.SetSyncByHand(nil, 0)
		l.wait("the gate shuts", time.Second, func() bool { return l.agents["a"].Gate() <= boottime.Now() })
		shut := boottime.Now()
		for n.State().Armed != 0 {
			if l.agents["a"].Gate() > boottime.Now() {
				t.Fatal("the gate of a server that is being fenced opened again")
			}
			if boottime.Now()-shut > ag.Profiles["default"].Lease {
				t.Fatal("the deadline of a server that is being fenced moved on")
			}
			time.Sleep(time.Millisecond)
		}
		n.Fail("fence", nil)
		l.write(l.leader(20 * time.Second))
	})
}

// A setting that another program wrote and that is not in force yet is replaced, before anybody's reload can put it in
// force, and nothing is fenced.
func TestForeignSettingInTheFileIsReplaced(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("a")
		for _, w := range []ag.Sync{{}, {N: -1}, {P: []ag.ReplicaID{"z"}, N: 1}} {
			n.WriteSyncByHand(w.P, w.N)
			l.wait("it is replaced", 2*time.Second, func() bool { return !n.SyncWrittenByHand() })
			l.wait("the setting is proven", 10*time.Second, func() bool { return l.agents["a"].View().Local.Sync.Proven })
			l.write("a")
		}
		if f := n.State().Fences; len(f) != 0 {
			t.Errorf("fenced: %v", f)
		}
	})
}

// A foreign setting is noticed while a planned failover waits for transactions, too.
func TestForeignSettingFencesInADrain(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("a")
		n.Busy(1)
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: l.epoch()})
		l.wait("the drain", 10*time.Second, func() bool { return l.agents["a"].View().Busy == "hand-over" })
		time.Sleep(2 * time.Second)
		if l.agents["a"].View().Busy != "hand-over" {
			t.Fatal("the planned failover does not wait")
		}
		n.SetSyncByHand(nil, 0)
		l.wait("the gate shuts", 1500*time.Millisecond, func() bool { return len(n.State().Fences) > 0 })
	})
}

// A setting whose outcome is not known is not taken for a foreign one: the primary lives on, and no record rests on it.
func TestSettingOfUnknownOutcome(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("a")
		n.Fail("set-sync", agenttest.ErrAfterEffect)
		l.Cut("a", "c", true)
		for range 40 {
			time.Sleep(time.Second)
			_ = l.WriteWithin("a", 100*time.Millisecond)
			if s := l.Record.Snapshot().Record.State; s.K > 1 {
				t.Fatalf("recorded %+v", s)
			}
		}
		n.Fail("set-sync", nil)
		l.Cut("a", "c", false)
		l.formed("a", time.Minute)
		l.write("a")
		if f := n.State().Fences; len(f) != 0 {
			t.Errorf("fenced: %v", f)
		}
	})
}

func TestShutdownReleases(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		at := boottime.Now()
		l.stop("a")
		if s := l.Node("a").State(); s.Running || len(s.Fences) != 0 {
			t.Errorf("%+v", s)
		}
		next := l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > 2*time.Second {
			t.Errorf("%s took %v", next, took)
		}
		l.write(next)
		l.start("a")
		l.formed(next, time.Minute)
		if s := l.Node("a").State(); s.Rewinds+s.Seeds != 0 {
			t.Errorf("a clean stop needs no repair: %+v", s)
		}
	})
}

func TestWholeGroupRestarts(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		for _, id := range []ag.ReplicaID{"b", "c", "a"} {
			l.stop(id)
		}
		for _, id := range l.ids {
			l.start(id)
		}
		next := l.leader(30 * time.Second)
		l.formed(next, time.Minute)
		l.write(next)
	})
}

func TestTaskEndsWithItsEpoch(t *testing.T) {
	inBubbleUnformed(t, func(l *lab) {
		l.startWhileSeeding()
		l.Isolate("a", true)
		l.wait("b has the rights", 20*time.Second, func() bool {
			e := l.Record.Snapshot().Record.Epoch
			return e.Leader == "b" && e.Phase == ag.PhaseLead
		})
		l.wait("c seeds from the new primary", 5*time.Second, func() bool { return l.Node("c").State().Seeds > 1 })
		l.Node("c").Stall("seed", false)
		l.Isolate("a", false)
		l.formed("b", time.Minute)
	})
}

// The renewal under way when the new primary takes its rights is refused, because the epoch's key has changed. The node
// itself changed it, so that is not a reason to fence.
func TestTakingTheRightsOvertakesARenewal(t *testing.T) {
	inBubble(t, func(l *lab) {
		for _, id := range []ag.ReplicaID{"b", "c"} {
			n := l.Node(id)
			n.Before("history", func() {
				late := agenttest.Fault{Late: 20 * time.Millisecond} // the commit falls between two reads, the renewal into the second
				n.Store.Inject("renew", agenttest.Fault{Late: 30 * time.Millisecond})
				for was := n.Store.Calls("renew"); n.Store.Calls("renew") == was; {
					time.Sleep(time.Millisecond)
				}
				n.Store.Inject("read", late, late, late, late)
			})
		}
		l.Node("a").Crash()
		next := l.leader(20*time.Second, "a")
		time.Sleep(time.Second)
		if f := l.Node(next).State().Fences; len(f) != 0 {
			t.Errorf("fenced: %v", f)
		}
	})
}

func TestSilentKeeperIsNoDeadServer(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		l.Node("a").Fail("status", errors.New("no answer"))
		time.Sleep(3 * time.Second)
		l.write("a")
		l.Node("a").Fail("status", nil)
		time.Sleep(3 * time.Second)
		if s := l.Node("a").State(); l.epoch() != was || len(s.Fences) != 0 {
			t.Errorf("epoch %d after %d, %+v", l.epoch(), was, s)
		}
	})
}

// PostgreSQL keeps the sessions of a standby over its promotion, and they can write from then on. They are ended before
// the promotion, and no byte of the server reaches a client before the node leads and has opened.
func TestNoAnswerBetweenPromotionAndOpening(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Record.SetGroup(func(g *ag.Group) {
			g.Replicas[2].AvailabilityMode, g.Replicas[2].FailoverMode = ag.AsynchronousCommit, ag.Manual
		})
		l.wait("only b is waited for", time.Minute, func() bool { return l.counted("b") && !l.counted("c") })
		l.write("a")
		b, looked := l.Node("b"), false
		b.Before("promote", func() {
			s := b.State()
			if !s.Routes.Promoting || !slices.ContainsFunc(s.Events, func(e string) bool { return strings.HasPrefix(e, "close readers: this replica was chosen") }) {
				t.Errorf("the promotion begins, and readers stay: %+v, %q", s.Routes, s.Events)
			}
		})
		b.Before("history", func() {
			looked = true
			time.Sleep(300 * time.Millisecond) // until heartbeats of the new epoch are acknowledged
			if phase := l.Record.Snapshot().Record.Epoch.Phase; phase != ag.PhasePromote {
				t.Errorf("the phase is %s", phase)
			}
			if err := l.WriteWithin("b", time.Second); err == nil {
				t.Error("a commit was acknowledged before the record says that b leads")
			}
		})
		l.kill("a")
		if id := l.leader(30*time.Second, "a"); id != "b" || !looked {
			t.Fatalf("%s leads; looked: %t", id, looked)
		}
		l.write("b")
	})
}

// forceB makes the leader a hear of nothing in the store, and an operator force a failover to b. It returns when b's
// gate is open, and fails if a's is then.
func (l *lab) forceB(now bool) (took time.Duration, both bool) {
	l.Helper()
	l.write("a")
	l.lossy = true
	l.Node("a").Store.Cut(true)
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "b", Epoch: l.epoch(), Now: now})
	for end := begin.Add(time.Minute); !l.leads("b"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("b does not open: %+v", l.agents["b"].Plan())
		}
	}
	for took = time.Since(begin); time.Since(begin) < 10*time.Second; time.Sleep(time.Millisecond) {
		both = both || l.agents["a"].Gate() > boottime.Now()
	}
	return took, both
}

// A forced failover opens when the old leader, which has lost the store and not its voters, can answer nobody any more.
func TestForcedFailoverOpensWhenNobodyElseAnswers(t *testing.T) {
	for name, most := range map[ag.FailureDetection]time.Duration{ag.DetectFast: 2 * time.Second, ag.DetectStrict: 8 * time.Second} {
		t.Run(string(name), func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.Record.SetGroup(func(g *ag.Group) { g.Options.FailureDetection = name })
				time.Sleep(3 * time.Second)
				took, both := l.forceB(false)
				if both {
					t.Error("a answers after b has opened")
				}
				if took > most {
					t.Errorf("b opened after %v", took)
				}
			})
		})
	}
}

// An agent that begins in the epoch of a forced failover has not seen when that epoch began. It does not wait again:
// not after a restart in place, and not after its node was started again.
func TestForcedFailoverIsWaitedForOnce(t *testing.T) {
	for _, orderly := range []bool{false, true} {
		inBubble(t, func(l *lab) {
			l.Record.SetGroup(func(g *ag.Group) { g.Options.FailureDetection = ag.DetectStrict })
			time.Sleep(3 * time.Second)
			l.forceB(false)
			l.wait("the record says that a is over", 5*time.Second, func() bool { return l.Record.Snapshot().Record.Lead.Settled })
			at := time.Now()
			l.restart("b", 300*time.Millisecond)
			l.wait("b is open", 10*time.Second, func() bool { return l.leads("b") })
			if took := time.Since(at); took > 2*time.Second {
				t.Errorf("opened %v after a restart in place", took)
			}
			l.wait("the restart is over", 10*time.Second, func() bool { return !l.Record.Snapshot().Record.Lead.Restarting })
			l.kill("c")
			if orderly {
				l.stop("b")
			} else {
				l.kill("b")
			}
			l.start("b")
			l.wait("b leads another epoch", 30*time.Second, func() bool { r := l.Record.Snapshot().Record; return r.Epoch.Epoch > r.State.Epoch })
			if o := l.Record.Snapshot().Record.Epoch.Outgoing; o.Leader != "" {
				t.Errorf("%+v is waited for again", o)
			}
		})
	}
}

func TestForcedFailoverNow(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Record.SetGroup(func(g *ag.Group) { g.Options.FailureDetection = ag.DetectStrict })
		time.Sleep(3 * time.Second)
		took, both := l.forceB(true)
		if took > time.Second || !both {
			t.Errorf("b opened after %v; a answered meanwhile: %v", took, both)
		}
		if e := l.Record.Snapshot().Record.Epoch; e.Outgoing.Leader != "a" || e.Outgoing.Wait < 5*time.Second || !e.Outgoing.Now {
			t.Errorf("the record does not say until when a may answer: %+v", e)
		}
		said := false
		for _, d := range l.agents["b"].Decisions() {
			said = said || strings.Contains(d.Because, "opened at once by an operator")
		}
		if !said {
			t.Error("no decision says so")
		}
	})
}

// A keeper that is stopped takes no deadline and fences nothing. Its node does not lead beyond the last deadline that
// the keeper took, and another replica takes over.
func TestStoppedKeeperEndsTheLeadership(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("a")
		for _, call := range []string{"extend", "fence", "status"} {
			n.Fail(call, errors.New("the keeper does not answer"))
		}
		l.wait("a's gate is shut", ag.Profiles["default"].Lease+time.Second, func() bool { return l.agents["a"].Gate() <= boottime.Now() })
		l.write(l.leader(30*time.Second, "a"))
		for _, call := range []string{"extend", "fence", "status"} {
			n.Fail(call, nil)
		}
	})
}

package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// plan requests a planned failover and waits until the request is closed.
func (l *lab) plan(to ag.ReplicaID) {
	l.Helper()
	l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: to, Epoch: l.epoch()})
	l.wait("the request is closed", time.Minute, func() bool { return l.Record.Snapshot().OpRev == 0 })
}

func TestPlannedFailover(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was, at := l.epoch(), boottime.Now()
		l.Node("a").Before("stop", func() { time.Sleep(100 * time.Millisecond) }) // as a server does
		l.plan("c")
		l.leader(5*time.Second, "a", "b")
		if took := boottime.Now() - at; took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		if e := l.epoch(); e != was+1 {
			t.Errorf("epoch %d after %d", e, was)
		}
		l.write("c")
		l.formed("c", time.Minute)
		l.wait("a streams", time.Minute, func() bool { return l.Node("a").State().Receiving })
		s := l.Node("a").State()
		if s.Rewinds+s.Seeds+len(s.Fences) != 0 || !s.Receiving || s.Armed != 0 {
			t.Errorf("the old primary did not just change sides: %+v", s)
		}
		var told []string
		for _, e := range s.Events[slices.Index(s.Events, "hold true"):] {
			if !strings.HasPrefix(e, "close local") && !strings.HasPrefix(e, "close older") { // no other member is left then
				told = append(told, e)
			}
		}
		if want := []string{"hold true", "drain true", "read states", "close server: planned failover to c", "drain false", "hold false"}; !slices.Equal(told, want) {
			t.Errorf("sessions were told %q", s.Events)
		}
		if ahead := slices.Index(s.Events, "read ahead"); ahead < 0 || ahead > slices.Index(s.Events, "hold true") {
			t.Errorf("the states of sessions were not read while they went on: %q", s.Events)
		}
		told = l.Node("c").State().Events
		moved := slices.Index(told, "continue readers")
		ended := slices.IndexFunc(told, func(e string) bool { return strings.HasPrefix(e, "close readers") })
		if moved < 0 || ended < moved {
			t.Errorf("the target's readers were told %q", told)
		}
	})
}

// A target whose readers do not leave in time is promoted all the same, and one that refuses to release them, too: they
// are ended as in any failover.
func TestPlannedFailoverWaitsLittleForReaders(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("c").Fail("release", errors.New("no such method"))
		l.plan("c")
		l.leader(5*time.Second, "a", "b")
		l.write("c")
		told := l.Node("c").State().Events
		if !slices.ContainsFunc(told, func(e string) bool { return strings.HasPrefix(e, "close readers") }) || slices.Contains(told, "continue readers") {
			t.Errorf("the target's readers were told %q", told)
		}
	})
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("c").StuckReaders(true)
		at := boottime.Now()
		l.plan("c")
		l.leader(5*time.Second, "a", "b")
		if took := boottime.Now() - at; took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		l.write("c")
	})
}

// A failover that is refused or fails before the server stops changes nothing: not even the server is restarted.
func TestPlannedFailoverAbandonedBeforeTheStop(t *testing.T) {
	for name, spoil := range map[string]func(l *lab){
		"target not counted": func(l *lab) {
			l.Cut("a", "c", true)
			l.wait("c is dropped", time.Minute, func() bool { return !l.counted("c") })
		},
		"checkpoint fails": func(l *lab) { l.Node("a").Fail("checkpoint", errors.New("no space")) },
		"target dies":      func(l *lab) { l.Node("a").Before("checkpoint", func() { l.stop("c") }) },
		"target's server dies": func(l *lab) {
			l.Node("a").Before("checkpoint", func() {
				l.Node("c").Fail("start", errors.New("no"))
				l.Node("c").Hang(true)
			})
		},
		"target cut off": func(l *lab) { l.Node("a").Before("checkpoint", func() { l.Cut("a", "c", true) }) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				was, starts := l.epoch(), l.Node("a").State().Starts
				spoil(l)
				at := boottime.Now()
				l.plan("c")
				if took := boottime.Now() - at; took > 5*time.Second {
					t.Errorf("took %v", took)
				}
				l.wait("a serves again", 15*time.Second, func() bool { return l.WriteWithin("a", time.Second) == nil && l.Node("a").State().Routes.WriteOpen })
				if e, s := l.epoch(), l.Node("a").State(); e != was || s.Starts != starts || len(s.Fences) != 0 {
					t.Errorf("epoch %d after %d, %+v", e, was, s)
				}
				if r := l.Node("a").State().Routes; r.Primary != "a" || !r.WriteOpen {
					t.Errorf("routes %+v", r)
				}
			})
		})
	}
}

// A secondary whose databases are not all online is refused as the target.
func TestPlannedFailoverToACopyWithoutADatabase(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		l.probes["c"].find(agent.Findings{Health: ag.Health{Database: "database shop is not online: its directory is gone"}, Offline: []string{"shop"}})
		l.wait("c says so", time.Minute, func() bool { return slices.Equal(l.Record.Snapshot().Statuses["c"].Offline, []string{"shop"}) })
		l.plan("c")
		if o := l.Record.Snapshot().Statuses["a"].HandOver; o == nil || !o.Refused || !strings.Contains(o.Error, "c is not ready: database shop is not online: its directory is gone; coterie replica seed c --full") {
			t.Errorf("the outcome is %+v", o)
		}
		if l.epoch() != was || !l.leads("a") {
			t.Errorf("epoch %d", l.epoch())
		}
	})
}

// After the stop the primary starts again where it stopped: same epoch, same timeline, no promotion. It lets no client
// read before its WAL is replicated.
func TestPlannedFailoverAbandonedAfterTheStop(t *testing.T) {
	for name, spoil := range map[string]func(l *lab){
		"target cut off":        func(l *lab) { l.Cut("a", "c", true) },
		"target dies":           func(l *lab) { l.stop("c") },
		"target's server hangs": func(l *lab) { l.Node("c").Hang(true) },
		"commit refused": func(l *lab) {
			l.Node("a").Store.Inject("commit", agenttest.Fault{Err: agenttest.ErrUnreachable})
		},
		"commit conflict": func(l *lab) { l.Node("a").Store.Inject("commit", agenttest.Fault{Err: agent.ErrConflict}) },
		"server hard to stop, commits refused": func(l *lab) {
			l.Node("a").Store.Inject("commit", agenttest.Fault{Err: agent.ErrConflict}, agenttest.Fault{Err: agent.ErrConflict})
		},
		"server hard to stop, target cut off": func(l *lab) {
			l.Cut("a", "c", true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				was, tli := l.epoch(), l.Node("a").State().Position.Timeline
				killed := strings.HasPrefix(name, "server hard to stop")
				if l.Node("a").Before("stop", func() { spoil(l) }); killed {
					l.Node("a").Fail("stop", agenttest.ErrAfterEffect)
				}
				l.plan("c")
				l.wait("a leads again", 20*time.Second, func() bool { return l.leads("a") && l.Node("a").State().Routes.WriteOpen })
				l.write("a")
				s := l.Node("a").State()
				if l.epoch() != was || s.Position.Timeline != tli || len(s.Fences) != 0 {
					t.Errorf("epoch %d after %d, timeline %d, %+v", l.epoch(), was, tli, s)
				}
				if o := l.Record.Snapshot().Statuses["a"].HandOver; o == nil || o.Error == "" || o.Refused {
					t.Errorf("the outcome is %+v", o)
				}
				if !slices.ContainsFunc(l.agents["a"].Decisions(), func(d decisions.Decision) bool {
					return d.GivenUp && d.Meaning() == "gave up a planned failover" && strings.HasPrefix(d.Because, "planned failover to c: given up, a leads again")
				}) {
					t.Error("its decisions do not say that it gave the failover up")
				}
				tls := l.Record.Snapshot().Record.State.Timelines
				if last := tls[len(tls)-1]; last.Reused != killed {
					t.Errorf("a server that was killed, or not, may give numbers of transactions again: %+v", last)
				}
				if name == "commit refused" || name == "commit conflict" {
					l.wait("c takes readers again", 10*time.Second, func() bool { own, told := l.readable("c"); return own && told })
				}
			})
		})
	}
}

// Started again, the primary stays shut until another has what it wrote.
func TestPrimaryStartedAgainWaitsForReplicas(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Before("stop", func() { l.Cut("a", "c", true) })
		l.Node("a").Before("start-primary", func() { l.Cut("a", "b", true) })
		l.plan("c")
		end := time.Now().Add(3 * time.Second)
		for time.Now().Before(end) {
			if l.Node("a").State().Routes.WriteOpen {
				t.Fatal("open, and nobody has what it wrote last")
			}
			time.Sleep(10 * time.Millisecond)
		}
		l.Cut("a", "b", false)
		l.wait("a is open", 20*time.Second, func() bool { return l.Node("a").State().Routes.WriteOpen })
		l.write("a")
	})
}

// A primary that cannot start again, or may not because the record is out of reach, leaves the leadership to the
// others.
func TestPlannedFailoverThatCannotBeUndone(t *testing.T) {
	for name, spoil := range map[string]func(l *lab){
		"server does not start": func(l *lab) {
			l.Cut("a", "c", true)
			l.Node("a").Fail("start-primary", errors.New("no memory"))
		},
		"quorum lost": func(l *lab) { l.Node("a").Store.Cut(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				l.Node("a").Before("stop", func() { spoil(l) })
				l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: "c", Epoch: l.epoch()})
				time.Sleep(10 * time.Second)
				l.Node("a").Store.Cut(false)
				l.write(l.leader(20 * time.Second))
				for _, f := range l.Node("a").State().Fences {
					t.Errorf("fenced: %s", f)
				}
			})
		})
	}
}

// Transactions have their time to end; then the failover is given up, with nothing changed, or they are ended.
func TestPlannedFailoverDrains(t *testing.T) {
	inBubble(t, func(l *lab) {
		n, was := l.Node("a"), l.epoch()
		n.Busy(2)
		at := time.Now()
		l.plan("c")
		if took := time.Since(at); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("given up after %v", took)
		}
		s := n.State()
		if o := l.Record.Snapshot().Statuses["a"].HandOver; o == nil || !strings.Contains(o.Error, "2 transactions still run after 10s") {
			t.Errorf("the outcome is %+v", o)
		}
		if l.epoch() != was || s.Starts != 1 || !s.Running || slices.ContainsFunc(s.Events, func(e string) bool { return strings.HasPrefix(e, "close server") }) {
			t.Errorf("epoch %d after %d, %+v", l.epoch(), was, s)
		}
		l.write("a")
		l.Record.SetOp(ag.Op{ID: "2", Kind: ag.OpPlanned, To: "c", Epoch: was, Drain: 2 * time.Second, Cut: true})
		l.leader(10*time.Second, "a", "b")
		if s := n.State(); !slices.Contains(s.Events, "cut busy: planned failover to c") {
			t.Errorf("%q", s.Events)
		}
	})
}

// If workers do not end, the primary continues.
func TestPlannedFailoverWithAWriterThatStays(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		l.Node("a").Fail("end-writers", errors.New("a background worker does not end"))
		l.plan("c")
		l.wait("a serves again", time.Second, func() bool { return l.Node("a").State().Routes.WriteOpen })
		l.write("a")
		if s := l.Node("a").State(); l.epoch() != was || s.Starts != 1 {
			t.Errorf("epoch %d after %d, %+v", l.epoch(), was, s)
		}
	})
}

// The target dies after it was named and before it leads: the old primary takes the leadership back, or the third does.
func TestTargetDiesBeforeItLeads(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was := l.epoch()
		l.Node("c").Stall("promote", true)
		l.plan("c")
		if e := l.Record.Snapshot().Record.Epoch; e.Leader != "c" || e.Phase != ag.PhasePromote {
			t.Fatalf("%+v", e)
		}
		l.kill("c")
		next := l.leader(15*time.Second, "c")
		l.write(next)
		if l.epoch() < was+2 {
			t.Errorf("epoch %d after %d", l.epoch(), was)
		}
		l.Node("c").Stall("promote", false)
		l.start("c")
		l.formed(next, time.Minute)
		l.write(next)
	})
}

// The target dies once it leads: an ordinary failover.
func TestTargetDiesOnceItLeads(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.plan("c")
		l.formed("c", time.Minute)
		l.write("c")
		l.kill("c")
		l.write(l.leader(20*time.Second, "c"))
	})
}

func TestPlannedFailoverOfUnknownOutcome(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Before("stop", func() { l.Node("a").Store.Inject("commit", agenttest.Fault{LoseReply: true}) })
		l.plan("c")
		l.leader(10*time.Second, "a", "b")
		l.formed("c", time.Minute)
		l.write("c")
		l.wait("a streams", time.Minute, func() bool { return l.Node("a").State().Receiving })
		if s := l.Node("a").State(); len(s.Fences)+s.Rewinds+s.Seeds != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestPlannedFailoverIsKnownToHaveHappened: the old primary may see the new epoch before the store has answered that it
// was written. It waits for that answer, and reports what is true.
func TestPlannedFailoverIsKnownToHaveHappened(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Before("stop", func() { l.Node("a").Store.Inject("commit", agenttest.Fault{Answers: time.Second}) })
		l.plan("c")
		if o := l.Record.Snapshot().Statuses["a"].HandOver; o == nil || o.Error != "" {
			t.Errorf("it is said of the failover: %+v", o)
		}
		l.leader(10*time.Second, "a", "b")
		l.formed("c", time.Minute)
		l.write("c")
	})
}

// A server that did not stop in order may have WAL that no other member has. It is taken over only with every
// acknowledged commit, and the next epoch does not start with its copy.
func TestPlannedFailoverWithAHardStop(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Fail("stop", agenttest.ErrAfterEffect)
		l.plan("c")
		l.Node("a").Fail("stop", nil)
		for _, r := range l.Record.Past() {
			if e := r.Epoch; e.K != 0 || len(e.V) != 0 {
				t.Errorf("%s of epoch %d starts with %v, %d", e.Phase, e.Epoch, e.V, e.K)
			}
		}
		l.formed(l.leader(30*time.Second), time.Minute)
	})
}

// While the hand-over checks the position of the target, no later commit may be acknowledged to a client.
func TestPlannedFailoverShutsTheGate(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("a").Before("stop", func() {
			if g := l.agents["a"].Gate(); g > boottime.Now() {
				t.Error("the gate is open while the server stops")
			}
			if err := l.WriteWithin("a", time.Second); err == nil {
				t.Error("a commit was acknowledged after the target's position was taken")
			}
		})
		l.plan("c")
		l.formed(l.leader(30*time.Second), time.Minute)
	})
}

// Until the gate is shut the primary serves as before, however long the checkpoint takes.
func TestPlannedFailoverServesWhileItPrepares(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("a").Before("checkpoint", func() {
			for range 20 {
				l.write("a")
				if r := l.Node("a").State().Routes; !r.WriteOpen {
					t.Error("closed during the checkpoint")
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		l.plan("c")
		l.leader(5*time.Second, "a", "b")
	})
}

// A request that ended while the quorum did not answer is closed when it does again.
func TestRequestIsClosedLater(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("a").Fail("checkpoint", errors.New("no space"))
		l.Node("a").Store.Inject("close", slices.Repeat([]agenttest.Fault{{Err: agenttest.ErrUnreachable}}, 100)...)
		l.plan("c")
		l.Node("a").Fail("checkpoint", nil)
		l.Record.SetOp(ag.Op{ID: "2", Kind: ag.OpPlanned, To: "c", Epoch: l.epoch()})
		l.leader(5*time.Second, "a", "b")
	})
}

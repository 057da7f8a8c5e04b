package agent_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agtest"
	"github.com/coteriedb/coterie/internal/boottime"
)

// plan asks for a planned failover and waits until the request is closed.
func (l *lab) plan(to ag.ReplicaID) {
	l.Helper()
	l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: to, Epoch: l.epoch()})
	l.wait("the request is closed", time.Minute, func() bool { return l.Record.Snapshot().OpRev == 0 })
}

func TestPlannedFailover(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was, at := l.epoch(), boottime.Now()
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
		hold := slices.Index(s.Events, "hold true")
		if hold < 0 || s.Events[hold+1] != "close local: planned failover to c" || slices.Index(s.Events, "hold false") < hold {
			t.Errorf("sessions were told %q", s.Events)
		}
	})
}

// What is refused or fails before the server stops changes nothing: not even the server is restarted.
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

// After the stop, whoever leads next has everything; the old primary is among the candidates.
func TestPlannedFailoverAbandonedAfterTheStop(t *testing.T) {
	for name, spoil := range map[string]func(l *lab){
		"target cut off":  func(l *lab) { l.Cut("a", "c", true) },
		"target dies":     func(l *lab) { l.stop("c") },
		"commit conflict": func(l *lab) { l.Node("a").Store.Inject("commit", agtest.Fault{Err: agent.ErrConflict}) },
		"commit refused":  func(l *lab) { l.Node("a").Store.Inject("commit", agtest.Fault{Err: agtest.ErrUnreachable}) },
		"quorum lost":     func(l *lab) { l.Node("a").Store.Cut(true) },
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

func TestPlannedFailoverOfUnknownOutcome(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Before("stop", func() { l.Node("a").Store.Inject("commit", agtest.Fault{LoseReply: true}) })
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

// A server that did not stop in order may have WAL that nobody got: it is taken over only with all that was acknowledged.
func TestPlannedFailoverWithAHardStop(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Fail("stop", agtest.ErrAfterEffect)
		l.plan("c")
		l.Node("a").Fail("stop", nil)
		l.formed(l.leader(30*time.Second), time.Minute)
	})
}

// While the hand-over looks how far the target is, no client may be told of a later commit.
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

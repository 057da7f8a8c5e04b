package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// A member that comes back without its data reports that, and is neither waited for nor counted any more, long before
// it would count as lost. Otherwise no member could take over from a primary that died meanwhile.
func TestMemberWithoutItsDataIsDropped(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.kill("b")
		l.Node("b").LoseData()
		l.Node("b").Stall("seed", true)
		l.start("b")
		l.wait("b is no longer counted, and c is", 4*time.Second, func() bool {
			return !l.counted("b") && l.counted("c") && l.Record.Snapshot().Record.State.K == 1
		})
		l.write("a")
		l.kill("a")
		l.wait("c leads", 30*time.Second, func() bool {
			e := l.Record.Snapshot().Record.Epoch
			return e.Phase == ag.PhaseLead && e.Leader == "c"
		})
		l.Node("b").Stall("seed", false)
		l.start("a")
		l.formed("c", 2*time.Minute)
		l.write("c")
	})
}

// The other members keep the last report of a member about its copy while it is away, and know the time of that report.
func TestWordOfACopyStays(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.wait("a has heard b", time.Minute, func() bool { return !l.agents["a"].Heard("b").IsZero() })
		l.kill("b")
		at := time.Now()
		time.Sleep(20 * time.Second)
		if said := string(l.Record.Snapshot().Statuses["b"].Copying); said != `"to b"` {
			t.Errorf("of the copy to b is known %s", said)
		}
		if heard := l.agents["a"].Heard("b"); heard.Before(at.Add(-3*time.Second)) || heard.After(at.Add(3*time.Second)) {
			t.Errorf("b was heard last at %v, and ended at %v", heard, at)
		}
		if heard := l.agents["a"].Heard("c"); time.Since(heard) > 3*time.Second {
			t.Errorf("c, which lives, was heard last %v ago", time.Since(heard))
		}
	})
}

// A member whose walreceiver hangs keeps its stream open and reports nothing. It is waited for as long as
// SESSION_TIMEOUT says, and no longer.
func TestSilentStreamIsDroppedAfterSessionTimeout(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Record.SetGroup(func(g *ag.Group) { g.CommitRule, g.SessionTimeout = ag.RuleAll, 3*time.Second })
		l.wait("commits wait for both", time.Minute, func() bool { return l.Node("a").State().SyncN == 2 })
		l.write("a")
		l.Node("b").Silence(true)
		begin := time.Now()
		l.write("a")
		if took := time.Since(begin); took < 2500*time.Millisecond || took > 5*time.Second {
			t.Errorf("the commit was acknowledged after %v", took)
		}
		l.wait("the record does not count it any more", time.Minute, func() bool { return !l.counted("b") })
		l.Node("b").Silence(false)
		l.formed("a", time.Minute)
	})
}

// A leader that was stopped itself does not take its members for silent.
func TestOwnPauseIsNoSilence(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Record.SetGroup(func(g *ag.Group) { g.SessionTimeout = 3 * time.Second })
		time.Sleep(2 * time.Second)
		n, seq := l.Node("a"), l.Record.Snapshot().Record.State.Seq
		over := make(chan struct{})
		n.Before("status", func() {
			l.Node("b").Silence(true)
			time.Sleep(4 * time.Second)
			close(over)
		})
		<-over
		time.Sleep(500 * time.Millisecond)
		l.Node("b").Silence(false)
		time.Sleep(3 * time.Second)
		if s := l.Record.Snapshot().Record.State; s.Seq != seq || len(s.V) != 2 {
			t.Errorf("the record was changed: %+v", s)
		}
	})
}

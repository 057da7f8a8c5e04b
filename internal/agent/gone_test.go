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

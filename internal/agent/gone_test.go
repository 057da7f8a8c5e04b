package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// A member that comes back without its data says so, and is neither waited for nor counted any more, long before it would count as lost: else
// nobody could take over from a primary that died meanwhile.
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

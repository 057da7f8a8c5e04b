package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/agent"
)

func TestACloneTakesTheNameOver(t *testing.T) {
	inBubble(t, func(l *lab) {
		if err := l.Node("a").Store.PutStatus(l.Context(), "a", agent.Status{Incarnation: "a clone's"}); err != nil {
			t.Fatal(err)
		}
		l.wait("a is fenced", 10*time.Second, func() bool { return !l.Node("a").State().Running })
		next := l.leader(30*time.Second, "a")
		l.write(next)
		l.stop("a")
		l.start("a") // the copy that is started again wins the name back
		l.formed(next, time.Minute)
	})
}

// A whole node that was put back to an older state has the copy id and the promise of then, but not what it
// acknowledged since.
func TestARestoredCopyIsAnotherCopy(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.stop("c")
		was := l.Node("c").State()
		said := was.Position
		said.LSN += 0x300
		if err := l.Node("a").Store.PutStatus(l.Context(), "c", agent.Status{Copy: was.Copy, Position: said}); err != nil {
			t.Fatal(err)
		}
		l.start("c")
		l.wait("c has another copy id", time.Minute, func() bool { return l.Node("c").State().Copy != was.Copy })
		l.formed("a", time.Minute)
		if s := l.Node("c").State(); s.Seeds != was.Seeds {
			t.Errorf("a beginning of the history was copied anew: %+v", s)
		}
		l.wait("the record no longer counts the copy that is no more", time.Minute, func() bool {
			m, _ := l.Record.Snapshot().Record.State.InV("c")
			return m.Copy != was.Copy
		})
	})
}

package agent_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
)

// TestRepairingMark checks that a repair cut short is remembered, and forgotten once the copy has its mark.
func TestRepairingMark(t *testing.T) {
	m := marks.Open(t.TempDir())
	if m.Repairing() {
		t.Fatal("repairing before any repair")
	}
	if err := m.SetRepairing("n1"); err != nil {
		t.Fatal(err)
	}
	if !m.Repairing() {
		t.Fatal("a repair under way is not remembered")
	}
	for range 2 { // clearing is idempotent
		if err := m.ClearRepairing(); err != nil {
			t.Fatal(err)
		}
	}
	if m.Repairing() {
		t.Fatal("a repair that ended is remembered")
	}
}

// TestRepairCutShort checks that a node that died while its copy was made anew makes it anew again instead of calling
// it foreign.
func TestRepairCutShort(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.stop("c")
		if err := marks.Open(l.dirs["c"]).SetRepairing("a"); err != nil {
			t.Fatal(err)
		}
		l.start("c")
		l.wait("c follows a new copy", time.Minute, func() bool {
			v := l.agents["c"].View()
			return v != nil && v.Local.Data == "PRESENT" && !marks.Open(l.dirs["c"]).Repairing() && v.Local.Source == "a"
		})
		l.formed("a", time.Minute)
	})
}

// wish is an operator's request for a new copy of a node, which stands until the node has one.
type wish struct{ copy atomic.Pointer[ag.CopyID] }

func (w *wish) ReseedReason(c ag.CopyID) string {
	if asked := w.copy.Load(); asked != nil && *asked == c {
		return "an operator asked for a new copy"
	}
	return ""
}

func (w *wish) BlockedReason(ag.Epoch) string { return "" }

// The primary comes to count a copy after its node has decided to replace it, and before that has stopped its server.
// The copy stays as long as the record counts it.
func TestCopyIsCountedWhileItIsToBeReplaced(t *testing.T) {
	inBubble(t, func(l *lab) {
		n, asked, raced := l.Node("c"), &wish{}, false
		l.stop("c")
		l.wrap = func(c *agent.Config) { c.SeedRequests = asked }
		l.start("c")
		mode := func(m ag.AvailabilityMode) {
			l.Record.SetGroup(func(g *ag.Group) { g.Replicas[2].AvailabilityMode, g.Replicas[2].FailoverMode = m, ag.Manual })
		}
		mode(ag.AsynchronousCommit)
		l.wait("c streams, and is not waited for", time.Minute, func() bool { return !l.counted("c") && n.State().Receiving })
		was := n.State().Copy
		n.Before("stop", func() {
			mode(ag.SynchronousCommit)
			l.wait("c counts", time.Minute, func() bool { return l.counted("c") })
			raced = true
		})
		n.Before("seed", func() {
			if m, in := l.Record.Snapshot().Record.State.InV("c"); in && m.Copy == was {
				t.Error("a copy is replaced while the record counts it")
			}
		})
		asked.copy.Store(&was)
		l.wait("c has a new copy, which counts", 5*time.Minute, func() bool {
			m, in := l.Record.Snapshot().Record.State.InV("c")
			return in && m.Copy != was && m.Copy == n.State().Copy
		})
		if !raced {
			t.Error("it was not counted after it was to be replaced: the test shows nothing")
		}
	})
}

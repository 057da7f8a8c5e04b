package agent_test

import (
	"testing"
	"time"

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

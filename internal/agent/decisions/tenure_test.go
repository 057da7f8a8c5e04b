package decisions

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestTenure holds since when a node says that it leads: since it took writes in the epoch, across restarts of its
// agent. Where an epoch had begun before the agent first looked, and no file tells, it is not known.
func TestTenure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start := func() *Log {
		t.Helper()
		d := NewLog()
		if err := d.Open(dir); err != nil {
			t.Fatal(err)
		}
		return d
	}
	turn := func(d *Log, e ag.Epoch, phase ag.Phase, leader ag.ReplicaID, open bool) time.Time {
		t.Helper()
		v := ag.View{Self: "a", Quorum: e > 0}
		v.Record.Epoch = ag.EpochRecord{Epoch: e, Phase: phase, Leader: leader}
		if made, _, keep := d.Note(v, ag.Plan{Rule: ag.RuleServe, Open: open}); keep {
			if err := d.Write(made); err != nil {
				t.Fatal(err)
			}
		}
		return d.LeadsSince(e)
	}
	d := start()
	for _, early := range []time.Time{turn(d, 0, "", "", false), turn(d, 1, ag.PhaseLead, "b", false), turn(d, 2, ag.PhasePromote, "a", false), turn(d, 2, ag.PhaseLead, "a", false)} {
		if !early.IsZero() {
			t.Errorf("before it takes writes it leads since %v", early)
		}
	}
	began := turn(d, 2, ag.PhaseLead, "a", true)
	if time.Since(began) > time.Minute || time.Since(began) < -time.Second {
		t.Fatalf("it leads since %v", began)
	}
	for name, since := range map[string]time.Time{
		"it is closed for a moment": turn(d, 2, ag.PhaseLead, "a", false), "and open again": turn(d, 2, ag.PhaseLead, "a", true),
		"its agent restarts": turn(start(), 2, ag.PhaseLead, "a", true),
	} {
		if !since.Equal(began) {
			t.Errorf("%s: %v, and it led since %v", name, since, began)
		}
	}
	if since := turn(d, 3, ag.PhaseLead, "b", false); !since.IsZero() {
		t.Errorf("another leads, and it does since %v", since)
	}
	if since := turn(d, 4, ag.PhaseLead, "a", true); !since.After(began) {
		t.Errorf("it leads again, since %v", since)
	}
	if err := os.Remove(filepath.Join(dir, tenureFile)); err != nil {
		t.Fatal(err)
	}
	if since := turn(start(), 4, ag.PhaseLead, "a", true); !since.IsZero() {
		t.Errorf("nothing tells since when it leads, and it says %v", since)
	}
}

package agsim

import (
	"os"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestExplore walks what small groups can do. DEEP=1 goes further.
func TestExplore(t *testing.T) {
	deep := os.Getenv("DEEP") != ""
	for _, tt := range []struct {
		name   string
		group  ag.Group
		bounds Bounds
		deep   Bounds
	}{
		{"three replicas, one fault", NewGroup(3, false, ag.RuleQuorum), Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 150_000}, Bounds{Epochs: 3, Writes: 2, Faults: 2, States: 6_000_000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.bounds
			if deep {
				b = tt.deep
			}
			r := NewModel(tt.group).Explore(b)
			t.Logf("%d states, %d events deep, all: %v, in %v", r.States, r.Depth, r.All, r.Elapsed)
			if r.Flaw != "" {
				t.Fatalf("%s\n%s", r.Flaw, r.Story)
			}
		})
	}
}

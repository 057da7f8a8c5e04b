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
		{
			"pair and witness", pair,
			Bounds{Epochs: 2, Writes: 1, Faults: 1, Losses: 1, States: 150_000},
			Bounds{Epochs: 3, Writes: 2, Faults: 2, Losses: 1, Wipes: 1, States: 4_000_000},
		},
		{
			"pair and witness from the founding", pair,
			Bounds{Epochs: 1, Writes: 1, Faults: 1, Losses: 1, Born: true, States: 60_000},
			Bounds{Epochs: 3, Writes: 2, Faults: 1, Losses: 1, Ops: 1, Forced: true, Born: true, States: 4_000_000},
		},
		{"three replicas", trio, Bounds{Epochs: 2, Writes: 1, States: 150_000}, Bounds{Epochs: 3, Writes: 2, States: 6_000_000}},
		{"three replicas, one fault", trio, Bounds{Epochs: 2, Faults: 1, States: 250_000}, Bounds{Epochs: 3, Writes: 1, Faults: 2, Losses: 1, States: 6_000_000}},
		{"three replicas, a lost disk", trio, Bounds{Epochs: 2, Writes: 1, Wipes: 1, States: 120_000}, Bounds{Epochs: 3, Writes: 1, Wipes: 1, Faults: 1, States: 6_000_000}},
		{
			"three replicas, ALL, an operator", trioAll,
			Bounds{Epochs: 2, Writes: 1, Ops: 1, Forced: true, States: 120_000},
			Bounds{Epochs: 3, Writes: 2, Ops: 2, Forced: true, Faults: 1, States: 6_000_000},
		},
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

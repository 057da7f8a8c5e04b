package agsim

import (
	"os"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// quick bounds an exploration that is one test among many, except three replicas through two epochs, which are explored
// completely each time. make explore lifts the bound.
const quick = 32_000

// TestExplore explores the histories of small groups. COTERIE_EXPLORE=1 explores them completely, DEEP=1 goes further.
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
		{"three replicas", trio, Bounds{Epochs: 2, Writes: 1}, Bounds{Epochs: 3, Writes: 2, States: 6_000_000}},
		{"three replicas, votes", trio, Bounds{Epochs: 2, Deaths: 2, States: 400_000}, Bounds{Epochs: 2, Deaths: 4, Writes: 1, Faults: 1, Losses: 1, States: 6_000_000}},
		{"pair and witness, votes", pair, Bounds{Epochs: 2, Deaths: 2, States: 400_000}, Bounds{Epochs: 2, Deaths: 4, Faults: 2, Losses: 1, States: 6_000_000}},
		{"three replicas, one fault", trio, Bounds{Epochs: 2, Faults: 1, States: 600_000}, Bounds{Epochs: 3, Writes: 1, Faults: 2, Losses: 1, States: 6_000_000}},
		{"three replicas, a lost disk", trio, Bounds{Epochs: 2, Writes: 1, Wipes: 1, States: 120_000}, Bounds{Epochs: 3, Writes: 1, Wipes: 1, Faults: 1, States: 6_000_000}},
		{
			"three replicas, ALL, an operator", trioAll,
			Bounds{Epochs: 2, Writes: 1, Ops: 1, Forced: true, States: 120_000},
			Bounds{Epochs: 3, Writes: 2, Ops: 2, Forced: true, Faults: 1, States: 6_000_000},
		},
		{"three replicas, an ill primary", trio, Bounds{Epochs: 2, Ills: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 1, Ills: 2, Faults: 1, States: 6_000_000}},
		{"pair and witness, an ill primary", pair, Bounds{Epochs: 2, Writes: 1, Ills: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 1, Ills: 2, Faults: 1, States: 6_000_000}},
		{"three replicas, an agent restarts in place", trio, Bounds{Epochs: 2, Restarts: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 1, Restarts: 2, Faults: 1, Deaths: 2, States: 6_000_000}},
		{"pair and witness, an agent restarts in place", pair, Bounds{Epochs: 2, Writes: 1, Restarts: 1, States: 300_000}, Bounds{Epochs: 2, Writes: 1, Restarts: 2, Faults: 1, Deaths: 2, Losses: 1, States: 6_000_000}},
		{"pair and witness, a hand-over that is given up", pair, Bounds{Epochs: 2, Writes: 1, Ops: 1, Losses: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 1, Ops: 2, Faults: 1, Losses: 1, States: 6_000_000}},
		{"three replicas, a hand-over that is given up", trio, Bounds{Epochs: 2, Ops: 1, Losses: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 1, Ops: 2, Losses: 1, States: 6_000_000}},
		{"three replicas, one of them manual", trioManual, Bounds{Epochs: 2, Writes: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 2, Faults: 1, States: 6_000_000}},
		{"three replicas, one of them manual, one fault", trioManual, Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 600_000}, Bounds{Epochs: 3, Writes: 1, Faults: 2, Losses: 1, States: 6_000_000}},
		{"pair and witness, clients", pair, Bounds{Epochs: 2, Asks: 2, States: 300_000}, Bounds{Epochs: 2, Asks: 3, Faults: 1, Ops: 1, Forced: true, States: 6_000_000}},
		{"three replicas, clients, one fault", trio, Bounds{Epochs: 2, Asks: 2, Faults: 1, States: 300_000}, Bounds{Epochs: 3, Asks: 3, Faults: 1, States: 6_000_000}},
		{"three replicas, late answers and torn records", trio, Bounds{Epochs: 2, Writes: 1, Tears: 1, States: 300_000}, Bounds{Epochs: 3, Writes: 2, Tears: 2, Faults: 1, States: 6_000_000}},
		{"pair and witness, an operator changes the configuration", pair, Bounds{Epochs: 2, Changes: 1, States: 300_000}, Bounds{Epochs: 2, Changes: 2, Writes: 1, Faults: 1, Losses: 1, States: 6_000_000}},
		{"three replicas, an operator changes the configuration", trio, Bounds{Epochs: 2, Changes: 1, States: 300_000}, Bounds{Epochs: 2, Changes: 2, Writes: 1, Losses: 1, States: 6_000_000}},
		{"three replicas, one is removed while a commit is on its way", trio, Bounds{Epochs: 1, Changes: 2, Writes: 1, Born: true, States: 300_000}, Bounds{Epochs: 2, Changes: 2, Writes: 1, Born: true, Losses: 1, States: 6_000_000}},
		{"three replicas and witness", NewGroup(3, true, ag.RuleQuorum), Bounds{Epochs: 2, States: 30_000}, Bounds{Epochs: 2, Writes: 1, States: 6_000_000}},
		{"four replicas", NewGroup(4, false, ag.RuleQuorum), Bounds{Epochs: 1, Writes: 1, States: 5_000}, Bounds{Epochs: 2, States: 6_000_000}},
		{"four replicas and witness", NewGroup(4, true, ag.RuleQuorum), Bounds{Epochs: 1, Writes: 1, States: 20_000}, Bounds{Epochs: 2, Writes: 1, States: 2_000_000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !deep { // they take some gigabytes of memory each
				t.Parallel()
			}
			b := tt.bounds
			switch {
			case deep:
				b = tt.deep
			case os.Getenv("COTERIE_EXPLORE") == "":
				b.States = min(b.States, quick)
			}
			r := NewModel(tt.group).Explore(b)
			t.Logf("%d states, %d events deep, all: %v, in %v", r.States, r.Depth, r.All, r.Elapsed)
			if r.Flaw != "" {
				t.Fatalf("%s\n%s", r.Flaw, r.Story)
			}
		})
	}
}

package agsim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// shapes are the groups a seed may draw.
var shapes = []ag.Group{
	NewGroup(3, false, ag.RuleQuorum),
	NewGroup(2, true, ag.RuleQuorum),
	NewGroup(3, false, ag.RuleAll),
	NewGroup(4, true, ag.RuleQuorum),
	NewGroup(5, false, ag.RuleQuorum),
}

func shapeOf(seed uint64) ag.Group { return shapes[seed%uint64(len(shapes))] }

// TestSim plays histories; COTERIE_SEED (or SEED) repeats one and tells it.
func TestSim(t *testing.T) {
	text := os.Getenv("COTERIE_SEED") + os.Getenv("SEED")
	if text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := NewModel(shapeOf(seed)).Run(seed, func(line string) { fmt.Println(line) }); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(150)
	if os.Getenv("DEEP") != "" {
		seeds = 20_000
	}
	begin := time.Now()
	for seed := range seeds {
		if err := NewModel(shapeOf(seed)).Run(seed, nil); err != nil {
			t.Fatalf("seed %d (make sim SEED=%d tells it): %v", seed, seed, err)
		}
	}
	t.Logf("%d histories, %.0f a second", seeds, float64(seeds)/time.Since(begin).Seconds())
}

package workload

import (
	"os"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// TestIdenticalRuns measures a real server beside itself, in turns, again and again: identical runs have to differ by
// less than the interval that they state. Of 20 such experiments chance makes one differ by more; five would be chance
// in one of a thousand tests.
func TestIdenticalRuns(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("longer than the quick proof allows; make test-long runs it (COTERIE_LONG=1)")
	}
	const experiments, blocks, mayDiffer = 20, 8, 4
	dsn := database(t, "identical")
	if _, err := LoadRows(t.Context(), dsn, 20_000, nil); err != nil {
		t.Fatal(err)
	}
	q := Query{DSN: dsn, SQL: "select sum(amount) from coterie_bench.rows where id between 1000 and 1100"}
	load := method.Load{Clients: 4, WarmUp: 30 * time.Millisecond, Duration: 120 * time.Millisecond}
	differ := 0
	for i := range uint64(experiments) {
		var rates [2][]float64
		for _, order := range method.Blocks(i, 2, blocks) {
			for _, arm := range order {
				r, err := method.Run(t.Context(), load, q.Worker)
				if err != nil {
					t.Fatal(err)
				}
				rates[arm] = append(rates[arm], r.Rate())
			}
		}
		c := method.Compare(rates[0], rates[1], method.HigherIsBetter)
		t.Log(c)
		if c.Verdict == method.Faster || c.Verdict == method.Slower {
			differ++
		}
	}
	t.Logf("%d of %d experiments differ by more than their interval", differ, experiments)
	if differ > mayDiffer {
		t.Errorf("%d of %d experiments found a difference between a thing and itself", differ, experiments)
	}
}

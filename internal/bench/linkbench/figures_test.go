package linkbench

import (
	"errors"
	"math"
	"testing"

	"github.com/coteriedb/coterie/internal/measure/goals"
)

func TestDeviation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ ratio, half, off, low, high float64 }{
		{1, 0, 0, 0, 0},
		{1.05, 2, 5, 3, 7},
		{0.95, 2, 5, 3, 7},
		{1.01, 3, 1, 0, 4}, // a distance is not below 0
	} {
		f := deviation("x", tt.ratio, tt.half)
		for _, d := range []float64{f.Measured - tt.off, f.Low - tt.low, f.High - tt.high} {
			if math.Abs(d) > 1e-9 || !f.HasInterval {
				t.Errorf("%v ± %v: %+v", tt.ratio, tt.half, f)
			}
		}
	}
}

// TestNotRun checks that a step that fails after some of its figures were measured takes none of them back.
func TestNotRun(t *testing.T) {
	t.Parallel()
	b := &linkBench{}
	b.figure(goals.Figure{Name: "loss-error", Measured: 1})
	b.notRun("loss-error", errors.New("later"))
	b.notRun("ping-error", errors.New("needs\nroot"))
	if len(b.Figures) != 2 || b.Figures[0].NotRun != "" || b.Figures[1].NotRun != "needs; root" {
		t.Errorf("%+v", b.Figures)
	}
}

package linkem

import (
	"math"
	"math/rand/v2"
	"testing"
)

// runs counts the runs of losses by length among n packets.
func runs(m *lossModel, r *rand.Rand, n int) (lost int, byLength map[int]int) {
	byLength = map[int]int{}
	run := 0
	for range n {
		if m.lose(r) {
			lost++
			run++
			continue
		}
		if run > 0 {
			byLength[run]++
		}
		run = 0
	}
	return lost, byLength
}

// TestLossComesAsAsked compares share lost, mean run, and the distribution of runs, which is geometric, with what was
// asked for, each within five standard deviations.
func TestLossComesAsAsked(t *testing.T) {
	t.Parallel()
	const n = 2_000_000
	for _, c := range []struct{ loss, burst float64 }{
		{0.001, 0}, {0.01, 1}, {0.01, 2}, {0.1, 0}, {0.1, 5}, {0.05, 20}, {0.5, 0}, {0.5, 3},
	} {
		var m lossModel
		m.set(c.loss, c.burst)
		lost, byLength := runs(&m, rand.New(rand.NewPCG(1, 2)), n)
		stay := c.loss // probability that a run continues
		if c.burst > 1 {
			stay = 1 - 1/c.burst
		}
		deviation := math.Sqrt(c.loss * (1 - c.loss) / n * (1 + stay) / (1 - stay))
		if got := float64(lost) / n; math.Abs(got-c.loss) > 5*deviation {
			t.Errorf("%+v: lost %v, want %v ± %v", c, got, c.loss, 5*deviation)
		}
		total := 0
		for _, k := range byLength {
			total += k
		}
		for length := 1; length <= 50; length++ {
			p := math.Pow(stay, float64(length-1)) * (1 - stay)
			want, spread := float64(total)*p, 5*math.Sqrt(float64(total)*p*(1-p))+5
			if got := float64(byLength[length]); math.Abs(got-want) > spread {
				t.Errorf("%+v: %v runs of %d, want %.0f ± %.0f", c, got, length, want, spread)
			}
		}
	}
}

func TestLossAtItsEnds(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var m lossModel
	for _, burst := range []float64{0, 1, 10} {
		m.set(1, burst)
		if lost, _ := runs(&m, r, 1000); lost != 1000 {
			t.Errorf("loss 100%%, burst %v: lost %d of 1000", burst, lost)
		}
		m.set(0, burst)
		if lost, _ := runs(&m, r, 1000); lost != 0 {
			t.Errorf("loss 0, burst %v: lost %d of 1000", burst, lost)
		}
	}
}

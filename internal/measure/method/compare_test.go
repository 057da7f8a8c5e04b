package method

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// machine is a computer that is unfit for measuring: it slows down, breathes, stumbles and is noisy.
type machine struct {
	r     *rand.Rand
	at    float64
	state float64
}

// run returns how long work takes now.
func (m *machine) run(work float64) float64 {
	m.at++
	m.state = 0.8*m.state + 0.03*m.r.NormFloat64() // noise that lasts
	slow := 1 + 0.01*m.at + 0.15*math.Sin(m.at/9) + m.state
	if m.r.IntN(12) == 0 {
		slow *= 1.5 // of another owner job
	}
	return work * slow * (1 + 0.02*math.Abs(m.r.NormFloat64()))
}

// experiment measures two arms; the second takes longer by a factor.
func experiment(seed uint64, blocks int, factor float64) Comparison {
	m := &machine{r: rand.New(rand.NewPCG(seed, 9))}
	times := [2][]float64{}
	for _, order := range Blocks(seed, 2, blocks) {
		for _, arm := range order {
			work := 1.0
			if arm == 1 {
				work = factor
			}
			times[arm] = append(times[arm], m.run(work))
		}
	}
	return Compare(times[0], times[1], LowerIsBetter)
}

// TestSameThingTwice: A = A on a drifting machine yields "no difference shown" in at least 94 of 100 runs.
func TestSameThingTwice(t *testing.T) {
	for _, blocks := range []int{6, 8, 12} {
		for group := range uint64(3) {
			shown := 0
			for i := range uint64(100) {
				if c := experiment(1000*group+i, blocks, 1); c.Verdict == NoDifference {
					shown++
				}
			}
			t.Logf("%d blocks: no difference shown in %d of 100", blocks, shown)
			if shown < 94 {
				t.Errorf("%d blocks: %d of 100", blocks, shown)
			}
		}
	}
}

// TestADifferenceIsShown: caution must not make the method blind.
func TestADifferenceIsShown(t *testing.T) {
	for _, c := range []struct {
		blocks int
		factor float64
		want   Verdict
		least  int
	}{{6, 2, Slower, 90}, {12, 1.3, Slower, 90}, {12, 0.7, Faster, 90}, {20, 1.15, Slower, 70}} {
		shown := 0
		for i := range uint64(100) {
			if experiment(i, c.blocks, c.factor).Verdict == c.want {
				shown++
			}
		}
		t.Logf("%d blocks, factor %v: %s in %d of 100", c.blocks, c.factor, c.want, shown)
		if shown < c.least {
			t.Errorf("%d blocks, factor %v: %s in %d of 100, want %d", c.blocks, c.factor, c.want, shown, c.least)
		}
	}
}

func TestTheIntervalHoldsTheTruth(t *testing.T) {
	held := 0
	for i := range uint64(200) {
		if c := experiment(i, 8, 1.4); c.Low <= 1.4 && c.High >= 1.4 {
			held++
		}
	}
	if held < 188 {
		t.Errorf("the interval held the true ratio in %d of 200", held)
	}
}

func TestVerdictIsWithheld(t *testing.T) {
	few := []float64{1, 1, 1, 1, 1}
	c := Compare(few, []float64{2, 2, 2, 2, 2}, LowerIsBetter)
	if c.Verdict != Withheld || c.Ratio != 2 || c.Why == "" {
		t.Errorf("five blocks: %+v", c)
	}
	if c := Compare([]float64{1, 1, 1, 0, 1, 1}, []float64{2, 2, 2, 2, 2, 2}, LowerIsBetter); c.Verdict != Withheld {
		t.Errorf("a block without a value: %+v", c)
	}
	if c := Compare(nil, nil, LowerIsBetter); c.Verdict != Withheld {
		t.Errorf("nothing: %+v", c)
	}
	same := []float64{1, 1.1, 1, 1.2, 1, 1}
	if c := Compare(same, same, LowerIsBetter).Withhold("the client was the limit"); c.Verdict != Withheld || c.Why != "the client was the limit" {
		t.Errorf("withheld by hand: %+v", c)
	}
}

func TestDirection(t *testing.T) {
	a, b := []float64{10, 11, 10, 10, 11, 10}, []float64{20, 21, 20, 20, 21, 20}
	if v := Compare(a, b, HigherIsBetter).Verdict; v != Faster {
		t.Errorf("twice as many: %s", v)
	}
	if v := Compare(a, b, LowerIsBetter).Verdict; v != Slower {
		t.Errorf("twice as long: %s", v)
	}
	if v := Compare(b, a, LowerIsBetter).Verdict; v != Faster {
		t.Errorf("half as long: %s", v)
	}
}

// TestSignedRankIndex compares with the printed tables of the test (two-sided 5 %): the largest rank sum that rejects
// is k - 1.
func TestSignedRankIndex(t *testing.T) {
	for n, critical := range map[int]int{5: -1, 6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13, 15: 25, 20: 52} {
		if k := signedRankIndex(n); k != critical+1 {
			t.Errorf("n = %d: %d, the table says %d", n, k, critical+1)
		}
	}
}

func TestBlocksAreBalanced(t *testing.T) {
	blocks := Blocks(7, 3, 8)
	place := [3]int{}
	for i, b := range blocks {
		if !slices.Equal(slices.Sorted(slices.Values(b)), []int{0, 1, 2}) {
			t.Fatalf("block %d is %v", i, b)
		}
		for at, arm := range b {
			place[arm] += at
		}
	}
	if place != [3]int{8, 8, 8} { // every arm is on average in the middle
		t.Errorf("places %v of %v", place, blocks)
	}
	if !slices.EqualFunc(blocks, Blocks(7, 3, 8), slices.Equal[[]int]) {
		t.Error("the same seed gave another order")
	}
}

func TestMedianInterval(t *testing.T) {
	low, high := MedianInterval([]float64{5, 1, 4, 2, 3, 3, 3})
	if low > 3 || high < 3 || low < 1 || high > 5 {
		t.Errorf("[%v, %v]", low, high)
	}
	if low, high := MedianInterval([]float64{4}); low != 4 || high != 4 {
		t.Errorf("one value: [%v, %v]", low, high)
	}
}

package method

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// MinBlocks is the fewest blocks that support a verdict. With five, even five wins out of five happen by chance in one
// of sixteen comparisons of a thing with itself (two-sided); with six, in one of 32.
const MinBlocks = 6

// Confidence of every interval.
const Confidence = 0.95

// resamples of the bootstrap. More change no second digit.
const resamples = 1000

// Verdict is the result of a comparison.
type Verdict string

// The verdicts. Faster and Slower are of the second arm beside the first.
const (
	Faster       Verdict = "faster"
	Slower       Verdict = "slower"
	NoDifference Verdict = "no difference shown"
	Withheld     Verdict = "withheld"
)

// Better is the direction of a metric.
type Better string

// The directions.
const (
	LowerIsBetter  Better = "lower"
	HigherIsBetter Better = "higher"
)

// Comparison is two arms, measured in turns.
type Comparison struct {
	A       float64 `json:"a"`     // median
	B       float64 `json:"b"`     // median
	Ratio   float64 `json:"ratio"` // B over A
	Low     float64 `json:"low"`   // of the ratio
	High    float64 `json:"high"`
	Blocks  int     `json:"blocks"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"` // of Withheld

	// The measurements of the blocks, in their order, so that a reader can judge again.
	AValues []float64 `json:"a_values,omitempty"`
	BValues []float64 `json:"b_values,omitempty"`
}

// String is the comparison in words.
func (c Comparison) String() string {
	if c.Verdict == Withheld {
		return fmt.Sprintf("%.3g x, verdict withheld: %s", c.Ratio, c.Why)
	}
	return fmt.Sprintf("%.3g x [%.3g, %.3g], %s (%d blocks)", c.Ratio, c.Low, c.High, c.Verdict, c.Blocks)
}

// Withhold returns the comparison without its verdict, because of why; empty: unchanged.
func (c Comparison) Withhold(why string) Comparison {
	if why != "" {
		c.Verdict, c.Why = Withheld, why
	}
	return c
}

// ClientBound reports whether the verdict is withheld because the client may have been the limit.
func (c Comparison) ClientBound() bool {
	return c.Verdict == Withheld && strings.HasPrefix(c.Why, clientBound)
}

// Compare judges b beside a: a[i] and b[i] were measured in block i. The ratio is that of the medians. Its interval
// covers those of two methods that fail in different ways. The bootstrap over blocks is too narrow for few blocks. The
// exact signed-rank interval is of the blocks' own ratios, which a drift of the machine from block to block does not
// touch. Compare gives no verdict below MinBlocks, nor where a value is not positive.
func Compare(a, b []float64, better Better) Comparison {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	c := Comparison{A: Median(a), B: Median(b), Blocks: n, Verdict: NoDifference, AValues: slices.Clone(a), BValues: slices.Clone(b)}
	if n == 0 || slices.Min(a) <= 0 || slices.Min(b) <= 0 {
		return c.Withhold("a block gave nothing to measure")
	}
	c.Ratio = c.B / c.A
	c.Low, c.High = bootstrap(a, b)
	c.Low, c.High = min(c.Low, c.Ratio), max(c.High, c.Ratio)
	low, high, ok := signedRank(a, b)
	if !ok {
		return c.Withhold(fmt.Sprintf("it takes %d blocks to tell a difference from chance, and these are %d", MinBlocks, n))
	}
	c.Low, c.High = min(c.Low, low), max(c.High, high)
	switch {
	case c.Low <= 1 && c.High >= 1:
	case (c.Ratio < 1) == (better == LowerIsBetter):
		c.Verdict = Faster
	default:
		c.Verdict = Slower
	}
	return c
}

// Median returns the middle of v, NaN if there is none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	return sortedMedian(slices.Sorted(slices.Values(v)))
}

func sortedMedian(s []float64) float64 {
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// bootstrap is the percentile interval of the ratio of medians, blocks being drawn with replacement. The draws are
// always the same.
func bootstrap(a, b []float64) (low, high float64) {
	r := rand.New(rand.NewPCG(uint64(len(a)), 1)) //nolint:gosec // guards nothing
	ratios := make([]float64, resamples)
	sa, sb := make([]float64, len(a)), make([]float64, len(a))
	for i := range ratios {
		for j := range sa {
			k := r.IntN(len(a))
			sa[j], sb[j] = a[k], b[k]
		}
		slices.Sort(sa)
		slices.Sort(sb)
		ratios[i] = sortedMedian(sb) / sortedMedian(sa)
	}
	slices.Sort(ratios)
	tail := (1 - Confidence) / 2
	return ratios[int(tail*resamples)], ratios[int((1-tail)*resamples)-1]
}

// signedRank is the interval that belongs to Wilcoxon's signed-rank test: order statistics of the means of all pairs
// (Hodges and Lehmann 1963), here of the logarithms of the blocks' ratios. There is none for fewer than MinBlocks.
func signedRank(a, b []float64) (low, high float64, ok bool) {
	n := len(a)
	k := signedRankIndex(n)
	if k == 0 {
		return 0, 0, false
	}
	var means []float64
	for i := range n {
		for j := i; j < n; j++ {
			means = append(means, (math.Log(b[i]/a[i])+math.Log(b[j]/a[j]))/2)
		}
	}
	slices.Sort(means)
	return math.Exp(means[k-1]), math.Exp(means[len(means)-k]), true
}

// signedRankIndex is the largest k with P(W < k) at most half of what Confidence leaves, W being the rank sum of n
// pairs; 0: there is none. The distribution is counted exactly.
func signedRankIndex(n int) int {
	ways := make([]float64, n*(n+1)/2+1) // ways[w] subsets of 1..n add up to w, of 2^n
	ways[0] = 1
	for rank := 1; rank <= n; rank++ {
		for w := len(ways) - 1; w >= rank; w-- {
			ways[w] += ways[w-rank]
		}
	}
	all, sum := math.Exp2(float64(n)), 0.0
	for k, w := range ways {
		sum += w
		if sum/all > (1-Confidence)/2 {
			return k
		}
	}
	return 0
}

// MedianInterval is the interval of the median of v by the bootstrap, for a figure that is compared with nothing.
func MedianInterval(v []float64) (low, high float64) {
	if len(v) < 2 {
		m := Median(v)
		return m, m
	}
	ones := slices.Repeat([]float64{1}, len(v))
	return bootstrap(ones, v)
}

// Blocks returns the order of the arms 0 to arms-1 in each of n blocks. Every block has every arm once, in an order
// that is drawn for one block and reversed in the next: a machine that slows down evenly slows every arm alike.
func Blocks(seed uint64, arms, n int) [][]int {
	r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // guards nothing
	out := make([][]int, n)
	for i := range out {
		if i%2 == 1 {
			out[i] = slices.Clone(out[i-1])
			slices.Reverse(out[i])
			continue
		}
		out[i] = r.Perm(arms)
	}
	return out
}

package method

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Percentile returns it in milliseconds.
func Percentile(times []time.Duration, p int) float64 {
	if len(times) == 0 {
		return 0
	}
	return Nearest(times, p).Seconds() * 1000
}

// Nearest is a percentile of at least one value: the nearest rank, itself one of them.
func Nearest[V cmp.Ordered](values []V, p int) V {
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, (len(s)*p+99)/100-1)]
}

// MeanAndHalf returns the mean, and half of its 95 % interval.
func MeanAndHalf(v []float64) (mean, half float64) {
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	if n < 2 {
		return mean, 0
	}
	var squares float64
	for _, x := range v {
		squares += (x - mean) * (x - mean)
	}
	return mean, 1.96 * math.Sqrt(squares/(n-1)/n)
}

package method

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Percentile returns a percentile of times in milliseconds, by the nearest rank; 0 if there are none.
func Percentile(times []time.Duration, p int) float64 {
	if len(times) == 0 {
		return 0
	}
	return Nearest(times, p).Seconds() * 1000
}

// Nearest returns a percentile of at least one value by the nearest rank: it is one of the values.
func Nearest[V cmp.Ordered](values []V, p int) V {
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, (len(s)*p+99)/100-1)]
}

// MeanAndHalf returns the mean and half the width of its 95 % interval.
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

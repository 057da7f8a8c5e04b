package tpcc

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// The times for thinking have the mean that was asked for and none is longer than ten times that.
func TestThinking(t *testing.T) {
	s := newStream(testSeed, "thinking")
	const n, mean = 200_000, 12 * time.Second
	var sum, longest time.Duration
	for range n {
		d := s.thinking(mean)
		sum, longest = sum+d, max(longest, d)
	}
	if got := sum / n; math.Abs(float64(got-mean)) > 0.01*float64(mean) {
		t.Errorf("%v on average; want %v", got, mean)
	}
	if longest > 10*mean || longest < 8*mean {
		t.Errorf("the longest is %v; want it cut at %v", longest, 10*mean)
	}
}

// A terminal keys before each transaction and thinks after it, and an end in between wakes it.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := terminal{rand: newStream(testSeed, "terminal"), waits: KeyAndThink}
		start := time.Now()
		term.key(t.Context(), newOrder)
		if got := time.Since(start); got != 18*time.Second {
			t.Errorf("keyed for %v", got)
		}
		term.think(t.Context(), delivery)
		if got := time.Since(start); got <= 18*time.Second || got > 68*time.Second {
			t.Errorf("after %v", got)
		}
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		start = time.Now()
		if term.key(ctx, newOrder); time.Since(start) != time.Second {
			t.Errorf("woken after %v", time.Since(start))
		}
		term.waits, start = Waits{}, time.Now()
		term.key(t.Context(), newOrder)
		if term.think(t.Context(), newOrder); time.Since(start) != 0 {
			t.Errorf("waited %v for nothing", time.Since(start))
		}
	})
}

package tpcc

import (
	"context"
	"math"
	"time"
)

// Waits is how long a terminal keys in each transaction before it is sent, always as long, and how long on average it
// thinks of the answer. The zero value sends one transaction right after the other.
type Waits struct{ Keying, Thinking [kinds]time.Duration }

// KeyAndThink are the waits of clauses 5.2.5.2 and 5.2.5.4, for which a warehouse with its ten terminals yields 12.86
// New-Orders a minute at most.
var KeyAndThink = Waits{
	Keying:   [kinds]time.Duration{newOrder: 18 * time.Second, payment: 3 * time.Second, orderStatus: 2 * time.Second, delivery: 2 * time.Second, stockLevel: 2 * time.Second},
	Thinking: [kinds]time.Duration{newOrder: 12 * time.Second, payment: 12 * time.Second, orderStatus: 10 * time.Second, delivery: 5 * time.Second, stockLevel: 5 * time.Second},
}

// thinking draws a time from the negative exponential distribution, cut at ten times its mean (5.2.5.4).
func (s stream) thinking(mean time.Duration) time.Duration {
	u := (float64(s.pcg.Uint64()>>11) + 1) / (1 << 53) // in (0, 1]
	return time.Duration(min(-math.Log(u), 10) * float64(mean))
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

package admission

import (
	"sync"
	"time"
)

// Rate is how many events may happen: Burst at once, and PerSecond on average.
type Rate struct {
	PerSecond float64
	Burst     float64
}

// Budget limits events of each caller and of all callers together. A caller that was seen to succeed is not subject to
// the limit of all. Use NewBudget.
type Budget struct {
	each, all Rate

	mu      sync.Mutex
	callers *Recent[string, bucket]   // by key
	proven  *Recent[string, struct{}] // callers that succeeded
	total   bucket
	refused uint64
}

// bucket counts the events that were spent and are not paid back by time yet.
type bucket struct {
	spent float64
	at    time.Duration
}

// NewBudget returns a budget that remembers that many callers.
func NewBudget(each, all Rate, callers int) *Budget {
	return &Budget{each: each, all: all, callers: NewRecent[string, bucket](callers), proven: NewRecent[string, struct{}](callers)}
}

// Spend takes n events from the caller's budget and from that of all. It reports false, and takes nothing, if one of
// them does not suffice. now is of a clock that does not go back.
func (b *Budget) Spend(key string, n float64, now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.callers.At(key)
	own.pay(now, b.each)
	b.total.pay(now, b.all)
	if unbounded {
		return true
	}
	if own.spent+n > b.each.Burst || b.total.spent+n > b.all.Burst && !b.proven.Has(key) {
		b.refused++
		return false
	}
	own.spent += n
	b.total.spent += n
	return true
}

// Succeeded pays back n events that the caller spent on what succeeded, and remembers the caller as one that is known.
func (b *Budget) Succeeded(key string, n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proven.At(key)
	own := b.callers.At(key)
	own.spent = max(0, own.spent-n)
	b.total.spent = max(0, b.total.spent-n)
}

// Known reports whether the caller was seen to succeed.
func (b *Budget) Known(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proven.Has(key)
}

// Forget undoes what Succeeded remembered of the caller.
func (b *Budget) Forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proven.Drop(key)
}

// Refused returns how often Spend reported false.
func (b *Budget) Refused() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

func (s *bucket) pay(now time.Duration, r Rate) {
	if now > s.at {
		s.spent = max(0, s.spent-(now-s.at).Seconds()*r.PerSecond)
		s.at = now
	}
}

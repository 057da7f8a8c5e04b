package admission

import (
	"sync"
	"time"
)

const (
	// doublings is how often the delay is doubled at most.
	doublings = 5
	// forgetOne is the time without a failure after which one failure is forgotten.
	forgetOne = 10 * time.Second
)

// Backoff delays the attempts of callers that failed. It delays the next attempt and not the answer: a caller that does
// not wait for its answer has gained nothing. Attempts of one caller that come together are delayed one after the
// other.
type Backoff struct {
	free int // failures without consequence

	mu     sync.Mutex
	seen   *Recent[string, failures]
	proven *Recent[string, struct{}] // callers that succeeded
}

type failures struct {
	count int
	last  time.Duration // when the last one was counted
	next  time.Duration // before which no attempt may begin
}

// NewBackoff returns a Backoff that remembers that many callers. The first failures of a caller, as many as free, delay
// nothing.
func NewBackoff(free, callers int) *Backoff {
	return &Backoff{free: free, seen: NewRecent[string, failures](callers), proven: NewRecent[string, struct{}](callers)}
}

// Begin returns how long an attempt has to wait before it may begin; first is the delay after one failure. now is of a
// clock that does not go back. If the wait is longer than most, nothing is booked, and ok is false: the attempt is to
// be refused.
func (b *Backoff) Begin(key string, now, first, most time.Duration) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if unbounded || !b.seen.Has(key) {
		return 0, true
	}
	f := b.seen.At(key)
	f.forget(now)
	d := f.delay(first, b.free)
	if d == 0 {
		return 0, true
	}
	if wait = max(0, f.next-now); wait > most {
		return wait, false
	}
	f.next = now + wait + d
	return wait, true
}

// Failed counts a failure.
func (b *Backoff) Failed(key string, now, first time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.seen.At(key)
	f.forget(now)
	f.count = min(f.count+1, b.free+doublings+1)
	f.last = now
	f.next = max(f.next, now+f.delay(first, b.free))
}

// Succeeded notes that an attempt of the caller has succeeded. Its failures still delay it.
func (b *Backoff) Succeeded(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proven.At(key)
}

// Blameless reports whether the caller was seen to succeed, and has no failure that is not forgotten.
func (b *Backoff) Blameless(key string, now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.proven.Has(key) {
		return false
	}
	if !b.seen.Has(key) {
		return true
	}
	f := b.seen.At(key)
	f.forget(now)
	return f.count == 0
}

func (f *failures) forget(now time.Duration) {
	if n := int((now - f.last) / forgetOne); n > 0 && f.count > 0 {
		f.count = max(0, f.count-n)
		f.last += time.Duration(n) * forgetOne
	}
}

// delay returns the time between two attempts.
func (f *failures) delay(first time.Duration, free int) time.Duration {
	if f.count <= free {
		return 0
	}
	return first << min(f.count-free-1, doublings)
}

package cancelkey

import (
	"context"
	"sync"
	"time"
)

// maxAddresses is how many addresses are known at once.
const maxAddresses = 4096

// cancelPause is how long a cancel request waits until it tries again for a place among those that may be asked about.
const cancelPause = 20 * time.Millisecond

// Wrong counts wrong cancel requests of addresses in the current second.
type Wrong struct {
	mu     sync.Mutex
	second int64          // guarded by mu
	seen   map[string]int // guarded by mu
}

// Await counts a cancel request of an address as wrong, as soon as that has had fewer than limit in the second. It
// reports false if that is not so before ctx ends, or the client's place is taken.
func (w *Wrong) Await(ctx context.Context, address string, limit int, taken <-chan struct{}) (counted time.Time, ok bool) {
	for {
		now := time.Now()
		if w.add(address, now, limit) {
			return now, true
		}
		select {
		case <-ctx.Done():
			return now, false
		case <-taken:
			return now, false
		case <-time.After(cancelPause):
		}
	}
}

// add records an event, unless key has had limit events in this second, or too many keys are known.
func (w *Wrong) add(key string, now time.Time, limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.second != now.Unix() {
		w.second, w.seen = now.Unix(), make(map[string]int)
	}
	n := w.seen[key]
	if n >= limit || n == 0 && len(w.seen) >= maxAddresses {
		return false
	}
	w.seen[key] = n + 1
	return true
}

// TakeBack removes an event that was added at that time.
func (w *Wrong) TakeBack(key string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.second == at.Unix() && w.seen[key] > 0 {
		w.seen[key]--
	}
}

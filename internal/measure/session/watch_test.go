package session

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch: an operation ends when its own time is up, whenever it began, and one that ends before is not affected.
func TestWatch(t *testing.T) {
	const limit = time.Second
	for _, before := range []time.Duration{0, 300 * time.Millisecond, limit, 2700 * time.Millisecond} { // that the session idles first
		synctest.Test(t, func(t *testing.T) {
			var at time.Time
			w := newWatch(limit, func() { at = time.Now() })
			time.Sleep(before)
			for range 3 {
				w.begin()
				time.Sleep(limit - time.Millisecond)
				if !w.end() || !at.IsZero() {
					t.Fatalf("after %v of nothing an operation was ended before its time", before)
				}
			}
			w.begin()
			due := time.Now().Add(limit)
			time.Sleep(2 * limit)
			if w.end() || !at.Equal(due) {
				t.Errorf("after %v of nothing an operation was ended at %v instead of %v", before, at, due)
			}
			w.stop()
		})
		synctest.Test(t, func(t *testing.T) { // the bubble ends, so no part of the watch still runs
			w := newWatch(limit, func() { t.Error("nothing was under way") })
			time.Sleep(before)
			w.stop()
			time.Sleep(3 * limit)
		})
	}
}

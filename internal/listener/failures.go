package listener

import (
	"sync"
	"time"
)

const (
	maxAddresses  = 4096             // remembered at once; beyond, the oldest knowledge is dropped as a whole
	forgetFailure = 60 * time.Second // without a failure
)

// failures counts failed logins per address.
type failures struct {
	mu   sync.Mutex
	seen map[string]failure // guarded by mu
}

type failure struct {
	count int
	last  time.Time
}

// next records a failure and returns how long its answer is delayed.
func (f *failures) next(key string, now time.Time, first time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil || len(f.seen) >= maxAddresses {
		f.seen = make(map[string]failure)
	}
	was := f.seen[key]
	if now.Sub(was.last) > forgetFailure {
		was.count = 0
	}
	d := first << min(was.count, 5)
	f.seen[key] = failure{count: was.count + 1, last: now}
	return d
}

// rate counts events per key in the current second.
type rate struct {
	mu     sync.Mutex
	second int64          // guarded by mu
	seen   map[string]int // guarded by mu
}

// over says that key has had limit events in this second.
func (r *rate) over(key string, now time.Time, limit int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.second == now.Unix() && r.seen[key] >= limit
}

// add records an event.
func (r *rate) add(key string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second != now.Unix() || len(r.seen) >= maxAddresses {
		r.second, r.seen = now.Unix(), make(map[string]int)
	}
	r.seen[key]++
}

// takeBack forgets an event that was added at that time.
func (r *rate) takeBack(key string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second == at.Unix() && r.seen[key] > 0 {
		r.seen[key]--
	}
}

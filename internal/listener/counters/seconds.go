package counters

import (
	"sync"
	"time"
)

// Second counts the readers that logged in within one second of the clock.
type Second struct {
	At      time.Time `json:"at"`
	Readers uint64    `json:"readers"`
	Routed  uint64    `json:"routed"` // of these, to a secondary
}

// RoutedPct returns the share of the readers that went to a secondary, in percent.
func (s Second) RoutedPct() float64 {
	if s.Readers == 0 {
		return 0
	}
	return 100 * float64(s.Routed) / float64(s.Readers)
}

// seconds are the last 60, each at its number modulo 60.
type seconds struct {
	mu   sync.Mutex
	last [60]Second // guarded by mu
}

func (r *seconds) add(now time.Time, fellBack bool) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.last[now.Unix()%int64(len(r.last))]
	if !s.At.Equal(now) {
		*s = Second{At: now}
	}
	s.Readers++
	if !fellBack {
		s.Routed++
	}
}

// list returns the seconds of the last minute in which readers logged in, oldest first.
func (r *seconds) list(now time.Time) (out []Second) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.last {
		s := r.last[(now.Unix()+1+int64(i))%int64(len(r.last))]
		if age := now.Sub(s.At); age >= 0 && age < time.Minute {
			out = append(out, s)
		}
	}
	return out
}

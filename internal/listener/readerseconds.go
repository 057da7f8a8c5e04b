package listener

import (
	"sync"
	"time"
)

// Second counts the readers that logged in within one second of the clock.
type Second struct {
	At      time.Time `json:"at"`
	Readers uint64    `json:"readers"`
	Routed  uint64    `json:"routed"` // of them to a secondary
}

// RoutedPct is what part of the readers went to a secondary, in percent.
func (s Second) RoutedPct() float64 {
	if s.Readers == 0 {
		return 0
	}
	return 100 * float64(s.Routed) / float64(s.Readers)
}

// readerSeconds are the last 60 of them, each in the place of its number.
type readerSeconds struct {
	mu      sync.Mutex
	seconds [60]Second // guarded by mu
}

func (r *readerSeconds) add(now time.Time, fellBack bool) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.seconds[now.Unix()%int64(len(r.seconds))]
	if !s.At.Equal(now) {
		*s = Second{At: now}
	}
	s.Readers++
	if !fellBack {
		s.Routed++
	}
}

// list returns those of the last minute in which somebody logged in, oldest first.
func (r *readerSeconds) list(now time.Time) (out []Second) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.seconds {
		s := r.seconds[(now.Unix()+1+int64(i))%int64(len(r.seconds))]
		if age := now.Sub(s.At); age >= 0 && age < time.Minute {
			out = append(out, s)
		}
	}
	return out
}

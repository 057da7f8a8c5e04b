package ledger

import (
	"math"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Timeline counts the acknowledged rows in steps from the first on.
func (l *Ledger) Timeline(step time.Duration) (begin time.Time, counts []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := time.Duration(math.MaxInt64)
	for _, a := range l.clients {
		for _, e := range a.entries {
			if e.verdict() == session.OK {
				first = min(first, e.done)
			}
		}
	}
	if first == math.MaxInt64 {
		return time.Time{}, nil
	}
	counts = make([]int64, int((l.lastAck-first)/step)+1)
	for _, a := range l.clients {
		for _, e := range a.entries {
			if e.verdict() == session.OK {
				counts[int((e.done-first)/step)]++
			}
		}
	}
	return l.epoch.time(first), counts
}

// OutagesByClient is each writer's own longest interruption that touches the time from one instant to another.
func (l *Ledger) OutagesByClient(from, to time.Time) map[int]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[int]time.Duration{}
	for _, seg := range l.segments {
		limit := l.limit(seg)
		for n, a := range l.clients {
			s := series{acks: a.acks(seg.start, limit), limit: limit}
			out[n] = max(out[n], s.longest(l.epoch.boottime(from), l.epoch.boottime(to)).length())
		}
	}
	return out
}

package pgserver

import (
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// The bounds of a trail. Two marks are at least trailStep apart. A trail that is full loses every second one of the
// older half of its marks, so that it reaches far back, and the further the coarser.
const (
	trailStep  = time.Second
	trailMarks = 256
	rateOver   = 10 * time.Second // the time over which a rate is taken
)

// trail remembers when a position was reached. Any goroutine may call its methods; none of them waits.
type trail struct{ marks atomic.Pointer[[]mark] }

// mark is a position, and the boottime at which it was first seen.
type mark struct {
	at  time.Duration
	lsn ag.LSN
}

func (t *trail) list() []mark {
	if l := t.marks.Load(); l != nil {
		return *l
	}
	return nil
}

// note remembers a position. One that is behind the last, as after a rewind, begins a new trail.
func (t *trail) note(lsn ag.LSN, now time.Duration) {
	old := t.marks.Load()
	list := t.list()
	if n := len(list); n > 0 {
		switch last := list[n-1]; {
		case lsn == last.lsn, now-last.at < trailStep && lsn > last.lsn:
			return
		case lsn < last.lsn:
			list = nil
		}
	}
	kept := make([]mark, 0, len(list)+1)
	for i, m := range list {
		if len(list) < trailMarks || i >= trailMarks/2 || i%2 == 0 {
			kept = append(kept, m)
		}
	}
	kept = append(kept, mark{now, lsn})
	t.marks.CompareAndSwap(old, &kept) // another goroutine may have noted the same
}

// behind returns for how long a copy that is at that position has not had everything: the time since the first position
// beyond it was seen. It is exact to about a second, and 0 for a copy that has everything.
func (t *trail) behind(lsn ag.LSN, now time.Duration) time.Duration {
	for _, m := range t.list() {
		if m.lsn > lsn {
			return max(now-m.at, 0)
		}
	}
	return 0
}

// rate returns how fast the position moved in the last ten seconds, in bytes per second.
func (t *trail) rate(now time.Duration) float64 {
	list := t.list()
	if len(list) < 2 {
		return 0
	}
	last := list[len(list)-1]
	from := list[0]
	for _, m := range list {
		if m.at > now-rateOver {
			break
		}
		from = m
	}
	if from == last { // nothing moved since
		return 0
	}
	begin := max(from.at, now-rateOver) // it may have stood still since the mark before
	return float64(last.lsn-from.lsn) / max(now-begin, trailStep).Seconds()
}

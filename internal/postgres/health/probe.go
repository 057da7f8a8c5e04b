package health

import (
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// probe is one check that is repeated, one attempt at a time.
type probe struct {
	mu    sync.Mutex    // guards what follows
	since time.Duration // boottime at which the attempt under way began; 0: no attempt is under way
	last  time.Duration // when the last attempt began
	bad   time.Duration // when the first attempt began that failed since the last success; 0: the last attempt succeeded
	fails int           // failed attempts since the last success
	err   error         // of the last failed attempt
	usual rhythm        // of the attempts that succeeded
}

// due reports whether the next attempt begins now, and records that it does.
func (p *probe) due(now, every time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since != 0 || p.last != 0 && now-p.last < every {
		return false
	}
	p.since, p.last = now, now
	return true
}

// underWay reports whether an attempt has begun and not ended.
func (p *probe) underWay() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since != 0
}

func (p *probe) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		now := boottime.Now()
		if p.since != 0 {
			p.usual.took(now, now-p.since)
		}
		p.bad, p.fails, p.err = 0, 0, nil
	} else {
		if p.bad == 0 {
			p.bad = p.since
		}
		p.fails, p.err = p.fails+1, err
	}
	p.since = 0
}

// trouble returns how long a probe has been failing or hanging, how often it failed, and the last error.
func (p *probe) trouble(now time.Duration) (lasts time.Duration, fails int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.bad
	if from == 0 {
		from = p.since
	}
	if from == 0 {
		return 0, 0, nil
	}
	return now - from, p.fails, p.err
}

// unusual returns how long an attempt may take until that is unusual here, at least floor, and the longest one of the
// last day. It is never more than wait, and wait while too little is known.
func (p *probe) unusual(now, floor, wait time.Duration) (limit, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest, known := p.usual.longest(now)
	if !known {
		return wait, longest
	}
	return min(max(floor, timesUsual*longest), wait), longest
}

// forgive subtracts from all durations a time in which this process did not run.
func (p *probe) forgive(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := boottime.Now()
	for _, t := range []*time.Duration{&p.since, &p.bad} {
		if *t != 0 {
			*t = min(*t+late, now)
		}
	}
}

package health

import (
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// probe is one thing that is tried again and again, one attempt at a time.
type probe struct {
	mu    sync.Mutex    // guards what follows
	since time.Duration // boottime at which the attempt under way began; 0: none is
	last  time.Duration // when the last attempt began
	bad   time.Duration // when the first attempt began of those that have not succeeded since one did; 0: the last one did
	fails int           // attempts that ended badly since one succeeded
	err   error         // of the last one that ended badly
}

// due reports whether the next attempt begins now, and notes that it does.
func (p *probe) due(now, every time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since != 0 || p.last != 0 && now-p.last < every {
		return false
	}
	p.since, p.last = now, now
	return true
}

func (p *probe) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.bad, p.fails, p.err = 0, 0, nil
	} else {
		if p.bad == 0 {
			p.bad = p.since
		}
		p.fails, p.err = p.fails+1, err
	}
	p.since = 0
}

// trouble is for how long a probe has not succeeded since it began to fail or to hang, and how often and how it failed.
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

// forgive takes out of all durations a time in which this process did not run.
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

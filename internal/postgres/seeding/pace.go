package seeding

import (
	"context"
	"sync"
	"time"
)

// pacer keeps all connections together within a rate that may change while it runs. It counts bytes of files that are read: that is
// the work of which a limit spares the source, whatever they become on the wire.
type pacer struct {
	rate func() int64 // bytes per second; nil or 0: no limit

	mu   sync.Mutex
	owed float64   // bytes taken that time has not paid for
	at   time.Time // when owed was right
}

// paceSaved is what waiting connections may catch up with when they are woken late. Longer pauses earn nothing.
const paceSaved = 50 * time.Millisecond

// pacePoll is how often a waiting connection looks whether the rate was changed.
const pacePoll = 200 * time.Millisecond

// limit is the rate now; 0: none.
func (p *pacer) limit() int64 {
	if p.rate == nil {
		return 0
	}
	return max(0, p.rate())
}

// take takes n bytes if what was taken before is paid for, else it says how long that will last at the rate of now.
func (p *pacer) take(n int) (wait time.Duration) {
	rate := float64(p.limit())
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	paid := now.Sub(p.at).Seconds() * rate
	p.at = now
	if rate == 0 {
		p.owed = 0
		return 0
	}
	if p.owed = max(p.owed-paid, -rate*paceSaved.Seconds()); p.owed > 0 {
		return max(time.Duration(p.owed/rate*float64(time.Second)), time.Millisecond)
	}
	p.owed += float64(n)
	return 0
}

// giveBack returns what was taken and not read.
func (p *pacer) giveBack(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed -= float64(n)
}

// wait takes n bytes as soon as it may.
func (p *pacer) wait(ctx context.Context, n int) error {
	for {
		wait := p.take(n)
		if wait == 0 {
			return nil
		}
		t := time.NewTimer(min(wait, pacePoll))
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

package progress

import (
	"context"
	"sync"
	"time"
)

// Pacer keeps all connections together within a rate that may change meanwhile. It counts bytes of files read, not
// their size on the network: reading is the work that a limit spares the source.
type Pacer struct {
	Rate func() int64 // bytes per second; nil or 0: no limit

	mu   sync.Mutex
	owed float64   // bytes taken for which no time has passed yet
	at   time.Time // when owed was computed
}

// paceSaved is the time that waiting connections may catch up when they are woken late. Longer pauses earn nothing.
const paceSaved = 50 * time.Millisecond

// pacePoll is the interval at which a waiting connection checks whether the rate has changed.
const pacePoll = 200 * time.Millisecond

// Limit returns the present rate in bytes per second; 0: none.
func (p *Pacer) Limit() int64 {
	if p.Rate == nil {
		return 0
	}
	return max(0, p.Rate())
}

// Take takes n bytes if the bytes taken before are paid for. Else it returns the time until then at the present rate.
func (p *Pacer) Take(n int) (wait time.Duration) {
	rate := float64(p.Limit())
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

// GiveBack returns bytes that were taken and not read.
func (p *Pacer) GiveBack(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed -= float64(n)
}

// Wait takes n bytes as soon as the rate allows it.
func (p *Pacer) Wait(ctx context.Context, n int) error {
	for {
		wait := p.Take(n)
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

package seeding

import (
	"context"
	"sync"
	"time"
)

// pacer keeps all connections of a seeding within a rate that may change while it runs.
type pacer struct {
	rate func() int64

	mu  sync.Mutex
	due time.Time // when what was counted so far is paid
}

// limited reports whether there is a rate at all.
func (p *pacer) limited() bool { return p.rate != nil && p.rate() > 0 }

// spend counts n bytes.
func (p *pacer) spend(n int) {
	if !p.limited() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.due.Before(now) {
		p.due = now // time in which nothing came earns no credit
	}
	p.due = p.due.Add(time.Duration(float64(n) / float64(p.rate()) * float64(time.Second)))
}

// pacePoll is how often a waiting connection looks whether the rate was changed.
const pacePoll = 200 * time.Millisecond

// wait returns when more may be asked for.
func (p *pacer) wait(ctx context.Context) error {
	for p.limited() {
		p.mu.Lock()
		wait := time.Until(p.due)
		p.mu.Unlock()
		if wait <= 0 {
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
	return nil
}

package release

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// idleAtOnce is how many sessions whose clients do not wait are opened at once.
	idleAtOnce = 8
	// look is how often one of them looks whether its client waits now.
	look = 50 * time.Millisecond
	// yields is how long one of them lets those of waiting clients go first, beside its turn.
	yields = 2 * time.Second
	// idleFor is how long one of them may be without a server. Nobody waits for it.
	idleFor = time.Minute
)

// A session that got no server is tried again after pause while there is no route, and ever more seldom while the
// replica of the route refuses: hundreds of sessions may wait for the same one.
const (
	pause = 20 * time.Millisecond
	// LongestPause is the longest one.
	LongestPause = 250 * time.Millisecond
)

// ErrLate means that the client of a session has waited for as long as a request may.
var ErrLate = errors.New("no server took its session in time")

// Order is the order of the sessions of one listener. A server that starts hundreds of sessions at once finishes none
// of them soon, and most sessions of a pool are idle.
type Order struct {
	waiting atomic.Int64  // sessions without a server whose clients wait
	turns   chan struct{} // holds a token for each idle one that is being opened
	closed  <-chan struct{}
}

// New returns an order in which no session is. No session of it is tried again once closed is closed.
func New(closed <-chan struct{}) *Order {
	return &Order{turns: make(chan struct{}, idleAtOnce), closed: closed}
}

// Place is the place of one session in the order, from when it has left its server until it has another one. It belongs
// to one goroutine.
type Place struct {
	o     *Order
	asks  func() bool   // whether its client waits
	idle  time.Time     // when it was last seen that it does not
	most  time.Duration // for which a client may wait
	began time.Time
	since time.Time // from when on the client waits, at the latest by asks; zero: it does not
	pause time.Duration
}

// Enter returns the place of a session that has left its server. waits tells whether its client waits for an answer,
// most is how long it may. The caller calls Leave.
func (o *Order) Enter(waits func() bool, most time.Duration) *Place {
	p := &Place{o: o, asks: waits, most: most, began: time.Now()}
	p.waits()
	return p
}

// Leave takes the session out of the order.
func (p *Place) Leave() {
	if !p.since.IsZero() {
		p.o.waiting.Add(-1)
	}
}

// waits reports whether the client waits, and notes since when: perhaps since it was seen last that it does not. One
// that waits does so until the session has a server.
func (p *Place) waits() bool {
	if !p.since.IsZero() {
		return true
	}
	now := time.Now()
	if !p.asks() {
		p.idle = now
		return false
	}
	if p.since = p.idle; p.since.IsZero() {
		p.since = now
	}
	p.o.waiting.Add(1)
	return true
}

// Left is how long the session may still be without a server; 0 or less: no longer.
func (p *Place) Left() time.Duration {
	if p.waits() {
		return p.most - time.Since(p.since)
	}
	return max(idleFor, p.most) - time.Since(p.began)
}

// Try is how long one try may take: the client may begin to wait meanwhile.
func (p *Place) Try() time.Duration { return min(p.Left(), p.most) }

// ErrClosed means that the listener closes.
var ErrClosed = errors.New("the listener of this node is stopping")

// Turn waits until the session is to be opened. The caller calls done when it is, or when that has failed.
func (p *Place) Turn(ctx context.Context) (done func(), err error) {
	began := time.Now()
	for !p.waits() {
		turns := p.o.turns
		if p.o.waiting.Load() > 0 && time.Since(began) < yields {
			turns = nil
		}
		t := time.NewTimer(look)
		select {
		case turns <- struct{}{}:
			t.Stop()
			return func() { <-p.o.turns }, nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-p.o.closed:
			t.Stop()
			return nil, ErrClosed
		}
	}
	if p.Left() <= 0 {
		return nil, ErrLate
	}
	return func() {}, nil
}

// Pause waits for the next try, which makes sense when next is closed; nil means to poll. refused is whether a replica
// has refused the session. It reports false if there is no other try: ctx or the order has ended, or the
// session's time is over.
func (p *Place) Pause(ctx context.Context, next <-chan struct{}, refused bool) bool {
	if p.pause *= 2; !refused || p.pause == 0 {
		p.pause = pause
	}
	wait, left := min(p.pause, LongestPause), p.Left()
	t := time.NewTimer(min(wait, left))
	defer t.Stop()
	select {
	case <-next:
	case <-t.C:
	case <-ctx.Done():
	case <-p.o.closed:
		return false
	}
	return ctx.Err() == nil && wait < left
}

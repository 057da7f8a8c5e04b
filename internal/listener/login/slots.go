package login

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// enterPreAuth takes a pre-auth slot. With limit there are no more slots than the configured number; it reports false
// if there is none for this client. A client that returns from waiting for a primary is not limited.
func (c *Client) enterPreAuth(limit bool) bool {
	most := 0
	if limit {
		most = c.srv.Limits.PreAuth
	}
	return c.srv.slots.Enter(c.slot, most)
}

// awaitPrimary takes the client from its pre-auth slot to a place among those that have proved nothing and wait for a
// replica. It reports false if all those places are taken by others with a better right to them: the client that has
// waited longest, of the address with the most places, gives way. leave gives the place back.
func (c *Client) awaitPrimary() (leave func(), ok bool) {
	c.leavePreAuth()
	p := c.srv.waiters.Enter(c.from.Key, boottime.Now(), func() { c.srv.slots.Evict(c.slot) })
	if p == nil {
		return nil, false
	}
	return func() {
		p.Leave()
		c.enterPreAuth(false)
	}, true
}

// EachUnproven and allUnproven bound the work for clients that are not authenticated, of one address and of all: a TLS
// handshake counts as one, and so does a question about a role. A login that succeeds costs nothing, and its address is
// not subject to the bound of all.
var (
	EachUnproven = admission.Rate{PerSecond: 100, Burst: 500}
	allUnproven  = admission.Rate{PerSecond: 1000, Burst: 4000}
)

// spendPause is how long a client without budget waits until it tries again.
const spendPause = 20 * time.Millisecond

// spend waits until the budget allows one more handshake or question for the client, if it is not authenticated. The
// wait ends with the client's time, and its place may be taken.
func (c *Client) spend(ctx context.Context) error {
	if !c.holdsSlot() {
		return nil
	}
	waits := false
	for !c.srv.unproven.Spend(c.from.Key, 1, boottime.Now()) {
		if !waits {
			waits = true
			c.waits()
			defer c.heard()
		}
		if !time.Now().Before(c.until) {
			return tooManyEnter()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.slot.Taken():
			return tooManyEnter()
		case <-time.After(spendPause):
		}
	}
	c.spent++
	return nil
}

// asking returns a context for a question that is asked for the client. It ends when the client loses its place.
func (c *Client) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.slot.Kept(), func() { cancel(tooManyEnter()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// evictionError returns the reason why the client was lost, if it was evicted; else err.
func (c *Client) evictionError(err error) error {
	if _, said := pgwire.AsError(err); said || !c.srv.slots.Evicted(c.slot) {
		return err
	}
	return tooManyEnter()
}

// tooManyEnter returns the error of a client without a pre-auth slot.
func tooManyEnter() *pgwire.Error {
	return pgwire.Fatal("pre-auth limit", pgwire.StateTooMany, "too many connections are being opened")
}

// waits notes that it is the client's turn. heard notes that the client has acted.
func (c *Client) waits() { c.slot.Waits() }
func (c *Client) heard() { c.slot.Heard() }

// holdsSlot reports whether the client holds a pre-auth slot.
func (c *Client) holdsSlot() bool { return c.srv.slots.Holds(c.slot) }

// leavePreAuth gives the slot back.
func (c *Client) leavePreAuth() { c.srv.slots.Leave(c.slot) }

// full returns the error of a client for whom there would be no place among the sessions. It takes none: a client that
// has proved nothing has no right to one.
func (c *Client) full() *pgwire.Error {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	return c.noPlace()
}

// noPlace is full; the caller holds mu.
func (c *Client) noPlace() *pgwire.Error {
	switch s, limits := c.srv, c.srv.Limits; {
	case c.counted:
	case s.open >= limits.Connections:
		return pgwire.Fatal("connection limit", pgwire.StateTooMany, "sorry, too many clients already")
	case limits.PerAddress > 0 && s.perAddress[c.from.Key] >= limits.PerAddress:
		return pgwire.Fatal("address limit", pgwire.StateTooMany, "too many connections from this address")
	}
	return nil
}

// count takes a place among the sessions for a client that is authenticated, if it has none yet. Cancel requests never
// need one, so a full server can still be helped.
func (c *Client) count() *pgwire.Error {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if bad := c.noPlace(); bad != nil || c.counted {
		return bad
	}
	s.open++
	s.perAddress[c.from.Key]++
	c.counted = true
	return nil
}

// release gives back what the client was counted under.
func (c *Client) release() {
	c.leavePreAuth()
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.counted {
		return
	}
	s.open--
	if s.perAddress[c.from.Key]--; s.perAddress[c.from.Key] <= 0 {
		delete(s.perAddress, c.from.Key)
	}
}

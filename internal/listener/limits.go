package listener

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// preauthSlot is the slot of a client that is not authenticated. It is the client's own only as long as no other
// client needs it more.
type preauthSlot struct {
	counted bool // guarded by Server.mu
	evicted bool // guarded by Server.mu: the slot was given to another client
	// since is when the listener began to wait for the client, CLOCK_BOOTTIME; 0: it is the listener's turn. Only the
	// client's goroutine writes it.
	since       atomic.Int64
	handshaking bool // a TLS handshake is in progress: no error can be sent
	// kept ends when the slot was given to another client; taken is its Done, lose ends it.
	kept  context.Context
	taken <-chan struct{}
	lose  context.CancelFunc
	spent float64 // of the budget of those that have proved nothing; only the client's goroutine writes it
}

// enterPreAuth takes a pre-auth slot. With limit there are no more slots than the configured number. A client that
// keeps the listener waiting is evicted, else one of an address that has more than its share; the newcomer is refused
// only if there is neither. A client that returns from waiting for a primary is not limited.
func (c *client) enterPreAuth(limit bool) bool {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit && len(s.preauth) >= s.cfg.Limits.PreAuth {
		victim := s.oldestIdle()
		if victim == nil {
			victim = s.oneOfTooMany(c.limitKey)
		}
		if victim == nil {
			return false
		}
		victim.evict()
	}
	if !c.slot.counted {
		c.slot.counted = true
		s.preauth[c] = struct{}{}
	}
	return true
}

// evict ends the login of the client, whose place another one gets. The caller holds mu.
func (c *client) evict() {
	delete(c.srv.preauth, c)
	c.slot.counted, c.slot.evicted = false, true
	if st := c.preauth; st != nil {
		st.loop.Post(st.guarded(st.handOff))
	} else {
		_ = c.raw.SetDeadline(time.Unix(1, 0))
	}
	c.slot.lose() // after its deadline was set: it sets another one to send its error
}

// oneOfTooMany returns a connection to evict although it is the listener's turn: of the address with the most pre-auth
// slots, if that has more than an equal share, and more than the newcomer's address. The question that the listener
// asks for it is given up. The caller holds mu.
func (s *Server) oneOfTooMany(newcomer string) (found *client) {
	held := map[string]int{newcomer: 0}
	for c := range s.preauth {
		held[c.limitKey]++
	}
	most := max(held[newcomer], max(1, len(s.preauth)/len(held)))
	for c := range s.preauth {
		if n := held[c.limitKey]; n > most && c.preauth == nil {
			found, most = c, n
		}
	}
	return found
}

// awaitPrimary takes the client from its pre-auth slot to a place among those that have proved nothing and wait for a
// replica. It reports false if all those places are taken by others with a better right to them: the client that has
// waited longest, of the address with the most places, gives way. leave gives the place back.
func (c *client) awaitPrimary() (leave func(), ok bool) {
	c.leavePreAuth()
	p := c.srv.waiters.Enter(c.limitKey, boottime.Now(), func() {
		c.srv.mu.Lock()
		defer c.srv.mu.Unlock()
		c.evict()
	})
	if p == nil {
		return nil, false
	}
	return func() {
		p.Leave()
		c.enterPreAuth(false)
	}, true
}

// eachUnproven and allUnproven bound the work for clients that are not authenticated, of one address and of all: a TLS
// handshake counts as one, and so does a question about a role. A login that succeeds costs nothing, and its address is
// not subject to the bound of all.
var (
	eachUnproven = admission.Rate{PerSecond: 100, Burst: 500}
	allUnproven  = admission.Rate{PerSecond: 1000, Burst: 4000}
)

// spendPause is how long a client without budget waits until it tries again.
const spendPause = 20 * time.Millisecond

// spend waits until the budget allows one more handshake or question for the client, if it is not authenticated. The
// wait ends with the client's time, and its place may be taken.
func (c *client) spend(ctx context.Context) error {
	if !c.holdsSlot() {
		return nil
	}
	waits := false
	for !c.srv.unproven.Spend(c.limitKey, 1, boottime.Now()) {
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
		case <-c.slot.taken:
			return tooManyEnter()
		case <-time.After(spendPause):
		}
	}
	c.slot.spent++
	return nil
}

// asking returns a context for a question that is asked for the client. It ends when the client loses its place.
func (c *client) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.slot.kept, func() { cancel(tooManyEnter()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// oldestIdle returns the connection to evict: the longest-waiting one of the address that holds the most pre-auth
// slots. A flood so evicts only its own connections. The caller holds mu.
func (s *Server) oldestIdle() (found *client) {
	perHost := make(map[string]int)
	for c := range s.preauth {
		if c.slot.since.Load() != 0 {
			perHost[c.limitKey]++
		}
	}
	worse := func(a, b *client) bool {
		if na, nb := perHost[a.limitKey], perHost[b.limitKey]; na != nb {
			return na > nb
		}
		return a.slot.since.Load() < b.slot.since.Load()
	}
	for c := range s.preauth {
		if c.slot.since.Load() != 0 && (found == nil || worse(c, found)) {
			found = c
		}
	}
	return found
}

// evictionError returns the reason why the client was lost, if it was evicted; else err.
func (c *client) evictionError(err error) error {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if _, said := pgwire.AsError(err); said || !c.slot.evicted {
		return err
	}
	return tooManyEnter()
}

// tooManyEnter returns the error of a client without a pre-auth slot.
func tooManyEnter() *pgwire.Error {
	return pgwire.Fatal("pre-auth limit", pgwire.StateTooMany, "too many connections are being opened")
}

// waits notes that it is the client's turn. heard notes that the client has acted.
func (c *client) waits() { c.slot.since.Store(int64(boottime.Now())) }
func (c *client) heard() { c.slot.since.Store(0) }

// holdsSlot reports whether the client holds a pre-auth slot.
func (c *client) holdsSlot() bool {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	return c.slot.counted
}

// leavePreAuth gives the slot back.
func (c *client) leavePreAuth() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.slot.counted = false
	delete(c.srv.preauth, c)
}

// startTurn is how long a session's turn to start lasts at most. One that takes longer waits for a lock or a disk,
// and keeps no processor from the others.
const startTurn = time.Second

// startOne waits for a turn to have the local server start a session, in order of arrival. After a failover all
// clients connect at once, and a server that starts hundreds of processes at the same time finishes none of them
// soon. done ends the turn.
func (s *Server) startOne(ctx context.Context) (done func(), err error) {
	select {
	case s.starting <- struct{}{}:
	default:
		s.counts.queued.Add(1)
		select {
		case s.starting <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("the server was starting %d other sessions all the time: %w", cap(s.starting), ctx.Err())
		}
	}
	end := sync.OnceFunc(func() { <-s.starting })
	late := time.AfterFunc(startTurn, end)
	return func() { late.Stop(); end() }, nil
}

// full returns the error of a client for whom there would be no place among the sessions. It takes none: a client that
// has proved nothing has no right to one.
func (c *client) full() *pgwire.Error {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	return c.noPlace()
}

// noPlace is full; the caller holds mu.
func (c *client) noPlace() *pgwire.Error {
	switch s, limits := c.srv, c.srv.cfg.Limits; {
	case c.counted:
	case s.open >= limits.Connections:
		return pgwire.Fatal("connection limit", pgwire.StateTooMany, "sorry, too many clients already")
	case limits.PerAddress > 0 && s.perAddress[c.limitKey] >= limits.PerAddress:
		return pgwire.Fatal("address limit", pgwire.StateTooMany, "too many connections from this address")
	}
	return nil
}

// count takes a place among the sessions for a client that is authenticated, if it has none yet. Cancel requests never
// need one, so a full server can still be helped.
func (c *client) count() *pgwire.Error {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if bad := c.noPlace(); bad != nil || c.counted {
		return bad
	}
	s.open++
	s.perAddress[c.limitKey]++
	c.counted = true
	return nil
}

// release gives back what the client was counted under.
func (c *client) release() {
	c.leavePreAuth()
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.counted {
		return
	}
	s.open--
	if s.perAddress[c.limitKey]--; s.perAddress[c.limitKey] <= 0 {
		delete(s.perAddress, c.limitKey)
	}
}

// maxAddresses is how many addresses are known at once; beyond that, the one that was not seen for longest is
// forgotten.
const maxAddresses = 4096

// eachFlush and allFlushes bound how often statements about databases empty the pool, by one role and by all:
// PostgreSQL refuses such a statement of most roles, but only after the pool has been emptied for it. Beyond the bound
// a pooled backend leaves by itself within poolIdle, for which PostgreSQL waits.
var (
	eachFlush  = admission.Rate{PerSecond: 0.2, Burst: 5}
	allFlushes = admission.Rate{PerSecond: 1, Burst: 20}
)

// maxFlushers is the number of roles that are remembered for that.
const maxFlushers = 256

// mayFlush reports whether a statement of that role about a database may empty the pool.
func (s *Server) mayFlush(user string) bool { return s.flushes.Spend(user, 1, boottime.Now()) }

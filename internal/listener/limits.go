package listener

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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
	handshaking bool          // a TLS handshake is in progress: no error can be sent
	taken       chan struct{} // closed when the slot was given to another client
}

// enterPreAuth takes a pre-auth slot. With limit there are no more slots than the configured number: a client that
// keeps the listener waiting is evicted, and the newcomer is refused only if there is none. A client that returns
// from waiting for a primary is not limited.
func (c *client) enterPreAuth(limit bool) bool {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit && len(s.preauth) >= s.cfg.Limits.PreAuth {
		oldest := s.oldestIdle()
		if oldest == nil {
			return false
		}
		delete(s.preauth, oldest)
		oldest.slot.counted, oldest.slot.evicted = false, true
		close(oldest.slot.taken)
		oldest.evict()
	}
	if !c.slot.counted {
		c.slot.counted = true
		s.preauth[c] = struct{}{}
	}
	return true
}

// evict ends the login of the client. The caller holds mu.
func (c *client) evict() {
	if st := c.preauth; st != nil {
		st.loop.post(st.guarded(st.handOff))
		return
	}
	_ = c.raw.SetDeadline(time.Unix(1, 0))
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

// count takes a place among the sessions, if the client has none yet. Cancel requests never need one, so a full
// server can still be helped.
func (c *client) count() *pgwire.Error {
	s, limits := c.srv, c.srv.cfg.Limits
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.counted {
		return nil
	}
	if s.open >= limits.Connections {
		return pgwire.Fatal("connection limit", pgwire.StateTooMany, "sorry, too many clients already")
	}
	if limits.PerAddress > 0 && s.perAddress[c.limitKey] >= limits.PerAddress {
		return pgwire.Fatal("address limit", pgwire.StateTooMany, "too many connections from this address")
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

// rate counts events by key in the current second.
type rate struct {
	mu     sync.Mutex
	second int64          // guarded by mu
	seen   map[string]int // guarded by mu
}

// add records an event, unless key has had limit events in this second, or too many keys are known.
func (r *rate) add(key string, now time.Time, limit int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second != now.Unix() {
		r.second, r.seen = now.Unix(), make(map[string]int)
	}
	n := r.seen[key]
	if n >= limit || n == 0 && len(r.seen) >= maxAddresses {
		return false
	}
	r.seen[key] = n + 1
	return true
}

// takeBack removes an event that was added at that time.
func (r *rate) takeBack(key string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second == at.Unix() && r.seen[key] > 0 {
		r.seen[key]--
	}
}

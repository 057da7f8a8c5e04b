package login

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// goneCheck is how often a waiting login checks whether its client is still connected, and the pause when routes are
// polled.
const goneCheck = 500 * time.Millisecond

// loginBudget is how long a login may wait for a replica, over all its tries.
type loginBudget struct {
	until time.Time
	pause time.Duration // before the next try after a failed one
	last  error
}

func (c *Client) newLoginBudget() *loginBudget {
	return &loginBudget{until: time.Now().Add(max(0, c.srv.ConnectWait())), pause: 50 * time.Millisecond}
}

// pick returns where a session of that intent goes now, without the replicas passed over. next is closed when another
// call makes sense; nil means to poll.
func (s *Logins) pick(intent ag.Intent, passed ...ag.ReplicaID) (r routing.Route, next <-chan struct{}, ok bool) {
	if intent == ag.ReadWrite {
		if held := s.Holding(); held != nil {
			return routing.Route{}, held, false
		}
	}
	if s.Changed != nil {
		next = s.Changed() // read before Routes, so that no change is missed
	}
	routes := s.Routes()
	turn := s.turn.Load()
	if intent == ag.ReadOnly { // if writers took turns, a client that opens one writer and one reader each time would always read from the same replica
		turn = s.turn.Add(1) - 1
	}
	if r, ok = routing.Pick(routes, intent, turn, passed...); !ok {
		return routing.Route{}, next, false
	}
	if held := s.Holding(); held != nil && r.FellBack && r.Local {
		return routing.Route{}, held, false
	}
	r.Changed = next
	return r, next, true
}

// Pick returns where a session of the client goes now. It passes over copies that are further behind than the client
// allows. next is closed when another call makes sense; nil means to poll.
func (s *Logins) Pick(ctx context.Context, p *Proved) (r routing.Route, next <-chan struct{}, ok bool) {
	var passed []ag.ReplicaID
	for {
		r, next, ok = s.pick(p.Intent, passed...)
		if !ok || p.MaxLag == 0 || r.FellBack || s.Near(ctx, r.ID, p.MaxLag) {
			return r, next, ok
		}
		s.Counts.Lagged.Add(1)
		s.Log.Debug("passed over: too far behind, or not known to be near", "replica", r.ID, "max_lag", p.MaxLag)
		passed = append(passed, r.ID)
	}
}

// pick returns where the session goes now.
func (c *Client) pick(ctx context.Context) (r routing.Route, next <-chan struct{}, ok bool) {
	if p := c.picked; p != nil { // chosen a moment ago: the turn counts, unless the routes have changed
		c.picked = nil
		select {
		case <-p.Changed:
		default:
			return *p, p.Changed, true
		}
	}
	return c.srv.Pick(ctx, &c.Proved)
}

// route waits until a replica serves the client's intent, within the login's budget.
func (c *Client) route(ctx context.Context, p *loginBudget) (routing.Route, error) {
	began, unproved := time.Now(), c.holdsSlot()
	r, next, ok := c.pick(ctx)
	if ok {
		c.until = c.until.Add(time.Since(began)) // not the client's own time
		return r, nil
	}
	if unproved {
		leave, ok := c.awaitPrimary()
		if !ok {
			return routing.Route{}, tooManyEnter()
		}
		defer leave()
	}
	c.srv.addWaiting(1)
	defer func() {
		c.srv.addWaiting(-1)
		c.until = c.until.Add(time.Since(began)) // not the client's own time
	}()
	for !ok {
		if bad := routing.NeverServed(c.srv.Routes(), c.Intent); bad != nil {
			return routing.Route{}, bad
		}
		if c.srv.removed() {
			return routing.Route{}, routing.Removed()
		}
		if err := c.sleep(ctx, p, next, goneCheck); err != nil {
			return routing.Route{}, err
		}
		r, next, ok = c.pick(ctx)
	}
	return r, nil
}

// removed reports whether the group does not have this node any more.
func (s *Logins) removed() bool { return s.Removed != nil && s.Removed() }

func (s *Logins) addWaiting(n int) {
	s.mu.Lock()
	s.waiting += n
	s.mu.Unlock()
}

// retry pauses after a try on r that failed for a temporary reason. It returns when other routes are in force than
// those that named r, which may be so already, or after a while.
func (c *Client) retry(ctx context.Context, p *loginBudget, r routing.Route, err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return outOfFiles() // waiting clients, each with the descriptor that another one needs, could all wait in vain
	}
	if c.srv.removed() {
		return routing.Removed()
	}
	p.last = err
	c.srv.Log.Debug("session not opened yet", "user", c.Start.User, "intent", c.Intent, "error", err)
	began := time.Now()
	bad := c.sleep(ctx, p, r.Changed, p.pause)
	c.until = c.until.Add(time.Since(began)) // not the client's own time
	p.pause = min(2*p.pause, time.Second)
	return bad
}

// sleep waits for next, for at most d. It ends the login when its budget, the server or the client has ended.
func (c *Client) sleep(ctx context.Context, p *loginBudget, next <-chan struct{}, d time.Duration) error {
	left := time.Until(p.until)
	if left <= 0 {
		return c.noReplica(p)
	}
	t := time.NewTimer(min(d, left))
	defer t.Stop()
	select {
	case <-next:
	case <-t.C:
	case <-c.slot.Taken():
		return tooManyEnter()
	case <-ctx.Done():
		return pgwire.Fatal("stopping", pgwire.StateAdminShutdown, "the listener of this node is stopping")
	}
	if _, gone := socket.Peek(c.Raw); gone {
		return io.EOF
	}
	return nil
}

// noReplica returns the error that no replica serves the client's intent.
func (c *Client) noReplica(p *loginBudget) *pgwire.Error {
	if p.last != nil {
		c.srv.Log.Warn("session not opened", "user", c.Start.User, "intent", c.Intent, "error", p.last)
	}
	return routing.NoReplica(c.srv.Routes(), c.Intent, c.MaxLag, p.last != nil)
}

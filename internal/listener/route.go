package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/lag"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// goneCheck is how often a waiting login checks whether its client is still connected, and the pause when routes are
// polled.
const goneCheck = 500 * time.Millisecond

var errMoved = errors.New("the group moved while the session was being opened")

// attempt is the opening of a session on a replica. The end of that replica's role ends the attempt, not the login.
type attempt struct {
	routing.Route
	intent ag.Intent
	cancel context.CancelCauseFunc
}

// loginBudget is how long a login may wait for a replica, over all its tries.
type loginBudget struct {
	until time.Time
	pause time.Duration // before the next try after a failed one
	last  error
}

func (c *client) newLoginBudget() *loginBudget {
	return &loginBudget{until: time.Now().Add(max(0, c.srv.cfg.ConnectWait)), pause: 50 * time.Millisecond}
}

// pick returns where a session of that intent goes now, without the replicas passed over. next is closed when another
// call makes sense; nil means to poll.
func (s *Server) pick(intent ag.Intent, passed ...ag.ReplicaID) (r routing.Route, next <-chan struct{}, ok bool) {
	if intent == ag.ReadWrite {
		if held := s.holding(); held != nil {
			return routing.Route{}, held, false
		}
	}
	if s.cfg.Changed != nil {
		next = s.cfg.Changed() // read read before Routes, so that no change is missed
	}
	routes := s.cfg.Routes()
	turn := s.turn.Load()
	if intent == ag.ReadOnly { // if writers took turns, a client that opens one writer and one reader each time would always read from the same replica
		turn = s.turn.Add(1) - 1
	}
	if r, ok = routing.Pick(routes, intent, turn, passed...); !ok {
		return routing.Route{}, next, false
	}
	if held := s.holding(); held != nil && r.FellBack && r.Local {
		return routing.Route{}, held, false
	}
	r.Changed = next
	return r, next, true
}

// pick returns where the session goes now. It passes over copies that are further behind than the client allows.
func (c *client) pick(ctx context.Context) (r routing.Route, next <-chan struct{}, ok bool) {
	if p := c.picked; p != nil { // chosen a moment ago: the turn counts, unless the routes have changed
		c.picked = nil
		select {
		case <-p.Changed:
		default:
			return *p, p.Changed, true
		}
	}
	var passed []ag.ReplicaID
	for {
		r, next, ok = c.srv.pick(c.intent, passed...)
		if !ok || c.maxLag == 0 || r.FellBack || c.srv.lag.Within(ctx, r.ID, c.maxLag) {
			return r, next, ok
		}
		c.srv.counts.Lagged.Add(1)
		c.log.Debug("passed over: too far behind, or not known to be near", "replica", r.ID, "max_lag", c.maxLag)
		passed = append(passed, r.ID)
	}
}

// route waits until a replica serves the client's intent, within the login's budget.
func (c *client) route(ctx context.Context, p *loginBudget) (routing.Route, error) {
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
		if bad := routing.NeverServed(c.srv.cfg.Routes(), c.intent); bad != nil {
			return routing.Route{}, bad
		}
		if err := c.sleep(ctx, p, next, goneCheck); err != nil {
			return routing.Route{}, err
		}
		r, next, ok = c.pick(ctx)
	}
	return r, nil
}

func (s *Server) addWaiting(n int) {
	s.mu.Lock()
	s.waiting += n
	s.mu.Unlock()
}

// retry pauses after a try on r that failed for a temporary reason. It returns when other routes are in force than
// those that named r, which may be so already, or after a while.
func (c *client) retry(ctx context.Context, p *loginBudget, r routing.Route, err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return outOfFiles() // waiting clients, each with the descriptor that another one needs, could all wait in vain
	}
	p.last = err
	c.log.Debug("session not opened yet", "user", c.start.User, "intent", c.intent, "error", err)
	began := time.Now()
	bad := c.sleep(ctx, p, r.Changed, p.pause)
	c.until = c.until.Add(time.Since(began)) // not the client's own time
	p.pause = min(2*p.pause, time.Second)
	return bad
}

// sleep waits for next, for at most d. It ends the login when its budget, the server or the client has ended.
func (c *client) sleep(ctx context.Context, p *loginBudget, next <-chan struct{}, d time.Duration) error {
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
	if _, gone := socket.Peek(c.raw); gone {
		return io.EOF
	}
	return nil
}

// noReplica returns the error that no replica serves the client's intent.
func (c *client) noReplica(p *loginBudget) *pgwire.Error {
	if p.last != nil {
		c.log.Warn("session not opened", "user", c.start.User, "intent", c.intent, "error", p.last)
	}
	return routing.NoReplica(c.srv.cfg.Routes(), c.intent, c.maxLag, p.last != nil)
}

// begin registers an attempt, so that CloseEpoch and CloseReplica can end it. It reports false if the route is
// outdated.
func (s *Server) begin(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.intent == ag.ReadWrite && a.Epoch < s.minEpoch {
		return false
	}
	s.attempts[a] = struct{}{}
	return true
}

// abandon unregisters an attempt.
func (s *Server) abandon(a *attempt) {
	s.mu.Lock()
	delete(s.attempts, a)
	s.mu.Unlock()
	a.cancel(nil)
}

// CloseEpoch ends read-write sessions that were opened under an epoch before that one, and returns how many. Publish
// the routes of the new epoch first: a login that still sees the old ones waits for newer ones.
func (s *Server) CloseEpoch(before ag.Epoch, why string) int {
	old := func(intent ag.Intent, epoch ag.Epoch) bool { return intent == ag.ReadWrite && epoch < before }
	s.pool.Flush("epoch")
	s.mu.Lock()
	s.minEpoch = max(s.minEpoch, before)
	for a := range s.attempts {
		if old(a.intent, a.Epoch) {
			a.cancel(errMoved)
		}
	}
	s.mu.Unlock()
	return s.endWhere(ending{reason: endEpoch, why: why}, func(x *session) bool { return old(x.intent, x.epoch) || x.onPrimary && x.epoch < before })
}

// CloseReplica ends the sessions on that replica, of both intents if intent is empty, and returns how many.
func (s *Server) CloseReplica(id ag.ReplicaID, intent ag.Intent, why string) int {
	s.pool.Flush("replica")
	match := func(i ag.Intent, on ag.ReplicaID) bool { return on == id && (intent == "" || i == intent) }
	s.mu.Lock()
	for a := range s.attempts {
		if match(a.intent, a.ID) {
			a.cancel(errMoved)
		}
	}
	s.mu.Unlock()
	on := func(x *session) bool { return match(x.intent, x.replica) }
	return s.endEach(on, func(x *session) ending { return x.leftBehind(ending{reason: endReplica, why: why}) })
}

// endWhere ends the sessions that match, and returns how many were still open. A session that outlives its server
// leaves that instead.
func (s *Server) endWhere(e ending, match func(*session) bool) int {
	return s.endEach(match, func(*session) ending { return e })
}

// endEach is endWhere with an ending for each session.
func (s *Server) endEach(match func(*session) bool, with func(*session) ending) int {
	s.mu.Lock()
	var list []*session
	for _, x := range s.sessions {
		if match(x) {
			list = append(list, x)
		}
	}
	s.mu.Unlock()
	n := 0
	for _, x := range list {
		e := with(x)
		outlives := e.reason == endEpoch || (e.reason == endReplica || e.reason == endDrain) && x.drained.local && !x.relayed
		if outlives && x.outlive() {
			x.wake()
		} else if x.end(e) {
			n++
		}
	}
	return n
}

// LeaveAddress ends the sessions of clients connected to a local address that is about to leave this machine, those
// that have no server at the moment, too. It waits a moment for their final messages to be sent.
func (s *Server) LeaveAddress(ctx context.Context, a netip.Addr, why string) {
	on := func(raw net.Conn) bool {
		t, ok := raw.LocalAddr().(*net.TCPAddr)
		return ok && t.AddrPort().Addr().Unmap().WithZone("") == a
	}
	mine := func(x *session) bool { return !x.relayed && on(x.raw) }
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	for {
		left := 0
		s.mu.Lock()
		for c := range s.unserved {
			if on(c.raw) {
				left++
				c.giveUp(errors.New(why))
			}
		}
		for _, x := range s.sessions {
			if mine(x) {
				left++
			}
		}
		s.mu.Unlock()
		if left == 0 {
			return
		}
		s.endWhere(ending{reason: "address", why: why}, mine) // also one that has just found a server
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// noServer notes that the client's session has no server, or that this is over. It is called BEFORE the session leaves
// the server's list and AFTER the next one has entered it: one of both knows the client.
func (c *client) noServer(is bool) {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		c.unserved, c.giveUp = context.WithCancelCause(s.life)
		s.unserved[c] = struct{}{}
		return
	}
	c.giveUp(nil)
	delete(s.unserved, c)
}

// overBy returns why the client waits for no server any more: what giveUp was told, else err.
func (c *client) overBy(err error) error {
	if c.srv.life.Err() != nil {
		return err
	}
	return cmp.Or(context.Cause(c.unserved), err)
}

// readerPoll is how often sessions that have to leave a replica are checked, and routes if their changes are not
// announced.
const readerPoll = 100 * time.Millisecond

// moveReaders ends the sessions of readers on replicas that have left the primary's routing list, as each becomes
// idle. A session that is still busy after HoldMax is cut. The clients reconnect by the list in force. It runs until
// the server closes.
func (s *Server) moveReaders() {
	since := map[ag.ReplicaID]time.Time{} // replicas that left the list, and when that was first seen
	for {
		var changed <-chan struct{}
		if s.cfg.Changed != nil {
			changed = s.cfg.Changed() // before Routes
		}
		poll, left := (<-chan time.Time)(nil), 0
		s.sheltered("looking for readers of unlisted replicas", func() { left = s.leaveUnlisted(s.cfg.Routes(), since) })
		if left > 0 || changed == nil {
			poll = time.After(readerPoll)
		}
		select {
		case <-changed:
		case <-poll:
		case <-s.closed:
			return
		}
	}
}

// leaveUnlisted ends what can be ended now, and returns how many sessions are still on unlisted replicas. Without a
// primary no list is in force, and readers stay.
func (s *Server) leaveUnlisted(r *ag.Routes, since map[ag.ReplicaID]time.Time) (left int) {
	if r == nil || r.Primary == "" {
		clear(since)
		return 0
	}
	gone := ending{reason: "routing list", why: "this replica has left the read-only routing list"}
	misplaced := func(x *session) bool {
		return !x.relayed && x.intent == ag.ReadOnly && x.replica != r.Primary && !r.Listed(x.replica)
	}
	seen := map[ag.ReplicaID]bool{}
	s.endWhere(gone, func(x *session) bool {
		if !misplaced(x) {
			return false
		}
		seen[x.replica] = true
		if _, known := since[x.replica]; !known {
			since[x.replica] = time.Now()
		}
		if x.idle() || time.Since(since[x.replica]) > s.cfg.HoldMax {
			return true
		}
		left++
		return false
	})
	for id := range since {
		if !seen[id] {
			delete(since, id)
		}
	}
	return left
}

// takesBack reports whether that replica is behind another node's listener, which may have to give sessions back.
func (c *client) takesBack(id ag.ReplicaID) bool {
	r := c.srv.cfg.Routes()
	return r != nil && r.Self != id && c.mayOutlive()
}

// mayOutlive reports whether sessions of the client may outlive their server.
func (c *client) mayOutlive() bool {
	return c.srv.cfg.Continuity != nil && c.srv.cfg.Continuity() && c.start.Replication == pgwire.ReplicationNone
}

// handsOver reports whether the route of a reader that has left its replica leads to the primary that is about to hand
// over to that replica. left is the epoch in which the reader has left. A replica that is lost takes nothing over.
func (x *session) handsOver(r routing.Route, left ag.Epoch) bool {
	return !x.onPrimary && !x.moving.outlived.Load() && r.FellBack && r.ID != x.replica && r.Epoch == left
}

// epoch returns the epoch of the routes in force; 0 if there are none.
func (s *Server) epoch() ag.Epoch {
	if r := s.cfg.Routes(); r != nil {
		return r.Epoch
	}
	return 0
}

// A reader that goes on at another copy sees nothing there go back: the copy that it has left had replayed no more than
// its primary had flushed by then, and the next one has to reach that first.

// reaches waits a moment until the replica of r holds all that the session x, a reader, may have seen where it was. The
// primary is asked how far that is once x has left there, and again in each epoch: it has all that was acknowledged.
func (c *client) reaches(ctx context.Context, r routing.Route, x *session) error {
	s := c.srv
	routes := s.cfg.Routes()
	if c.intent != ag.ReadOnly || s.cfg.Position == nil || routes != nil && routes.Primary == r.ID {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lag.CatchUp)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		at, err := s.cfg.Position(ctx, r.ID)
		if err == nil && (x.moving.seen == lag.Progress{} || x.moving.seen.Epoch != at.Epoch) {
			x.moving.seen, err = s.lag.Primary(ctx)
		}
		switch seen := x.moving.seen; {
		case err != nil:
			return fmt.Errorf("ask how far replica %s and the primary are: %w", r.ID, err)
		case at.Epoch == seen.Epoch && at.LSN >= seen.LSN:
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			s.counts.Lagged.Add(1)
			return fmt.Errorf("replica %s has not replayed yet what the session may have seen", r.ID)
		}
	}
}

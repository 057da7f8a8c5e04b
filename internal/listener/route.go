package listener

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/lag"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

// CloseEpoch ends read-write sessions that were opened under an epoch before that one, and returns how many. Publish
// the routes of the new epoch first: a login that still sees the old ones waits for newer ones.
func (s *Server) CloseEpoch(before ag.Epoch, why string) int {
	old := func(intent ag.Intent, epoch ag.Epoch) bool { return intent == ag.ReadWrite && epoch < before }
	s.pool.Flush("epoch")
	s.attempts.CloseEpoch(before)
	return s.endWhere(ending{reason: endEpoch, why: why}, func(x *session) bool { return old(x.intent, x.epoch) || x.work.OnPrimary && x.epoch < before })
}

// CloseReplica ends the sessions on that replica, of both intents if intent is empty, and returns how many.
func (s *Server) CloseReplica(id ag.ReplicaID, intent ag.Intent, why string) int {
	s.pool.Flush("replica")
	match := func(i ag.Intent, on ag.ReplicaID) bool { return on == id && (intent == "" || i == intent) }
	s.attempts.CloseReplica(id, intent)
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
	n := 0
	for _, x := range s.where(match) {
		e := with(x)
		outlives := e.reason == endEpoch || (e.reason == endReplica || e.reason == endDrain) && x.work.Local && !x.relayed
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
			if on(c.Raw) {
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
		if x.work.Idle() || time.Since(since[x.replica]) > s.cfg.HoldMax {
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
	return c.srv.rules.Continues() && c.Start.Replication == pgwire.ReplicationNone
}

// handsOver reports whether the route of a reader that has left its replica leads to the primary that is about to hand
// over to that replica. left is the epoch in which the reader has left. A replica that is lost takes nothing over.
func (x *session) handsOver(r routing.Route, left ag.Epoch) bool {
	return !x.work.OnPrimary && !x.moving.outlived.Load() && r.FellBack && r.ID != x.replica && r.Epoch == left
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
	if c.Intent != ag.ReadOnly || s.cfg.Position == nil || routes != nil && routes.Primary == r.ID {
		return nil
	}
	err := s.lag.Reaches(ctx, r.ID, &x.moving.seen)
	if errors.Is(err, lag.ErrBehind) {
		s.counts.Lagged.Add(1)
	}
	return err
}

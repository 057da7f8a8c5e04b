package listener

import (
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// A drain is the listener's part in a planned failover (docs/internals/safety.md, "Planned failover"). While it lasts, the requests that would begin a
// transaction on the local server wait here, at a message boundary, with the client's later bytes behind them in its socket; what
// runs goes on to its end. Every session of the local server passes this listener, also those that clients of other nodes have, so
// nothing has to be told to the others.

// activeDrain is one of them.
type activeDrain struct {
	over chan struct{} // closed at its end: what waits goes on
}

// drainPoll is how often a client that sends its next request before the answer to the last is looked at: only that answer tells
// whether a transaction has ended.
const drainPoll = time.Millisecond

// draining is what a session keeps for it.
type draining struct {
	mu        sync.Mutex // held from looking for a drain until what is forwarded has been counted
	midway    bool       // a request is half forwarded
	local     bool       // the backend is this node's server
	streaming bool       // it carries a logical replication stream, which has no end to wait for
	held      bool       // a request waits that was never forwarded
}

// Drain makes new transactions on the local server wait (true), or go on (false). A request waits for HoldMax at most, then its
// session is ended with 40001.
func (s *Server) Drain(on bool) {
	if on {
		defer s.pool.flush("drain") // after the drain is seen by those that would wait
	}
	if on {
		defer s.reclaimWhere(func(x *session) bool { return x.offloaded.Load() })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.drain.Load()
	switch {
	case on && d == nil:
		s.drain.Store(&activeDrain{over: make(chan struct{})})
	case !on && d != nil:
		s.drain.Store(nil)
		close(d.over)
	}
}

// Busy returns how many sessions of the local server have a transaction or request under way. While a drain lasts the number
// only falls.
func (s *Server) Busy() (n int) {
	for _, x := range s.localSessions() {
		if x.busy() {
			n++
		}
	}
	return n
}

// CutBusy ends the sessions of the local server that have a transaction or request under way, and returns how many.
func (s *Server) CutBusy(why string) int {
	return s.endWhere(ending{reason: endDrain, why: why}, func(x *session) bool { return x.drained.local && x.busy() })
}

// CloseServer ends all sessions of the local server and returns how many: those that have a request waiting learn that it was never
// begun (40001), idle ones that they are closed (57P01).
func (s *Server) CloseServer(why string) int {
	return s.endWhere(ending{reason: "planned failover", why: why}, func(x *session) bool { return x.drained.local })
}

func (s *Server) localSessions() (list []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.drained.local {
			list = append(list, x)
		}
	}
	return list
}

// busy says that PostgreSQL has been sent something by this session that is not over.
func (x *session) busy() bool {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	return !x.drained.streaming && (x.drained.midway || !x.idle())
}

// streams notes that a session has become a stream of logical replication.
func (x *session) streams() {
	x.drained.mu.Lock()
	x.drained.streaming = true
	x.drained.mu.Unlock()
}

// forward carries a chunk of the client's bytes to PostgreSQL, while a drain lasts no further than the end of what runs. bad is a
// breach of the protocol, err a failure to write.
func (x *session) forward(seen *pgwire.Framer, chunk []byte) (bad, err error) {
	var holds *time.Timer // set with the first wait: a request is not held for longer than HoldMax
	for len(chunk) > 0 && x.ended.Load() == nil {
		n, d, bad := x.release(seen, chunk)
		if bad != nil {
			return bad, nil
		}
		if x.ended.Load() != nil || x.leaves.Load() { // the verdict may have been spoken without what release has just counted
			return nil, nil
		}
		if n > 0 {
			if _, err := x.backend.Write(chunk[:n]); err != nil {
				return nil, err
			}
			chunk = chunk[n:]
			continue
		}
		if holds == nil {
			holds = time.NewTimer(x.srv.cfg.HoldMax)
			defer holds.Stop()
			x.srv.counts.drained.Add(1)
		}
		x.await(d, holds)
	}
	return nil, nil
}

// terminateLength is how long a Terminate is.
const terminateLength = 5

// release decides how much of chunk may go to PostgreSQL now, and counts it as sent; none: the drain to wait for,
// or the session leaves its backend.
func (x *session) release(seen *pgwire.Framer, chunk []byte) (n int, d *activeDrain, bad error) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if x.requests.Sealed {
		return 0, nil, nil
	}
	d = x.srv.drain.Load()
	free := d == nil || !x.drained.local || x.drained.streaming
	for bad == nil && n < len(chunk) && (free || !seen.AtBoundary() || !x.waits(chunk[n])) {
		if seen.AtBoundary() && x.outOfTurn(chunk[n]) {
			return 0, nil, nil
		}
		var used int
		used, bad = x.follow(seen, chunk[n:])
		n += used
		if n == terminateLength && x.terminated.Load() && x.mayKeepBackend() {
			x.leaves.Store(true)
			return 0, nil, nil
		}
	}
	x.drained.midway = !seen.AtBoundary()
	x.drained.held = n == 0
	return n, d, bad
}

// waits says whether a message of that type, the client's next, has to wait for the end of the drain: it begins something new, or it
// may, as long as the answer to what came before it is not known.
func (x *session) waits(typ byte) bool {
	switch {
	case typ == 'X': // Terminate
		return false
	case x.unsynced.Load(): // belongs to what is under way
		return false
	case x.owed.Load() > 0:
		return typ != 'd' && typ != 'c' && typ != 'f' // COPY data does belong to it
	}
	return x.status.Load() == 'I'
}

// await waits until the drain is over or the session is, or, if the request may be let go before that, for a moment. The answer it was
// held for may have come since release has looked, so that nothing is owed any more, and have left a transaction open.
func (x *session) await(d *activeDrain, holds *time.Timer) {
	var poll <-chan time.Time
	if !x.idle() {
		t := time.NewTimer(drainPoll)
		defer t.Stop()
		poll = t.C
	}
	select {
	case <-d.over:
	case <-x.cut:
	case <-poll:
	case <-holds.C:
		x.end(ending{reason: "held", why: "the planned failover took too long"})
	}
}

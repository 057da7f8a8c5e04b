package listener

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// A drain is the listener's part in a planned failover (docs/internals/safety.md, "Planned failover"). While it lasts,
// requests that would begin a transaction on the local server wait here, at a message boundary; the client's later
// bytes stay in its socket. Open transactions run to their end. Every session of the local server passes this listener,
// including those of other nodes' clients, so no other node takes part.

// activeDrain is a drain that is in force.
type activeDrain struct {
	over chan struct{} // closed at its end, when held requests continue
}

// drainPoll is how often a client is checked that sends its next request before the answer to the last: only that
// answer shows whether its transaction has ended.
const drainPoll = time.Millisecond

// Drain makes new transactions on the local server wait (true), or lets them continue (false). A request waits for at
// most HoldMax, then its session is ended with 40001.
func (s *Server) Drain(on bool) {
	if on {
		defer s.pool.Flush("drain") // after logins can see the drain
	}
	if on {
		for _, x := range s.localSessions() {
			x.cannotMove("") // until ReadStates
		}
		defer s.inquiry.end() // AFTER a new one can see the drain
		defer s.reclaimWhere(func(x *session) bool { return x.work.Offloaded() })
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

// Busy returns how many sessions of the local server have a transaction or request in progress. During a drain the
// number only falls.
func (s *Server) Busy() (n int) {
	for _, x := range s.localSessions() {
		if x.work.Busy() {
			n++
		}
	}
	return n
}

// CutBusy ends the sessions of the local server that have a transaction or request in progress, and returns how many.
// Those that would outlive the loss of their server leave it instead, as if it were lost: with CONTINUITY = REPLAY
// their transactions are executed again.
func (s *Server) CutBusy(why string) int {
	return s.endWhere(ending{reason: endDrain, why: why}, func(x *session) bool { return x.work.Local && x.work.Busy() })
}

// CloseServer takes all sessions from the local server: those whose state was read leave it and are continued where the
// routes lead, the others end. It returns how many end. Of these, sessions with a held request get the error that it
// never began (40001), idle ones that they are closed (57P01).
func (s *Server) CloseServer(why string) (ended int) {
	s.moveServer(context.Background())
	for _, x := range s.localSessions() {
		if x.end(x.unmoved(why)) {
			ended++
		}
	}
	return ended
}

// ReadStates asks the local server for the state of each of its sessions, during a drain, as long as ctx allows. It
// returns when all have answered or cannot.
func (s *Server) ReadStates(ctx context.Context) {
	s.readStates(ctx, s.localSessions())
}

// ReadRelayedStates is ReadStates for the sessions of other nodes' clients, which are given back to those nodes.
func (s *Server) ReadRelayedStates(ctx context.Context) {
	s.readStates(ctx, slices.DeleteFunc(s.localSessions(), func(x *session) bool { return !x.relayed }))
}

// readStates asks for the state of each session in the list.
func (s *Server) readStates(ctx context.Context, list []*session) {
	if !s.rules.Continues() {
		return
	}
	turns := make(chan struct{}, readersAtOnce)
	var all sync.WaitGroup
	for _, x := range list {
		all.Go(func() {
			select {
			case turns <- struct{}{}:
				free := sync.OnceFunc(func() { <-turns })
				defer free()
				defer time.AfterFunc(turnTime, free).Stop()
				s.sheltered("reading the state of a session", func() { x.keepState(ctx) })
			case <-ctx.Done():
				x.cannotMove("its state was not read in time")
			}
		})
	}
	all.Wait()
}

// keepState has the state of the session read, for its move.
func (x *session) keepState(ctx context.Context) {
	x.cannotMove(errInternal.Error()) // if this panics
	st, why := x.readState(ctx)
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.refusal = why; why == "" && st != nil && !x.moving.forwarded { // nil: it has left, or ended
		x.moving.state = st
	}
}

// readerPatience is how long ContinueReaders waits for sessions that are busy, unless a test says otherwise.
const readerPatience = 200 * time.Millisecond

// refusedBusy is why a session whose request is under way cannot be moved.
const refusedBusy = "it was busy when its state was to be read"

// ContinueReaders has the sessions of the local server, which are those of readers, continue where the routes lead.
// Each leaves as soon as it is idle. One that is busy for longer than readerPatience stays, as does one that cannot be
// moved. Requests wait meanwhile, as in a drain. It returns when all were asked, or when ctx ends. The caller has
// published that no reader comes here.
func (s *Server) ContinueReaders(ctx context.Context) {
	if !s.rules.Continues() {
		return
	}
	s.Drain(true)
	defer s.Drain(false)
	defer s.noteLeftBehind()
	asked, last := map[*session]bool{}, time.Now().Add(s.readerPatience)
	for ctx.Err() == nil {
		late := time.Now().After(last)
		var idle []*session
		busy := false
		for _, x := range s.localSessions() {
			switch {
			case asked[x]:
			case x.work.Busy():
				busy = true
			default:
				asked[x] = true
				idle = append(idle, x)
			}
		}
		s.readStates(ctx, idle)
		s.moveServer(ctx)
		if !busy || late {
			return
		}
		t := time.NewTimer(drainPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// promotedWithin is how long after ContinueReaders its server is promoted at the latest, unless the planned failover is
// given up. The primary's steps in between take some seconds.
const promotedWithin = 30 * time.Second

// noteLeftBehind notes which sessions ContinueReaders could not move.
func (s *Server) noteLeftBehind() {
	now := boottime.Now()
	for _, x := range s.localSessions() {
		x.work.Lock()
		if !x.work.Leaving.Load() {
			x.moving.stays = now
			if x.moving.refusal == "" {
				x.moving.refusal = refusedBusy
			}
		}
		x.work.Unlock()
	}
}

// leftBehind returns the ending e of a session whose server takes it no more. Where a planned failover could not move
// it a moment ago, it counts among its sessions, and its client hears why.
func (x *session) leftBehind(e ending) ending {
	x.work.Lock()
	stays := x.moving.stays
	x.work.Unlock()
	if stays == 0 || boottime.Now()-stays > promotedWithin {
		return e
	}
	return x.unmoved(e.why)
}

// localSessions returns the sessions of the local server.
func (s *Server) localSessions() []*session {
	return s.where(func(x *session) bool { return x.work.Local })
}

// where returns the open sessions that match.
func (s *Server) where(match func(*session) bool) (list []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if match(x) {
			list = append(list, x)
		}
	}
	return list
}

// forward carries a chunk of the client's bytes to PostgreSQL. During a drain it stops at the end of what is in
// progress. bad is a violation of the protocol, err a failed write.
func (x *session) forward(seen *pgwire.Framer, chunk []byte) (bad, err error) {
	var holds *time.Timer // set with the first wait: a request is held for at most HoldMax
	for len(chunk) > 0 && x.ended.Load() == nil {
		var w *lone.Write
		if seen.AtBoundary() {
			var over bool
			if w, over = x.asksNumber(chunk); over {
				return nil, nil
			}
		}
		n, d, bad := x.release(seen, chunk)
		if bad != nil {
			return bad, nil
		}
		if n == 0 && x.work.Leaving.Load() { // what was released counts as sent: the next server must not get it
			x.moving.rest = append(x.moving.rest, chunk...)
			return nil, nil
		}
		if x.ended.Load() != nil || x.keepsBackend.Load() { // the outcome may have been decided without what release has just counted
			return nil, nil
		}
		if n > 0 {
			if err := x.send(w, chunk, n); err != nil {
				return nil, err
			}
			chunk = chunk[n:]
			continue
		}
		if holds == nil {
			holds = time.NewTimer(x.srv.cfg.HoldMax)
			defer holds.Stop()
			x.srv.counts.Drained.Add(1)
		}
		x.await(d, holds)
	}
	return nil, nil
}

// send sends the n bytes of chunk that were released. w is the change that they are, if its number was asked for, else
// nil.
func (x *session) send(w *lone.Write, chunk []byte, n int) error {
	out := x.work.Preceded(x.instead.Replaced(chunk[:n]))
	if w != nil && n == len(chunk) {
		out = x.work.ChangeRequest(w, out)
	}
	sent, err := x.backend.Write(out)
	if err == nil {
		return nil
	}
	if w == nil || sent == 0 { // else the status of its number tells
		x.work.Unsent(min(n, x.instead.Last.OfClient(len(out)-sent)))
	}
	x.moving.rest = append(x.moving.rest, chunk[n:]...) // the next server gets it, if there is one
	return err
}

// terminateLength is the length of a Terminate message in bytes.
const terminateLength = 5

// release decides how much of chunk may go to PostgreSQL now, and counts it as sent. n is 0 if the session has to
// wait for the drain d, or leaves its backend (d is nil).
func (x *session) release(seen *pgwire.Framer, chunk []byte) (n int, d *activeDrain, bad error) {
	x.work.Lock()
	defer x.work.Unlock()
	if x.work.Requests.Sealed || x.work.Leaving.Load() {
		return 0, nil, nil
	}
	x.instead.Begins()
	d = x.srv.drain.Load()
	free := d == nil || !x.work.Local || x.work.Streams
	for bad == nil && n < len(chunk) && (free || !seen.AtBoundary() || !x.work.Waits(chunk[n])) {
		if seen.AtBoundary() {
			if x.outOfTurn(chunk[n]) {
				return 0, nil, nil
			}
			if !x.begins(chunk, n) {
				break // it is released with the question before it
			}
		}
		var used int
		used, bad = x.follow(seen, chunk[n:])
		n += used
		if x.ended.Load() != nil { // refused, after its beginning went out: PostgreSQL does not get its end
			return 0, nil, nil
		}
		if x.instead.Takes(chunk[:n], used) {
			break
		}
		if n == terminateLength && x.terminated.Load() && x.mayKeepBackend() {
			x.keepsBackend.Store(true)
			return 0, nil, nil
		}
	}
	x.work.Midway = !seen.AtBoundary()
	if x.work.Held = n == 0; n > 0 {
		x.moving.state, x.moving.forwarded = nil, true
	}
	return n, d, bad
}

// begins counts the request that begins at chunk[n], unless it is a COMMIT of a batch, which begins a chunk of its own.
// The caller holds the lock of work.
func (x *session) begins(chunk []byte, n int) bool {
	if n > 0 && x.work.BatchCommits(chunk[n:]) {
		return false
	}
	if n == 0 {
		x.work.Probe(chunk)
	}
	x.requestBegins()
	return true
}

// requestBegins is called before the first message of a request is forwarded. It may know less than there is.
func (x *session) requestBegins() {
	if x.confirmation.Guarded && x.work.Owed.Load() <= 0 && !x.work.Unsynced.Load() {
		x.confirmation.RequestBegins()
	}
}

// await waits for the end of the drain or of the session, or only for a moment if the request may be released before
// that. The answer that the request waited for may arrive after release has looked, and leave a transaction open.
func (x *session) await(d *activeDrain, holds *time.Timer) {
	var poll <-chan time.Time
	if !x.work.Idle() {
		t := time.NewTimer(drainPoll)
		defer t.Stop()
		poll = t.C
	}
	select {
	case <-d.over:
	case <-x.cut:
	case <-x.moving.leave:
	case <-x.moving.left: // its backend has ended itself
	case <-poll:
	case <-holds.C:
		x.end(ending{reason: "held", why: "the planned failover took too long"})
	}
}

// movesBudget bounds the questions to the server for Moves.
const movesBudget = 5 * time.Second

// inquiry is what asks for the state of sessions for its own knowledge. A drain ends it, as it asks for itself.
type inquiry struct {
	mu     sync.Mutex // held while sessions are asked
	cancel atomic.Pointer[context.CancelFunc]
}

// end ends the inquiry under way, and waits until it has ended.
func (i *inquiry) end() {
	if cancel := i.cancel.Load(); cancel != nil {
		(*cancel)()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
}

// Moves asks the local server for the state of each of its sessions, and returns which of them a planned failover would
// move. Nothing waits for the answer but the sessions' own next answers. One call at a time asks, and none during a
// drain.
func (s *Server) Moves(ctx context.Context) []ag.SessionMove {
	ctx, cancel := context.WithTimeout(ctx, movesBudget)
	defer cancel()
	list := []ag.SessionMove{}
	var all sync.WaitGroup
	asks := s.inquiry.mu.TryLock()
	if asks {
		defer s.inquiry.mu.Unlock()
		s.inquiry.cancel.Store(&cancel) // BEFORE the check for a drain
	}
	turns := make(chan struct{}, readersAtOnce)
	sessions := s.localSessions()
	whys := make([]string, len(sessions))
	for i, x := range sessions {
		switch {
		case !s.rules.Continues():
			whys[i] = "CONTINUITY = OFF"
		case s.drain.Load() != nil:
			whys[i] = "a drain is under way"
		case !asks:
			whys[i] = "another inquiry is under way; ask again"
		default:
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				whys[i] = errInternal.Error() // if this panics
				s.sheltered("reading the state of a session", func() { _, whys[i] = x.readState(ctx) })
			})
		}
	}
	all.Wait()
	for i, x := range sessions {
		m := ag.SessionMove{Replica: x.replica, User: x.user, Database: x.database, Client: x.addr, Since: x.since, Why: whys[i]}
		if m.Why == refusedBusy {
			x.work.Foresee(&m, x.relayed)
		}
		list = append(list, m)
	}
	return list
}

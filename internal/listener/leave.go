package listener

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/passage"
)

// A drain is the listener's part in a planned failover (docs/internals/safety.md, "Planned failover"). While it lasts,
// requests that would begin a transaction on the local server wait here, at a message boundary; the client's later
// bytes stay in its socket. Open transactions run to their end. Every session of the local server passes this listener,
// including those of other nodes' clients, so no other node takes part.

// In a planned failover sessions are moved to the new primary (docs/continuity.md). While a drain holds their requests,
// the old server is asked for the state of each idle session (ReadStates). When it is closed, a session whose state is
// known leaves its backend and keeps its client (CloseServer). A session also leaves a server that is lost, if its
// state is known and nothing of it may have been committed without an answer (outlive). Others end.

// drainPoll is how often a client is checked that sends its next request before the answer to the last: only that
// answer shows whether its transaction has ended.
const drainPoll = time.Millisecond

// Drain makes new transactions on the local server wait (true), or lets them continue (false). A request waits for at
// most HoldMax, then its session is ended with 40001.
func (s *Server) Drain(on bool) {
	for _, x := range s.localSessions() {
		x.moving.inquiry.Drained(&x.work, on, boottime.Now())
	}
	if on {
		defer s.pool.Flush("drain") // after logins can see the drain
		defer s.inquirer.End()      // AFTER a new one can see the drain
		defer s.reclaimWhere(func(x *session) bool { return x.work.Offloaded() })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.drain.Load()
	switch {
	case on && d == nil:
		s.drain.Store(&passage.Drain{Over: make(chan struct{})})
	case !on && d != nil:
		s.drain.Store(nil)
		close(d.Over)
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

// readerPatience is how long ContinueReaders waits for sessions that are busy, unless a test says otherwise.
const readerPatience = 200 * time.Millisecond

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
			if x.moving.inquiry.Refusal == "" {
				x.moving.inquiry.Refusal = inquiry.Busy
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
			x.Wake()
		} else if x.end(e) {
			n++
		}
	}
	return n
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

// ReadAhead asks the local server for the state of each of its sessions while they go on, so that a drain need not ask
// again those of which no request was forwarded since. told is called now and then with how many were asked, of how
// many.
func (s *Server) ReadAhead(ctx context.Context, told func(asked, of int)) {
	if s.rules.Continues() && s.drain.Load() == nil {
		s.inquirer.ReadAhead(ctx, s.localSessions(), told)
	}
}

// ReadStates asks the local server for the state of each of its sessions, during a drain, as long as ctx allows. It
// returns when all have answered or cannot.
func (s *Server) ReadStates(ctx context.Context) {
	s.readStates(ctx, s.localSessions())
}

// ReadRelayedStates is ReadStates for the sessions of other nodes' clients, which are given back to those nodes. Nobody
// will be there to continue the others: their states that were read ahead do not count.
func (s *Server) ReadRelayedStates(ctx context.Context) {
	s.readStates(ctx, slices.DeleteFunc(s.localSessions(), func(x *session) bool {
		if !x.relayed {
			x.moving.inquiry.Forget(&x.work)
		}
		return !x.relayed
	}))
}

// readStates asks for the state of each session in the list.
func (s *Server) readStates(ctx context.Context, list []*session) {
	if s.rules.Continues() {
		s.inquirer.ReadStates(ctx, list)
	}
}

// Moves asks the local server for the state of each of its sessions, and returns which of them a planned failover would
// move. Nothing waits for the answer but the sessions' own next answers. One call at a time asks, and none during a
// drain.
func (s *Server) Moves(ctx context.Context) []ag.SessionMove { return s.inquirer.Moves(ctx) }

// depart has the session leave its backend, if its state is known. It does not wait.
func (x *session) depart() bool {
	x.work.Lock()
	ok := x.moving.inquiry.State != nil && !x.work.Midway && x.work.Idle() && x.ended.Load() == nil && !x.way.Terminated.Load()
	if ok {
		x.startLeaving()
	}
	x.work.Unlock()
	if ok {
		x.Wake()
	}
	return ok
}

// Wake has the carrier of the session look whether it is to be asked, or leaves.
func (x *session) Wake() {
	if p := x.onLoop.Load(); p != nil {
		x.reclaim()
		p.loop.Post(p.guarded(func() { p.woken(); p.updateInterest() }))
		return
	}
	_ = x.backend.SetReadDeadline(time.Unix(1, 0))
}

// woken is called by downstream when a read was interrupted. It reports whether the session leaves.
func (x *session) woken(kept int) (leaves bool) {
	_ = x.backend.SetReadDeadline(time.Time{})
	if x.ended.Load() != nil || x.keepsBackend.Load() { // end, or upstream, may have set the deadline before it was cleared
		_ = x.backend.SetReadDeadline(time.Unix(1, 0))
		return false
	}
	x.askWanted(kept)
	return x.work.Leaving.Load()
}

// startLeaving makes upstream stop. The caller holds the lock of work.
func (x *session) startLeaving() {
	if !x.work.Leaving.Swap(true) {
		close(x.moving.leave)
	}
}

// Hundreds of sessions take longer to leave a server than a few.
const (
	leaveEach    = 5 * time.Millisecond
	leaveLongest = 3 * time.Second
	leaveLook    = 50 * time.Millisecond
)

// moveServer has those sessions of the local server leave that can be moved, and waits a moment until they have.
func (s *Server) moveServer(ctx context.Context) {
	awaitLeft(ctx, slices.DeleteFunc(s.localSessions(), func(x *session) bool { return !x.depart() }))
}

// awaitLeft waits until those sessions have left, or none has for leaveTimeout. The rest is ended then.
func awaitLeft(ctx context.Context, leaving []*session) {
	last := time.Now()
	end := last.Add(leaveTimeout + min(time.Duration(len(leaving))*leaveEach, leaveLongest))
	for {
		n := len(leaving)
		if leaving = slices.DeleteFunc(leaving, (*session).hasLeft); len(leaving) < n {
			last = time.Now()
		}
		if len(leaving) == 0 || ctx.Err() != nil || time.Since(last) >= leaveTimeout || time.Now().After(end) {
			return
		}
		t := time.NewTimer(leaveLook)
		select {
		case <-leaving[0].moving.left:
		case <-leaving[0].cut:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// unmoved returns the ending of a session that cannot be moved, with the reason.
func (x *session) unmoved(why string) ending {
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.inquiry.Refusal != "" {
		kind, _, _ := strings.Cut(x.moving.inquiry.Refusal, ":") // without what a server added
		x.srv.counts.NotMoved(kind)
		why += " (its session could not be moved: " + x.moving.inquiry.Refusal + ")"
	}
	return ending{reason: "planned failover", why: why}
}

// outlive has the session leave a server that is lost, if it can be continued elsewhere. A request that was cut is then
// answered with an error that the client may take for a reason to run its transaction again.
func (x *session) outlive() bool {
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.outlived.Load() {
		return true
	}
	if x.work.Leaving.Load() || x.ended.Load() != nil || !x.interrupt() {
		return false
	}
	x.moving.inquiry.State, x.work.Requests.Sealed = x.work.Known.Told, true
	x.moving.outlived.Store(true)
	x.startLeaving()
	return true
}

// interrupt notes what becomes of the request and the transaction of a session whose server is lost. It reports false
// if the session ends by that. The caller holds the lock of work.
func (x *session) interrupt() bool {
	return !x.way.Terminated.Load() && !x.way.FatalSent.Load() && x.work.Interrupt()
}

// serverLost reports whether the session leaves a server that is lost. If it has ended meanwhile, the client is told.
func (x *session) serverLost() bool {
	if !x.moving.outlived.Load() {
		return false
	}
	if x.ended.Load() != nil {
		x.sendFinal(x.finalError(nil))
	}
	return true
}

// halfMessage is why a session ends whose client has got the beginning of a message that its server did not end. It
// hears nothing else: an error would be taken for the rest of the message, and a rest that is made up for data.
const halfMessage = "its client had got half a message"

// unknown returns what an error adds for a session that did not outlive its server; "" if none might have. Its caller
// has read the server's answers.
func (x *session) unknown() string {
	if !x.work.Known.Follows || !x.srv.rules.Continues() {
		return ""
	}
	x.work.Lock()
	why, _ := x.work.WouldEnd()
	x.work.Unlock()
	if x.way.MidMessage {
		why = halfMessage
	}
	why = cmp.Or(why, "it was ending")
	x.srv.counts.NotMoved(why)
	return " (its session could not be continued: " + why + ")"
}

// detach ends a session without its client, after downstream has stopped. It reports false if the session has ended
// otherwise.
func (x *session) detach(up <-chan struct{}) bool {
	_ = x.raw.SetReadDeadline(time.Unix(1, 0))
	if x.moving.outlived.Load() {
		_ = x.backend.Close() // upstream may be writing to it
	}
	<-up
	if x.moving.outlived.Load() && !x.leavesWhole() {
		x.end(ending{reason: endLost, why: "the connection to PostgreSQL was lost"})
	}
	if !x.ended.CompareAndSwap(nil, movedOn) {
		x.sendFinal(x.finalError(nil))
		return false
	}
	if c := x.moving.owner; c != nil {
		c.noServer(true)
	}
	if x.way.Given != nil { // AFTER nothing else ends it: the other node waits for the end of the stream
		x.moving.err = x.takeBack()
	}
	x.forget()
	_ = x.raw.SetDeadline(time.Time{})
	_ = x.backend.SetDeadline(time.Now().Add(x.srv.pool.Answer))
	_, _ = x.backend.Write(pgwire.AppendMessage(nil, 'X', nil))
	_ = x.backend.Close()
	if !x.relayed {
		x.moving.over()
	}
	return true
}

// leavesWhole judges a session that outlives its server again, once both directions have stopped: an answer may have
// been on its way to the client when it was judged first.
func (x *session) leavesWhole() bool {
	x.work.Lock()
	defer x.work.Unlock()
	return !x.way.MidMessage && !x.moving.rest.Spilled && x.interrupt()
}

package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/prospect"
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// A session outlives its PostgreSQL, and another node behind whose listener that is, if its state is known and nothing
// of it may have been committed without an answer (docs/continuity.md). The client's node asks the server for the state
// beforehand, while the session is idle for a moment, and follows from then on whether anything that the client sends
// may have changed it (stmt.Unchanged). When the server is lost, the session leaves it and is continued where the
// routes lead, as in a planned failover. A transaction that was open there fails with 40001: the request that was cut,
// or else the next one, which is answered here (tellLoss).

// keepPerTick is how many sessions of this node are asked for their state at once.
const keepPerTick = 10

// keepStates asks for the states of sessions that would outlive the node of their backend. It runs until the server
// closes.
func (s *Server) keepStates() {
	t := time.NewTicker(s.keep.Tick)
	defer t.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-t.C:
		}
		if list := s.unknownStates(time.Now()); len(list) > 0 {
			ctx, cancel := context.WithTimeout(s.life, s.keep.Tick)
			var all sync.WaitGroup
			for _, x := range list {
				all.Go(func() {
					defer x.rescue("keeping its state")
					x.keepKnown(ctx)
				})
			}
			all.Wait()
			cancel()
		}
	}
}

// unknownStates returns the sessions that are to be asked now, those that have waited longest first.
func (s *Server) unknownStates(now time.Time) (list []*session) {
	if !s.cfg.Continuity() {
		return nil
	}
	s.mu.Lock()
	for _, x := range s.sessions {
		if x.moving.known.Follows {
			list = append(list, x)
		}
	}
	s.mu.Unlock()
	due := make(map[*session]time.Time, len(list))
	list = slices.DeleteFunc(list, func(x *session) bool {
		at, asks := x.asksAgain()
		due[x] = at
		return !asks || at.After(now)
	})
	slices.SortFunc(list, func(a, b *session) int { return due[a].Compare(due[b]) })
	return list[:min(len(list), keepPerTick)]
}

// followState follows a piece of a message of the client.
func (x *session) followState(typ byte, piece []byte, begun, whole bool) {
	follows := x.moving.known.Follows
	if (x.drained.local || follows) && (typ == 'Q' || typ == 'P') {
		fine := x.moving.tracker.Why() == ""
		x.moving.tracker.Message(typ, piece, begun, whole)
		if begun {
			x.noteStatement(typ, piece, fine)
		}
	}
	if follows {
		x.moving.known.Message(typ, piece, begun, whole)
	}
}

// asksAgain returns from when on the session is to be asked for its state, if that is not known and might be.
func (x *session) asksAgain() (at time.Time, asks bool) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	k := &x.moving.known
	unknown := k.Unknown(x.since, x.srv.keep.Tick) && x.moving.tracker.Why() == "" && x.ended.Load() == nil && !x.moving.leaving.Load()
	switch {
	case !unknown || !x.drained.local:
		return k.Next, unknown
	case x.offloaded.Load() || x.relayed || x.srv.drain.Load() != nil: // one in the kernel is left there
		return k.Next, false
	}
	return k.IdleUntil(time.Now(), x.bytesIn.Load()+x.bytesOut.Load(), x.srv.keep.Idle), true
}

// keepKnown asks for the state of the session, once it is idle for a moment.
func (x *session) keepKnown(ctx context.Context) {
	q := &question{patient: true, done: make(chan struct{})}
	if !x.moving.wants.CompareAndSwap(nil, q) { // a drain asks
		return
	}
	x.wake()
	answered := false
	select {
	case <-q.done:
		answered = q.err == nil
	case <-x.cut:
	case <-x.moving.left:
	case <-ctx.Done():
		x.moving.wants.CompareAndSwap(q, nil)
	}
	libraries := x.libraries(q, answered)
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	k := &x.moving.known
	k.Over(time.Now(), x.srv.keep, answered)
	if !answered {
		return
	}
	k.Stays = x.immovable(q, "")
	if k.Refusal = x.immovable(q, libraries); k.Refusal == "" {
		k.Learn(&q.state)
	}
}

// outlive has the session leave a server that is lost, if it can be continued elsewhere. A request that was cut is then
// answered with an error that the client may take for a reason to run its transaction again.
func (x *session) outlive() bool {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if x.moving.outlived.Load() {
		return true
	}
	if x.moving.leaving.Load() || x.ended.Load() != nil || !x.interrupt() {
		return false
	}
	x.moving.state, x.requests.Sealed = x.moving.known.Told, true
	x.moving.outlived.Store(true)
	x.startLeaving()
	return true
}

// interrupt notes what becomes of the request and the transaction of a session whose server is lost. It reports false
// if the session ends by that. The caller holds drained.mu.
func (x *session) interrupt() bool {
	why, cut := x.wouldEnd()
	if why != "" || x.terminated.Load() || x.fatalSent.Load() {
		return false
	}
	if x.moving.fate = x.loneFate(); x.moving.fate != lone.Doubtful {
		x.moving.interrupted, x.moving.failed, x.moving.open, x.moving.doubtful = false, false, false, false
		return true
	}
	_, inBlock := x.requests.Cut(false)
	status := x.status.Load()
	x.moving.interrupted, x.moving.failed, x.moving.open = cut, status == 'E' || cut && inBlock, !cut && status == 'T'
	if x.moving.doubtful = cut && x.inDoubt(); x.moving.doubtful { // whatever became of it, it has ended the block
		x.moving.failed = false
	}
	return true
}

// facts returns what is known of the session for a judgement of its future. The caller holds drained.mu.
func (x *session) facts() prospect.Session {
	k := &x.moving.known
	s := prospect.Session{
		Continuity: x.srv.cfg.Continuity != nil && x.srv.cfg.Continuity(), Streams: x.replicates || x.drained.streaming, Follows: k.Follows, Local: x.drained.local,
		Texts: x.moving.tracker.Why(), Unchanged: k.Unchanged.Holds(), Asked: k.Unchanged.WasAsked(), Told: k.Told != nil, Refusal: k.Refusal, Stays: k.Stays,
	}
	if x.offloaded.Load() {
		kernel := x.onLoop.Load().kernel
		s.Relayed, s.Unseen = kernel.Relayed(), kernel.RelayedTexts()
	}
	return s
}

// unfit returns why the session would end whatever is under way; "": it would not. The caller holds drained.mu.
func (x *session) unfit() string {
	s := x.facts()
	return s.Unfit()
}

// wouldEnd returns why the session would end if its server were lost now; "": it goes on. cut is whether a request of
// it would be cut by that. The caller holds drained.mu.
func (x *session) wouldEnd() (why string, cut bool) {
	s := x.facts()
	if why := s.Unfit(); why != "" {
		return why, false
	}
	u := prospect.UnderWay{
		Lone: x.loneFate(), Kept: x.moving.lone.On(), Batch: x.drained.midway || x.requests.UnnamedWaits() || x.unsynced.Load(), Owed: int(x.owed.Load()),
	}
	if u.Owed == 1 {
		u.Cut, _ = x.requests.Cut(!x.onPrimary && !x.promoted())
		u.Provable = x.inDoubt()
	}
	return u.WouldEnd()
}

// inFailover returns what would become of the session in a planned failover. The caller holds drained.mu.
func (x *session) inFailover() continuity.Prospect {
	s := x.facts()
	return s.InFailover(x.drained.midway || !x.idle(), x.requests.UnnamedWaits())
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

// postmasterDied reports whether a message is the last of a backend whose postmaster has died, on a session that may
// outlive that. The function that reports it is the same in every language of messages; another FATAL with the same
// code is of an administrator who ends the session.
func (x *session) postmasterDied(typ byte, message []byte) bool {
	if typ != 'E' || !x.moving.known.Follows || len(message) < 5 {
		return false
	}
	routine := pgwire.ErrorField(message[5:], 'R')
	return pgwire.ErrorField(message[5:], 'V') == "FATAL" && (routine == "secure_read" || routine == "secure_write")
}

// unknown returns what an error adds for a session that did not outlive its server; "" if none might have.
func (x *session) unknown() string {
	if !x.moving.known.Follows || x.srv.cfg.Continuity == nil || !x.srv.cfg.Continuity() {
		return ""
	}
	x.drained.mu.Lock()
	why, _ := x.wouldEnd()
	x.drained.mu.Unlock()
	why = cmp.Or(why, "it was ending")
	x.srv.counts.NotMoved(why)
	return " (its session could not be continued: " + why + ")"
}

// lose ends the client of a session that was not continued.
func (c *client) lose(x *session, err error) {
	s := c.srv
	x.moving.unresumed = err
	s.counts.End("not moved")
	s.counts.NotMoved("no replica took it")
	x.dropKey()
	why := "its session could not be moved to the new primary: " + err.Error()
	bad := pgwire.Fatal("", pgwire.StateAdminShutdown, "terminating connection: %s", why)
	bad.Hint = "Reconnect; the listener finds the replica that serves the session."
	if len(x.moving.rest) > 0 || x.owed.Load() > 0 || x.unsynced.Load() { // the other node has forwarded nothing of it
		bad = pgwire.Fatal("", pgwire.StateSerialization, "terminating connection before the transaction was begun: %s", why)
		bad.Hint = "Nothing of it was executed: reconnect and run it again."
	}
	switch {
	case x.moving.fate == lone.Repeated || x.moving.fate == lone.Failed:
		bad = lostblock.QueryCut(why)
	case x.moving.fate == lone.InDoubt || x.moving.interrupted || x.moving.failed || x.moving.open:
		bad = x.outcomeError(why)
	}
	c.log.Info("session cut", "session", x.id, "replica", x.replica, "user", x.user, "reason", why, "sqlstate", bad.Code)
	_ = c.Raw.SetDeadline(time.Now().Add(s.cfg.Limits.ShutdownMessage))
	if _, err := c.Conn.Write(bad.Encode()); err == nil {
		socket.HalfClose(c.Conn)
		socket.Drain(c.Raw)
	}
	c.closeBoth()
}

// openAgain opens a session on the replica of the route that continues x.
func (c *client) openAgain(ctx context.Context, r routing.Route, x *session) (*session, error) {
	s := c.srv
	if x.epoch < r.Lossless {
		return nil, fmt.Errorf("%w: the failover was forced, and rows that were acknowledged to it may be lost", resume.ErrNotTheSame)
	}
	if err := c.reaches(ctx, r, x); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempts.Attempt{Replica: r.ID, Epoch: r.Epoch, Intent: c.Intent, Cancel: cancel}
	defer s.attempts.Abandon(a)
	if !s.attempts.Begin(a) {
		return nil, attempts.ErrMoved
	}
	ctx, stopTimer := context.WithTimeout(ctx, s.cfg.Limits.BackendHandshake)
	defer stopTimer()
	if r.Local {
		done, err := s.startOne(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	conn, err := s.cfg.Backend(ctx, r.ID, BackendHello{User: c.Start.User, Database: c.Start.Database, ClientAddr: x.addr, Intent: c.Intent, Epoch: r.Epoch})
	if err != nil {
		return nil, fmt.Errorf("reach replica %s: %w", r.ID, err)
	}
	y := c.newSession(r, conn)
	y.setInput(r.Local, ctx.Done())
	y.moving.timelines = r.Timelines
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	news, err := y.become(ctx, x, c.packet(x.addr, r.ID))
	if !unhook() {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err == nil && !s.activate(a, y) {
		err = attempts.ErrMoved
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s.counts.Moved.Add(1)
	if x.moving.replays {
		s.counts.Replayed.Add(1)
	}
	if x.moving.fate == lone.Repeated {
		s.counts.Repeated.Add(1)
	}
	if x.moving.doubtful || y.moving.proved != indoubt.Unknown {
		s.counts.Doubt(y.moving.proved.String())
	}
	c.log.Info("session moved", "session", y.id, "from", x.replica, "to", y.replica, "epoch", y.epoch, "pid", y.pid)
	_ = c.Raw.SetWriteDeadline(time.Now().Add(s.cfg.Limits.ShutdownMessage))
	_, err = c.Conn.Write(news)
	_ = c.Raw.SetWriteDeadline(time.Time{})
	if err != nil {
		y.close()
		return nil, errClient
	}
	return y, nil
}

// become starts the session with that startup packet and brings it into the state of from. news is what the client
// gets.
func (x *session) become(ctx context.Context, from *session, packet []byte) (news []byte, err error) {
	g, err := opening.Start(x.backend, x.in, packet, x.replica)
	if err != nil {
		return nil, err
	}
	was := from.moving.state
	status := continuity.Greeting(g.Bytes)
	// A session that leaves its server idle may go on at another version: nothing of it is asked for or executed again.
	heard, again, err := x.server().Restore(was, []string{hello.ClientAddr}, status, !from.moving.outlived.Load())
	if err != nil {
		return nil, err
	}
	if x.moving.known.Follows {
		x.knows(was.Now(status, again))
	}
	told, err := x.resumeBlock(ctx, from)
	if err != nil {
		return nil, err
	}
	x.pid, x.realKey, x.recovery.On = g.PID(), g.Key, status[gate.HotStandby] == "on"
	x.id, x.key, x.longKey, x.since, x.addr = from.id, from.key, from.longKey, from.since, from.addr
	x.copies = from.copies
	x.use.Taint()
	if x.requests = from.requests.Continued(); x.moving.failed {
		x.requests.Answered('E', true)
	}
	if x.moving.resumed {
		x.requests = from.requests.Resumed()
		x.confirmation.InBlock()
		if from.moving.replays {
			x.requestLog().Repeats()
		}
	}
	x.requests.Texts = x.preparedText
	x.moving.tracker, x.moving.early = from.moving.tracker, from.moving.rest
	if from.moving.replays { // a request that was not answered goes on from here
		x.moving.early = slices.Concat(from.moving.log.Unanswered(), from.moving.rest)
	}
	if fate := from.moving.fate; fate != lone.Doubtful {
		again := from.moving.lone.Requests(fate)
		x.moving.early = slices.Concat(again, from.moving.rest)
		if len(again) > 0 { // not a third time
			x.moving.lone.Again(&x.srv.loneMemory)
		}
	}
	if x.moving.guarded = from.moving.fate == lone.Repeated && from.moving.lone.Guarded(); x.moving.guarded {
		if err := x.server().Guard(); err != nil {
			return nil, err
		}
	}
	x.moving.by, x.moving.leaves, x.moving.application = from.moving.by, from.moving.leaves, from.moving.application
	return slices.Concat(was.News(status), was.Lost(x.pid), heard, told), nil
}

// server returns what package resume asks and brings into a state.
func (x *session) server() resume.Server { return resume.Server{Conn: x.backend, In: x.in} }

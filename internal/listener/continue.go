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
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/stmt"
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
	if !s.rules.Continues() {
		return nil
	}
	list = s.where(func(x *session) bool { return x.work.Known.Follows })
	due := make(map[*session]time.Time, len(list))
	list = slices.DeleteFunc(list, func(x *session) bool {
		at, asks := x.asksAgain()
		due[x] = at
		return !asks || at.After(now)
	})
	slices.SortFunc(list, func(a, b *session) int { return due[a].Compare(due[b]) })
	return list[:min(len(list), keepPerTick)]
}

// asksAgain returns from when on the session is to be asked for its state, if that is not known and might be.
func (x *session) asksAgain() (at time.Time, asks bool) {
	x.work.Lock()
	defer x.work.Unlock()
	k := &x.work.Known
	unknown := k.Unknown(x.since, x.srv.keep.Tick) && x.work.Tracker.Why() == "" && x.ended.Load() == nil && !x.work.Leaving.Load()
	switch {
	case !unknown || !x.work.Local:
		return k.Next, unknown
	case x.work.Offloaded() || x.relayed || x.srv.drain.Load() != nil: // one in the kernel is left there
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
	x.work.Lock()
	defer x.work.Unlock()
	k := &x.work.Known
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
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.outlived.Load() {
		return true
	}
	if x.work.Leaving.Load() || x.ended.Load() != nil || !x.interrupt() {
		return false
	}
	x.moving.state, x.work.Requests.Sealed = x.work.Known.Told, true
	x.moving.outlived.Store(true)
	x.startLeaving()
	return true
}

// interrupt notes what becomes of the request and the transaction of a session whose server is lost. It reports false
// if the session ends by that. The caller holds the lock of work.
func (x *session) interrupt() bool {
	return !x.terminated.Load() && !x.fatalSent.Load() && x.work.Interrupt()
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
	if typ != 'E' || !x.work.Known.Follows || len(message) < 5 {
		return false
	}
	routine := pgwire.ErrorField(message[5:], 'R')
	return pgwire.ErrorField(message[5:], 'V') == "FATAL" && (routine == "secure_read" || routine == "secure_write")
}

// unknown returns what an error adds for a session that did not outlive its server; "" if none might have.
func (x *session) unknown() string {
	if !x.work.Known.Follows || !x.srv.rules.Continues() {
		return ""
	}
	x.work.Lock()
	why, _ := x.work.WouldEnd()
	x.work.Unlock()
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
	bad := lostblock.Final(stmt.Idle, why)
	if len(x.moving.rest) > 0 || x.work.Owed.Load() > 0 || x.work.Unsynced.Load() { // the other node has forwarded nothing of it
		bad = lostblock.NotBegun(why)
	}
	switch {
	case x.work.Loss.Fate == lone.Repeated || x.work.Loss.Fate == lone.Failed:
		bad = lostblock.QueryCut(why)
	case x.work.Loss.Fate == lone.InDoubt || x.work.Loss.Interrupted || x.work.Loss.Failed || x.work.Loss.Open:
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
	if x.work.Loss.Replays {
		s.counts.Replayed.Add(1)
	}
	if x.work.Loss.Fate == lone.Repeated {
		s.counts.Repeated.Add(1)
	}
	if x.work.Loss.Doubtful || y.moving.proved != indoubt.Unknown {
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
	if x.work.Known.Follows {
		x.work.Knows(was.Now(status, again))
	}
	told, err := x.resumeBlock(ctx, from)
	if err != nil {
		return nil, err
	}
	x.pid, x.realKey, x.recovery.On = g.PID(), g.Key, status[gate.HotStandby] == "on"
	x.id, x.key, x.longKey, x.since, x.addr = from.id, from.key, from.longKey, from.since, from.addr
	x.copies = from.copies
	x.use.Taint()
	if x.moving.resumed {
		x.confirmation.InBlock()
	}
	x.moving.early = slices.Concat(x.work.Continues(&from.work, x.moving.resumed), from.moving.rest)
	if x.moving.guarded = from.work.Guarded(); x.moving.guarded {
		if err := x.server().Guard(); err != nil {
			return nil, err
		}
	}
	return slices.Concat(was.News(status), was.Lost(x.pid), heard, told), nil
}

// server returns what package resume asks and brings into a state.
func (x *session) server() resume.Server { return resume.Server{Conn: x.backend, In: x.in} }

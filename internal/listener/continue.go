package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/lag"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/release"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// A session that has left its server is continued by a new one where the routes lead (again). That is brought into the
// same state, and takes the client's held requests. A session of another node's client is given back to that node's
// listener (giveBack, takeBack), which does the same.
//
// A transaction that was open on a server that is lost fails with 40001, unless CONTINUITY is REPLAY: the request that
// was cut, or else the next one (tellLoss). With REPLAY the session that continues this one executes the requests of
// the transaction once more, and goes on in it if all answers are the same. Nothing that could have committed the
// transaction was forwarded to the lost server, or it is proved that it was not committed (prove); and nothing that
// could commit it is among what is executed again. So it is committed at most once, by the client's own COMMIT. It is
// executed again once: one that has brought down its server does not go on from server to server.

// moving is the part of a session that a move uses.
type moving struct {
	owner     *client            // its client; nil: the client is at another node
	accepts   bool               // the listener of that node takes sessions back
	outlives  bool               // and has them outlive this server
	inquiry   inquiry.Session    // what is asked of its server, and what that told for its move
	stays     time.Duration      // CLOCK_BOOTTIME at which ContinueReaders left it behind; 0: never. Guarded by the lock of work
	outlived  atomic.Bool        // its server is lost, and it leaves that
	proved    indoubt.Outcome    // of the new session: the outcome of the COMMIT of the one before it
	timelines []ag.TimelineEntry // of its server, as the routes have them that led there
	resumed   bool               // of the new session: it is in that transaction
	rest      passage.Rest       // from the client, not forwarded when the session left its backend
	err       error              // why it was not taken back
	unresumed error              // why no other one continues it
	seen      Progress           // of a reader that has left: what its next copy must have replayed; zero: not asked yet
	leave     chan struct{}      // closed when work.Leaving is set
	left      chan struct{}      // closed when it has left, or has ended instead (over)
	isOver    atomic.Bool        // left is closed
	early     []byte             // of a session that continues another: bytes of the client that came before it
}

// newMoving returns the state of a session that nobody moves.
func newMoving(owner *client) moving {
	return moving{owner: owner, leave: make(chan struct{}), left: make(chan struct{})}
}

// over is called when the session has left its backend, and when it is closed.
func (m *moving) over() {
	if !m.isOver.Swap(true) {
		close(m.left)
	}
}

// immovable returns why a session cannot be moved, whatever its state is; "": it can.
func (m *moving) immovable(relayed bool) string {
	switch {
	case relayed && !m.accepts:
		return "the listener of its node does not take sessions back"
	case m.owner == nil && !relayed:
		return "its client is not known"
	}
	return ""
}

// movedOn is the end of a session that another one continues. Nothing else may end it afterwards.
var movedOn = &ending{reason: "moved"}

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

// mayOutlive reports whether sessions of the client may outlive their server.
func (c *client) mayOutlive() bool {
	return c.srv.rules.Continues() && c.Start.Replication == pgwire.ReplicationNone
}

// notReplayed notes why the transaction fails with 40001 instead.
func (x *session) notReplayed(why string) {
	x.srv.counts.NotReplayed(why)
	x.srv.log.Info("transaction not executed again", "session", x.id, "user", x.user, "reason", why)
	x.work.Loss.Replays, x.work.Loss.Unreplayed = false, why
	x.work.Close()
}

// again opens the session that continues x. It returns nil if there is none: the client was told.
func (c *client) again(x *session) *session {
	defer x.work.Close()
	if x.moving.err != nil {
		c.lose(x, x.moving.err)
		return nil
	}
	if why := x.work.PlanReplay(x.moving.inquiry.State); why != "" {
		x.notReplayed(why)
	}
	if x.work.Loss.Replays {
		y, err := c.onward(x)
		var tried resume.TriedError
		switch {
		case err == nil:
			return y
		case errors.As(err, &tried):
			x.notReplayed(tried.Why)
		case x.work.Loss.Open && !errors.Is(err, resume.ErrNotTheSame): // it can be told by its next request
			x.notReplayed("no replica took it in time")
		default:
			c.lose(x, err)
			return nil
		}
	}
	if x.work.Loss.Open && !c.tellLoss(x) {
		return nil
	}
	y, err := c.onward(x)
	if err != nil {
		c.lose(x, err)
		return nil
	}
	if x.work.Loss.Doubtful && x.work.Loss.Unreplayed != "" && !x.work.Loss.Tried && y.moving.proved == indoubt.NotCommitted {
		x.notReplayed(x.work.Loss.Unreplayed)
	}
	return y
}

// moveWait returns how long the session waits for its next server: as long as a request in a planned failover, or as a
// login where its server is lost.
func (x *session) moveWait() time.Duration {
	cfg := &x.srv.cfg
	if !x.moving.outlived.Load() {
		return cfg.HoldMax
	}
	return max(cfg.HoldMax, cfg.ConnectWait)
}

// handsOver reports whether the route of a reader that has left its replica leads to the primary that is about to hand
// over to that replica. left is the epoch in which the reader has left. A replica that is lost takes nothing over.
func (x *session) handsOver(r routing.Route, left ag.Epoch) bool {
	return !x.work.OnPrimary && !x.moving.outlived.Load() && r.FellBack && r.ID != x.replica && r.Epoch == left
}

// onward opens the session that continues x where the routes lead.
func (c *client) onward(x *session) (*session, error) {
	place := c.srv.order.Enter(func() bool { return x.holds() || c.speaks() }, x.moveWait())
	defer place.Leave()
	last, left := errors.New("no replica takes it"), c.srv.epoch()
	for {
		y, next, err := c.tryOnward(x, place, left)
		if y != nil {
			return y, nil
		}
		switch last = cmp.Or(err, last); {
		case err == nil:
		case errors.Is(err, errClient), errors.Is(err, resume.ErrNotTheSame):
			return nil, err
		case x.work.Loss.Tried && x.work.Loss.Replays:
			if tried := (resume.TriedError{}); !errors.As(err, &tried) {
				last = resume.ErrLost
			}
			return nil, last
		}
		if _, gone := socket.Peek(c.Raw); gone || !place.Pause(c.unserved, next, err != nil) {
			return nil, c.overBy(last)
		}
	}
}

// tryOnward is one try of onward. It returns neither a session nor an error where there is no route; next is closed
// when another one makes sense.
func (c *client) tryOnward(x *session, place *release.Place, left ag.Epoch) (y *session, next <-chan struct{}, err error) {
	ctx, cancel := context.WithTimeout(c.unserved, place.Left())
	defer cancel()
	r, next, ok := c.srv.logins.Pick(ctx, &c.Proved)
	if !ok || x.handsOver(r, left) {
		return nil, next, nil
	}
	if y, err = c.inTurn(ctx, r, next, x, place); err != nil {
		c.log.Debug("session not moved yet", "session", x.id, "replica", r.ID, "error", err)
	}
	return y, next, err
}

// inTurn opens the session that continues x when its turn has come. It returns none if the routes have changed by then.
func (c *client) inTurn(ctx context.Context, r routing.Route, changed <-chan struct{}, x *session, place *release.Place) (*session, error) {
	done, err := place.Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	select {
	case <-changed:
		return nil, nil //nolint:nilnil // neither is there, as in tryOnward
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, place.Try())
	defer cancel()
	return c.openAgain(ctx, r, x)
}

// holds reports whether the client of a session that has left its server waits for an answer, or for notifications.
func (x *session) holds() bool {
	l, st := &x.work.Loss, x.moving.inquiry.State
	if st != nil && len(st.Channels) > 0 {
		return true
	}
	return len(x.moving.rest.B) > 0 || x.work.Owed.Load() > 0 || x.work.Unsynced.Load() || l.Interrupted || l.Doubtful || l.Replays || l.Fate != lone.Doubtful
}

// speaks reports whether the client has sent something that was not read.
func (c *client) speaks() bool {
	waiting, _ := socket.Peek(c.Raw)
	return waiting
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
	was := from.moving.inquiry.State
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
	x.pid, x.realKey, x.way.Recovery.On = g.PID(), g.Key, status[gate.HotStandby] == "on"
	x.work.ReadOnly = status[continuity.ReadOnly] == "on"
	x.id, x.key, x.longKey, x.since, x.addr = from.id, from.key, from.longKey, from.since, from.addr
	x.way.Copies = from.way.Copies
	x.use.Taint()
	if x.moving.resumed {
		x.way.Confirmation.InBlock()
	}
	x.moving.early = slices.Concat(x.work.Continues(&from.work, x.moving.resumed), from.moving.rest.B)
	if from.work.Guarded() {
		if x.way.Behind, err = x.server().Guard(x.moving.early[0]); err != nil {
			return nil, err
		}
		x.way.Guarding.Begin(x.moving.early[0])
	}
	return slices.Concat(was.News(status), was.Lost(x.pid), heard, told), nil
}

// server returns what package resume asks and brings into a state.
func (x *session) server() resume.Server { return resume.Server{Conn: x.backend, In: x.in} }

// resumeBlock brings a session that continues from into the state of that one's transaction. told is what the client
// hears of a request that was cut.
func (x *session) resumeBlock(ctx context.Context, from *session) (told []byte, err error) {
	if from.work.Loss.Fate == lone.InDoubt {
		return x.proveChange(from)
	}
	if from.work.Loss.Doubtful {
		told, err = x.prove(from)
		if err != nil || x.moving.proved != indoubt.NotCommitted {
			from.work.Loss.Replays = from.work.Loss.Replays && err != nil // it is done: nothing of it is executed twice
			return told, err
		}
		if !from.work.Loss.Replays {
			return told, nil
		}
	}
	if from.work.Loss.Replays {
		assert.That(!from.work.Loss.Doubtful || x.moving.proved == indoubt.NotCommitted, "a transaction is executed again that may have been committed")
		return x.executeAgain(ctx, from)
	}
	x.work.Loss.Failed = from.work.Loss.Failed
	status := byte('I')
	if from.work.Loss.Failed {
		status = 'E'
		if err := x.server().FailBlock(); err != nil {
			return nil, err
		}
	}
	switch {
	case from.work.Loss.Fate == lone.Failed:
		return pgwire.AppendMessage(lostblock.Query().EncodeError(), 'Z', []byte{status}), nil
	case !from.work.Loss.Interrupted:
		return nil, nil
	}
	return pgwire.AppendMessage(lostblock.Error(from.work.Loss.Unreplayed).EncodeError(), 'Z', []byte{status}), nil
}

// executeAgain executes the transaction of from in this session, and compares the answers. told is for the client,
// beside them. The request that was not answered is left to be forwarded.
func (x *session) executeAgain(ctx context.Context, from *session) (told []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.HoldMax/2)
	defer cancel()
	run, err := x.server().Execute(ctx, from.work.Log, from.moving.inquiry.State.Extensions)
	from.work.Loss.Tried = err != nil || run.Requests() > 0
	if tried := (resume.TriedError{}); errors.As(err, &tried) && tried.Why == replay.Differs {
		x.srv.log.Info("answer differs", "session", from.id, "request", run.Requests())
	}
	x.moving.resumed = err == nil && run.Requests() > 0
	return run.Aside, err
}

// The functions below prove what became of a COMMIT whose answer is lost with its server (package indoubt). It is the
// one request under way of a session that outlives its server. Others end with 08007.

// prove asks the server of this session what became of the COMMIT of from. told is for the client. A session whose
// server has no answer is not continued: the client hears 08007.
func (x *session) prove(from *session) (told []byte, err error) {
	c := from.work.Asking.Commit
	p, err := x.server().Commit(c, x.doubt(from))
	x.moving.proved, x.moving.resumed = p.Outcome, p.Chained
	if p.Status != (indoubt.Status{}) {
		x.srv.log.Info("commit in doubt", "session", from.id, "xid", c.Xid, "timeline", c.Timeline, "status", p.Status.Text, "on", p.Status.Timeline, "outcome", p.Outcome)
	}
	return p.Told, err
}

// doubt returns what this session's server needs to know of from.
func (x *session) doubt(from *session) resume.Doubt {
	return resume.Doubt{
		Timelines: x.moving.timelines, Extensions: from.moving.inquiry.State.Extensions, Unreplayed: from.work.Loss.Unreplayed,
		Reads: from.way.Confirmation.ConfirmsAll() || from.way.Confirmation.Reads == startup.ReadsConfirmed,
	}
}

// proveChange asks the server of this session what became of the change of from. told is for the client. One that is
// not committed is executed again, if it was not before.
func (x *session) proveChange(from *session) (told []byte, err error) {
	w := from.work.Lone.Write()
	p, err := x.server().Change(w, x.doubt(from), from.work.Lone.Twice())
	x.moving.proved = p.Outcome
	if p.Status != (indoubt.Status{}) {
		x.srv.log.Info("change in doubt", "session", from.id, "xid", w.Xid, "timeline", w.Timeline, "status", p.Status.Text, "on", p.Status.Timeline, "outcome", p.Outcome)
	}
	if p.Repeat {
		from.work.Loss.Fate = lone.Repeated
	}
	return p.Told, err
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
	if len(x.moving.rest.B) > 0 || x.work.Owed.Load() > 0 || x.work.Unsynced.Load() { // the other node has forwarded nothing of it
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

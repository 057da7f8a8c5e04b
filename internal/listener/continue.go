package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// A session whose backend is behind another node's listener outlives that node, and its PostgreSQL, if its state is
// known and nothing of it may have been committed without an answer (docs/continuity.md). The client's node asks the
// server for the state beforehand, while the session is idle for a moment, and follows from then on whether anything
// that the client sends may have changed it (stmt.Unchanged). When the server is lost, the session leaves it and is
// continued where the routes lead, as in a planned failover. A transaction that was open there fails with 40001.

// known is what the client's node knows of a session whose backend is behind another node's listener. All but follows
// is guarded by drained.mu.
type known struct {
	follows   bool // it is such a session
	unchanged stmt.Unchanged
	state     *continuity.State // the last answer; nil: the session cannot be moved, was not asked, or is being asked
	refusal   string            // why it cannot
	next      time.Time         // it is not asked again before
	pause     time.Duration     // between the last questions
}

// How often sessions are asked for their state. A question costs the server some milliseconds of a processor, so a
// session that ends soon is not asked, and one that changes its state again and again ever more seldom.
const (
	keepTick     = time.Second // a session is not asked before it is that old
	keepPerTick  = 10          // sessions of this node that are asked at once
	keepPauseMin = 10 * time.Second
	keepPauseMax = 5 * time.Minute
)

// keepStates asks for the states of sessions that would outlive the node of their backend. It runs until the server
// closes.
func (s *Server) keepStates() {
	t := time.NewTicker(s.keepTick)
	defer t.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-t.C:
		}
		if list := s.unknownStates(time.Now()); len(list) > 0 {
			ctx, cancel := context.WithTimeout(s.life, s.keepTick)
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
		if x.moving.known.follows {
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
	follows := x.moving.known.follows
	if (x.drained.local || follows) && (typ == 'Q' || typ == 'P') {
		x.moving.tracker.Message(typ, piece, begun, whole)
	}
	if follows {
		x.moving.known.unchanged.Message(typ, piece, begun, whole)
	}
}

// asksAgain returns from when on the session is to be asked for its state, if that is not known and might be.
func (x *session) asksAgain() (at time.Time, asks bool) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	k := &x.moving.known
	if k.next.IsZero() {
		k.next = x.since.Add(x.srv.keepTick)
	}
	unknown := !k.unchanged.Holds() || k.state == nil && k.refusal == ""
	return k.next, unknown && x.moving.tracker.Why() == "" && x.ended.Load() == nil && !x.moving.leaving.Load()
}

// keepKnown asks for the state of the session, once it is idle for a moment.
func (x *session) keepKnown(ctx context.Context) {
	q := &question{patient: true, done: make(chan struct{})}
	x.moving.wants.Store(q)
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
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	k := &x.moving.known
	now := time.Now()
	if k.pause *= 2; !answered || now.Sub(k.next) > 2*k.pause { // it was known for long
		k.pause = 0
	}
	k.pause = min(max(k.pause, x.srv.keepPause), keepPauseMax)
	k.next, k.state, k.refusal = now.Add(k.pause), nil, ""
	if !answered {
		return
	}
	if k.refusal = x.immovable(q, statefulExtension(q.state.Extensions)); k.refusal == "" {
		k.state = &q.state
		k.unchanged.Known(q.state.Texts(), q.state.Reported["client_encoding"] == "UTF8")
	}
}

// knows notes the state of a session that continues another one.
func (x *session) knows(st *continuity.State) {
	if statefulExtension(st.Extensions) == "" {
		k := &x.moving.known
		k.state = st
		k.unchanged.Asked()
		k.unchanged.Known(st.Texts(), st.Reported["client_encoding"] == "UTF8")
	}
}

// outlive has the session leave a server that is lost, if it can be continued elsewhere. A request that was cut is then
// answered with an error that the client may take for a reason to run its transaction again.
func (x *session) outlive() bool {
	if !x.moving.known.follows || x.srv.cfg.Continuity == nil || !x.srv.cfg.Continuity() {
		return false
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if x.moving.outlived.Load() {
		return true
	}
	k := &x.moving.known
	if k.state == nil || !k.unchanged.Holds() || x.moving.leaving.Load() || x.drained.midway || x.requests.UnnamedWaits() {
		return false
	}
	if x.ended.Load() != nil || x.terminated.Load() || x.fatalSent.Load() || x.unsynced.Load() {
		return false
	}
	status := x.status.Load()
	cut, failed := false, status == 'E'
	switch x.owed.Load() {
	case 0:
		if status == 'T' { // its next request may be a COMMIT, which a failed block answers without an error
			return false
		}
	case 1:
		if cut, failed = x.requests.Cut(!x.onPrimary && !x.promoted()); !cut {
			return false
		}
	default:
		return false
	}
	x.moving.interrupted, x.moving.failed = cut, failed
	x.moving.state, x.requests.Sealed = k.state, true
	x.moving.outlived.Store(true)
	x.startLeaving()
	return true
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
	if typ != 'E' || !x.moving.known.follows || len(message) < 5 {
		return false
	}
	routine := pgwire.ErrorField(message[5:], 'R')
	return pgwire.ErrorField(message[5:], 'V') == "FATAL" && (routine == "secure_read" || routine == "secure_write")
}

// unknown returns what an error adds for a session that did not outlive its server; "" if none might have.
func (x *session) unknown() string {
	if !x.moving.known.follows || x.srv.cfg.Continuity == nil || !x.srv.cfg.Continuity() {
		return ""
	}
	x.drained.mu.Lock()
	k := &x.moving.known
	why := x.moving.tracker.Why()
	switch {
	case why != "":
	case k.unchanged.Holds() && k.refusal != "":
		why, _, _ = strings.Cut(k.refusal, ":")
	case k.unchanged.Holds() && k.state != nil:
		why = "a request was under way or a transaction open"
	default:
		why = "its state had changed and was not read since"
	}
	x.drained.mu.Unlock()
	x.srv.counts.add(&x.srv.counts.unmoved, why)
	return " (its session could not be continued: " + why + ")"
}

// leftToNode reports whether the listener of the client's node judges what became of the session: it hears of its end
// by the end of the stream.
func (x *session) leftToNode() bool {
	e := x.ended.Load()
	return x.relayed && x.moving.outlives && e != nil && (e.reason == endLost || e.reason == endEpoch || e.reason == endReplica)
}

// lostBlock is executed in a new transaction block, which fails by it: the transaction of the client is lost. The
// server's log shows it.
const lostBlock = `rollback to savepoint "the transaction was open on a server that was lost"`

// resumeBlock brings a session that continues from into the state of that one's transaction. told is what the client
// hears of a request that was cut.
func (x *session) resumeBlock(from *session) (told []byte, err error) {
	x.moving.failed = from.moving.failed
	status := byte('I')
	if from.moving.failed {
		status = 'E'
		b := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "begin"))
		if _, err := x.exchange(pgwire.AppendMessage(b, 'Q', pgwire.AppendCString(nil, lostBlock)), 2); err != nil {
			return nil, err
		}
	}
	if !from.moving.interrupted {
		return nil, nil
	}
	bad := pgwire.Error{
		Code: pgwire.StateSerialization, Message: "the transaction was open on a server that was lost",
		Detail: "It was not committed: no request that could have committed it was forwarded.", Hint: "Run the transaction again. The session goes on.",
	}
	return pgwire.AppendMessage(bad.EncodeError(), 'Z', []byte{status}), nil
}

// again opens the session that continues x. It returns nil if there is none: the client was told.
func (c *client) again(x *session) *session {
	s := c.srv
	ctx, cancel := context.WithTimeout(s.life, s.cfg.HoldMax)
	defer cancel()
	if x.moving.err != nil {
		c.lose(x, x.moving.err)
		return nil
	}
	last := errors.New("no replica takes it")
	left := s.epoch()
	for {
		r, next, ok := c.pick(ctx)
		if ok && !x.handsOver(r, left) {
			y, err := c.openAgain(ctx, r, x)
			if err == nil {
				return y
			}
			c.log.Debug("session not moved yet", "session", x.id, "replica", r.ID, "error", err)
			if last = err; errors.Is(err, errClient) || errors.Is(err, errNotTheSame) {
				break
			}
		}
		if _, gone := peek(c.raw); gone || !c.pause(ctx, next) {
			break
		}
	}
	c.lose(x, last)
	return nil
}

// movePause is how often a move that did not succeed is tried again while the routes stay the same.
const movePause = 20 * time.Millisecond

// pause waits for the next try. It reports false if there is none.
func (c *client) pause(ctx context.Context, next <-chan struct{}) bool {
	t := time.NewTimer(movePause)
	defer t.Stop()
	select {
	case <-next:
	case <-t.C:
	case <-ctx.Done():
	case <-c.srv.closed:
		return false
	}
	return ctx.Err() == nil
}

// lose ends the client of a session that was not continued.
func (c *client) lose(x *session, err error) {
	s := c.srv
	s.counts.end("not moved")
	s.counts.add(&s.counts.unmoved, "no replica took it")
	s.mu.Lock()
	if s.keys[x.key] == x {
		delete(s.keys, x.key)
	}
	s.mu.Unlock()
	why := "its session could not be moved to the new primary: " + err.Error()
	bad := pgwire.Fatal("", pgwire.StateAdminShutdown, "terminating connection: %s", why)
	bad.Hint = "Reconnect; the listener finds the replica that serves the session."
	if len(x.moving.rest) > 0 || x.owed.Load() > 0 || x.unsynced.Load() { // the other node has forwarded nothing of it
		bad = pgwire.Fatal("", pgwire.StateSerialization, "terminating connection before the transaction was begun: %s", why)
		bad.Hint = "Nothing of it was executed: reconnect and run it again."
	}
	if x.moving.interrupted || x.moving.failed {
		bad = x.outcomeError(why)
	}
	c.log.Info("session cut", "session", x.id, "replica", x.replica, "user", x.user, "reason", why, "sqlstate", bad.Code)
	_ = c.raw.SetDeadline(time.Now().Add(s.cfg.Limits.ShutdownMessage))
	if _, err := c.conn.Write(bad.Encode()); err == nil {
		halfClose(c.conn)
		drain(c.raw)
	}
	_ = c.conn.Close()
	_ = c.raw.Close()
}

// errNotTheSame means that a session cannot be brought into the state of the one that it continues.
var errNotTheSame = errors.New("it would not be the same session")

// openAgain opens a session on the replica of the route that continues x.
func (c *client) openAgain(ctx context.Context, r route, x *session) (*session, error) {
	s := c.srv
	if x.moving.outlived.Load() && x.epoch < r.lossless {
		return nil, fmt.Errorf("%w: the failover was forced, and rows that were acknowledged to it may be lost", errNotTheSame)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempt{route: r, intent: c.intent, cancel: cancel}
	defer s.abandon(a)
	if !s.begin(a) {
		return nil, errMoved
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
	conn, err := s.cfg.Backend(ctx, r.ID, BackendHello{User: c.start.User, Database: c.start.Database, ClientAddr: x.addr, Intent: c.intent, Epoch: r.epoch})
	if err != nil {
		return nil, fmt.Errorf("reach replica %s: %w", r.ID, err)
	}
	y := c.newSession(r, conn)
	y.setInput(r.Local, ctx.Done())
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	news, err := y.become(x, c.packet(x.addr, r.ID))
	if !unhook() {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err == nil && !s.activate(a, y) {
		err = errMoved
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s.counts.moved.Add(1)
	c.log.Info("session moved", "session", y.id, "from", x.replica, "to", y.replica, "epoch", y.epoch, "pid", y.pid)
	_ = c.raw.SetWriteDeadline(time.Now().Add(s.cfg.Limits.ShutdownMessage))
	_, err = c.conn.Write(news)
	_ = c.raw.SetWriteDeadline(time.Time{})
	if err != nil {
		y.close()
		return nil, errClient
	}
	return y, nil
}

// become starts the session with that startup packet and brings it into the state of from. news is what the client
// gets.
func (x *session) become(from *session, packet []byte) (news []byte, err error) {
	g, err := startSession(x.backend, x.in, packet, x.replica)
	if err != nil {
		return nil, err
	}
	was := from.moving.state
	status := continuity.Greeting(g.bytes)
	heard, err := x.restore(was, status)
	if err != nil {
		return nil, err
	}
	if x.moving.known.follows {
		x.knows(was)
	}
	told, err := x.resumeBlock(from)
	if err != nil {
		return nil, err
	}
	x.pid, x.realKey, x.inRecovery = g.pid(), g.key, status[hotStandby] == "on"
	x.id, x.key, x.longKey, x.since, x.addr = from.id, from.key, from.longKey, from.since, from.addr
	x.copies = from.copies
	x.tainted.Store(true)
	if x.requests = from.requests.Continued(); x.moving.failed {
		x.requests.Answered('E', true)
	}
	x.moving.tracker, x.moving.early = from.moving.tracker, from.moving.rest
	return slices.Concat(was.News(status), was.Lost(x.pid), heard, told), nil
}

// restore brings a new session into a state, and checks that it is in it. It returns the notifications that arrived.
func (x *session) restore(was *continuity.State, status map[string]string) (heard []byte, err error) {
	question := continuity.Question(append([]string{clientSetting}, was.Names()...))
	var states [2]continuity.State
	for i := range states {
		a, err := x.exchange(question, 1)
		if err != nil {
			return nil, err
		}
		if states[i], err = a.State(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotTheSame, err)
		}
		heard = append(heard, a.Notifications...)
		if i > 0 {
			break
		}
		requests, n := was.Restore(&states[0])
		if a, err = x.exchange(requests, n); err != nil {
			return nil, err
		}
		if err := a.Err(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotTheSame, err)
		}
		a.Reports(status)
		heard = append(heard, a.Notifications...)
	}
	if d := was.Differs(&states[1]); d != "" {
		return nil, fmt.Errorf("%w: %s", errNotTheSame, d)
	}
	was.Extensions = states[1].Extensions
	return heard, nil
}

// exchange sends requests and reads the answers, which end with n ReadyForQuery.
func (x *session) exchange(requests []byte, n int) (*continuity.Answer, error) {
	if _, err := x.backend.Write(requests); err != nil {
		return nil, err
	}
	a := new(continuity.Answer)
	for n > 0 {
		typ, body, err := pgwire.ReadMessage(x.in, pgwire.MaxControl)
		if err != nil {
			return nil, err
		}
		_, done, err := a.Feed(pgwire.AppendMessage(nil, typ, body))
		if err != nil {
			return nil, err
		}
		if done {
			n--
		}
	}
	return a, nil
}

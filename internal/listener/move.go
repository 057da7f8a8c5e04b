package listener

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/sessionstate"
)

// In a planned failover sessions are moved to the new primary (docs/continuity.md). While a drain holds their requests,
// the old server is asked for the state of each idle session (ReadStates). When it is closed, a session whose state is
// known leaves its backend and keeps its client (CloseServer). A new session takes its place where the routes lead, is
// brought into the same state, and takes the client's held requests (again). A session of another node's client is
// given back to that node's listener (giveBack, takeBack), which does the same.

// moving is the part of a session that a move uses.
type moving struct {
	owner   *client              // its client; nil: the client is at another node
	accepts bool                 // the listener of that node takes sessions back
	tracker sessionstate.Tracker // guarded by drained.mu, as are state, refusal and rest
	state   *continuity.State    // what the server told; nil: nothing, or something was forwarded since
	refusal string               // why it cannot be moved
	stays   time.Duration        // CLOCK_BOOTTIME at which ContinueReaders left it behind; 0: never. Guarded by drained.mu
	// forwarded is whether a request was forwarded since the server was asked.
	forwarded bool
	rest      []byte                   // from the client, not forwarded when the session left its backend
	wants     atomic.Pointer[question] // is to be asked by downstream
	asked     *question                // of downstream: the answer is arriving
	given     []byte                   // of downstream: what followed the message that gives the session back; nil: none came
	err       error                    // why it was not taken back
	leave     chan struct{}            // closed when leaving is set
	leaving   atomic.Bool              // it leaves its backend
	left      chan struct{}            // closed when it has left, or has ended instead (over)
	isOver    atomic.Bool              // left is closed
	early     []byte                   // of a session that continues another: bytes of the client that came before it
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

// movedOn is the end of a session that another one continues. Nothing else may end it afterwards.
var movedOn = &ending{reason: "moved"}

// question asks a session's backend for its state.
type question struct {
	answer continuity.Answer
	done   chan struct{} // closed when state and err are set
	state  continuity.State
	err    error
}

// errAsked means that the session is answering an earlier question.
var errAsked = errors.New("its state is being read")

// readersAtOnce is how many sessions are asked at once: each costs the server some milliseconds of a processor.
const readersAtOnce = 16

// turnTime is how long a session that does not answer keeps others waiting. Its own answer is waited for further.
const turnTime = 250 * time.Millisecond

// readState asks the session's backend for its state. It returns the reason if the session cannot be moved.
func (x *session) readState(ctx context.Context) (st *continuity.State, why string) {
	x.drained.mu.Lock()
	why, streams := x.moving.tracker.Why(), x.drained.streaming || x.replicates
	x.drained.mu.Unlock()
	switch {
	case why != "":
		return nil, why
	case streams:
		return nil, "it is a session of logical replication"
	case x.relayed && !x.moving.accepts:
		return nil, "the listener of its node does not take sessions back"
	case x.moving.owner == nil && !x.relayed:
		return nil, "its client is not known"
	}
	for {
		st, why, again := x.askState(ctx)
		if !again || ctx.Err() != nil {
			return st, why
		}
		time.Sleep(drainPoll) // the question of one who has gone is still being answered
	}
}

// askState asks once, and returns why the session cannot be moved. again: an earlier question is still being answered.
func (x *session) askState(ctx context.Context) (st *continuity.State, why string, again bool) {
	q := &question{done: make(chan struct{})}
	x.moving.wants.Store(q)
	x.wake()
	select {
	case <-q.done:
	case <-x.cut:
		return nil, "", false
	case <-x.moving.left:
		return nil, "", false
	case <-ctx.Done(): // q may still be asked
		x.moving.wants.CompareAndSwap(q, nil)
		return nil, "its state was not read in time", false
	}
	if q.err != nil {
		return nil, q.err.Error(), errors.Is(q.err, errAsked)
	}
	if why = q.state.Loses(); why == "" {
		why = statefulLibrary(x.backendPID())
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if why == "" { // what the kernel had relayed was entered before the question was sent
		why = x.moving.tracker.Why()
	}
	if why == "" && x.moving.tracker.Turned() && q.state.HasConstants() {
		why = "it has changed DateStyle, IntervalStyle or TimeZone after it prepared statements with constants"
	}
	if why == "" && x.requests.UnnamedWaits() {
		why = "it has parsed an unnamed statement that it has not executed"
	}
	return &q.state, why, false
}

func (x *session) cannotMove(why string) {
	x.drained.mu.Lock()
	x.moving.state, x.moving.refusal = nil, why
	x.drained.mu.Unlock()
}

// backendPID returns the process of the session's backend on this node.
func (x *session) backendPID() uint32 {
	if key := x.backendKey.Load(); key != nil && len(*key) >= 4 {
		return binary.BigEndian.Uint32(*key)
	}
	return x.pid
}

// wake has the carrier of the session look whether it is to be asked, or leaves.
func (x *session) wake() {
	if p := x.onLoop.Load(); p != nil {
		x.reclaim()
		p.loop.post(p.guarded(func() { p.woken(); p.updateInterest() }))
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
	if q := x.moving.wants.Swap(nil); q != nil {
		x.ask(q, kept == 0, func(b []byte) error { _, err := x.backend.Write(b); return err })
	}
	return x.moving.leaving.Load()
}

// ask sends the question, if nothing is under way. boundary is whether no message of the server has begun.
func (x *session) ask(q *question, boundary bool, send func([]byte) error) {
	x.drained.mu.Lock() // until the question is sent: a request after it is answered after it
	defer x.drained.mu.Unlock()
	switch {
	case x.moving.asked != nil:
		q.err = errAsked
	case x.starting:
		q.err = errors.New("it was being opened when its state was to be read")
	case !boundary || x.drained.midway || !x.idle() || !x.answers.AtBoundary():
		q.err = errors.New(refusedBusy)
	}
	if q.err != nil {
		close(q.done)
		return
	}
	x.moving.asked, x.moving.forwarded = q, false
	if err := send(continuity.Question(append([]string{clientSetting}, x.moving.tracker.Names()...))); err != nil {
		q.err = err
		close(q.done)
	}
}

// answered takes what belongs to the answer to a question. rest is what does not, aside what the client gets before.
func (x *session) answered(b []byte) (rest, aside []byte, err error) {
	q := x.moving.asked
	used, done, err := q.answer.Feed(b)
	if err != nil || !done {
		return nil, nil, err
	}
	x.moving.asked = nil
	status := map[string]string{}
	q.answer.Reports(status)
	promoted := status[hotStandby] != "" && x.recoveryOver('S', []byte(hotStandby+"\x00"+status[hotStandby]))
	if promoted {
		x.end(promotedUnder)
	}
	if q.err == nil {
		q.state, q.err = q.answer.State()
		close(q.done)
	}
	if promoted {
		return nil, nil, errPromoted
	}
	return b[used:], q.answer.Aside, nil
}

// depart has the session leave its backend, if its state is known. It does not wait.
func (x *session) depart() bool {
	x.drained.mu.Lock()
	ok := x.moving.state != nil && !x.drained.midway && x.idle() && x.ended.Load() == nil && !x.terminated.Load()
	if ok {
		x.startLeaving()
	}
	x.drained.mu.Unlock()
	if ok {
		x.wake()
	}
	return ok
}

// startLeaving makes upstream stop. The caller holds drained.mu.
func (x *session) startLeaving() {
	if !x.moving.leaving.Swap(true) {
		close(x.moving.leave)
	}
}

// moveServer has those sessions of the local server leave that can be moved, and waits a moment until they have.
func (s *Server) moveServer(ctx context.Context) {
	var leaving []*session
	for _, x := range s.localSessions() {
		if x.depart() {
			leaving = append(leaving, x)
		}
	}
	t := time.NewTimer(leaveTimeout)
	defer t.Stop()
	for _, x := range leaving {
		select {
		case <-x.moving.left:
		case <-x.cut:
		case <-t.C:
			return // what has not left is ended
		case <-ctx.Done():
			return
		}
	}
}

// unmoved returns the ending of a session that cannot be moved, with the reason.
func (x *session) unmoved(why string) ending {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if x.moving.refusal != "" {
		kind, _, _ := strings.Cut(x.moving.refusal, ":") // without what a server added
		x.srv.counts.add(&x.srv.counts.unmoved, kind)
		why += " (its session could not be moved: " + x.moving.refusal + ")"
	}
	return ending{reason: "planned failover", why: why}
}

// detach ends a session without its client, after downstream has stopped. It reports false if the session has ended
// otherwise.
func (x *session) detach(up <-chan struct{}) bool {
	_ = x.raw.SetReadDeadline(time.Unix(1, 0))
	<-up
	if !x.ended.CompareAndSwap(nil, movedOn) {
		x.sendFinal(x.finalError(nil))
		return false
	}
	if x.moving.given != nil { // AFTER nothing else ends it: the other node waits for the end of the stream
		x.moving.err = x.takeBack()
	}
	x.forget()
	_ = x.raw.SetDeadline(time.Time{})
	_ = x.backend.SetDeadline(time.Now().Add(x.srv.pool.answer))
	_, _ = x.backend.Write(pgwire.AppendMessage(nil, 'X', nil))
	_ = x.backend.Close()
	if !x.relayed {
		x.moving.over()
	}
	return true
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
	x.pid, x.realKey, x.inRecovery = g.pid(), g.key, status[hotStandby] == "on"
	x.id, x.key, x.longKey, x.since, x.addr = from.id, from.key, from.longKey, from.since, from.addr
	x.copies = from.copies
	x.tainted.Store(true)
	x.requests = from.requests.Continued()
	x.moving.tracker, x.moving.early = from.moving.tracker, from.moving.rest
	return append(append(was.News(status), was.Lost(x.pid)...), heard...), nil
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

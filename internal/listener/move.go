package listener

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/prospect"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// In a planned failover sessions are moved to the new primary (docs/continuity.md). While a drain holds their requests,
// the old server is asked for the state of each idle session (ReadStates). When it is closed, a session whose state is
// known leaves its backend and keeps its client (CloseServer). A new session takes its place where the routes lead, is
// brought into the same state, and takes the client's held requests (again). A session of another node's client is
// given back to that node's listener (giveBack, takeBack), which does the same.

// moving is the part of a session that a move uses.
type moving struct {
	owner    *client           // its client; nil: the client is at another node
	accepts  bool              // the listener of that node takes sessions back
	outlives bool              // and has them outlive this server
	state    *continuity.State // what the server told; nil: nothing, or something was forwarded since
	refusal  string            // why it cannot be moved
	stays    time.Duration     // CLOCK_BOOTTIME at which ContinueReaders left it behind; 0: never. Guarded by the lock of work
	// forwarded is whether a request was forwarded since the server was asked.
	forwarded  bool
	outlived   atomic.Bool              // its server is lost, and it leaves that
	proved     indoubt.Outcome          // of the new session: the outcome of the COMMIT of the one before it
	timelines  []ag.TimelineEntry       // of its server, as the routes have them that led there
	guarded    bool                     // of downstream: its first request is one that is executed again, and can write nothing
	resumed    bool                     // of the new session: it is in that transaction
	spilled    bool                     // of upstream: what the client sent was discarded
	unanswered []byte                   // of downstream: a question that was perhaps not forwarded by the other node
	rest       []byte                   // from the client, not forwarded when the session left its backend
	wants      atomic.Pointer[question] // is to be asked by downstream
	asked      *question                // of downstream: the answer is arriving
	given      []byte                   // of downstream: what followed the message that gives the session back; nil: none came
	err        error                    // why it was not taken back
	unresumed  error                    // why no other one continues it
	seen       Progress                 // of a reader that has left: what its next copy must have replayed; zero: not asked yet
	leave      chan struct{}            // closed when work.Leaving is set
	left       chan struct{}            // closed when it has left, or has ended instead (over)
	isOver     atomic.Bool              // left is closed
	early      []byte                   // of a session that continues another: bytes of the client that came before it
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
	answer  continuity.Answer
	patient bool          // it is asked once the session is idle
	sent    []byte        // the requests
	done    chan struct{} // closed when state and err are set
	state   continuity.State
	err     error
}

// errAsked means that the session is answering an earlier question.
var errAsked = errors.New("its state is being read")

// readersAtOnce is how many sessions are asked at once: each costs the server some milliseconds of a processor.
const readersAtOnce = 16

// turnTime is how long a session that does not answer keeps others waiting. Its own answer is waited for further.
const turnTime = 250 * time.Millisecond

// readState asks the session's backend for its state. It returns the reason if the session cannot be moved.
func (x *session) readState(ctx context.Context) (st *continuity.State, why string) {
	x.work.Lock()
	why, streams := x.work.Tracker.Why(), x.work.Streams || x.work.Replicates
	x.work.Unlock()
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
	libraries := continuity.StatefulLibrary(x.backendPID())
	x.work.Lock()
	defer x.work.Unlock()
	if why = x.immovable(q, libraries); why == "" && x.work.Requests.UnnamedWaits() {
		why = prospect.Unnamed
	}
	return &q.state, why, false
}

// immovable returns why a session whose state was read cannot be moved; "" if it can. libraries is what is said of
// those of its process. The caller holds the lock of work.
func (x *session) immovable(q *question, libraries string) string {
	why := cmp.Or(q.state.Loses(), libraries, x.work.Tracker.Why()) // what the kernel had relayed was entered before the question was sent
	if why == "" && x.work.Tracker.Turned() && q.state.HasConstants() {
		return "it has changed DateStyle, IntervalStyle or TimeZone after it prepared statements with constants"
	}
	return why
}

func (x *session) cannotMove(why string) {
	x.work.Lock()
	x.moving.state, x.moving.refusal = nil, why
	x.work.Unlock()
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

// askWanted sends the question that waits, if one does.
func (x *session) askWanted(kept int) {
	if q := x.moving.wants.Swap(nil); q != nil {
		x.ask(q, kept == 0, func(b []byte) error { _, err := x.backend.Write(b); return err })
	}
}

// ask sends the question, if nothing is under way. boundary is whether no message of the server has begun.
func (x *session) ask(q *question, boundary bool, send func([]byte) error) {
	x.work.Lock() // until the question is sent: a request after it is answered after it
	defer x.work.Unlock()
	switch {
	case x.moving.asked != nil:
		q.err = errAsked
	case x.starting:
		q.err = errors.New("it was being opened when its state was to be read")
	case !boundary || x.work.Midway || !x.work.Idle() || !x.answers.AtBoundary() || x.moving.guarded: // the question's Sync would end what guard has begun
		q.err = errors.New(refusedBusy)
	}
	if q.err != nil {
		if q.patient && x.moving.wants.CompareAndSwap(nil, q) {
			q.err = nil
			return
		}
		close(q.done)
		return
	}
	x.moving.asked, x.moving.forwarded = q, false
	x.work.Known.Asked()
	q.sent = continuity.Question(append([]string{hello.ClientAddr}, x.work.Tracker.Names()...))
	if err := send(q.sent); err != nil {
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
	if q.answer.GivenBack {
		x.moving.unanswered = q.sent
	}
	status := map[string]string{}
	q.answer.Reports(status)
	promoted := status[gate.HotStandby] != "" && x.recovery.Over('S', []byte(gate.HotStandby+"\x00"+status[gate.HotStandby]))
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
	x.work.Lock()
	ok := x.moving.state != nil && !x.work.Midway && x.work.Idle() && x.ended.Load() == nil && !x.terminated.Load()
	if ok {
		x.startLeaving()
	}
	x.work.Unlock()
	if ok {
		x.wake()
	}
	return ok
}

// startLeaving makes upstream stop. The caller holds the lock of work.
func (x *session) startLeaving() {
	if !x.work.Leaving.Swap(true) {
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
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.refusal != "" {
		kind, _, _ := strings.Cut(x.moving.refusal, ":") // without what a server added
		x.srv.counts.NotMoved(kind)
		why += " (its session could not be moved: " + x.moving.refusal + ")"
	}
	return ending{reason: "planned failover", why: why}
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
	if x.moving.given != nil { // AFTER nothing else ends it: the other node waits for the end of the stream
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

// A move that did not succeed is tried again after movePause while there is no route, and ever more seldom while the
// replica of the route refuses: hundreds of sessions may wait for the same one.
const (
	movePause    = 20 * time.Millisecond
	movePauseMax = 250 * time.Millisecond
)

// moveWait returns how long the session waits for its next server: as long as a request in a planned failover, or as a
// login where its server is lost.
func (x *session) moveWait() time.Duration {
	cfg := &x.srv.cfg
	if !x.moving.outlived.Load() {
		return cfg.HoldMax
	}
	return max(cfg.HoldMax, cfg.ConnectWait)
}

// pause waits for the next try. It reports false if there is none.
func (c *client) pause(ctx context.Context, next <-chan struct{}, wait time.Duration) bool {
	t := time.NewTimer(wait)
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

// tellLoss answers the next request of a client whose transaction was open on a server that is lost. The session has no
// server until then. It reports false if the client has ended or was ended.
func (c *client) tellLoss(x *session) bool {
	s := c.srv
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-s.closed:
			_ = c.Raw.SetReadDeadline(time.Unix(1, 0))
		case <-c.unserved.Done():
			_ = c.Raw.SetReadDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	rest, err := c.answerLost(x)
	close(over)
	<-stopped
	_ = c.Raw.SetDeadline(time.Time{})
	switch {
	case err == nil:
		x.work.Loss.Open, x.moving.rest = false, rest
		return true
	case errors.Is(err, errStopping), errors.Is(err, pgwire.ErrProtocol):
		x.work.Loss.Failed = true
		c.lose(x, c.overBy(err))
	default:
		x.dropKey()
		c.closeBoth()
	}
	return false
}

var errStopping = errors.New("the listener of this node is stopping")

// answerLost reads the client's next request and answers it. rest is what the client's next server gets.
func (c *client) answerLost(x *session) (rest []byte, err error) {
	r := lostblock.Reply{Why: x.work.Loss.Unreplayed, Statements: x.moving.state.Texts()}
	var buf [socket.SmallBuffer]byte
	for b, done := x.moving.rest, false; ; {
		var used int
		var out []byte
		if used, out, done, err = r.Feed(b); err != nil {
			return nil, err
		}
		_ = c.Raw.SetWriteDeadline(time.Now().Add(c.srv.cfg.Limits.ShutdownMessage))
		if _, err := c.Conn.Write(out); err != nil {
			return nil, errClient
		}
		if rest = b[used:]; done {
			break
		}
		n, err := c.Conn.Read(buf[:])
		switch {
		case n > 0:
			b = buf[:n]
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errStopping
		default:
			return nil, errClient
		}
	}
	if r.Terminated {
		return nil, errClient
	}
	maps.DeleteFunc(x.moving.state.Statements, func(name string, _ continuity.Statement) bool {
		_, open := r.Statements[name]
		return !open
	})
	x.work.Loss.Failed = r.Failed
	return slices.Concat(r.Forward, rest), nil
}

func (c *client) closeBoth() {
	_ = c.Conn.Close()
	_ = c.Raw.Close()
}

// leavesWhole judges a session that outlives its server again, once both directions have stopped: an answer may have
// been on its way to the client when it was judged first.
func (x *session) leavesWhole() bool {
	x.work.Lock()
	defer x.work.Unlock()
	return !x.midMessage && !x.moving.spilled && x.interrupt()
}

package listener

import (
	"context"
	"errors"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// A transaction that was open on a server that is lost fails with 40001, unless CONTINUITY is REPLAY. Then the client's
// node keeps the requests of the open transaction, and a digest of each answer (package replay). The session that
// continues this one executes them once more, and goes on in that transaction if all answers are the same. Nothing that
// could have committed the transaction was forwarded to the lost server, or it is proved that it was not committed
// (prove); and nothing that could commit it is among what is executed again. So it is committed at most once, by the
// client's own COMMIT. It is executed again once: one that has brought down its server does not go on from server to
// server.

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// logRequest keeps a piece of a message of the client, if its transaction may be executed again. begun means that it is
// the beginning. The caller holds drained.mu.
func (x *session) logRequest(piece []byte, begun, whole bool) {
	m := &x.moving
	idle := begun && m.mayLog && x.idle() && x.srv.replays()
	if idle || m.logs.Load() {
		x.requestLog().Sent(piece, begun, whole, idle)
		m.logs.Store(m.log.On())
	}
}

// requestLog returns the log of the session's open transaction. Most sessions never need one.
func (x *session) requestLog() *replay.Log {
	if x.moving.log == nil {
		x.moving.log = replay.New(&x.srv.replayMemory, x.preparedText)
	}
	return x.moving.log
}

// logAnswer keeps the digest of a piece of a message that goes to the client.
func (x *session) logAnswer(typ byte, piece []byte, whole bool) {
	if !x.moving.logs.Load() {
		return
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.moving.log.Answered(typ, piece, whole)
	x.moving.logs.Store(x.moving.log.On())
}

// closeLog ends the keeping of requests. Its caller is upstream, or comes after it.
func (x *session) closeLog() {
	x.forgetLone()
	if x.moving.log != nil {
		x.drained.mu.Lock()
		defer x.drained.mu.Unlock()
		x.moving.log.Close()
		x.moving.logs.Store(false)
	}
}

// preparedText returns the text of a prepared statement of the client, if its state is known. The caller holds
// drained.mu.
func (x *session) preparedText(name string) (text string, known bool) {
	return x.moving.known.PreparedText(name)
}

// replays reports whether transactions are executed again (CONTINUITY = REPLAY).
func (s *Server) replays() bool { return s.cfg.Replay != nil && s.cfg.Replay() }

// planReplay decides whether the transaction of a session that has left a lost server is to be executed again.
func (x *session) planReplay() {
	m := &x.moving
	inBlock := m.open || m.doubtful || m.interrupted && m.failed && x.status.Load() != 'E'
	if !inBlock || m.log == nil || !x.srv.replays() {
		return
	}
	why := m.log.Refusal(m.state.Texts())
	if why == "" && m.interrupted != (len(m.log.Unanswered()) > 0) {
		why = replay.Outstanding
	}
	switch m.replays = why == ""; {
	case why == "":
	case m.doubtful: // it may have been committed
		m.unreplayed = why
	default:
		x.notReplayed(why)
	}
}

// notReplayed notes why the transaction fails with 40001 instead.
func (x *session) notReplayed(why string) {
	x.srv.counts.NotReplayed(why)
	x.srv.log.Info("transaction not executed again", "session", x.id, "user", x.user, "reason", why)
	x.moving.replays, x.moving.unreplayed = false, why
	x.closeLog()
}

// again opens the session that continues x. It returns nil if there is none: the client was told.
func (c *client) again(x *session) *session {
	defer x.closeLog()
	if x.moving.err != nil {
		c.lose(x, x.moving.err)
		return nil
	}
	x.planReplay()
	if x.moving.replays {
		y, err := c.onward(x)
		var tried resume.TriedError
		switch {
		case err == nil:
			return y
		case errors.As(err, &tried):
			x.notReplayed(tried.Why)
		case x.moving.open && !errors.Is(err, resume.ErrNotTheSame): // it can be told by its next request
			x.notReplayed("no replica took it in time")
		default:
			c.lose(x, err)
			return nil
		}
	}
	if x.moving.open && !c.tellLoss(x) {
		return nil
	}
	y, err := c.onward(x)
	if err != nil {
		c.lose(x, err)
		return nil
	}
	if x.moving.doubtful && x.moving.unreplayed != "" && !x.moving.tried && y.moving.proved == indoubt.NotCommitted {
		x.notReplayed(x.moving.unreplayed)
	}
	return y
}

// onward opens the session that continues x where the routes lead.
func (c *client) onward(x *session) (*session, error) {
	s := c.srv
	ctx, cancel := context.WithTimeout(c.unserved, x.moveWait())
	defer cancel()
	last, wait := errors.New("no replica takes it"), movePause
	left := s.epoch()
	for {
		r, next, ok := s.logins.Pick(ctx, &c.Proved)
		if wait *= 2; !ok {
			wait = movePause
		}
		if ok && !x.handsOver(r, left) {
			y, err := c.openAgain(ctx, r, x)
			if err == nil {
				return y, nil
			}
			c.log.Debug("session not moved yet", "session", x.id, "replica", r.ID, "error", err)
			if last = err; errors.Is(err, errClient) || errors.Is(err, resume.ErrNotTheSame) {
				return nil, err
			}
			if x.moving.tried && x.moving.replays {
				if tried := (resume.TriedError{}); !errors.As(err, &tried) {
					last = resume.ErrLost
				}
				return nil, last
			}
		}
		if _, gone := socket.Peek(c.Raw); gone || !c.pause(ctx, next, min(wait, movePauseMax)) {
			return nil, c.overBy(last)
		}
	}
}

// resumeBlock brings a session that continues from into the state of that one's transaction. told is what the client
// hears of a request that was cut.
func (x *session) resumeBlock(ctx context.Context, from *session) (told []byte, err error) {
	if from.moving.fate == lone.InDoubt {
		return x.proveChange(from)
	}
	if from.moving.doubtful {
		told, err = x.prove(from)
		if err != nil || x.moving.proved != indoubt.NotCommitted {
			from.moving.replays = from.moving.replays && err != nil // it is done: nothing of it is executed twice
			return told, err
		}
		if !from.moving.replays {
			return told, nil
		}
	}
	if from.moving.replays {
		assert.That(!from.moving.doubtful || x.moving.proved == indoubt.NotCommitted, "a transaction is executed again that may have been committed")
		return x.executeAgain(ctx, from)
	}
	x.moving.failed = from.moving.failed
	status := byte('I')
	if from.moving.failed {
		status = 'E'
		if err := x.server().FailBlock(); err != nil {
			return nil, err
		}
	}
	switch {
	case from.moving.fate == lone.Failed:
		return pgwire.AppendMessage(lostblock.Query().EncodeError(), 'Z', []byte{status}), nil
	case !from.moving.interrupted:
		return nil, nil
	}
	return pgwire.AppendMessage(lostblock.Error(from.moving.unreplayed).EncodeError(), 'Z', []byte{status}), nil
}

// executeAgain executes the transaction of from in this session, and compares the answers. told is for the client,
// beside them. The request that was not answered is left to be forwarded.
func (x *session) executeAgain(ctx context.Context, from *session) (told []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.HoldMax/2)
	defer cancel()
	run, err := x.server().Execute(ctx, from.moving.log, from.moving.state.Extensions)
	from.moving.tried = err != nil || run.Requests() > 0
	if tried := (resume.TriedError{}); errors.As(err, &tried) && tried.Why == replay.Differs {
		x.srv.log.Info("answer differs", "session", from.id, "request", run.Requests())
	}
	x.moving.resumed = err == nil && run.Requests() > 0
	return run.Aside, err
}

// The functions below prove what became of a COMMIT whose answer is lost with its server (package indoubt). It is the
// one request under way of a session that outlives its server. Others end with 08007.

// probe has the question for the number of the open transaction go before the client's bytes b, if one is wanted there
// (indoubt.Asking), the session may outlive its server, and that tells numbers. The caller holds drained.mu.
func (x *session) probe(b []byte) {
	m := &x.moving
	if !x.probes() || x.status.Load() != 'T' && !x.unsynced.Load() { // nothing is under way that a COMMIT could end
		return
	}
	r := x.beforeRequest()
	q, wants := m.asking.Wants(b, &r)
	if !wants {
		return
	}
	why := x.unfit()
	if !q.InBatch && !q.Early {
		why, _ = x.wouldEnd()
	}
	if why != "" || !m.known.Told.Tells {
		return
	}
	m.before = m.asking.Ask(q, r.Endings)
	if m.logs.Load() && !q.InBatch && !q.Early {
		m.log.Commits()
	}
}

// probes reports whether numbers of transactions of the session may be asked for.
func (x *session) probes() bool { return x.moving.known.Follows && !x.relayed && x.onPrimary }

// beforeRequest returns what is under way before the client's next request. The caller holds drained.mu.
func (x *session) beforeRequest() indoubt.Request {
	unsynced := x.unsynced.Load()
	return indoubt.Request{
		Status: byte(x.status.Load()), Owed: x.owed.Load() != 0, Unsynced: unsynced, OneTransaction: unsynced && x.requests.OneTransaction(),
		Endings: x.requests.Endings(), Commits: x.moving.known.Commits, Text: x.requests.Texts,
	}
}

// batchCommits reports whether the client's bytes b, behind others of the same chunk, begin with a COMMIT that ends the
// batch under way: the question goes between the two. The caller holds drained.mu.
func (x *session) batchCommits(b []byte) bool {
	if !x.unsynced.Load() || !indoubt.MayEndBatch(b[0]) || !x.probes() {
		return false
	}
	r := x.beforeRequest()
	return x.moving.asking.Ends(b, &r) != nil
}

// preceded returns a chunk with what goes before it.
func (x *session) preceded(chunk []byte) []byte {
	if x.moving.before == nil {
		return chunk
	}
	chunk, x.moving.before = append(x.moving.before, chunk...), nil
	return chunk
}

// swallows reports whether a message of the server answers the question that went before a request. Of a tail the
// client has got the beginning.
func (x *session) swallows(typ byte, message []byte, tail bool) bool {
	if !x.moving.asking.Asks.Load() && typ != '3' {
		return false
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	swallow, refused := x.moving.asking.Swallows(typ, message, tail)
	if refused {
		x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user, "sqlstate", x.moving.asking.State)
	}
	return swallow
}

// holdsPart reports whether a message with that beginning must be whole before it is passed on: for swallows, or so
// that an error can follow the part of the answer to a query that the client has got.
func (x *session) holdsPart(part []byte) bool {
	return x.maySwallow(part) || x.moving.keeps.Load() && lone.Holds(part)
}

// maySwallow reports whether swallows has to see a message with that beginning whole.
func (x *session) maySwallow(part []byte) bool {
	if !x.moving.asking.Asks.Load() {
		return false
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	return x.moving.asking.Holds(part)
}

// inDoubt reports whether the one request under way is a COMMIT whose outcome can be asked for. The caller holds
// drained.mu.
func (x *session) inDoubt() bool {
	return x.owed.Load() == 1 && x.moving.asking.Provable(byte(x.status.Load()))
}

// prove asks the server of this session what became of the COMMIT of from. told is for the client. A session whose
// server has no answer is not continued: the client hears 08007.
func (x *session) prove(from *session) (told []byte, err error) {
	c := from.moving.asking.Commit
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
		Timelines: x.moving.timelines, Extensions: from.moving.state.Extensions, Unreplayed: from.moving.unreplayed,
		Reads: from.confirmation.ConfirmsAll() || from.confirmation.Reads == startup.ReadsConfirmed,
	}
}

// proveChange asks the server of this session what became of the change of from. told is for the client. One that is
// not committed is executed again, if it was not before.
func (x *session) proveChange(from *session) (told []byte, err error) {
	w := from.moving.lone.Write()
	p, err := x.server().Change(w, x.doubt(from), from.moving.lone.Twice())
	x.moving.proved = p.Outcome
	if p.Status != (indoubt.Status{}) {
		x.srv.log.Info("change in doubt", "session", from.id, "xid", w.Xid, "timeline", w.Timeline, "status", p.Status.Text, "on", p.Status.Timeline, "outcome", p.Outcome)
	}
	if p.Repeat {
		from.moving.fate = lone.Repeated
	}
	return p.Told, err
}

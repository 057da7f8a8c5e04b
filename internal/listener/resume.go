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
	if why := x.work.PlanReplay(x.moving.state); why != "" {
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
			if x.work.Loss.Tried && x.work.Loss.Replays {
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
	run, err := x.server().Execute(ctx, from.work.Log, from.moving.state.Extensions)
	from.work.Loss.Tried = err != nil || run.Requests() > 0
	if tried := (resume.TriedError{}); errors.As(err, &tried) && tried.Why == replay.Differs {
		x.srv.log.Info("answer differs", "session", from.id, "request", run.Requests())
	}
	x.moving.resumed = err == nil && run.Requests() > 0
	return run.Aside, err
}

// The functions below prove what became of a COMMIT whose answer is lost with its server (package indoubt). It is the
// one request under way of a session that outlives its server. Others end with 08007.

// swallows reports whether a message of the server answers the question that went before a request. Of a tail the
// client has got the beginning.
func (x *session) swallows(typ byte, message []byte, tail bool) bool {
	swallow, refused := x.work.Swallows(typ, message, tail)
	if refused {
		x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user, "sqlstate", x.work.Asking.State)
	}
	return swallow
}

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
		Timelines: x.moving.timelines, Extensions: from.moving.state.Extensions, Unreplayed: from.work.Loss.Unreplayed,
		Reads: from.confirmation.ConfirmsAll() || from.confirmation.Reads == startup.ReadsConfirmed,
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

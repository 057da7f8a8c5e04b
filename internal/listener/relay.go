package listener

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// relay carries bytes both ways until either side ends, and returns when both directions have. It reports whether the
// session has left its backend and kept its client.
func (x *session) relay() (moved bool) {
	defer func() {
		if !moved {
			x.close()
		}
	}()
	up := make(chan struct{})
	go func() {
		defer close(up)
		defer x.rescue("upstream")
		x.upstream()
	}()
	func() {
		defer x.rescue("downstream")
		x.downstream()
	}()
	if x.work.Leaving.Load() && x.ended.Load() == nil && x.detach(up) {
		return true
	}
	keeps := x.keepsBackend.Load() && !x.moving.inquiry.Answering() && x.way.AnswersAtBoundary() && x.in.Buffered() == 0
	if !keeps {
		_ = x.backend.Close()
	}
	if x.lingers() {
		// Unread bytes would make the kernel reset the connection and lose the final error: upstream reads and
		// discards them.
		socket.HalfClose(x.client)
		_ = x.raw.SetReadDeadline(time.Now().Add(socket.Linger))
	} else {
		_ = x.raw.Close()
	}
	x.moving.over() // upstream may wait for an answer that does not come any more (asksNumber)
	<-up
	if !keeps {
		return false
	}
	if fd, err := socket.Duplicate(x.backend); err == nil {
		x.forget()
		x.returnBackend(fd)
	}
	return false
}

// downstream carries answers to the client. It is the only writer to the client.
func (x *session) downstream() {
	var buf socket.Buffer // small while little passes
	defer buf.Free()
	kept, took := 0, 0 // kept: bytes at the front of the buffer, an answer that is checked when it is whole
	for {
		buf.Fit(took, kept)
		n, err := x.in.Read(buf.B[kept:])
		took = kept + n
		if x.serverLost() { // nothing of it is passed on
			return
		}
		if x.ended.Load() != nil {
			n = 0 // discarded: the server may no longer be the primary
		}
		if n > 0 {
			var bad error
			if kept, bad = x.pass(buf.B[:kept+n], kept); bad != nil {
				if !x.serverLost() { // while it was held
					x.sendFinal(x.passFailed(bad))
				}
				return
			}
		}
		if x.stops(err, kept) {
			return
		}
	}
}

// stops reports whether downstream has come to its end, by the error of a read or otherwise. kept is as there.
func (x *session) stops(err error, kept int) bool {
	switch {
	case err != nil && x.keepsBackend.Load() && x.ended.Load() == nil:
		return true
	case x.way.Given != nil && x.ended.Load() == nil:
		x.work.Lock()
		x.startLeaving()
		x.work.Unlock()
		return true
	case errors.Is(err, os.ErrDeadlineExceeded) && x.ended.Load() == nil:
		return x.woken(kept)
	case err != nil && x.outlive():
		return true
	case err != nil || x.ended.Load() != nil:
		x.sendFinal(x.finalError(err))
		return true
	}
	if x.moving.inquiry.Wanted() { // the answer for which it waited may have come
		x.askWanted(kept)
	}
	return false
}

// advance follows a chunk of answers, which have passed the gate (Passage.Advance). Both data paths go through this
// function.
func (x *session) advance(c *passage.Chunk) (out []byte, s stmt.Effect, err error) {
	assert.That(x.gate == nil || x.gate.Passed(), "bytes of an answer have not passed the gate")
	return x.way.Advance(&x.work, x, c)
}

// pass writes b to the client and holds answers that have to be confirmed. The framer has seen the first seen bytes
// before. kept is how many bytes, now at the front of b, are left for the next chunk.
func (x *session) pass(b []byte, seen int) (kept int, err error) {
	all := b
	if x.moving.inquiry.Answering() {
		rest, aside, err := x.answered(b)
		if err == nil {
			err = x.write(aside)
		}
		if err != nil {
			return 0, err
		}
		b, seen = rest, 0
	}
	p := x.way.Chunk(b, seen)
	for {
		out, stake, err := x.advance(&p)
		if err != nil {
			return 0, err
		}
		if err := x.write(out); err != nil {
			return 0, err
		}
		if stake == stmt.NoEffect {
			x.way.MidMessage = p.Partly()
			return copy(all, p.Kept()), nil
		}
		if err := x.confirm(stake); err != nil {
			return 0, err
		}
	}
}

func (x *session) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := x.client.Write(b); err != nil {
		return errClient
	}
	x.bytesOut.Add(uint64(len(b)))
	x.way.MidMessage = false // if the caller stops here; pass sets it again
	return nil
}

// confirm returns when all conditions of the session's answer hold, and the gate is open. An error means that the
// answer must be discarded.
func (x *session) confirm(s stmt.Effect) error {
	began := time.Now()
	x.srv.counts.Held.Add(1)
	defer func() { x.srv.counts.HeldTime.Add(int64(time.Since(began))) }()
	err := x.way.Confirmation.Confirm(s, gate.Questions{
		Durable: func() error { return x.within(x.durable) },
		Leads: func() error {
			return x.within(func(ctx context.Context) error { _, err := x.srv.leads.Ask(ctx); return err })
		},
	})
	if err != nil {
		x.srv.counts.Unconfirmed.Add(1)
		x.srv.log.Warn("an answer is discarded: it was not confirmed", "session", x.id, "user", x.user, "error", err)
		return gate.ErrUnconfirmed
	}
	if x.gate == nil {
		return nil
	}
	return x.gate.Pass() // time has passed since the answer was read
}

// durable returns when the WAL flushed before the call is durable.
func (x *session) durable(ctx context.Context) error {
	lsn, err := x.srv.flushed.Ask(ctx)
	if err != nil {
		return err
	}
	return x.srv.cfg.Durable(ctx, lsn)
}

// within calls f with a context that ends after GateHold, or with the session.
func (x *session) within(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(x.srv.life, x.srv.cfg.GateHold)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-x.cut:
			cancel()
		case <-x.moving.leave:
			cancel()
		case <-over:
		}
	}()
	return f(ctx)
}

// askWanted sends the question that waits, if one does.
func (x *session) askWanted(kept int) {
	if x.moving.inquiry.Wanted() {
		x.ask(kept == 0, func(b []byte) error { _, err := x.backend.Write(b); return err })
	}
}

// ask sends the question that waits. boundary is whether no message of the server has begun.
func (x *session) ask(boundary bool, send func([]byte) error) {
	x.moving.inquiry.Ask(&x.work, inquiry.Point{
		Opening: x.way.Starting,
		Between: boundary && x.way.AnswersAtBoundary() && !x.way.Guarding.On(), // the question's Sync would end what guard has begun
	}, send)
}

// answered takes what belongs to the answer to a question. rest is what does not, aside what the client gets before.
func (x *session) answered(b []byte) (rest, aside []byte, err error) {
	return x.moving.inquiry.Take(b, func(status map[string]string, unanswered []byte) error {
		if unanswered != nil {
			x.way.Unanswered = unanswered
		}
		if len(status) > 0 { // the server has loaded its configuration: what was read before is of another one
			x.moving.inquiry.Forget(&x.work)
		}
		if on := status[gate.HotStandby]; on == "" || !x.way.Recovery.Over('S', []byte(gate.HotStandby+"\x00"+on)) {
			return nil
		}
		x.Ends(passage.Promoted)
		return passage.ErrPromoted
	})
}

// upstream carries requests to PostgreSQL.
func (x *session) upstream() {
	var buf socket.Buffer // small while little passes
	defer buf.Free()
	if early := x.moving.early; len(early) > 0 {
		x.moving.early = nil
		if bad, _ := x.forward(early); bad != nil {
			x.end(ending{"protocol", "invalid message length", true})
		}
	}
	for n := 0; ; {
		buf.Fit(n, 0)
		var err error
		n, err = x.client.Read(buf.B)
		if n > 0 && x.ended.Load() == nil {
			x.bytesIn.Add(uint64(n))
			if bad, werr := x.forward(buf.B[:n]); bad != nil {
				x.end(ending{"protocol", "invalid message length", true})
			} else if werr != nil && x.ended.Load() == nil {
				// downstream reads what PostgreSQL still had to say, then its end
				_, _ = io.Copy(&x.moving.rest, x.client)
				return
			}
		}
		if x.keepsBackend.Load() {
			_ = x.backend.SetReadDeadline(time.Unix(1, 0)) // downstream has nothing more to wait for
			return
		}
		if x.work.Leaving.Load() && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) || x.ended.Load() == nil {
				x.way.Terminated.Store(true) // the client no longer reads errors
				socket.HalfClose(x.backend)
			}
			return
		}
	}
}

// forward carries a chunk of the client's bytes to PostgreSQL. During a drain it stops at the end of what is in
// progress. bad is a violation of the protocol, err a failed write.
func (x *session) forward(chunk []byte) (bad, err error) {
	var holds *time.Timer // set with the first wait: a request is held for at most HoldMax
	for len(chunk) > 0 && x.ended.Load() == nil {
		var w *lone.Write
		if x.way.RequestsAtBoundary() {
			var over bool
			if w, over = x.asksNumber(chunk); over {
				return nil, nil
			}
		}
		n, d, bad := x.way.Release(&x.work, x, chunk)
		if bad != nil {
			return bad, nil
		}
		if n == 0 && x.work.Leaving.Load() { // what was released counts as sent: the next server must not get it
			x.moving.rest.B = append(x.moving.rest.B, chunk...)
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
	out := x.way.Goes(&x.work, chunk[:n])
	if w != nil && n == len(chunk) {
		out = x.work.ChangeRequest(w, out)
	}
	sent, err := x.backend.Write(out)
	if err == nil {
		return nil
	}
	if w == nil || sent == 0 { // else the status of its number tells
		x.work.Unsent(min(n, x.way.Instead.Last.OfClient(len(out)-sent)))
	}
	x.moving.rest.B = append(x.moving.rest.B, chunk[n:]...) // the next server gets it, if there is one
	return err
}

// await waits for the end of the drain or of the session, or only for a moment if the request may be released before
// that. The answer that the request waited for may arrive after release has looked, and leave a transaction open.
func (x *session) await(d *passage.Drain, holds *time.Timer) {
	var poll <-chan time.Time
	if !x.work.Idle() {
		t := time.NewTimer(drainPoll)
		defer t.Stop()
		poll = t.C
	}
	select {
	case <-d.Over:
	case <-x.cut:
	case <-x.moving.leave:
	case <-x.moving.left: // its backend has ended itself
	case <-poll:
	case <-holds.C:
		x.end(ending{reason: "held", why: "the planned failover took too long"})
	}
}

// asksNumber has the server tell the number of the transaction of the change that the client's bytes b are, if they are
// one, before that is sent. w is the change if its number is known, or if the question was canceled. With over nothing
// of b is to be sent: the client has left, or the session has ended.
func (x *session) asksNumber(b []byte) (w *lone.Write, over bool) {
	if x.work.Status.Load() != 'I' || !x.work.OnPrimary || !x.FromNode() || !x.srv.rules.Replays() {
		return nil, false
	}
	if w = x.work.BeginsChange(b); w == nil {
		return nil, false
	}
	question := lone.Question()
	for range 2 { // the second is a Sync, if the question fails
		if _, err := x.backend.Write(question); err != nil {
			return nil, false // downstream sees that
		}
		if !x.awaitsNumber(w) {
			return nil, true
		}
		var canceled bool
		if question, canceled = x.work.QuestionAnswered(w); canceled {
			return w, false
		}
		if question == nil {
			break
		}
	}
	known, failed := x.work.NumberTold(w)
	if failed {
		x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user)
	}
	if !known {
		return nil, false
	}
	return w, false
}

// awaitsNumber waits for the answer to the question for the number of a change. It reports false if the client has left
// meanwhile, or if the server was silent for as long as a session waits for the next one: the change was not sent, and
// the client hears so.
func (x *session) awaitsNumber(w *lone.Write) bool {
	deadline, look := time.NewTimer(max(x.srv.cfg.HoldMax, x.srv.cfg.ConnectWait)), time.NewTicker(x.srv.inquirer.Times.Tick)
	defer deadline.Stop()
	defer look.Stop()
	for {
		select {
		case <-w.Done:
		case <-x.cut:
		case <-x.moving.leave:
		case <-x.moving.left:
		case <-look.C:
			if _, gone := socket.Peek(x.raw); !gone {
				continue
			}
			return false
		case <-deadline.C:
			x.work.Unbegun()
			x.end(ending{reason: "silent", why: "its server has not answered in time"})
			return false
		}
		return true
	}
}

// The methods below are what package passage needs of a session.

// Ended reports whether the session has ended.
func (x *session) Ended() bool { return x.ended.Load() != nil }

// Ends ends the session for what its bytes say.
func (x *session) Ends(with passage.End) { x.end(byItsBytes[with]) }

// byItsBytes are the endings of sessions by what their bytes say.
var byItsBytes = map[passage.End]ending{
	passage.Promoted:    {reason: endPromoted, why: "its replica was promoted"},
	passage.HiddenWrite: {reason: "hidden write", why: "its server was lost, and the query writes by a function that a view or an operator calls"},
	passage.OpenBlock:   {reason: "open block", why: "its server was lost, and a cancel request has come when the query was over that was executed again"},
	passage.Member:      {"replication", startup.RefuseMember().Message, true},
	passage.OutOfTurn:   {"replication", "a session of logical replication takes one command at a time", true},
}

// FromNode reports whether the backend is behind another node's listener.
func (x *session) FromNode() bool { return !x.work.Local && !x.relayed }

// Drain returns the drain that is in force; nil: none is.
func (x *session) Drain() *passage.Drain { return x.srv.drain.Load() }

// Forwarded notes that a chunk of the client is forwarded. The caller holds the lock of work.
func (x *session) Forwarded() { x.moving.inquiry.Forwarded() }

// Started ends the turn of the session to start.
func (x *session) Started() { x.turnOver() }

// Taints notes that the backend must serve no other client.
func (x *session) Taints() { x.use.Taint() }

// NumberRefused logs that the server does not tell the number of a transaction.
func (x *session) NumberRefused() {
	x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user, "sqlstate", x.work.Asking.State)
}

// Changes follows a piece of a message that goes to the local server, for statements that change a setting of the
// group, or weaken commits of other sessions (docs/internals/postgresql.md, "Settings of the agent"). It reports
// whether it has ended the session for that message.
func (x *session) Changes(p instead.Piece) (over bool) {
	if x.srv.cfg.Reserved == nil || !x.work.Local {
		return false
	}
	bad := x.way.Instead.Follow(p, x.srv.refuse)
	if bad == nil {
		return false
	}
	x.srv.counts.Reject(endSetting)
	x.srv.log.Warn("a change of a setting is refused", "session", x.id, "user", x.user, "reason", bad.Message)
	if !p.HasHeader {
		x.end(ending{reason: endSetting, why: bad.Message + "; " + bad.Hint})
	}
	return !p.HasHeader
}

func (s *Server) refuse(c stmt.Change) *stmt.Refusal {
	return stmt.Refuse(c, s.cfg.Reserved, s.cfg.RelaxedCommit != nil && s.cfg.RelaxedCommit())
}

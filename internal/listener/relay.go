package listener

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
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
	keeps := x.keepsBackend.Load() && !x.moving.inquiry.Answering() && x.answers.AtBoundary() && x.in.Buffered() == 0
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
	case x.moving.given != nil && x.ended.Load() == nil:
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

// passing is a chunk of answers on its way to the client.
type passing struct {
	b      []byte
	at     int  // bytes that the framer has seen
	from   int  // bytes that were handed out to be written
	begin  int  // where the current message begins
	piece  int  // where the part of it begins that the framer has seen last
	asked  bool // confirmed once: the confirmation came after the read, so it covers all of b
	judged bool // the current message is whole and was checked
	tail   bool // its beginning was passed on with an earlier chunk
	looked bool // at the server's log, after the read
}

// advance follows a chunk to its end, or to an answer that must be confirmed before it is sent. In the second case s
// is not NoEffect, and the caller calls again after the confirmation. out is to be written first. Both data paths go
// through this function.
func (x *session) advance(p *passing) (out []byte, s stmt.Effect, err error) {
	assert.That(p.from <= p.begin && p.begin <= p.at, "bytes of an answer are passed on before they are checked")
	assert.That(x.gate == nil || x.gate.Passed(), "bytes of an answer have not passed the gate")
	for p.judged || p.at < len(p.b) {
		if whole, err := x.frames(p); err != nil {
			return nil, stmt.NoEffect, err
		} else if !whole {
			break
		}
		typ, body := x.answers.Type(), x.answers.Kept()
		if x.isLast(typ, p) {
			p.b, p.at = p.b[:p.begin], p.begin
			break
		}
		if x.isOfPromoted(typ, body) {
			return nil, stmt.NoEffect, errPromoted
		}
		if x.work.Writes() && x.holdsAnswer(typ, p) {
			continue
		}
		if x.moving.guarding.Takes(typ) || x.work.MayBeOfQuestion(typ) && x.swallows(typ, p.b[p.begin:p.at], p.tail) {
			p.b, p.at = append(p.b[:p.begin], p.b[p.at:]...), p.begin
			continue // it was held until it was whole
		}
		if s := x.confirmation.AtStake(typ, body, &p.looked); !p.asked && s != stmt.NoEffect {
			p.asked, p.judged = true, true
			out, p.from = p.b[p.from:p.begin], p.begin
			return out, s, nil
		}
		p.judged = false
		x.work.Answering(typ)
		x.work.Answered(typ, p.b[p.piece:p.at], true)
		x.observeAnswer(typ, body)
		p.begin, p.tail = p.at, false
	}
	end := x.sendable(p)
	out, p.from = p.b[p.from:end], end
	return out, stmt.NoEffect, nil
}

// sendable returns the end of what the client gets of a chunk that was followed to its end: without the beginning of a
// message that must be whole first, or else with what is held of the answer before it.
func (x *session) sendable(p *passing) (end int) {
	switch part := p.b[p.begin:]; {
	case len(part) == 0:
	case x.answers.HoldsBack() || !p.tail && (x.work.HoldsPart(part) || x.moving.guarding.Holds(part)):
		return p.begin
	case !p.tail && x.work.Writes():
		p.insert(x.work.PassHeld())
	}
	return len(p.b)
}

// frames follows the chunk to the end of the current message. It reports whether that is whole.
func (x *session) frames(p *passing) (whole bool, err error) {
	if p.judged {
		return true, nil
	}
	used, whole, err := x.answers.Next(p.b[p.at:])
	if err != nil {
		return false, err
	}
	if p.piece, p.at = p.at, p.at+used; !whole {
		x.work.Answering(x.answers.Type())
		if p.tail || !x.work.MaySwallow(p.b[p.begin:p.at]) {
			x.work.Answered(x.answers.Type(), p.b[p.piece:p.at], false)
		}
	}
	return whole, nil
}

// kept returns what the next chunk begins with: an answer that is checked when it is whole.
func (p *passing) kept() []byte { return p.b[p.from:] }

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
	p := passing{b: b, at: seen, tail: x.midMessage}
	for {
		out, stake, err := x.advance(&p)
		if err != nil {
			return 0, err
		}
		if err := x.write(out); err != nil {
			return 0, err
		}
		if stake == stmt.NoEffect {
			x.midMessage = p.from > p.begin
			return copy(all, p.kept()), nil
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
	x.midMessage = false // if the caller stops here; pass sets it again
	return nil
}

// confirm returns when all conditions of the session's answer hold, and the gate is open. An error means that the
// answer must be discarded.
func (x *session) confirm(s stmt.Effect) error {
	began := time.Now()
	x.srv.counts.Held.Add(1)
	defer func() { x.srv.counts.HeldTime.Add(int64(time.Since(began))) }()
	err := x.confirmation.Confirm(s, gate.Questions{
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

// observeAnswer follows an answer of PostgreSQL.
func (x *session) observeAnswer(typ byte, body []byte) {
	switch typ {
	case 'Z':
		if len(body) > 0 {
			if x.starting {
				x.starting = false
				x.started()
			}
			x.work.Ready(body[0])
		}
		x.cycleEnded()
	case 'W': // CopyBothResponse
		x.work.StreamBegins()
	case 'C':
		if x.work.Known.Follows {
			x.work.Asking.Changed(body)
		}
		x.confirmation.CommandEnded(body)
	case 'V', 's':
		x.confirmation.Returned()
	case 'N':
		x.confirmation.Notice(body)
	case 'S', 'A': // a setting has changed, or a notification arrived
		x.use.Taint()
		if typ != 'S' {
			break
		}
		if x.work.Reported(body); x.posesAsMember(body) {
			x.end(ending{"replication", startup.RefuseMember().Message, true})
		}
	case 'K':
		x.observeKey(body)
	case 'E':
		x.confirmation.Failed()
		if v := pgwire.ErrorField(body, 'V'); v == "FATAL" || v == "PANIC" {
			x.fatalSent.Store(true)
		}
	}
}

// swallows reports whether a message of the server answers the question that went before a request. Of a tail the
// client has got the beginning.
func (x *session) swallows(typ byte, message []byte, tail bool) bool {
	swallow, refused := x.work.Swallows(typ, message, tail)
	if refused {
		x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user, "sqlstate", x.work.Asking.State)
	}
	return swallow
}

// wouldWrite reports whether a message of the server tells that a request that is executed again would have written. It
// ends the session: at its first execution it may have.
func (x *session) wouldWrite(typ byte, body []byte) bool {
	if !x.moving.guarding.On() || typ != 'E' || !x.work.OnPrimary || pgwire.ErrorField(body, 'C') != lone.ReadOnly {
		return false
	}
	x.end(ending{reason: "hidden write", why: "its server was lost, and the query writes by a function that a view or an operator calls"})
	return true
}

// holdsAnswer takes the current message of a chunk from what goes to the client, if it answers the question for a
// number, or the change that is not committed yet.
func (x *session) holdsAnswer(typ byte, p *passing) bool {
	before, held := x.work.HoldsAnswer(typ, p.b[p.begin:p.at], p.tail)
	if held {
		p.b, p.at = append(p.b[:p.begin], p.b[p.at:]...), p.begin
	}
	p.insert(before)
	return held
}

// insert puts bytes that were checked before the current message.
func (p *passing) insert(b []byte) {
	if n := len(b); n > 0 {
		p.b = slices.Concat(p.b[:p.begin], b, p.b[p.begin:])
		p.begin, p.at, p.piece = p.begin+n, p.at+n, p.piece+n
	}
}

// errPromoted means that an answer must be discarded: it is of a server that was promoted under the session.
var errPromoted = errors.New("the replica was promoted")

// promotedUnder is the end of a session whose answer shows that.
var promotedUnder = ending{reason: endPromoted, why: "its replica was promoted"}

// isOfPromoted reports whether a message shows that the session must get nothing more of its server: recovery has ended
// there, or a query that is executed again would have written.
func (x *session) isOfPromoted(typ byte, body []byte) bool {
	if x.recovery.Over(typ, body) {
		x.end(promotedUnder)
		return true
	}
	return x.wouldWrite(typ, body)
}

// isLast reports whether the client gets nothing of the current message or of what follows it: the other node gives the
// session back by it, or PostgreSQL says by it that its postmaster died.
func (x *session) isLast(typ byte, p *passing) bool {
	if typ == giveback.Message && x.fromNode() {
		x.moving.given = append([]byte{}, p.b[p.at:]...)
		if q, asked := x.work.NotAsked(); asked {
			x.moving.unanswered = q
		}
		return true
	}
	return x.postmasterDied(typ, p.b[p.begin:p.at])
}

// observeKey notes the backend's cancel key. Only relayed sessions see it here: others have it from the greeting.
func (x *session) observeKey(body []byte) {
	key := bytes.Clone(body)
	x.backendKey.Store(&key)
}

// fromNode reports whether the backend is behind another node's listener.
func (x *session) fromNode() bool { return !x.work.Local && !x.relayed }

// The goroutine that reads the server's answers also asks the server for the session's state (package inquiry).

// Inquiry and the following methods are what package inquiry needs of a session.
func (x *session) Inquiry() *inquiry.Session { return &x.moving.inquiry }

// Underway returns what is under way in the session.
func (x *session) Underway() *underway.Work { return &x.work }

// Facts returns what is asked about the session now.
func (x *session) Facts() inquiry.Facts {
	return inquiry.Facts{
		Move:    ag.SessionMove{Replica: x.replica, User: x.user, Database: x.database, Client: x.addr, Since: x.since},
		Carried: x.bytesIn.Load() + x.bytesOut.Load(), Process: x.backendPID(), Relayed: x.relayed, Over: x.ended.Load() != nil,
		Immovable: x.moving.immovable(x.relayed), Ended: x.cut, Left: x.moving.left,
	}
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

// askWanted sends the question that waits, if one does.
func (x *session) askWanted(kept int) {
	if x.moving.inquiry.Wanted() {
		x.ask(kept == 0, func(b []byte) error { _, err := x.backend.Write(b); return err })
	}
}

// ask sends the question that waits. boundary is whether no message of the server has begun.
func (x *session) ask(boundary bool, send func([]byte) error) {
	x.moving.inquiry.Ask(&x.work, inquiry.Point{
		Opening: x.starting,
		Between: boundary && x.answers.AtBoundary() && !x.moving.guarding.On(), // the question's Sync would end what guard has begun
	}, send)
}

// answered takes what belongs to the answer to a question. rest is what does not, aside what the client gets before.
func (x *session) answered(b []byte) (rest, aside []byte, err error) {
	return x.moving.inquiry.Take(b, func(status map[string]string, unanswered []byte) error {
		if unanswered != nil {
			x.moving.unanswered = unanswered
		}
		if on := status[gate.HotStandby]; on == "" || !x.recovery.Over('S', []byte(gate.HotStandby+"\x00"+on)) {
			return nil
		}
		x.end(promotedUnder)
		return errPromoted
	})
}

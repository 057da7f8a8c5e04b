package listener

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// upstream carries requests to PostgreSQL.
func (x *session) upstream() {
	var requests pgwire.Framer
	var buf socket.Buffer // small while little passes
	defer buf.Free()
	if early := x.moving.early; len(early) > 0 {
		x.moving.early = nil
		if bad, _ := x.forward(&requests, early); bad != nil {
			x.end(ending{"protocol", "invalid message length", true})
		}
	}
	for n := 0; ; {
		buf.Fit(n, 0)
		var err error
		n, err = x.client.Read(buf.B)
		if n > 0 && x.ended.Load() == nil {
			x.bytesIn.Add(uint64(n))
			if bad, werr := x.forward(&requests, buf.B[:n]); bad != nil {
				x.end(ending{"protocol", "invalid message length", true})
			} else if werr != nil && x.ended.Load() == nil {
				// downstream reads what PostgreSQL still had to say, then its end
				n, _ := io.Copy(io.Discard, x.client)
				x.moving.spilled = x.moving.spilled || n > 0
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
				x.terminated.Store(true) // the client no longer reads errors
				socket.HalfClose(x.backend)
			}
			return
		}
	}
}

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// follow observes the client's bytes up to the end of one message, and returns how many those are.
func (x *session) follow(f *pgwire.Framer, b []byte) (used int, err error) {
	head := f.HeaderLeft()
	used, whole, err := f.Next(b)
	if err != nil {
		return used, err
	}
	typ, text := f.Type(), b[min(head, used):used]
	x.work.Sent(b[:used], head == headerLength, whole)
	if typ == 'Q' {
		x.work.Requests.QueryText(text)
	}
	if used >= head && (typ == 'Q' || typ == 'P') && x.observeChange(instead.Piece{Type: typ, B: text, Begins: head > 0, Ends: whole, HasHeader: used == len(text)+5}) {
		return used, nil // it is not forwarded
	}
	if used >= head {
		x.work.Follow(typ, text, head > 0, whole)
	}
	if x.work.Local && x.srv.cfg.Fingerprint != nil {
		x.observeUse(f.Type(), b[min(head, used):used], head > 0, whole)
	}
	if whole {
		if f.Type() == 'P' && stmt.MayCopy(f.Kept()) {
			x.copies = true
		}
		x.work.Requests.Forwarded(f.Type(), f.Kept())
		if x.work.Requested(typ); typ == 'X' {
			x.terminated.Store(true)
		}
	}
	return used, nil
}

// forward carries a chunk of the client's bytes to PostgreSQL. During a drain it stops at the end of what is in
// progress. bad is a violation of the protocol, err a failed write.
func (x *session) forward(seen *pgwire.Framer, chunk []byte) (bad, err error) {
	var holds *time.Timer // set with the first wait: a request is held for at most HoldMax
	for len(chunk) > 0 && x.ended.Load() == nil {
		var w *lone.Write
		if seen.AtBoundary() {
			var over bool
			if w, over = x.asksNumber(chunk); over {
				return nil, nil
			}
		}
		n, d, bad := x.release(seen, chunk)
		if bad != nil {
			return bad, nil
		}
		if n == 0 && x.work.Leaving.Load() { // what was released counts as sent: the next server must not get it
			x.moving.rest = append(x.moving.rest, chunk...)
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
	out := x.work.Preceded(x.instead.Replaced(chunk[:n]))
	if w != nil && n == len(chunk) {
		out = x.work.ChangeRequest(w, out)
	}
	sent, err := x.backend.Write(out)
	if err == nil {
		return nil
	}
	if w == nil || sent == 0 { // else the status of its number tells
		x.work.Unsent(min(n, x.instead.Last.OfClient(len(out)-sent)))
	}
	x.moving.rest = append(x.moving.rest, chunk[n:]...) // the next server gets it, if there is one
	return err
}

// terminateLength is the length of a Terminate message in bytes.
const terminateLength = 5

// release decides how much of chunk may go to PostgreSQL now, and counts it as sent. n is 0 if the session has to
// wait for the drain d, or leaves its backend (d is nil).
func (x *session) release(seen *pgwire.Framer, chunk []byte) (n int, d *activeDrain, bad error) {
	x.work.Lock()
	defer x.work.Unlock()
	if x.work.Requests.Sealed || x.work.Leaving.Load() {
		return 0, nil, nil
	}
	x.instead.Begins()
	d = x.srv.drain.Load()
	free := d == nil || !x.work.Local || x.work.Streams
	for bad == nil && n < len(chunk) && (free || !seen.AtBoundary() || !x.work.Waits(chunk[n])) {
		if seen.AtBoundary() {
			if x.outOfTurn(chunk[n]) {
				return 0, nil, nil
			}
			if !x.begins(chunk, n) {
				break // it is released with the question before it
			}
		}
		var used int
		used, bad = x.follow(seen, chunk[n:])
		n += used
		if x.ended.Load() != nil { // refused, after its beginning went out: PostgreSQL does not get its end
			return 0, nil, nil
		}
		if x.instead.Takes(chunk[:n], used) || x.followed(chunk[:n], seen) {
			break
		}
		if n == terminateLength && x.terminated.Load() && x.mayKeepBackend() {
			x.keepsBackend.Store(true)
			return 0, nil, nil
		}
	}
	x.work.Midway = !seen.AtBoundary()
	if x.work.Held = n == 0; n > 0 {
		x.moving.state = nil
		x.moving.inquiry.Forwarded()
	}
	return n, d, bad
}

// followed reports whether a message of the listener goes behind a chunk. Nothing of the client behind it belongs to
// the chunk then. The caller holds the lock of work.
func (x *session) followed(chunk []byte, seen *pgwire.Framer) bool {
	if x.moving.behind == nil || !seen.AtBoundary() {
		return false
	}
	x.instead.Behind(chunk, x.moving.behind)
	x.moving.behind = nil
	return true
}

// begins counts the request that begins at chunk[n], unless it is a COMMIT of a batch, which begins a chunk of its own.
// The caller holds the lock of work.
func (x *session) begins(chunk []byte, n int) bool {
	if n > 0 && x.work.BatchCommits(chunk[n:]) {
		return false
	}
	if n == 0 {
		x.work.Probe(chunk)
	}
	x.requestBegins()
	return true
}

// requestBegins is called before the first message of a request is forwarded. It may know less than there is.
func (x *session) requestBegins() {
	if x.confirmation.Guarded && x.work.Owed.Load() <= 0 && !x.work.Unsynced.Load() {
		x.confirmation.RequestBegins()
	}
}

// await waits for the end of the drain or of the session, or only for a moment if the request may be released before
// that. The answer that the request waited for may arrive after release has looked, and leave a transaction open.
func (x *session) await(d *activeDrain, holds *time.Timer) {
	var poll <-chan time.Time
	if !x.work.Idle() {
		t := time.NewTimer(drainPoll)
		defer t.Stop()
		poll = t.C
	}
	select {
	case <-d.over:
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
	if x.work.Status.Load() != 'I' || !x.work.OnPrimary || !x.fromNode() || !x.srv.rules.Replays() {
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

// observeChange follows a piece of a message that goes to the local server, for statements that change a setting of the
// group, or weaken commits of other sessions (docs/internals/postgresql.md, "Settings of the agent"). It reports
// whether it has ended the session for that message.
func (x *session) observeChange(p instead.Piece) (ended bool) {
	if x.srv.cfg.Reserved == nil || !x.work.Local {
		return false
	}
	bad := x.instead.Follow(p, x.srv.refuse)
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

// The functions below keep streams of logical replication from passing for a member. PostgreSQL counts the
// acknowledgements of any walsender whose application_name is in synchronous_standby_names, including logical ones.
// It takes the name as it is when START_REPLICATION arrives: from the startup packet, a default of the role or the
// database, or any statement that has set it since.

// posesAsMember checks a ParameterStatus. PostgreSQL reports application_name before the ReadyForQuery of the command
// that changed it.
func (x *session) posesAsMember(status []byte) bool {
	name, value, _ := bytes.Cut(status, []byte{0})
	return x.work.Replicates && strings.EqualFold(string(name), underway.ApplicationName) && startup.IsMemberName(string(value))
}

// checkGreeting checks the name with which the session began: a default of its role or database may have set it.
func (x *session) checkGreeting(g opening.Greeting) *pgwire.Error {
	var f pgwire.Framer
	var bad *pgwire.Error
	_ = f.Scan(g.Bytes, func(typ byte, body []byte) { // the greeting was assembled here
		if typ == 'S' && x.posesAsMember(body) {
			bad = startup.RefuseMember()
		}
	})
	return bad
}

// outOfTurn ends a session of logical replication that sends a command before the previous one is over: it might
// start to stream under a name that was not checked.
func (x *session) outOfTurn(typ byte) bool {
	if !x.work.Replicates || typ != 'Q' || x.work.Owed.Load() <= 0 {
		return false
	}
	x.end(ending{"replication", "a session of logical replication takes one command at a time", true})
	return true
}

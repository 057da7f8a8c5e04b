package listener

import (
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// libraries returns why a session whose state was read cannot outlive its server for the libraries of its process; ""
// if it can.
func (x *session) libraries(q *question, answered bool) string {
	switch {
	case !answered:
		return ""
	case x.work.Local:
		return continuity.StatefulLibrary(x.backendPID())
	}
	return continuity.StatefulExtension(q.state.Extensions)
}

// wouldWrite reports whether a message of the server tells that a request that is executed again would have written. It
// ends the session: at its first execution it may have.
func (x *session) wouldWrite(typ byte, body []byte) bool {
	if !x.moving.guarded {
		return false
	}
	x.moving.guarded = typ != 'Z'
	if typ != 'E' || !x.work.OnPrimary || pgwire.ErrorField(body, 'C') != lone.ReadOnly {
		return false
	}
	x.end(ending{reason: "hidden write", why: "its server was lost, and the query writes by a function that a view or an operator calls"})
	return true
}

// The functions below prove what became of a change outside a block, with CONTINUITY = REPLAY.

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
	deadline, look := time.NewTimer(max(x.srv.cfg.HoldMax, x.srv.cfg.ConnectWait)), time.NewTicker(x.srv.keep.Tick)
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

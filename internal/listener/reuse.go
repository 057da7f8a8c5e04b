package listener

import (
	"bytes"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// With BACKEND_REUSE = ON a backend whose client has said goodbye may serve another one of the same kind (warm.go). DISCARD ALL takes
// away most of what a session leaves behind, but not all: a parameter with a dot that was set is an empty string afterwards where it was
// NULL, and what libraries and languages keep in the process stays. So a session is followed, and its backend is ended with it unless
// all it sent was queries and transactions, calling nothing but functions that are known here. What a view, a trigger or an operator
// calls out of sight is not followed: docs/connecting.md says so.

// lends notes as what the session's backend may serve another client.
func (x *session) lends(b *backend, g greeting) {
	if b == nil || b.fixed || x.srv.cfg.Reuse == nil || !x.srv.cfg.Reuse() {
		return
	}
	if b.conn == nil { // opened for this session
		b.greeting, b.born = g.copy(), time.Now()
	}
	x.warm = b
}

// noteUse follows what the client of a local session asks for. text is the part of the body at hand: its beginning if begun is true, its
// end if whole is.
func (x *session) noteUse(typ byte, text []byte, begun, whole bool) {
	switch typ {
	case 'Q', 'P':
		if typ == 'P' && begun {
			_, text, _ = bytes.Cut(text, []byte{0})
		}
		if begun && stmt.NeedsDatabaseAlone(text) {
			x.srv.warm.flush("database")
		}
		if x.warm == nil || x.tainted.Load() {
			return
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		if !begun || !whole || !stmt.OnlyQueries(text) { // a long one is not looked at in pieces
			x.tainted.Store(true)
		}
	case 'B', 'E', 'D', 'C', 'S', 'H', 'X':
	default:
		x.tainted.Store(true)
	}
}

// keeps says, as the client's Terminate arrives, whether its backend may serve another client. The caller holds drained.mu.
func (x *session) keeps() bool {
	s := x.srv
	return x.warm != nil && !x.tainted.Load() && x.idle() && !x.drained.midway && x.ended.Load() == nil && x.suspect.begun.Load() == 0 &&
		!x.suspect.muted.Load() && s.drain.Load() == nil && s.cfg.Reuse()
}

// A backend is made as new as soon as its client has left, on the loop that carried the session (renew) or by a goroutine (handBack). Both
// begin once nothing of the session can reach the backend any more, cancel requests included: the session is forgotten.

const asNew = "DISCARD ALL"

// mayReturn says, of a session that is forgotten, whether its backend is still as its client left it.
func (x *session) mayReturn() bool { return x.ended.Load() == nil && x.suspect.begun.Load() == 0 }

// handBack has the backend wait for its next client; fd is a descriptor of it that belongs to nobody else.
func (x *session) handBack(fd int) {
	b, w := x.warm, &x.srv.warm
	conn := &bareConn{fd: fd}
	if !x.mayReturn() {
		_ = conn.Close()
		return
	}
	b.conn, b.used = conn, true
	w.coming(1)
	x.srv.beside("making a backend as new", func() {
		defer w.coming(-1)
		if err := b.ask(asNew, w.answer); err != nil {
			w.drop(b, "not as new")
			return
		}
		w.put(b)
	})
}

// leave has the backend of a client that has said goodbye made as new, and ends the session.
func (p *pump) leave() {
	if p.waits || p.drains || len(p.held) > 0 || p.backend.full() || !p.x.answers.AtBoundary() {
		p.bury()
		return
	}
	p.x.forget()
	question := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, asNew))
	if !p.x.mayReturn() {
		p.bury()
		return
	}
	if p.client.flushQueued() != nil || p.backend.flushQueued() != nil || len(p.backend.out) > 0 {
		p.bury()
		return
	}
	p.phase = renewing
	if !p.backend.queue(question) {
		if n, err := writeSocket(p.backend.fd, question); err != nil || n < len(question) {
			p.phase = relaying
			p.bury()
			return
		}
	}
	p.x.srv.warm.coming(1)
	p.ends = p.after(p.x.srv.warm.answer, p.notAsNew)
}

// renew reads the answer, and lets the backend wait for its next client.
func (p *pump) renew() {
	n, err := receive(p.backend.fd, p.loop.buf)
	if wouldWait(err) {
		return
	}
	p.held = append(p.held, p.loop.buf[:n]...)
	whole, expected := answeredIdle(p.held)
	switch {
	case n == 0, err != nil, !expected, len(p.held) > pgwire.MaxControl:
		p.notAsNew()
	case whole:
		b := p.x.warm
		b.conn, b.used = &bareConn{fd: p.release()}, true
		p.bury()
		p.x.srv.warm.put(b)
	}
}

func (p *pump) notAsNew() {
	if p.phase == renewing {
		p.x.srv.warm.dropped("not as new")
		p.bury()
	}
}

// release takes the backend's socket off the loop and returns it: it is not closed with the session.
func (p *pump) release() (fd int) {
	p.list(&p.backend, 0)
	fd = p.backend.fd
	p.loop.sides[fd], p.backend.fd = nil, -1
	return fd
}

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

// offerBackend notes as what the session's backend may serve another client.
func (x *session) offerBackend(b *backend, g greeting) {
	if b == nil || b.notReusable || x.srv.cfg.Reuse == nil || !x.srv.cfg.Reuse() {
		return
	}
	if b.conn == nil { // opened for this session
		b.greeting, b.born = g.copy(), time.Now()
	}
	x.reusable = b
}

// observeUse follows what the client of a local session asks for. text is the part of the body at hand: its beginning if begun is true, its
// end if whole is.
func (x *session) observeUse(typ byte, text []byte, begun, whole bool) {
	switch typ {
	case 'Q', 'P':
		if typ == 'P' && begun {
			_, text, _ = bytes.Cut(text, []byte{0})
		}
		if begun && stmt.NeedsDatabaseAlone(text) {
			x.srv.pool.flush("database")
		}
		if x.reusable == nil || x.tainted.Load() {
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

// mayKeepBackend says, as the client's Terminate arrives, whether its backend may serve another client. The caller holds drained.mu.
func (x *session) mayKeepBackend() bool {
	s := x.srv
	return x.reusable != nil && !x.tainted.Load() && x.idle() && !x.drained.midway && x.ended.Load() == nil && x.cancels.started.Load() == 0 &&
		!x.cancels.warningsHidden.Load() && s.drain.Load() == nil && s.cfg.Reuse()
}

// A backend is made as new as soon as its client has left, on the loop that carried the session (renew) or by a goroutine (handBack). Both
// begin once nothing of the session can reach the backend any more, cancel requests included: the session is forgotten.

const resetStatement = "DISCARD ALL"

// mayReturn says, of a session that is forgotten, whether its backend is still as its client left it.
func (x *session) mayReturn() bool { return x.ended.Load() == nil && x.cancels.started.Load() == 0 }

// returnBackend has the backend wait for its next client; fd is a descriptor of it that belongs to nobody else.
func (x *session) returnBackend(fd int) {
	b, w := x.reusable, &x.srv.pool
	conn := &bareConn{fd: fd}
	if !x.mayReturn() {
		_ = conn.Close()
		return
	}
	b.conn, b.used = conn, true
	w.countOpening(1)
	x.srv.background("making a backend as new", func() {
		defer w.countOpening(-1)
		if err := b.ask(resetStatement, w.answer); err != nil {
			w.drop(b, "not as new")
			return
		}
		w.put(b)
	})
}

// resetBackend has the backend of a client that has said goodbye made as new, and ends the session.
func (p *loopSession) resetBackend() {
	if p.awaiting || p.draining || len(p.held) > 0 || p.backend.full() || !p.x.answers.AtBoundary() {
		p.close()
		return
	}
	p.x.forget()
	question := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, resetStatement))
	if !p.x.mayReturn() {
		p.close()
		return
	}
	if p.client.flushQueued() != nil || p.backend.flushQueued() != nil || len(p.backend.out) > 0 {
		p.close()
		return
	}
	p.phase = resetting
	if !p.backend.queue(question) {
		if n, err := writeSocket(p.backend.fd, question); err != nil || n < len(question) {
			p.phase = relaying
			p.close()
			return
		}
	}
	p.x.srv.pool.countOpening(1)
	p.endTimer = p.after(p.x.srv.pool.answer, p.resetFailed)
}

// readReset reads the answer, and lets the backend wait for its next client.
func (p *loopSession) readReset() {
	n, err := receive(p.backend.fd, p.loop.buf)
	if wouldWait(err) {
		return
	}
	p.held = append(p.held, p.loop.buf[:n]...)
	whole, expected := answeredIdle(p.held)
	switch {
	case n == 0, err != nil, !expected, len(p.held) > pgwire.MaxControl:
		p.resetFailed()
	case whole:
		b := p.x.reusable
		b.conn, b.used = &bareConn{fd: p.release()}, true
		p.close()
		p.x.srv.pool.put(b)
	}
}

func (p *loopSession) resetFailed() {
	if p.phase == resetting {
		p.x.srv.pool.dropped("not as new")
		p.close()
	}
}

// release takes the backend's socket off the loop and returns it: it is not closed with the session.
func (p *loopSession) release() (fd int) {
	p.setInterest(&p.backend, 0)
	fd = p.backend.fd
	p.loop.sides[fd], p.backend.fd = nil, -1
	return fd
}

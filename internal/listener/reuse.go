package listener

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// With BACKEND_REUSE = ON the backend of a client that has sent Terminate may serve another client of the same kind
// (backendpool.go). DISCARD ALL removes most of the state that a session leaves, but not all. A setting with a dot is
// an empty string afterwards where it was NULL, and libraries and languages keep state in the process. So each session
// is observed. Its backend is reused only if all it sent was queries and transactions that call nothing but known
// functions. Functions that a view, a trigger or an operator calls are not seen, as docs/connecting.md says.

// offerBackend notes how the session's backend may be offered to another client.
func (x *session) offerBackend(b *backend, g greeting) {
	if b == nil || b.notReusable || x.srv.cfg.Reuse == nil || !x.srv.cfg.Reuse() {
		return
	}
	if b.conn == nil { // opened for this session
		b.greeting, b.born = g.copy(), time.Now()
	}
	x.reusable = b
}

// observeUse follows the requests of the client of a local session. text is a part of the message's body: its beginning
// if begun is true, its end if whole is.
func (x *session) observeUse(typ byte, text []byte, begun, whole bool) {
	switch typ {
	case 'Q', 'P':
		if typ == 'P' && begun {
			_, text, _ = bytes.Cut(text, []byte{0})
		}
		if begun && stmt.NeedsDatabaseAlone(text) && x.srv.mayFlush(x.user) {
			x.srv.pool.flush("database")
		}
		if x.reusable == nil || x.tainted.Load() {
			return
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		if !begun || !whole || !stmt.OnlyQueries(text) { // a long text is not checked in pieces
			x.tainted.Store(true)
		}
	case 'B', 'E', 'D', 'C', 'S', 'H', 'X':
	default:
		x.tainted.Store(true)
	}
}

// mayKeepBackend reports, when the client's Terminate arrives, whether its backend may serve another client. The
// caller holds drained.mu.
func (x *session) mayKeepBackend() bool {
	s := x.srv
	return x.reusable != nil && !x.tainted.Load() && x.idle() && !x.drained.midway && x.ended.Load() == nil && x.cancels.started.Load() == 0 &&
		s.drain.Load() == nil && s.cfg.Reuse()
}

// A backend is reset as soon as its client has left, on the session's loop (resetBackend) or by a goroutine
// (returnBackend). Both begin once nothing of the session can reach the backend, including cancel requests: the
// session is forgotten.

const resetStatement = "DISCARD ALL"

// mayReturn reports, for a forgotten session, whether its backend is still as its client left it.
func (x *session) mayReturn() bool { return x.ended.Load() == nil && x.cancels.started.Load() == 0 }

// returnBackend resets the backend and adds it to the pool. It owns the descriptor fd.
func (x *session) returnBackend(fd int) {
	b, w := x.reusable, &x.srv.pool
	conn := &bareConn{fd: fd}
	if !x.mayReturn() {
		_ = conn.Close()
		return
	}
	b.conn, b.used = conn, true
	w.countOpening(1)
	x.srv.background("resetting a backend", func() {
		defer w.countOpening(-1)
		if err := b.ask(resetStatement, w.answer); err != nil {
			w.drop(b, "not as new")
			return
		}
		w.put(b)
	})
}

// resetBackend resets the backend of a client that has sent Terminate, and ends the session.
func (p *loopSession) resetBackend() {
	if p.awaiting || p.draining || p.x.moving.asked != nil || len(p.held) > 0 || p.backend.full() || !p.x.answers.AtBoundary() {
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

// readReset reads the answer to the reset, and adds the backend to the pool.
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

// resetFailed ends a session whose backend could not be reset.
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

// reported follows a ParameterStatus.
func (x *session) reported(typ byte, body []byte) {
	if typ != 'S' || !x.drained.local && !x.moving.known.follows {
		return
	}
	name, _, _ := bytes.Cut(body, []byte{0})
	x.drained.mu.Lock()
	x.moving.tracker.Reported(string(name))
	x.drained.mu.Unlock()
}

// stateful are libraries that keep state in a session which no view shows. Their files may begin with lib, and go on
// with a version.
var stateful = strings.Fields(`plperl plpython3 plpython2 pltcl plv8 plr pljava dblink hypopg orafce pg_variables pgtt set_user
	session_variable`)

// statefulLibrary returns why a session with the libraries of that process cannot be moved; "" if it can.
func statefulLibrary(pid uint32) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "the libraries of its process are not known"
	}
	if name := statefulIn(maps); name != "" {
		return "it has used " + name + ", which keeps state of its own"
	}
	return ""
}

// statefulExtension returns why a session in a database with these extensions cannot be moved, if nothing else is known
// of the libraries of its process; "" if it can.
func statefulExtension(extensions []string) string {
	for _, e := range extensions {
		for _, name := range stateful {
			if strings.HasPrefix(e, name) {
				return "its database has " + e + ", which keeps state of its own"
			}
		}
	}
	if len(extensions) == 0 { // each has plpgsql
		return "the extensions of its database are not known"
	}
	return ""
}

// statefulIn returns one of the stateful libraries in the memory map of a process; "" if there is none.
func statefulIn(maps []byte) string {
	for line := range bytes.Lines(maps) {
		file := string(bytes.TrimPrefix(line[bytes.LastIndexByte(line, '/')+1:], []byte("lib")))
		for _, name := range stateful {
			if after, ok := strings.CutPrefix(file, name); ok && strings.Contains(after, ".") && strings.IndexByte("-.", after[0]) >= 0 {
				return name
			}
		}
	}
	return ""
}

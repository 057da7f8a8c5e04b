package listener

import (
	"bytes"
	"net"
	"os"
	"time"
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
		if begun && needsNoOthers(text) {
			x.srv.warm.flush("database")
		}
		if x.warm == nil || x.tainted.Load() {
			return
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		if !begun || !whole || !onlyQueries(text) { // a long one is not looked at in pieces
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

// handBack has the backend of a session that has just ended made as new, to wait for its next client; fd is a descriptor of it that belongs
// to nobody else. It is called once nothing of the session can reach the backend any more, cancel requests included: the session is
// forgotten.
func (x *session) handBack(fd int) {
	b, w := x.warm, &x.srv.warm
	f := os.NewFile(uintptr(fd), "backend")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return
	}
	if x.ended.Load() != nil || x.suspect.begun.Load() > 0 {
		_ = conn.Close()
		return
	}
	b.conn, b.used = conn, true
	w.coming(1)
	x.srv.wg.Go(func() {
		defer w.coming(-1)
		if err := b.ask("DISCARD ALL"); err != nil {
			w.drop(b, "not as new")
			return
		}
		w.put(b)
	})
}

// needsNoOthers says that a statement may be one that needs a database without other sessions. Where it is written so that it is not
// found here, PostgreSQL waits for longer than a backend does for its client.
func needsNoOthers(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || bytes.IndexByte([]byte("dac"), text[0]|0x20) < 0 { // most are not
		return false
	}
	word := firstWord(text)
	switch string(word) {
	case "drop", "alter", "create":
		rest := bytes.TrimLeft(text[len(word):], " \t\r\n")
		return string(firstWord(rest)) == "database"
	}
	return false
}

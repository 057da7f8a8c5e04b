package listener

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// reusableBackend returns the description of a pooled backend that would fit the client; nil if it needs one of its
// own. The server is asked after the client came, so that earlier changes are seen.
func (c *client) reusableBackend(ctx context.Context, r routing.Route) *pool.Backend {
	w := &c.srv.pool
	if c.srv.cfg.Fingerprint == nil || !r.Local || c.start.Replication != pgwire.ReplicationNone || c.srv.drain.Load() != nil {
		return nil
	}
	b := c.wantedBackend(r)
	ctx, cancel := context.WithTimeout(ctx, w.Answer)
	defer cancel()
	m, err := c.srv.fingerprintOf(ctx, c.start.User, c.start.Database)
	if err != nil {
		c.log.Debug("no pooled backend: the server did not tell the fingerprint of the login", "user", c.start.User, "error", err)
		return nil
	}
	if m.Exclusive {
		return nil
	}
	setFingerprint(b, m, c.start)
	return b
}

// wantedBackend returns that description without the fingerprint, which has to be asked for afterwards.
func (c *client) wantedBackend(r routing.Route) *pool.Backend {
	hello := BackendHello{User: c.start.User, Database: c.start.Database, ClientAddr: c.sharedAddress(), Intent: c.intent, Epoch: r.Epoch}
	return &pool.Backend{Kind: pool.Kind{Packet: string(c.packet(hello.ClientAddr, r.ID)), Epoch: r.Epoch}, Replica: r.ID, Hello: hello, Generation: c.srv.pool.Generation()}
}

// setFingerprint completes the description of a backend.
func setFingerprint(b *pool.Backend, m LoginFingerprint, start *startup.Message) {
	b.Fingerprint, b.NotReusable = m.Text, m.NotReusable || start.FixesRole()
}

// sharedAddress returns the client's address in the form that the server gets if several clients may use the backend in
// turn: without a port.
func (c *client) sharedAddress() string {
	if c.login.Local {
		return "local"
	}
	return c.from.Host
}

// makeRoom drops pooled backends if the server refused a session for lack of connection slots, so that the next try
// may succeed.
func (s *Server) makeRoom(err error) error {
	bad, ok := pgwire.AsError(err)
	if !ok || bad.Reason != "postgresql" || bad.Code != pgwire.StateTooMany {
		return err
	}
	if !s.pool.MakeRoom() {
		return err
	}
	return fmt.Errorf("start a session: %s", bad.Message)
}

// openBackend starts the session of a backend on the server. If the epoch ends meanwhile, so does the pool's
// generation, and put drops the backend.
func (s *Server) openBackend(b *pool.Backend) error {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.Limits.BackendHandshake)
	defer cancel()
	conn, err := s.cfg.Backend(ctx, b.Replica, b.Hello)
	if err != nil {
		return err
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	in := bufio.NewReader(conn)
	b.Conn, b.Born = conn, time.Now()
	if b.Greeting, err = opening.Start(conn, in, []byte(b.Packet), b.Replica); err == nil && in.Buffered() > 0 {
		err = errors.New("it says more than its greeting")
	}
	if err != nil {
		_ = conn.Close()
	}
	return err
}

// With BACKEND_REUSE = ON the backend of a client that has sent Terminate may serve another client of the same kind
// (package pool). DISCARD ALL removes most of the state that a session leaves, but not all. A setting with a dot is
// an empty string afterwards where it was NULL, and libraries and languages keep state in the process. So each session
// is observed. Its backend is reused only if all it sent was queries and transactions that call nothing but known
// functions. Functions that a view, a trigger or an operator calls are not seen, as docs/connecting.md says.

// offerBackend notes how the session's backend may be offered to another client.
func (x *session) offerBackend(b *pool.Backend, g opening.Greeting) {
	if b == nil || b.NotReusable || x.srv.cfg.Reuse == nil || !x.srv.cfg.Reuse() {
		return
	}
	if b.Conn == nil { // opened for this session
		b.Greeting, b.Born = g.Copy(), time.Now()
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
			x.srv.pool.Flush("database")
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
	return x.reusable != nil && !x.tainted.Load() && x.idle() && !x.drained.midway && x.ended.Load() == nil && !x.confirmation.Canceled() &&
		s.drain.Load() == nil && s.cfg.Reuse()
}

// A backend is reset as soon as its client has left, on the session's loop (resetBackend) or by a goroutine
// (returnBackend). Both begin once nothing of the session can reach the backend, including cancel requests: the
// session is forgotten.

const resetStatement = "DISCARD ALL"

// mayReturn reports, for a forgotten session, whether its backend is still as its client left it.
func (x *session) mayReturn() bool { return x.ended.Load() == nil && !x.confirmation.Canceled() }

// returnBackend resets the backend and adds it to the pool. It owns the descriptor fd.
func (x *session) returnBackend(fd int) {
	b, w := x.reusable, &x.srv.pool
	conn := socket.NewBare(fd)
	if !x.mayReturn() {
		_ = conn.Close()
		return
	}
	b.Conn, b.Used = conn, true
	w.CountOpening(1)
	x.srv.background("resetting a backend", func() {
		defer w.CountOpening(-1)
		if err := b.Ask(resetStatement, w.Answer); err != nil {
			w.Drop(b, "not as new")
			return
		}
		w.Put(b)
	})
}

// resetBackend resets the backend of a client that has sent Terminate, and ends the session.
func (p *loopSession) resetBackend() {
	if p.awaiting || p.draining || p.x.moving.asked != nil || len(p.held) > 0 || p.backend.Full() || !p.x.answers.AtBoundary() {
		p.close()
		return
	}
	p.x.forget()
	question := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, resetStatement))
	if !p.x.mayReturn() {
		p.close()
		return
	}
	if p.client.FlushQueued() != nil || p.backend.FlushQueued() != nil || len(p.backend.Out) > 0 {
		p.close()
		return
	}
	p.phase = resetting
	if !p.backend.Queue(question) {
		if n, err := socket.Write(p.backend.FD, question); err != nil || n < len(question) {
			p.phase = relaying
			p.close()
			return
		}
	}
	p.x.srv.pool.CountOpening(1)
	p.endTimer = p.after(p.x.srv.pool.Answer, p.resetFailed)
}

// readReset reads the answer to the reset, and adds the backend to the pool.
func (p *loopSession) readReset() {
	n, err := socket.Receive(p.backend.FD, p.loop.Buf)
	if socket.WouldWait(err) {
		return
	}
	p.held = append(p.held, p.loop.Buf[:n]...)
	whole, expected := pool.AnsweredIdle(p.held)
	switch {
	case n == 0, err != nil, !expected, len(p.held) > pgwire.MaxControl:
		p.resetFailed()
	case whole:
		b := p.x.reusable
		b.Conn, b.Used = socket.NewBare(p.release()), true
		p.close()
		p.x.srv.pool.Put(b)
	}
}

// resetFailed ends a session whose backend could not be reset.
func (p *loopSession) resetFailed() {
	if p.phase == resetting {
		p.x.srv.pool.Dropped("not as new")
		p.close()
	}
}

// release takes the backend's socket off the loop and returns it: it is not closed with the session.
func (p *loopSession) release() (fd int) {
	p.setInterest(&p.backend, 0)
	fd = p.backend.FD
	p.loop.Unwatch(fd)
	p.backend.FD = -1
	return fd
}

package listener

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// fromClient carries requests to PostgreSQL.
func (p *loopSession) fromClient() {
	if p.tls != nil {
		p.fromTLS(true)
		return
	}
	n, err := socket.Receive(p.client.FD, p.loop.Buf)
	if socket.WouldWait(err) {
		return
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	if p.kernel != nil {
		p.kernel.UpRead += uint64(n)
	}
	p.received(p.loop.Buf[:n], err)
}

// received handles what was read from the client, or the end of its stream.
func (p *loopSession) received(b []byte, err error) {
	x := p.x
	if p.discarding && p.phase == relaying {
		_, _ = x.moving.rest.Write(b) // never fails
	}
	if len(b) > 0 && p.phase == relaying && !p.discarding && x.ended.Load() == nil {
		x.bytesIn.Add(uint64(len(b)))
		p.forward(b)
	}
	if err == nil {
		return
	}
	p.client.eof = true
	if p.phase != relaying {
		p.close()
		return
	}
	if errors.Is(err, io.EOF) || x.ended.Load() == nil {
		x.way.Terminated.Store(true) // the client no longer reads errors
		if err := p.backend.FlushQueued(); err != nil {
			p.sendFailed(&p.backend)
		}
		p.noMoreRequests()
	}
}

// noMoreRequests shuts the backend's stream down once all requests are written. TLS may deliver requests and the end
// in one turn.
func (p *loopSession) noMoreRequests() {
	if p.client.eof && !p.backend.Full() {
		_ = unix.Shutdown(p.backend.FD, unix.SHUT_WR)
	}
}

// forward is session.forward without blocking.
func (p *loopSession) forward(chunk []byte) {
	x := p.x
	for len(chunk) > 0 && x.ended.Load() == nil {
		n, d, bad := x.way.Release(&x.work, x, chunk)
		if bad != nil {
			x.end(ending{"protocol", "invalid message length", true})
			return
		}
		if x.keepsBackend.Load() {
			p.resetBackend()
			return
		}
		if x.ended.Load() != nil { // the outcome may have been decided without what release has just counted
			break
		}
		if n == 0 && x.work.Leaving.Load() {
			p.rest = append(p.rest, chunk...) // the client is read until leave
			break
		}
		if n == 0 {
			p.hold(d, chunk)
			return
		}
		out := x.way.Goes(&x.work, chunk[:n])
		p.altered.Goes(n, len(out), x.way.Instead.Last)
		if err := p.backend.Send(out, p.mayQueue()); err != nil {
			p.sendFailed(&p.backend)
			p.rest = append(p.rest, chunk[n:]...) // the next server gets it, if there is one
			break
		}
		chunk = chunk[n:]
	}
	p.stopHold()
}

// hold keeps a request until the drain or the session ends. It waits only a moment if the client is still owed an
// answer.
func (p *loopSession) hold(d *passage.Drain, chunk []byte) {
	x := p.x
	p.rest = append([]byte(nil), chunk...)
	if p.holdTimer == nil {
		p.holdTimer = time.NewTimer(x.srv.cfg.HoldMax)
		x.srv.counts.Drained.Add(1)
	}
	p.draining = true
	holds := p.holdTimer
	x.srv.wg.Go(func() {
		x.await(d, holds)
		p.loop.Post(p.guarded(func() {
			rest := p.rest
			p.draining, p.rest = false, nil
			if p.phase == relaying {
				p.forward(rest)
			}
			p.updateInterest()
		}))
	})
}

func (p *loopSession) stopHold() {
	if p.holdTimer != nil {
		p.holdTimer.Stop()
		p.holdTimer = nil
	}
}

// recheck has the loop look at the session again. It is called after a session was ended, on any goroutine.
func (p *loopSession) recheck() {
	p.loop.Post(p.guarded(func() { p.checkEnded(); p.updateInterest() }))
}

// checkEnded terminates a session that was ended, as soon as the final error can be written. A held answer stops
// waiting at once then; half a message must reach the client first.
func (p *loopSession) checkEnded() {
	switch {
	case p.x.ended.Load() == nil, p.phase != relaying, p.awaiting:
	case !p.client.Full():
		p.terminate(p.x.finalError(nil))
	case p.endTimer == nil:
		p.endTimer = p.after(p.x.srv.cfg.Limits.ShutdownMessage, func() {
			if p.phase == relaying {
				p.close()
			}
		})
	}
}

// terminate ends the relay. The backend is shut down, and the client gets last, if it is not nil.
func (p *loopSession) terminate(last *pgwire.Error) {
	if p.phase != relaying {
		return
	}
	_, _ = p.backend.FlushQueued(), p.client.FlushQueued() // an error here is handled below
	p.phase = terminating
	p.stopHold()
	p.held, p.rest = nil, nil
	p.backend.Discard()
	_ = unix.Shutdown(p.backend.FD, unix.SHUT_RDWR)
	if !p.x.lingers() {
		p.close()
		return
	}
	if last != nil {
		if err := p.toClient(last.Encode()); err != nil {
			p.close()
			return
		}
	}
	if !p.client.Full() {
		p.linger()
		return
	}
	p.after(p.x.srv.cfg.Limits.ShutdownMessage, p.close)
	p.updateInterest()
}

// linger gives the client time to read the final error: closing a socket with unread bytes would reset the
// connection.
func (p *loopSession) linger() {
	p.phase = lingering
	if p.tls != nil {
		_ = p.tls.CloseWrite() // a short record; bytes that the socket does not take are lost with the connection
	}
	_ = unix.Shutdown(p.client.FD, unix.SHUT_WR)
	if p.client.eof {
		p.close()
		return
	}
	p.after(socket.Linger, p.close)
	p.updateInterest()
}

// sides returns the sockets of the session.
func (p *loopSession) sides() []*side {
	if p.kernel != nil {
		return []*side{&p.client, &p.backend, &p.returns}
	}
	return []*side{&p.client, &p.backend}
}

// close ends the session. Its sockets are closed at the end of the loop's turn.
func (p *loopSession) close() {
	if p.phase == closed {
		return
	}
	if p.phase == resetting {
		p.x.srv.pool.CountOpening(-1)
	}
	p.phase = closed
	p.stopHold()
	if p.endTimer != nil {
		p.endTimer.Stop()
	}
	p.held, p.rest = nil, nil
	for _, s := range p.sides() {
		s.Unqueue()
		s.Discard()
		if s.interest != 0 {
			_ = p.loop.Control(s.FD, unix.EPOLL_CTL_DEL, 0)
			s.interest = 0
		}
	}
	if p.kernel != nil && !p.lent {
		if p.x.work.Offloaded() { // a panic ended it
			p.x.cameBack()
		}
		p.loop.offloaded[p.kernel.Index] = nil
		p.loop.path.Remove(p.kernel)
	}
	p.x.forget()
	if p.x.ended.Load() != movedOn { // else the next session needs it
		p.x.work.Close()
	}
	p.x.moving.over()
	p.loop.ended = append(p.loop.ended, p)
}

// woken is session.woken on a loop.
func (p *loopSession) woken() {
	x := p.x
	if p.phase != relaying || x.ended.Load() != nil {
		return
	}
	if x.moving.inquiry.Wanted() {
		boundary := !p.awaiting && len(p.held) == 0 && !p.backend.Full() && !p.backend.eof
		x.ask(boundary, func(b []byte) error { return p.backend.Send(b, p.mayQueue()) })
	}
	if x.work.Leaving.Load() {
		p.leave()
	}
}

// leave is session.detach on a loop. A session that cannot leave at once ends: nothing of it is forwarded any more.
func (p *loopSession) leave() {
	x := p.x
	lost := x.moving.outlived.Load()
	if lost {
		p.backendDropped()
	}
	taken := p.client.FlushQueued() == nil && !p.client.Full() && !p.client.eof
	switch {
	case lost && (!taken || !x.leavesWhole()):
		x.end(ending{reason: endLost, why: "the connection to PostgreSQL was lost"})
		return
	case !lost && (!taken || p.backend.FlushQueued() != nil || p.awaiting || len(p.held) > 0):
		x.stay("its client does not take what it was sent")
		return
	}
	conn, err := p.takeClient()
	if err != nil {
		x.srv.log.Warn("a session cannot be moved", "session", x.id, "error", err)
		x.stay("the listener has no descriptor left")
		return
	}
	if !x.ended.CompareAndSwap(nil, movedOn) {
		_ = conn.Close()
		p.close()
		return
	}
	x.moving.rest.B = slices.Concat(p.rest, x.moving.rest.B)
	_, _ = socket.Write(p.backend.FD, pgwire.AppendMessage(nil, 'X', nil))
	c, finished := x.moving.owner, p.finished
	p.finished = func() {}
	if c.Raw, c.Conn = conn, conn; p.tls != nil {
		p.tlsConn.Leave(conn)
		c.Conn = p.tls
	}
	c.noServer(true)
	p.close()
	go c.carryOn(x, finished)
}

// backendDropped drops what the backend has not got: it never will.
func (p *loopSession) backendDropped() {
	p.backend.Drop()
	p.x.work.Unsent(p.altered.OfClient(p.backend.Unsent))
}

// stay ends a session that was to leave its backend and cannot.
func (x *session) stay(why string) {
	x.moving.inquiry.Refuse(&x.work, why)
	x.end(x.unmoved("planned failover"))
}

// takeClient takes the client's socket off the loop. One that the kernel knows stays known to it, or bytes that are
// under way would be lost.
func (p *loopSession) takeClient() (net.Conn, error) {
	fd, err := unix.FcntlInt(uintptr(p.client.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	conn, err := socket.NewBare(fd).Watched()
	if err != nil {
		return nil, err
	}
	k, l := p.kernel, p.loop
	tcp, ok := conn.(*net.TCPConn)
	if k == nil || !ok {
		return conn, nil
	}
	p.setInterest(&p.returns, 0)
	l.Unwatch(p.returns.FD)
	l.offloaded[k.Index] = nil
	p.returns.FD, p.lent = -1, true
	return &lentConn{TCPConn: tcp, closed: sync.OnceFunc(func() {
		l.Post(func() {
			l.path.Remove(k)
			_ = unix.Close(k.Returns)
		})
	})}, nil
}

// lentConn is the socket of a client that the kernel's program knows. The program passes nothing on for it.
type lentConn struct {
	*net.TCPConn
	closed func()
}

func (c *lentConn) Close() error {
	defer c.closed()
	return c.TCPConn.Close()
}

// With BACKEND_REUSE = ON the backend of a client that has sent Terminate may serve another client of the same kind
// (package pool).

// offerBackend notes how the session's backend may be offered to another client.
func (x *session) offerBackend(b *pool.Backend, g opening.Greeting) {
	if b != nil && !b.NotReusable && x.srv.cfg.Reuse != nil && x.srv.cfg.Reuse() {
		x.use.Offer(b, g)
	}
}

// eachFlush and allFlushes bound how often statements about databases empty the pool, by one role and by all:
// PostgreSQL refuses such a statement of most roles, but only after the pool has been emptied for it. Beyond the bound
// a pooled backend leaves by itself within poolIdle, for which PostgreSQL waits.
var (
	eachFlush  = admission.Rate{PerSecond: 0.2, Burst: 5}
	allFlushes = admission.Rate{PerSecond: 1, Burst: 20}
)

// maxFlushers is the number of roles that are remembered for that.
const maxFlushers = 256

// mayFlush reports whether a statement of that role about a database may empty the pool.
func (s *Server) mayFlush(user string) bool { return s.flushes.Spend(user, 1, boottime.Now()) }

// Uses follows the requests of the client of a local session (pool.Use.Request).
func (x *session) Uses(typ byte, text []byte, begun, whole bool) {
	if x.use.Request(typ, text, begun, whole) && x.srv.mayFlush(x.user) {
		x.srv.pool.Flush("database")
	}
}

// KeepsBackend decides, when the client's Terminate arrives, whether its backend may serve another client. The caller
// holds the lock of work.
func (x *session) KeepsBackend() bool {
	s := x.srv
	may := x.use.Clean() && x.work.Idle() && !x.work.Midway && x.ended.Load() == nil && !x.way.Confirmation.Canceled() &&
		s.drain.Load() == nil && s.cfg.Reuse()
	x.keepsBackend.Store(may)
	return may
}

// A backend is reset as soon as its client has left, on the session's loop (resetBackend) or by a goroutine
// (returnBackend). Both begin once nothing of the session can reach the backend, including cancel requests: the
// session is forgotten.

const resetStatement = "DISCARD ALL"

// mayReturn reports, for a forgotten session, whether its backend is still as its client left it.
func (x *session) mayReturn() bool { return x.ended.Load() == nil && !x.way.Confirmation.Canceled() }

// returnBackend resets the backend and adds it to the pool. It owns the descriptor fd.
func (x *session) returnBackend(fd int) {
	b, w := x.use.Backend, &x.srv.pool
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
	if p.awaiting || p.draining || p.x.moving.inquiry.Answering() || len(p.held) > 0 || p.backend.Full() || !p.x.way.AnswersAtBoundary() {
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
		b := p.x.use.Backend
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

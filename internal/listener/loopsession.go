package listener

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// loopSession is a session on an event loop. Its fields belong to the loop's goroutine.
type loopSession struct {
	x               *session
	loop            *loop
	client, backend side
	returns         side      // what PostgreSQL has said, once the kernel's program knows the session; backend is for writing then
	backendClosed   bool      // backend is closed: what returns has is the last
	tls             *tls.Conn // of the client; nil: it has none
	tlsConn         *loopConn // of tls
	tlsPending      bool      // tls may have decrypted bytes that were not asked for yet
	requests        pgwire.Framer
	finished        func()           // gives back what the session was counted under
	phase           phase            //
	held            []byte           // from the backend: what is not passed on yet, of which the framer has seen the first seen bytes
	seen            int              //
	awaiting        bool             // a goroutine waits for something on which an answer depends: nothing more is read from the backend
	rest            []byte           // from the client: what waits for the end of a drain
	draining        bool             // a goroutine waits for that end
	holdTimer       *time.Timer      // ends that wait
	endTimer        *time.Timer      // ends the wait for a client that has to take the rest of a message
	discarding      bool             // what the client still sends is thrown away
	kernel          *offload.Session // not nil once the kernel's program knows the session
	notOffloadable  bool             // the session is not lent to the kernel
	answersSince    int              // answers since it came back, or was begun
	answersNeeded   int              // as many come before it is lent
	stuckSince      time.Time        // the client's socket has room, and the kernel writes nothing
	single          bool             // what backend waits for is the answer to a Query
}

type phase uint8

const (
	relaying    phase = iota
	terminating       // the last words are being written
	lingering         // they are written: the client may read them
	resetting         // the client has left, and the backend is made as new for another
	closed            // nothing is left but to close both sockets
)

// side is one of a pump's two sockets.
type side struct {
	socketWriter
	p        *loopSession
	eof      bool   // nothing more comes
	interest uint32 // what the loop is told of; 0: it is not registered
}

// open makes the side that of a socket of p.
func (s *side) open(p *loopSession, fd int) {
	s.p, s.socketWriter = p, socketWriter{fd: fd, batch: &p.loop.batch, by: s}
}

// loopable says that a session can be carried by a loop: both its connections are sockets, the client's maybe with TLS.
func (x *session) loopable() bool {
	c := x.tlsOf()
	if c != nil {
		if _, ok := c.NetConn().(*loopConn); !ok {
			return false
		}
	}
	return x.drained.local && !x.relayed && (c != nil || x.client == x.raw) && isSocket(x.raw) && isSocket(x.backend)
}

func isSocket(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn, *bareConn:
		return true
	}
	return false
}

// toLoop gives the session to a loop. It is false if there is none, or the session cannot be carried by one. finished is called
// once, when the session has ended.
func (x *session) toLoop(finished func()) bool {
	l := x.srv.leastLoaded()
	if l == nil || !x.loopable() {
		return false
	}
	clientFD, err := duplicate(x.raw)
	if err != nil {
		return false
	}
	backendFD, err := take(x.backend)
	if err != nil {
		_ = unix.Close(clientFD)
		return false
	}
	p := x.attach(l, clientFD, backendFD, finished)
	if p.tls = x.tlsOf(); p.tls != nil {
		p.tlsConn = p.tls.NetConn().(*loopConn) //nolint:forcetypeassert // loopable has looked
		p.tlsConn.side, p.tlsPending = &p.client, true
	}
	if n := x.in.Buffered(); n > 0 {
		early, _ := x.in.Peek(n)
		p.held = append(p.held, early...)
	}
	// The runtime's own poller must not hear of these sockets any more.
	_, _ = x.raw.Close(), x.backend.Close()
	x.in = nil
	l.post(p.guarded(p.start))
	return true
}

// attach is the session on that loop, with two descriptors that belong to nobody else.
func (x *session) attach(l *loop, client, backend int, finished func()) *loopSession {
	p := &loopSession{x: x, loop: l, finished: finished, answersNeeded: x.srv.offloadAfter()}
	p.client.open(p, client)
	p.backend.open(p, backend)
	x.onLoop.Store(p)
	l.carried.Add(1)
	return p
}

// take returns a descriptor of the socket that belongs to nobody else: its only one, or one more.
func take(c net.Conn) (fd int, err error) {
	if b, ok := c.(*bareConn); ok {
		if fd, ok := b.take(); ok {
			return fd, nil
		}
	}
	return duplicate(c)
}

// duplicate returns a descriptor of the same socket that belongs to nobody else.
func duplicate(c any) (fd int, err error) {
	sys, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	var dup error
	err = sys.Control(func(old uintptr) { fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, dup)
}

// start is the first that the loop does with a session.
func (p *loopSession) start() {
	p.loop.setWatcher(p.client.fd, &p.client)
	p.loop.setWatcher(p.backend.fd, &p.backend)
	if p.x.ended.Load() != nil {
		p.terminate(p.x.finalError(nil))
		return
	}
	if early := p.held; len(early) > 0 { // read behind the greeting, and through the gate
		p.held = nil
		p.pass(early, 0)
	}
	p.updateInterest()
}

// guarded is f for the loop: a panic ends this session and no other, and a session that is gone does nothing.
func (p *loopSession) guarded(f func()) func() {
	return func() {
		if p.phase == closed {
			return
		}
		defer p.rescue()
		if p.x.offloaded.Load() {
			p.finishReclaim()
			p.updateInterest()
		}
		f()
	}
}

func (p *loopSession) rescue() {
	if r := recover(); r != nil {
		p.x.srv.log.Error("session panicked", "session", p.x.id, "direction", "loop", "panic", r, "stack", string(debug.Stack()))
		p.x.end(ending{reason: "panic", why: "internal error of the listener"})
		p.close()
	}
}

// Ready is called with what the kernel says of a socket.
func (s *side) Ready(events uint32) {
	p := s.p
	if p.phase == closed {
		return
	}
	defer p.rescue()
	if p.x.offloaded.Load() { // an end: what is before it is read as soon as the session is ours
		p.finishReclaim()
		p.updateInterest()
		return
	}
	broken := events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	if s.interest&unix.EPOLLOUT != 0 && (events&unix.EPOLLOUT != 0 || broken) {
		p.flush(s)
	}
	if p.kernel != nil && s == &p.backend && p.phase == relaying && (events&unix.EPOLLRDHUP != 0 || broken) {
		p.backendClosed = true
	}
	if p.phase != closed && s.interest&unix.EPOLLIN != 0 && (events&(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 || broken) {
		switch {
		case s == &p.client:
			p.fromClient()
		case p.phase == resetting:
			p.readReset()
		default:
			p.fromBackend()
		}
	}
	p.updateInterest()
}

// updateInterest tells the kernel what is waited for now. What a slow side has not taken yet, or an answer or a request that is held, stops the
// reading from the other side: so PostgreSQL and the client feel it, and memory stays bounded.
func (p *loopSession) updateInterest() {
	if p.phase == closed || p.x.offloaded.Load() {
		return
	}
	var client, backend uint32
	if p.readsClient() {
		client |= unix.EPOLLIN
		if p.tlsPending {
			p.tlsPending = false
			p.loop.post(p.guarded(func() { p.fromTLS(false); p.updateInterest() }))
		}
	}
	if p.phase == resetting || p.phase == relaying && !p.backend.eof && !p.awaiting && !p.client.full() {
		backend |= unix.EPOLLIN
	}
	if len(p.client.out) > 0 && !p.client.stuck {
		client |= unix.EPOLLOUT
	}
	if p.phase == relaying && len(p.backend.out) > 0 && !p.backend.stuck {
		backend |= unix.EPOLLOUT
	}
	p.setInterest(&p.client, client)
	if p.kernel != nil {
		backend = p.returnInterest(backend)
	}
	p.setInterest(&p.backend, backend)
}

// readsClient says whether the client is listened to now.
func (p *loopSession) readsClient() bool {
	return !p.client.eof && (p.phase == lingering || p.phase == relaying && !p.draining && !p.backend.full())
}

// setInterest registers a socket for these events. One that waits for nothing is taken off: the end of a connection is told without asking,
// again and again.
func (p *loopSession) setInterest(s *side, events uint32) {
	if events == s.interest {
		return
	}
	how := unix.EPOLL_CTL_MOD
	switch {
	case s.interest == 0:
		how = unix.EPOLL_CTL_ADD
	case events == 0:
		how = unix.EPOLL_CTL_DEL
	}
	if err := unix.EpollCtl(p.loop.epoll, how, s.fd, &unix.EpollEvent{Events: events, Fd: int32(s.fd)}); err != nil {
		panic(err) // out of memory: the session ends
	}
	s.interest = events
}

// mayQueue reports whether writes may wait for the end of the turn.
func (p *loopSession) mayQueue() bool { return p.phase == relaying || p.phase == resetting }

// flush writes what was kept.
func (p *loopSession) flush(s *side) {
	all, err := s.writeKept()
	if err != nil {
		p.sendFailed(s)
		return
	}
	if !all {
		return
	}
	switch {
	case s == &p.client && p.phase == terminating:
		p.linger()
	case s == &p.client:
		p.checkEnded()
	case p.phase == relaying:
		p.noMoreRequests()
	}
}

// Wrote keeps what the peer did not take, as send does, and ends what send's callers end.
func (s *side) Wrote(w *uring.Write) {
	p := s.p
	if p.phase == closed || w.Err == nil && w.N == len(w.B) {
		return
	}
	defer p.rescue()
	switch {
	case p.phase == resetting:
		p.resetFailed()
	case w.Err != nil && !wouldWait(w.Err):
		p.sendFailed(s)
	default:
		s.keep(w.B[w.N:])
	}
	p.updateInterest()
}

// sendFailed: a client that does not take its answers has no session any more; a backend that takes no requests may still have
// something to say.
func (p *loopSession) sendFailed(s *side) {
	switch {
	case s == &p.backend:
		p.discarding, s.stuck = true, false
		s.discard()
	case p.phase == relaying:
		p.terminate(p.x.passFailed(errClient))
	default:
		p.close()
	}
}

// fromBackend carries answers to the client.
func (p *loopSession) fromBackend() {
	x, buf := p.x, p.loop.buf
	kept := copy(buf, p.held)
	from := &p.backend
	if p.kernel != nil {
		from = &p.returns
	}
	n, err := receive(from.fd, buf[kept:])
	if wouldWait(err) && !p.backendDrained() {
		return
	}
	if x.ended.Load() != nil {
		p.terminate(x.finalError(nil)) // what came is discarded: it may be of a primary that is none any more
		return
	}
	if n == 0 || err != nil {
		p.backend.eof = true
		p.terminate(x.finalError(io.EOF))
		return
	}
	if p.kernel != nil {
		p.kernel.DownRead += uint64(n)
	}
	p.held = p.held[:0]
	if x.gate != nil {
		open, err := x.gate.look(x.srv)
		if err != nil {
			p.terminate(x.passFailed(err))
			return
		}
		if !open {
			p.held, p.seen = append(p.held, buf[:kept+n]...), kept
			p.awaitThen(x.gate.pass, func() {
				if held := p.held; x.ended.Load() == nil {
					p.held = nil
					p.pass(held, p.seen)
				}
			})
			return
		}
	}
	p.pass(buf[:kept+n], kept)
	p.answerArrived()
}

// pass is session.pass without waiting.
func (p *loopSession) pass(b []byte, seen int) { p.advance(&passing{b: b, at: seen}) }

func (p *loopSession) advance(c *passing) {
	x := p.x
	out, stake, err := x.advance(c)
	if err != nil {
		p.terminate(x.passFailed(err))
		return
	}
	if len(out) > 0 {
		if stake == stmt.NoEffect {
			p.beforeAnswer()
		}
		if err := p.toClient(out); err != nil {
			p.terminate(x.passFailed(errClient))
			return
		}
		x.bytesOut.Add(uint64(len(out)))
		x.midMessage = false
	}
	if stake == stmt.NoEffect {
		x.midMessage = c.from > c.begin
		p.held = append(p.held[:0], c.kept()...)
		return
	}
	own := *c
	own.b = append([]byte(nil), c.b...) // the loop's buffer is everybody's
	p.awaitThen(func() error { return x.confirm(stake) }, func() { p.advance(&own) })
}

// awaitThen has a goroutine wait for something on which an answer depends, and goes on with it when it is there.
func (p *loopSession) awaitThen(wait func() error, then func()) {
	x := p.x
	p.awaiting = true
	x.srv.wg.Go(func() {
		var err error
		func() {
			defer func() {
				if r := recover(); r != nil {
					x.srv.log.Error("session panicked", "session", x.id, "direction", "wait", "panic", r, "stack", string(debug.Stack()))
					err = errClient
				}
			}()
			err = wait()
		}()
		p.loop.post(p.guarded(func() {
			p.awaiting = false
			switch {
			case p.phase != relaying:
			case err != nil:
				p.terminate(x.passFailed(err))
			default:
				then()
			}
			p.checkEnded()
			p.updateInterest()
		}))
	})
}

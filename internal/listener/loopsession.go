package listener

import (
	"crypto/tls"
	"io"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// loopSession is a session on an event loop. Its fields belong to the loop's goroutine.
type loopSession struct {
	x               *session
	loop            *loop
	client, backend side
	returns         side             // PostgreSQL's answers once the eBPF program knows the session; backend is then used for writing only
	backendClosed   bool             // backend is closed: returns holds the last bytes
	tls             *tls.Conn        // of the client; nil: a plain connection
	tlsConn         *eventloop.Below // below tls
	tlsPending      bool             // tls may hold decrypted bytes that were not read yet
	finished        func()           // releases what the session was counted under
	started         bool             // its first step on the loop has begun
	phase           phase            //
	held            []byte           // from the backend, not passed on yet; the framer has seen the first seen bytes
	seen            int              //
	awaiting        bool             // a goroutine waits for a condition of an answer: the backend is not read
	rest            []byte           // from the client, held by a drain
	altered         instead.Altered  // what went to the backend otherwise than it came
	draining        bool             // a goroutine waits for the end of the drain
	holdTimer       *time.Timer      // ends that wait at HoldMax
	endTimer        *time.Timer      // ends the wait for a client that has to read the rest of a message
	discarding      bool             // the backend takes no more: further bytes of the client are for the next one
	kernel          *offload.Session // not nil once the eBPF program knows the session; others than the loop read it, too
	lent            bool             // kernel has left the loop, with the client
	notOffloadable  bool             // the session is never offloaded
	wasOffloaded    bool             // it was, and is counted
	patience        offload.Patience // after how many answers it is offloaded
	stuckSince      time.Time        // since when the client's socket has room and the kernel writes nothing
	single          bool             // the request that blocks backend is a Query
}

type phase uint8

const (
	relaying    phase = iota
	terminating       // the final error is being written
	lingering         // it is written: the client gets time to read it
	resetting         // the client has left; the backend is being reset for another one
	closed            // only the sockets have to be closed
)

// side is one of the two or three sockets of a loopSession.
type side struct {
	eventloop.Writer
	p        *loopSession
	eof      bool   // the end of the stream was read
	interest uint32 // epoll events in force; 0: not registered
}

// open binds the side to a socket of p.
func (s *side) open(p *loopSession, fd int) {
	s.p, s.Writer = p, p.loop.NewWriter(fd, s)
}

// loopable reports whether a loop can carry the session: both connections are sockets, the client's possibly with
// TLS.
func (x *session) loopable() bool {
	c := x.tlsOf()
	if c != nil {
		if _, ok := c.NetConn().(*eventloop.Below); !ok {
			return false
		}
	}
	return x.work.Local && !x.relayed && (c != nil || x.client == x.raw) && socket.Is(x.raw) && socket.Is(x.backend)
}

// toLoop hands the session to a loop. It reports false if no loop runs or the session cannot be carried by one.
// finished is called once, when the session has ended.
func (x *session) toLoop(finished func()) bool {
	l := x.srv.leastLoaded()
	if l == nil || !x.loopable() {
		return false
	}
	clientFD, err := socket.Duplicate(x.raw)
	if err != nil {
		return false
	}
	backendFD, err := socket.Take(x.backend)
	if err != nil {
		_ = unix.Close(clientFD)
		return false
	}
	p := x.attach(l, clientFD, backendFD, finished)
	if p.tls = x.tlsOf(); p.tls != nil {
		p.tlsConn = p.tls.NetConn().(*eventloop.Below) //nolint:forcetypeassert // loopable has looked
		p.tlsConn.Carry(&p.client.Writer, p.mayQueue)
		p.tlsPending = true
	}
	if n := x.in.Buffered(); n > 0 {
		early, _ := x.in.Peek(n)
		p.held = append(p.held, early...)
	}
	// The runtime's poller must not watch these sockets any more.
	_, _ = x.raw.Close(), x.backend.Close()
	x.in = nil
	l.Post(p.first(func() {
		p.start()
		p.woken() // it may have been called before it was here
		p.updateInterest()
	}))
	return true
}

// attach returns the session on that loop. Both descriptors become its own.
func (x *session) attach(l *loop, client, backend int, finished func()) *loopSession {
	p := &loopSession{x: x, loop: l, finished: finished, patience: x.srv.patience()}
	p.client.open(p, client)
	p.backend.open(p, backend)
	x.onLoop.Store(p)
	l.carried.Add(1)
	x.srv.counts.Carry(PathLoop)
	return p
}

// start is the first step of a session on its loop.
func (p *loopSession) start() {
	p.loop.SetWatcher(p.client.FD, &p.client)
	p.loop.SetWatcher(p.backend.FD, &p.backend)
	if p.x.ended.Load() != nil {
		p.terminate(p.x.finalError(nil))
		return
	}
	if early := p.held; len(early) > 0 { // read after the greeting, and through the gate
		p.held = nil
		p.pass(early, 0)
	}
	if early := p.x.moving.early; len(early) > 0 && p.phase == relaying {
		p.x.moving.early = nil
		p.forward(early)
	}
	p.updateInterest()
}

// first wraps the first step of a session on its loop. Steps that were posted before are left out: the first step
// itself looks whether the session has ended, or is to move.
func (p *loopSession) first(f func()) func() {
	return func() {
		p.started = true
		p.guarded(f)()
	}
}

// guarded wraps f for the loop. A panic in it ends this session and no other. It does nothing before the session's
// first step or once the session is closed, and takes an offloaded session back first.
func (p *loopSession) guarded(f func()) func() {
	return func() {
		if !p.started || p.phase == closed {
			return
		}
		defer p.rescue()
		if p.x.work.Offloaded() {
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

// Ready handles epoll events of the socket.
func (s *side) Ready(events uint32) {
	p := s.p
	if p.phase == closed {
		return
	}
	defer p.rescue()
	if p.x.work.Offloaded() { // an end of a stream: the bytes before it are read once the session is back
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

// updateInterest sets the events that the session waits for now. Unsent bytes on one side, or a held answer or
// request, stop the reading from the other side. So back-pressure reaches PostgreSQL and the client, and memory stays
// bounded.
func (p *loopSession) updateInterest() {
	if p.phase == closed || p.x.work.Offloaded() {
		return
	}
	var client, backend uint32
	if p.readsClient() {
		client |= unix.EPOLLIN
		if p.tlsPending {
			p.tlsPending = false
			p.loop.Post(p.guarded(func() { p.fromTLS(false); p.updateInterest() }))
		}
	}
	if p.phase == resetting || p.phase == relaying && !p.backend.eof && !p.awaiting && !p.client.Full() {
		backend |= unix.EPOLLIN
	}
	if len(p.client.Out) > 0 && !p.client.Stuck {
		client |= unix.EPOLLOUT
	}
	if p.phase == relaying && len(p.backend.Out) > 0 && !p.backend.Stuck {
		backend |= unix.EPOLLOUT
	}
	p.setInterest(&p.client, client)
	if p.kernel != nil {
		backend = p.returnInterest(backend)
	}
	p.setInterest(&p.backend, backend)
}

// readsClient reports whether the client is read now.
func (p *loopSession) readsClient() bool {
	return !p.client.eof && (p.phase == lingering || p.phase == relaying && !p.draining && !p.backend.Full())
}

// setInterest registers a socket for these events. A socket without events is removed from epoll, which reports the
// end of a connection unasked, again and again. A panic means that the kernel is out of memory; it ends the session.
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
	if err := p.loop.Control(s.FD, how, events); err != nil {
		panic(err) // out of memory: rescue ends the session
	}
	s.interest = events
}

// mayQueue reports whether writes may wait for the end of the turn.
func (p *loopSession) mayQueue() bool { return p.phase == relaying || p.phase == resetting }

// flush writes what was kept for a slow peer, and continues what waited for that.
func (p *loopSession) flush(s *side) {
	all, err := s.WriteKept()
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

// Wrote handles the result of a queued write: it keeps what the peer did not take, and ends the session on errors, as
// the callers of send do.
func (s *side) Wrote(w *uring.Write) {
	p := s.p
	if p.phase == closed || w.Err == nil && w.N == len(w.B) {
		return
	}
	defer p.rescue()
	switch {
	case p.phase == resetting:
		p.resetFailed()
	case w.Err != nil && !socket.WouldWait(w.Err):
		s.Unsent += len(w.B) - w.N
		p.sendFailed(s)
	default:
		s.Keep(w.B[w.N:])
	}
	p.updateInterest()
}

// sendFailed handles a failed write. A client that takes no answers loses its session. A backend that takes no
// requests may still have something to say.
func (p *loopSession) sendFailed(s *side) {
	switch {
	case s == &p.backend:
		p.discarding, s.Stuck = true, false
		p.backendDropped()
	case p.phase == relaying:
		p.terminate(p.x.passFailed(errClient))
	default:
		p.close()
	}
}

// fromBackend carries answers to the client.
func (p *loopSession) fromBackend() {
	x, buf := p.x, p.loop.Buf
	kept := copy(buf, p.held)
	from := &p.backend
	if p.kernel != nil {
		from = &p.returns
	}
	n, err := socket.Receive(from.FD, buf[kept:])
	if socket.WouldWait(err) && !p.backendDrained() {
		return
	}
	if x.ended.Load() != nil {
		p.terminate(x.finalError(nil)) // the bytes are discarded: the server may no longer be the primary
		return
	}
	if x.moving.outlived.Load() {
		p.leave() // nothing of it is passed on
		return
	}
	if n == 0 || err != nil {
		p.backend.eof = true
		p.backendDropped()
		if x.outlive() {
			p.leave()
			return
		}
		p.terminate(x.finalError(io.EOF))
		return
	}
	if p.kernel != nil {
		p.kernel.DownRead += uint64(n)
	}
	p.held = p.held[:0]
	if x.gate != nil {
		x.gate.Arrived()
		open, err := x.gate.Look()
		if err != nil {
			p.terminate(x.passFailed(err))
			return
		}
		if !open {
			p.held, p.seen = append(p.held, buf[:kept+n]...), kept
			p.awaitThen(x.gate.Pass, func() {
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
	if x.moving.inquiry.Wanted() { // the answer for which it waited may have come
		p.woken()
	}
}

// pass is session.pass without blocking.
func (p *loopSession) pass(b []byte, seen int) {
	if x := p.x; x.moving.inquiry.Answering() {
		rest, aside, err := x.answered(b)
		if err == nil && len(aside) > 0 {
			err = p.toClient(aside)
		}
		if err != nil {
			p.terminate(x.passFailed(err))
			return
		}
		b, seen = rest, 0
	}
	c := p.x.way.Chunk(b, seen)
	p.advance(&c)
}

// advance carries on with a chunk of answers, and waits for confirmation in a goroutine where that is needed.
func (p *loopSession) advance(c *passage.Chunk) {
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
		x.way.MidMessage = false
	}
	if stake == stmt.NoEffect {
		x.way.MidMessage = c.Partly()
		p.held = append(p.held[:0], c.Kept()...)
		return
	}
	own := c.Owned() // the loop's buffer is shared
	p.awaitThen(func() error { return x.confirm(stake) }, func() { p.advance(own) })
}

// awaitThen runs wait in a goroutine, and continues with then on the loop when it has returned without an error.
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
		p.loop.Post(p.guarded(func() {
			p.awaiting = false
			switch {
			case p.phase != relaying:
			case err != nil:
				p.terminate(x.passFailed(err))
			default:
				then()
			}
			p.checkEnded()
			p.answerArrived()
			p.updateInterest()
		}))
	})
}

package listener

import (
	"context"
	"crypto/tls"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/fingerprint"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// An event loop carries the bytes of many sessions of the local server in one goroutine, with raw system calls. A
// pair of goroutines per session would wake another thread for most messages (docs/adr/0040-event-loops.md has the
// numbers). A loop decides nothing: every byte goes through the same functions as on the goroutines' path
// (Passage.Release, Passage.Advance, gate.Reader). Where one of those has to wait, a goroutine waits, and the loop
// continues with the other sessions. See loopsession.go for one session.

// loop is one goroutine and what it carries. Everything but what is posted belongs to that goroutine.
type loop struct {
	eventloop.Loop
	srv          *Server
	logins       login.Loop        // clients whose startup packet has not arrived
	fingerprints *fingerprint.Conn // used on the first loop only
	path         *offload.Path     // nil: sessions are not offloaded
	offloaded    []*loopSession    // sessions that the program knows, by slot
	toOffload    []*loopSession    // to be offloaded at the end of the turn
	ended        []*loopSession    // to be closed after this batch of events
	carried      atomic.Int64
}

func newLoop(s *Server) (*loop, error) {
	l := &loop{srv: s}
	l.fingerprints = fingerprint.New(fingerprint.Config{
		Loop: &l.Loop, Session: s.cfg.FingerprintSession, Handshake: s.cfg.Limits.BackendHandshake, Patience: func() time.Duration { return s.pool.Answer },
		Life: s.life, Background: s.background, Log: s.log,
		Panicked: func(value any) {
			s.log.Error("session panicked", "direction", "login fingerprints", "panic", value, "stack", string(debug.Stack()))
			s.counts.Reject("panic")
		},
	})
	l.logins = login.Loop{Loop: &l.Loop, Logins: s.logins, Ask: l.fingerprints.Ask, Fits: l.fits, Gone: s.wg.Done}
	if err := l.Open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *loop) close() {
	l.Close()
	l.fingerprints.Close()
	if l.path != nil {
		l.path.Close()
	}
}

// startLoops starts the loops. stop ends them once they carry no session.
func (s *Server) startLoops() (stop func(), err error) {
	n := s.cfg.Loops
	if n == 0 {
		n = Loops()
	}
	var running sync.WaitGroup
	var loops []*loop
	watching, endWatch := context.WithCancel(s.life)
	stop = func() {
		endWatch()
		for _, l := range loops {
			l.End()
		}
		running.Wait()
		for _, l := range loops {
			l.close()
		}
	}
	for range n {
		l, err := newLoop(s)
		if err != nil {
			stop()
			return nil, err
		}
		l.enableBatching()
		l.enableOffload()
		loops = append(loops, l)
		running.Go(l.run)
	}
	s.loops.Store(&loops)
	if len(loops) > 0 && loops[0].path != nil {
		running.Go(func() { s.offloadedNow.Run(watching, func() { s.checkOffloaded(loops) }) }) // as long as there are sessions
	}
	context.AfterFunc(s.life, func() { // clients without a session are handed off, and told there
		for _, l := range loops {
			l.Post(l.logins.HandOffAll)
		}
	})
	return stop, nil
}

// enableBatching lets the loop write all writes of a turn in one system call, if the kernel allows it.
func (l *loop) enableBatching() {
	if l.srv.cfg.singleWrites {
		return
	}
	r, err := uring.New()
	if err != nil {
		l.srv.log.Info("event loops make one system call per write: the kernel does not allow io_uring", "error", err)
		return
	}
	l.Batch.Use(r, &l.srv.counts.BatchedWrites)
}

// enableOffload lets the kernel relay simple requests, if it can.
func (l *loop) enableOffload() {
	if l.srv.cfg.NoKernelPath {
		return
	}
	n := l.srv.cfg.Limits.Connections
	c := offload.Config{Sessions: n, Gate: l.srv.cfg.Gate, Woken: l.cameBack}
	if log := l.srv.cfg.Log; log != nil {
		c.Log = max(log.Descriptor(), 0)
	}
	k, err := offload.New(c)
	if err == nil {
		err = l.Watch(k.EventFD(), k, unix.EPOLL_CTL_ADD, unix.EPOLLIN)
	}
	if err != nil {
		l.srv.log.Info("event loops carry every request: sessions are not offloaded to the kernel", "error", err)
		return
	}
	l.path, l.offloaded = k, make([]*loopSession, k.Slots)
	if c.Log > 0 {
		l.srv.cfg.Log.Reached(k.LogReached)
	}
}

// cameBack takes the session of a slot back.
func (l *loop) cameBack(slot uint32) {
	if int(slot) < len(l.offloaded) && l.offloaded[slot] != nil {
		l.offloaded[slot].guarded(func() {})()
	}
}

// Loops returns the default number of event loops. A busy loop keeps a processor (GOMAXPROCS): a program with other
// work to do adds as many.
func Loops() int { return max(1, runtime.NumCPU()/4) }

// firstLoop returns the loop that accepts clients and queries fingerprints; nil without loops.
func (s *Server) firstLoop() *loop {
	if list := s.loops.Load(); list != nil && len(*list) > 0 {
		return (*list)[0]
	}
	return nil
}

// leastLoaded returns the loop with the fewest sessions; nil if there is none.
func (s *Server) leastLoaded() *loop {
	list := s.loops.Load()
	if list == nil {
		return nil
	}
	var best *loop
	for _, l := range *list {
		if best == nil || l.carried.Load() < best.carried.Load() {
			best = l
		}
	}
	return best
}

// run is the loop. It is not locked to a thread. The scheduler takes the processor from every goroutine that keeps it
// for 10 ms; a locked one gets it back through another thread, which costs milliseconds on a busy machine
// (docs/adr/0063).
func (l *loop) run() {
	for !l.Ending() {
		l.Turn()
		if len(l.toOffload) > 0 {
			l.offloadAll()
		}
		l.closeEnded()
	}
}

// closeEnded closes the sockets of ended sessions. Before this point no other file can have taken their numbers.
func (l *loop) closeEnded() {
	for _, p := range l.ended {
		for _, s := range p.sides() {
			if s.FD < 0 {
				continue
			}
			l.Unwatch(s.FD)
			_ = unix.Close(s.FD)
		}
		l.carried.Add(-1)
		p.finished()
	}
	l.ended = l.ended[:0]
}

// after runs f on the loop after d, if the session is not closed by then.
func (p *loopSession) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { p.loop.Post(p.guarded(f)) })
}

// fromTLS carries decrypted bytes, as far as they may be read now. epoll does not report bytes that stay in TLS:
// updateInterest looks for them.
func (p *loopSession) fromTLS(events bool) {
	if events {
		p.tlsConn.Refill()
	}
	buf := p.loop.Buf
	for range fairShare {
		if !p.readsClient() {
			break
		}
		n, err := p.tls.Read(buf[:tlsRead])
		if err == eventloop.ErrLater { //nolint:errorlint // our own
			p.tlsPending = false
			return
		}
		p.received(buf[:n], err)
	}
	p.tlsPending = p.phase != closed
}

// tlsRead is the longest plaintext of one record. fairShare is how many records a session may bring while others
// wait.
const (
	tlsRead   = 16 << 10
	fairShare = 4
)

// toClient writes to the client, through its TLS if there is one.
func (p *loopSession) toClient(b []byte) error {
	if p.tls == nil {
		return p.client.Send(b, p.mayQueue())
	}
	_, err := p.tls.Write(b)
	return err
}

// tlsOf returns the TLS of a client on a loopable connection; nil if it is plain.
func (x *session) tlsOf() *tls.Conn {
	c, _ := x.client.(*tls.Conn)
	return c
}

package listener

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// An event loop carries the bytes of many sessions of the local server in one goroutine, with raw system calls. A
// pair of goroutines per session would wake another thread for most messages (docs/adr/0040-event-loops.md has the
// numbers). A loop decides nothing: every byte goes through the same functions of session as on the goroutines' path
// (release, advance, effectAtStake, gated.look). Where one of those has to wait, a goroutine waits, and the loop
// continues with the other sessions. See loopsession.go for one session.

const (
	loopBuffer = 64 << 10
	loopEvents = 256
	// busyWait is how long a busy loop waits in a system call that keeps its processor, from the scheduler's view.
	// That makes the next message cheap. After an idle wait of that kind the loop waits as any goroutine does.
	busyWait = 5 // milliseconds
)

// watcher handles epoll events of a file.
type watcher interface{ Ready(events uint32) }

// loop is one goroutine and what it carries. Everything but the inbox belongs to that goroutine.
type loop struct {
	srv          *Server
	epoll        int
	alarm        int // eventfd that wakes the loop
	buf          []byte
	sides        []watcher                 // by file descriptor
	preauth      map[*preauthConn]struct{} // clients whose startup packet has not arrived
	fingerprints fingerprintConn           // used on the first loop only
	batch        writeBatch
	path         *offload.Path  // nil: sessions are not offloaded
	offloaded    []*loopSession // sessions that the program knows, by slot
	toOffload    []*loopSession // to be offloaded at the end of the turn
	ended        []*loopSession // to be closed after this batch of events
	busy         bool           // the last wait returned events
	carried      atomic.Int64
	ending       atomic.Bool

	mu     sync.Mutex
	inbox  []func() // guarded by mu
	closed bool     // guarded by mu
}

func newLoop(s *Server) (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("event loop: %w", err)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("event loop: %w", err)
	}
	l := &loop{srv: s, epoll: epoll, alarm: alarm, buf: make([]byte, loopBuffer), preauth: make(map[*preauthConn]struct{})}
	l.fingerprints = newFingerprintConn(l)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, alarm, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(alarm)}); err != nil {
		l.close()
		return nil, fmt.Errorf("event loop: %w", err)
	}
	return l, nil
}

func (l *loop) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true // a session's timer may still post, when the number of alarm belongs to another file
	_ = unix.Close(l.epoll)
	_ = unix.Close(l.alarm)
	l.fingerprints.close()
	l.batch.close()
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
			l.ending.Store(true)
			l.post(func() {})
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
		running.Go(func() { s.watchOffloaded(watching, loops) }) // as long as there are sessions
	}
	context.AfterFunc(s.life, func() { // clients without a session are handed off, and told there
		for _, l := range loops {
			l.post(l.handOffAll)
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
	l.batch.use(r, &l.srv.counts.batchedWrites)
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
		err = l.watch(k.EventFD(), k, unix.EPOLL_CTL_ADD, unix.EPOLLIN)
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

// post runs f on the loop. Any goroutine may call it.
func (l *loop) post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.inbox = append(l.inbox, f)
	if len(l.inbox) == 1 {
		one := [8]byte{1}
		_, _ = unix.Write(l.alarm, one[:]) // it fails only if the counter is set already
	}
}

// run is the loop. It is not locked to a thread. The scheduler takes the processor from every goroutine that keeps it
// for 10 ms; a locked one gets it back through another thread, which costs milliseconds on a busy machine
// (docs/adr/0063).
func (l *loop) run() {
	events := make([]unix.EpollEvent, loopEvents)
	for !l.ending.Load() {
		n := l.wait(events)
		for _, e := range events[:n] {
			if int(e.Fd) == l.alarm {
				l.work()
				continue
			}
			if s := l.sides[e.Fd]; s != nil {
				s.Ready(e.Events)
			}
			if l.batch.full() {
				l.batch.flush()
			}
		}
		l.batch.flush()
		if len(l.toOffload) > 0 {
			l.offloadAll()
		}
		l.closeEnded()
	}
}

// wait returns the number of events. It is 0 after a signal or an idle busy wait.
func (l *loop) wait(events []unix.EpollEvent) int {
	if !l.busy {
		n, err := unix.EpollWait(l.epoll, events, -1)
		l.busy = err == nil
		return max(n, 0)
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), busyWait, 0, 0) //nolint:gosec // the kernel fills events
	if errno != 0 {
		return 0 // the scheduler's signal, to stop the world or to let others run
	}
	l.busy = n > 0
	return int(n)
}

// work runs what was posted.
func (l *loop) work() {
	var b [8]byte
	_, _ = unix.Read(l.alarm, b[:])
	l.mu.Lock()
	list := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// closeEnded closes the sockets of ended sessions. Before this point no other file can have taken their numbers.
func (l *loop) closeEnded() {
	for _, p := range l.ended {
		for _, s := range p.sides() {
			if s.fd < 0 {
				continue
			}
			if s.fd < len(l.sides) { // not so if its first step has failed
				l.sides[s.fd] = nil
			}
			_ = unix.Close(s.fd)
		}
		l.carried.Add(-1)
		p.finished()
	}
	l.ended = l.ended[:0]
}

// setWatcher sets who handles the events of a file.
func (l *loop) setWatcher(fd int, w watcher) {
	for len(l.sides) <= fd {
		l.sides = append(l.sides, make([]watcher, max(64, len(l.sides)))...)
	}
	l.sides[fd] = w
}

// watch registers w for these events of a file; how is an operation of epoll_ctl. It fails if the kernel has no room
// for another file.
func (l *loop) watch(fd int, w watcher, how int, events uint32) error {
	l.setWatcher(fd, w)
	return unix.EpollCtl(l.epoll, how, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// forget removes a file from epoll.
func (l *loop) forget(fd int) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	l.sides[fd] = nil
}

// after runs f on the loop after d, if the session is not closed by then.
func (p *loopSession) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { p.loop.post(p.guarded(f)) })
}

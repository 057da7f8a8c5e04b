package eventloop

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// BufferSize is the length of Buf in bytes.
	BufferSize = 64 << 10
	maxEvents  = 256
	// busyWait is how long a busy loop waits in a system call that keeps its processor, from the scheduler's view.
	// That makes the next message cheap. After an idle wait of that kind the loop waits as any goroutine does.
	busyWait = 5 // milliseconds
)

// Watcher handles epoll events of a file.
type Watcher interface{ Ready(events uint32) }

// Loop is one goroutine and the files that it watches. Everything but the inbox belongs to that goroutine.
type Loop struct {
	Buf      []byte // for what is read; its content lasts until the next read
	Batch    Batch
	epoll    int
	alarm    int       // eventfd that wakes the loop
	watchers []Watcher // by file descriptor
	busy     bool      // the last wait returned events
	events   []unix.EpollEvent
	ending   atomic.Bool

	mu     sync.Mutex
	inbox  []func() // guarded by mu
	closed bool     // guarded by mu
}

// Open prepares the loop for its first turn.
func (l *Loop) Open() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("event loop: %w", err)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return fmt.Errorf("event loop: %w", err)
	}
	l.epoll, l.alarm, l.Buf, l.events = epoll, alarm, make([]byte, BufferSize), make([]unix.EpollEvent, maxEvents)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, alarm, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(alarm)}); err != nil {
		l.Close()
		return fmt.Errorf("event loop: %w", err)
	}
	return nil
}

// Close closes what the loop has opened. Nothing that is posted afterwards is run.
func (l *Loop) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true // a timer may still post, when the number of alarm belongs to another file
	_ = unix.Close(l.epoll)
	_ = unix.Close(l.alarm)
	l.Batch.close()
}

// End has Ending report true, and the turn under way end. Any goroutine may call it.
func (l *Loop) End() {
	l.ending.Store(true)
	l.Post(func() {})
}

// Ending reports whether no turn is to follow.
func (l *Loop) Ending() bool { return l.ending.Load() }

// Post runs f on the loop. Any goroutine may call it.
func (l *Loop) Post(f func()) {
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

// Turn waits for events, has their watchers handle them, and writes what they have queued.
func (l *Loop) Turn() {
	n := l.wait()
	for _, e := range l.events[:n] {
		if int(e.Fd) == l.alarm {
			l.RunPosted()
			continue
		}
		if w := l.watchers[e.Fd]; w != nil {
			w.Ready(e.Events)
		}
		if l.Batch.Full() {
			l.Batch.Flush()
		}
	}
	l.Batch.Flush()
}

// wait returns the number of events. It is 0 after a signal or an idle busy wait.
func (l *Loop) wait() int {
	if !l.busy {
		n, err := unix.EpollWait(l.epoll, l.events, -1)
		l.busy = err == nil
		return max(n, 0)
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), busyWait, 0, 0) //nolint:gosec // the kernel fills events
	if errno != 0 {
		return 0 // the scheduler's signal, to stop the world or to let others run
	}
	l.busy = n > 0
	return int(n)
}

// RunPosted runs what was posted.
func (l *Loop) RunPosted() {
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

// SetWatcher sets who handles the events of a file.
func (l *Loop) SetWatcher(fd int, w Watcher) {
	for len(l.watchers) <= fd {
		l.watchers = append(l.watchers, make([]Watcher, max(64, len(l.watchers)))...)
	}
	l.watchers[fd] = w
}

// Watch registers w for these events of a file; how is an operation of epoll_ctl. It fails if the kernel has no room
// for another file.
func (l *Loop) Watch(fd int, w Watcher, how int, events uint32) error {
	l.SetWatcher(fd, w)
	return l.Control(fd, how, events)
}

// Forget removes a file from epoll.
func (l *Loop) Forget(fd int) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	l.watchers[fd] = nil
}

// Unwatch has nobody handle the events of a file that epoll does not watch.
func (l *Loop) Unwatch(fd int) {
	if fd < len(l.watchers) { // not so if it was never watched
		l.watchers[fd] = nil
	}
}

// Watches reports whether w handles the events of a file.
func (l *Loop) Watches(fd int, w Watcher) bool {
	return fd >= 0 && fd < len(l.watchers) && l.watchers[fd] == w
}

// Control changes for which events epoll watches a file; how is an operation of epoll_ctl.
func (l *Loop) Control(fd, how int, events uint32) error {
	return unix.EpollCtl(l.epoll, how, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

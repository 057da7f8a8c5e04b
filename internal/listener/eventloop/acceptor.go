package eventloop

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/socket"
)

const (
	// maxAccepts is how many clients a loop accepts before it serves its other files again.
	maxAccepts = 16
	// acceptPause is how long a loop accepts nothing after an error.
	acceptPause = 50 * time.Millisecond
)

// Acceptor is a port whose clients an event loop accepts. It has its own descriptor of the port's socket. It is not
// open at first.
type Acceptor struct {
	stopped chan struct{} // closed when it has stopped accepting

	mu     sync.Mutex
	loop   *Loop // guarded by mu; nil: not open
	closed bool  // guarded by mu

	// The loop's own:
	at       *Loop
	log      *slog.Logger
	accepted func(fd int, from netip.AddrPort) bool
	fd       int
	local    netip.AddrPort // of the port
	released bool           // fd is closed
}

// Open has the loop accept the clients of a port, whose descriptors accepted gets. If that returns false, the
// descriptor is closed, and no other client is accepted in this turn. Open reports false if the loop cannot accept
// them.
func (d *Acceptor) Open(l *Loop, log *slog.Logger, p *net.TCPListener, accepted func(fd int, from netip.AddrPort) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	fd, err := socket.Duplicate(p)
	if err != nil {
		log.Info("a goroutine accepts clients", "address", p.Addr(), "error", err)
		return false
	}
	if err := socket.SetInherited(fd); err != nil {
		_ = unix.Close(fd)
		log.Info("a goroutine accepts clients", "address", p.Addr(), "error", err)
		return false
	}
	d.log, d.accepted, d.stopped, d.loop, d.at, d.fd = log, accepted, make(chan struct{}), l, l, fd
	if a, ok := p.Addr().(*net.TCPAddr); ok {
		d.local = a.AddrPort()
	}
	l.Post(func() { d.listen(unix.EPOLL_CTL_ADD) })
	return true
}

// Stopped is closed when an acceptor that was opened has stopped accepting.
func (d *Acceptor) Stopped() <-chan struct{} { return d.stopped }

// Close stops accepting, and returns when the loop has.
func (d *Acceptor) Close() {
	d.mu.Lock()
	l := d.loop
	d.loop, d.closed = nil, true
	d.mu.Unlock()
	if l == nil {
		return
	}
	l.Post(func() {
		d.released = true
		l.Forget(d.fd)
		_ = unix.Close(d.fd)
		close(d.stopped)
	})
	<-d.stopped // the loop ends only after its acceptors
}

// Ready accepts clients.
func (d *Acceptor) Ready(uint32) {
	for range maxAccepts {
		fd, from, err := socket.Accept(d.fd)
		switch {
		case socket.WouldWait(err):
			return
		case errors.Is(err, unix.ECONNABORTED): // the client has gone
			continue
		case err != nil:
			d.pause(err)
			return
		}
		if !d.accepted(fd, from) {
			_ = unix.Close(fd)
			return
		}
	}
}

// pause stops accepting for a moment after an error, which most likely is a lack of descriptors.
func (d *Acceptor) pause(err error) {
	d.log.Warn("accept a client", "error", err)
	_ = d.at.Watch(d.fd, d, unix.EPOLL_CTL_MOD, 0) // an error shows again later in listen
	d.later(unix.EPOLL_CTL_MOD)
}

// listen starts accepting, or tries again in a moment.
func (d *Acceptor) listen(how int) {
	if d.released {
		return
	}
	if err := d.at.Watch(d.fd, d, how, unix.EPOLLIN); err != nil {
		d.log.Warn("accept clients", "error", err)
		d.later(how)
	}
}

func (d *Acceptor) later(how int) {
	time.AfterFunc(acceptPause, func() { d.at.Post(func() { d.listen(how) }) })
}

// LocalOf returns the local address of an accepted connection.
func (d *Acceptor) LocalOf(fd int) netip.AddrPort {
	if !d.local.Addr().IsUnspecified() {
		return d.local
	}
	return socket.Local(fd)
}

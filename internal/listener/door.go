package listener

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// welcomes is how many clients a loop takes in at most before it looks after its sessions again.
	welcomes = 16
	// doorPause is for how long a loop takes nobody in after it could not.
	doorPause = 50 * time.Millisecond
)

// door is a port at which an event loop takes clients in itself. It has a descriptor of its own of the port's socket.
type door struct {
	srv      *Server
	readOnly bool
	gone     chan struct{} // closed when it takes nobody in any more

	mu   sync.Mutex
	loop *loop // guarded by mu; nil: not open
	shut bool  // guarded by mu

	// of the loop
	at    *loop
	fd    int
	local netip.AddrPort // of the port
	over  bool           // fd is closed
}

// open has a loop take in the clients of the port. It is false where a goroutine has to: there is no loop, or no client could get a
// session of it without waiting.
func (d *door) open(s *Server, p port) bool {
	l := s.front()
	listener, ok := p.Listener.(*net.TCPListener)
	if l == nil || !ok || s.cfg.MarkSession == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return false
	}
	fd, err := duplicate(listener)
	if err != nil {
		s.log.Info("a goroutine accepts clients", "address", p.Addr(), "error", err)
		return false
	}
	if err := inherited(fd); err != nil {
		_ = unix.Close(fd)
		s.log.Info("a goroutine accepts clients", "address", p.Addr(), "error", err)
		return false
	}
	d.srv, d.readOnly, d.gone, d.loop, d.at, d.fd = s, p.readOnly, make(chan struct{}), l, l, fd
	if a, ok := p.Addr().(*net.TCPAddr); ok {
		d.local = a.AddrPort()
	}
	l.post(func() { d.listen(unix.EPOLL_CTL_ADD) })
	return true
}

// inherited sets what Go sets for each connection that it accepts: those of the port have it from here.
func inherited(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9),
	)
}

// close has the loop take nobody in any more, and returns when it does not.
func (d *door) close() {
	d.mu.Lock()
	l := d.loop
	d.loop, d.shut = nil, true
	d.mu.Unlock()
	if l == nil {
		return
	}
	l.post(func() {
		d.over = true
		l.forget(d.fd)
		_ = unix.Close(d.fd)
		close(d.gone)
	})
	<-d.gone // the loop ends after whoever waits for this
}

// Ready takes clients in.
func (d *door) Ready(uint32) {
	for range welcomes {
		fd, from, err := accept(d.fd)
		switch {
		case wouldWait(err):
			return
		case errors.Is(err, unix.ECONNABORTED): // the client was gone already
			continue
		case err != nil:
			d.pause(err)
			return
		}
		d.srv.counts.accepted.Add(1)
		if !d.srv.enter() {
			_ = unix.Close(fd)
			return
		}
		d.welcome(fd, from)
	}
}

// pause takes nobody in for a moment: out of descriptors, most likely.
func (d *door) pause(err error) {
	d.srv.log.Warn("accept a client", "error", err)
	_ = d.at.watch(d.fd, d, unix.EPOLL_CTL_MOD, 0) // where that fails it is tried, and said, again
	d.later(unix.EPOLL_CTL_MOD)
}

// listen has the loop take clients in from now on, or in a moment.
func (d *door) listen(how int) {
	if d.over {
		return
	}
	if err := d.at.watch(d.fd, d, how, unix.EPOLLIN); err != nil {
		d.srv.log.Warn("accept clients", "error", err)
		d.later(how)
	}
}

func (d *door) later(how int) {
	time.AfterFunc(doorPause, func() { d.at.post(func() { d.listen(how) }) })
}

// localOf is the address of this machine to which a client has connected.
func (d *door) localOf(fd int) netip.AddrPort {
	if !d.local.Addr().IsUnspecified() {
		return d.local
	}
	var raw unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(raw))
	_, _, _ = syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size))) //nolint:gosec // the kernel fills raw
	return addressOf(&raw)
}

// accept takes a client in, without waiting.
func accept(listener int) (fd int, from netip.AddrPort, err error) {
	var raw unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(raw))
	r, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0) //nolint:gosec // the kernel fills raw
	if errno != 0 {
		return -1, from, errno
	}
	return int(r), addressOf(&raw), nil
}

// addressOf reads a socket address of TCP, an IPv4 one as such whatever the socket.
func addressOf(raw *unix.RawSockaddrAny) netip.AddrPort {
	port := func(p *uint16) uint16 { b := (*[2]byte)(unsafe.Pointer(p)); return uint16(b[0])<<8 | uint16(b[1]) } //nolint:gosec // network byte order
	switch raw.Addr.Family {
	case unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw)) //nolint:gosec // as its family says
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), port(&a.Port))
	case unix.AF_INET6:
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw)) //nolint:gosec // as its family says
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.Scope_id != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.Scope_id), 10))
		}
		return netip.AddrPortFrom(ip, port(&a.Port))
	}
	return netip.AddrPort{}
}

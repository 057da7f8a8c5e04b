package listener

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bareConn is the socket of a backend that waits for its next client, or of a client that an event loop has taken in. Go's runtime does not
// watch it until somebody reads or writes it in Go's way: most go from one event loop to the next, which a dozen system calls are spared.
type bareConn struct {
	mu   sync.Mutex
	fd   int      // guarded by mu; -1: closed, or somebody else's
	conn net.Conn // guarded by mu; not nil once Go watches it: fd is -1 then

	local, remote net.Addr // of a client; nil: a Unix socket without a name
	farewell      []byte   // what a client hears if Go cannot watch its socket; nil: nothing
}

// take gives the descriptor away, for good. It is false if Go watches the socket.
func (b *bareConn) take() (fd int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fd, ok = b.fd, b.fd >= 0
	b.fd = -1
	return fd, ok
}

// watched is the socket as one of Go's.
func (b *bareConn) watched() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		return b.conn, nil
	}
	if b.fd < 0 {
		return nil, net.ErrClosed
	}
	f := os.NewFile(uintptr(b.fd), "backend")
	conn, err := net.FileConn(f) // has a descriptor of its own
	if err == nil {
		b.conn = conn
	} else if b.farewell != nil {
		consume(b.fd, loopBuffer) // what is unread when a socket is closed resets it, and the client would lose this
		_, _ = writeSocket(b.fd, b.farewell)
	}
	b.fd = -1
	_ = f.Close()
	return conn, err
}

func (b *bareConn) Read(p []byte) (int, error) {
	c, err := b.watched()
	if err != nil {
		return 0, err
	}
	return c.Read(p)
}

func (b *bareConn) Write(p []byte) (int, error) {
	c, err := b.watched()
	if err != nil {
		return 0, err
	}
	return c.Write(p)
}

func (b *bareConn) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		return b.conn.Close()
	}
	if b.fd < 0 {
		return net.ErrClosed
	}
	fd := b.fd
	b.fd = -1
	return unix.Close(fd)
}

// CloseWrite lets the server see the end of the stream.
func (b *bareConn) CloseWrite() error {
	c, err := b.watched()
	if err != nil {
		return err
	}
	halfClose(c)
	return nil
}

func (b *bareConn) LocalAddr() net.Addr  { return b.address(b.local) }
func (b *bareConn) RemoteAddr() net.Addr { return b.address(b.remote) }

func (*bareConn) address(a net.Addr) net.Addr {
	if a == nil {
		return &net.UnixAddr{Net: "unix"}
	}
	return a
}

func (b *bareConn) SetDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetDeadline(t) })
}

func (b *bareConn) SetReadDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetReadDeadline(t) })
}

func (b *bareConn) SetWriteDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetWriteDeadline(t) })
}

func (b *bareConn) deadline(set func(net.Conn) error) error {
	c, err := b.watched()
	if err != nil {
		return err
	}
	return set(c)
}

// SyscallConn lets the socket be looked at as it is, watched or not.
func (b *bareConn) SyscallConn() (syscall.RawConn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sc, ok := b.conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return bareControl{b}, nil
}

// bareControl is what SyscallConn returns of a socket that Go does not watch.
type bareControl struct{ b *bareConn }

func (c bareControl) Control(f func(fd uintptr)) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.b.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(c.b.fd))
	return nil
}

func (bareControl) Read(func(uintptr) bool) error  { return syscall.ENOTSUP }
func (bareControl) Write(func(uintptr) bool) error { return syscall.ENOTSUP }

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Is reports whether a connection is a socket.
func Is(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn, *Bare:
		return true
	}
	return false
}

// Take returns a descriptor of the socket that only the caller owns: the original if possible, else a duplicate.
func Take(c net.Conn) (fd int, err error) {
	if b, ok := c.(*Bare); ok {
		if fd, ok := b.Give(); ok {
			return fd, nil
		}
	}
	return Duplicate(c)
}

// Duplicate returns a new descriptor of the same socket.
func Duplicate(c any) (fd int, err error) {
	sys, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	var dup error
	err = sys.Control(func(old uintptr) { fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, dup)
}

// HalfClose ends the stream to the peer.
func HalfClose(conn net.Conn) {
	if h, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
		return
	}
	_ = conn.Close()
}

// Linger is how long a client may take to read the final error, while its further bytes are discarded.
const Linger = 250 * time.Millisecond

// Drain reads what a client has still sent, for a moment: closing a socket with unread bytes resets it, and the
// client would lose the error.
func Drain(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(Linger))
	_, _ = io.CopyN(io.Discard, conn, 64<<10)
}

// Bare is the socket of a pooled backend, or of a client whose login is on an event loop. Go's runtime does not
// watch it until it is read or written in Go's way. Most go from one event loop to the next, which saves a dozen
// system calls.
type Bare struct {
	mu   sync.Mutex
	fd   int      // guarded by mu; -1: closed, or given away
	conn net.Conn // guarded by mu; not nil once Go watches it: fd is -1 then

	Local, Remote net.Addr // of a client; nil: a Unix socket without a name
	LastMessage   []byte   // the bytes for a client whose socket Go cannot watch; nil: none
}

// NewBare returns the socket of that descriptor, which becomes its own.
func NewBare(fd int) *Bare { return &Bare{fd: fd} }

// Descriptor returns the descriptor; -1 if Go watches the socket, or it is closed or given away.
func (b *Bare) Descriptor() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fd
}

// Give gives the descriptor away, for good. It reports false if Go watches the socket.
func (b *Bare) Give() (fd int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fd, ok = b.fd, b.fd >= 0
	b.fd = -1
	return fd, ok
}

// mostUnread is how many unread bytes of a client are taken from its socket before the last message to it.
const mostUnread = 64 << 10

// Watched returns the socket as one of Go's.
func (b *Bare) Watched() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		return b.conn, nil
	}
	if b.fd < 0 {
		return nil, net.ErrClosed
	}
	f := os.NewFile(uintptr(b.fd), "backend")
	conn, err := net.FileConn(f) // duplicates the descriptor
	if err == nil {
		b.conn = conn
	} else if b.LastMessage != nil {
		Consume(b.fd, mostUnread) // unread bytes would reset the connection, and the client would lose the message
		_, _ = Write(b.fd, b.LastMessage)
	}
	b.fd = -1
	_ = f.Close()
	return conn, err
}

// Read reads.
func (b *Bare) Read(p []byte) (int, error) {
	c, err := b.Watched()
	if err != nil {
		return 0, err
	}
	return c.Read(p)
}

// Write writes.
func (b *Bare) Write(p []byte) (int, error) {
	c, err := b.Watched()
	if err != nil {
		return 0, err
	}
	return c.Write(p)
}

// Close closes the socket, if it was not given away.
func (b *Bare) Close() error {
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

// CloseWrite ends the stream to the peer.
func (b *Bare) CloseWrite() error {
	c, err := b.Watched()
	if err != nil {
		return err
	}
	HalfClose(c)
	return nil
}

// LocalAddr returns Local, or the address of a Unix socket without a name.
func (b *Bare) LocalAddr() net.Addr { return b.address(b.Local) }

// RemoteAddr returns Remote, or the address of a Unix socket without a name.
func (b *Bare) RemoteAddr() net.Addr { return b.address(b.Remote) }

func (*Bare) address(a net.Addr) net.Addr {
	if a == nil {
		return &net.UnixAddr{Net: "unix"}
	}
	return a
}

// SetDeadline has Go watch the socket, as do the other deadlines, reads and writes.
func (b *Bare) SetDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetDeadline(t) })
}

// SetReadDeadline bounds reads.
func (b *Bare) SetReadDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetReadDeadline(t) })
}

// SetWriteDeadline bounds writes.
func (b *Bare) SetWriteDeadline(t time.Time) error {
	return b.deadline(func(c net.Conn) error { return c.SetWriteDeadline(t) })
}

func (b *Bare) deadline(set func(net.Conn) error) error {
	c, err := b.Watched()
	if err != nil {
		return err
	}
	return set(c)
}

// SyscallConn gives access to the descriptor, watched or not.
func (b *Bare) SyscallConn() (syscall.RawConn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sc, ok := b.conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return bareControl{b}, nil
}

// bareControl is what SyscallConn returns for a socket that Go does not watch.
type bareControl struct{ b *Bare }

func (c bareControl) Control(f func(fd uintptr)) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.b.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(c.b.fd))
	return nil
}

func (bareControl) Read(func(uintptr) bool) error { return syscall.ENOTSUP }

func (bareControl) Write(func(uintptr) bool) error { return syscall.ENOTSUP }

// Peek looks at what the kernel has received from a peer without taking it. waiting: bytes wait; gone: the peer has
// closed. Both are false where it cannot look.
func Peek(conn net.Conn) (waiting, gone bool) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false, false
	}
	sys, err := c.SyscallConn()
	if err != nil {
		return false, false
	}
	_ = sys.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case n > 0:
			waiting = true
		case err == nil:
			gone = true
		case err != unix.EAGAIN && err != unix.EINTR:
			gone = true
		}
	})
	return waiting, gone
}

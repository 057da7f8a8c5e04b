// Package rawconn makes waiting for the next message of a busy connection cheap.
//
// A goroutine that waits for a socket in Go's way is parked, found by the poller and often woken on another thread: where a message takes a
// few microseconds to pass on, most of the processor time goes there. A Conn is not watched by Go's poller. While messages follow each other
// its reader waits inside the system call that reads, of which the scheduler is not told (docs/adr/0070).
package rawconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	blockFor   = 5 * time.Millisecond // of a nap; after an idle one a reader waits in a way that the scheduler knows of
	maxBlocked = 4                    // readers that nap at a time
)

// Places returns how many places on a processor (GOMAXPROCS) readers may keep while they nap. A program adds as many, so that its other
// goroutines do not wait for theirs.
func MaxBlocked() int { return maxBlocked }

var blocked atomic.Int32 // of the places

// Conn is a stream socket, a net.Conn.
type Conn struct {
	local, remote net.Addr
	fd            int // blocking: reading waits for one nap
	alarm         int // eventfd that ends a wait for something to read

	use      sync.RWMutex // held for reading while fd is used
	closed   atomic.Bool
	blocking bool // the last nap was no idle one; belongs to the reader

	readEnd, writeEnd atomic.Int64 // deadlines, of boottime.Awake; 0: none
}

// Take makes a Conn of a socket of Go, which is closed and must not be in use.
func Take(c net.Conn) (*Conn, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is no socket", c)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var derr error
	if err := raw.Control(func(old uintptr) { fd, derr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if derr != nil {
		return nil, fmt.Errorf("duplicate a socket: %w", derr)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make an eventfd: %w", err), unix.Close(fd))
	}
	n := &Conn{local: c.LocalAddr(), remote: c.RemoteAddr(), fd: fd, alarm: alarm}
	_ = c.Close() // which ends its watch; the socket stays open
	t := unix.NsecToTimeval(blockFor.Nanoseconds())
	if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t)); err != nil {
		return nil, errors.Join(fmt.Errorf("set socket options: %w", err), n.Close())
	}
	return n, nil
}

// Read is net.Conn's, for one goroutine at a time.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.use.RLock()
	defer c.use.RUnlock()
	for {
		switch {
		case c.closed.Load():
			return 0, net.ErrClosed
		case passed(&c.readEnd):
			return 0, os.ErrDeadlineExceeded
		}
		n, err := c.receive(p)
		switch {
		case n == 0 && c.closed.Load(): // whatever the system says of it
			return 0, net.ErrClosed
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err == unix.EINTR: //nolint:errorlint // an errno of our own call
			// The scheduler's signal, to stop the world or to let others run: the return to here lets it.
		case err == unix.EAGAIN: //nolint:errorlint // the same
			c.blocking = false
		default:
			return 0, c.failed("read", err)
		}
	}
}

// receive reads once, after a nap or after waiting in a way that the scheduler knows of.
//
//go:noinline
func (c *Conn) receive(p []byte) (int, error) {
	flags := uintptr(0)
	if c.blocking {
		c.blocking = blocked.Add(1) <= maxBlocked
		defer blocked.Add(-1)
	}
	if !c.blocking {
		if err := c.wait(c.fd, unix.POLLIN, &c.readEnd); err != nil {
			return 0, err
		}
		flags = unix.MSG_DONTWAIT
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags, 0, 0) //nolint:gosec // the kernel fills p
	if errno != 0 {
		return 0, errno
	}
	c.blocking = true
	return int(n), nil
}

// wait returns when the socket is ready, the deadline may have passed, or the connection is closed.
func (c *Conn) wait(fd int, events int16, end *atomic.Int64) error {
	var t *unix.Timespec
	if at := end.Load(); at != 0 {
		left := unix.NsecToTimespec(max(0, at-int64(boottime.Awake())))
		t = &left
	}
	set := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(c.alarm), Events: unix.POLLIN}}
	if events == unix.POLLOUT {
		set = set[:1]
	}
	_, err := unix.Ppoll(set, t, nil)
	if err == nil && len(set) > 1 && set[1].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(c.alarm, b[:])
	}
	return err
}

// Write is net.Conn's.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.use.RLock()
	defer c.use.RUnlock()
	for n < len(p) {
		switch {
		case c.closed.Load():
			return n, net.ErrClosed
		case passed(&c.writeEnd):
			return n, os.ErrDeadlineExceeded
		}
		m, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&p[n])), uintptr(len(p)-n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0) //nolint:gosec // the kernel reads p
		switch errno {
		case 0:
			n += int(m)
		case unix.EPIPE:
			if c.closed.Load() {
				return n, net.ErrClosed
			}
			return n, c.failed("write", errno)
		case unix.EINTR:
		case unix.EAGAIN:
			if err := c.wait(c.fd, unix.POLLOUT, &c.writeEnd); err != nil && !errors.Is(err, unix.EINTR) {
				return n, c.failed("write", err)
			}
		default:
			return n, c.failed("write", errno)
		}
	}
	return n, nil
}

func (c *Conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: os.NewSyscallError(op, err)}
}

func passed(end *atomic.Int64) bool {
	at := end.Load()
	return at != 0 && int64(boottime.Awake()) >= at
}

// Close ends reading and writing, and returns when nobody does any more.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // who waits is woken
	c.ring()
	c.use.Lock()
	defer c.use.Unlock()
	_ = unix.Close(c.alarm)
	return unix.Close(c.fd)
}

func (c *Conn) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(c.alarm, one[:]) // it fails only if it is set already
}

// Control has f look at the socket, unless it is closed.
func (c *Conn) Control(f func(fd uintptr)) error {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.closed.Load() {
		return net.ErrClosed
	}
	f(uintptr(c.fd))
	return nil
}

// LocalAddr is net.Conn's.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is net.Conn's.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is net.Conn's.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline is net.Conn's.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readEnd.Store(instant(t))
	c.use.RLock()
	defer c.use.RUnlock()
	if !c.closed.Load() {
		c.ring()
	}
	return nil
}

// SetWriteDeadline is net.Conn's, but that a Write that waits already keeps the one it began with.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeEnd.Store(instant(t))
	return nil
}

// instant is a deadline as it is kept.
func instant(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, int64(boottime.Awake()+time.Until(t)))
}

// Package rawconn makes waiting for the next message of a busy connection cheap.
//
// Go parks a goroutine that waits for a socket; the poller finds it and often wakes it on another thread. If forwarding
// a message takes a few microseconds, that is most of the processor time. A Conn is not in Go's poller. While messages
// follow each other closely, its reader blocks in the system call itself, without telling the scheduler
// (docs/adr/0070).
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
	blockFor   = 5 * time.Millisecond // of one blocking read(2); after one without data a reader waits through the scheduler
	maxBlocked = 4                    // readers that block in read(2) at a time
)

// MaxBlocked returns how many readers may block at a time. Each holds a place of GOMAXPROCS meanwhile, so a program
// adds as many: its other goroutines then do not wait.
func MaxBlocked() int { return maxBlocked }

var blocked atomic.Int32 // readers that block now

// Conn is a stream socket, a net.Conn.
type Conn struct {
	local, remote net.Addr
	fd            int // in blocking mode, with blockFor as the receive timeout
	alarm         int // eventfd that wakes a waiting reader

	use      sync.RWMutex // held for reading while fd is used
	closed   atomic.Bool
	blocking bool // the next read blocks in recvfrom; used by the reader only

	readEnd, writeEnd atomic.Int64 // deadlines, of boottime.Awake; 0: none
}

// Take makes a Conn from a socket of package net, which it closes. The socket must not be in use.
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
	_ = c.Close() // removes it from the poller; the duplicate keeps the socket open
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
		case n == 0 && c.closed.Load(): // for every errno
			return 0, net.ErrClosed
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err == unix.EINTR: //nolint:errorlint // an errno of our own call
			// The scheduler's signal, to stop the world or to preempt: returning to here lets it.
		case err == unix.EAGAIN: //nolint:errorlint // the same
			c.blocking = false
		default:
			return 0, c.failed("read", err)
		}
	}
}

// receive reads once. It blocks in the system call, or first waits in ppoll, which the scheduler knows of.
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

// Close ends reading and writing, and returns when no call is under way any more.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // wakes blocked calls
	c.ring()
	c.use.Lock()
	defer c.use.Unlock()
	_ = unix.Close(c.alarm)
	return unix.Close(c.fd)
}

func (c *Conn) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(c.alarm, one[:]) // fails only if the counter is set already
}

// Control calls f with the descriptor, unless the Conn is closed.
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

// SetWriteDeadline is net.Conn's, except that a Write that already waits keeps its deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeEnd.Store(instant(t))
	return nil
}

// instant converts a deadline to an instant of boottime.Awake, 0 for none.
func instant(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, int64(boottime.Awake()+time.Until(t)))
}

package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bareConn is the socket of a pooled backend, or of a client whose login is on an event loop. Go's runtime does not
// watch it until it is read or written in Go's way. Most go from one event loop to the next, which saves a dozen
// system calls.
type bareConn struct {
	mu   sync.Mutex
	fd   int      // guarded by mu; -1: closed, or given away
	conn net.Conn // guarded by mu; not nil once Go watches it: fd is -1 then

	local, remote net.Addr // of a client; nil: a Unix socket without a name
	lastMessage   []byte   // the bytes for a client whose socket Go cannot watch; nil: none
}

// take gives the descriptor away, for good. It reports false if Go watches the socket.
func (b *bareConn) take() (fd int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fd, ok = b.fd, b.fd >= 0
	b.fd = -1
	return fd, ok
}

// watched returns the socket as one of Go's.
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
	conn, err := net.FileConn(f) // duplicates the descriptor
	if err == nil {
		b.conn = conn
	} else if b.lastMessage != nil {
		consume(b.fd, loopBuffer) // unread bytes would reset the connection, and the client would lose the message
		_, _ = writeSocket(b.fd, b.lastMessage)
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

// CloseWrite ends the stream to the peer.
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

// SyscallConn gives access to the descriptor, watched or not.
func (b *bareConn) SyscallConn() (syscall.RawConn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sc, ok := b.conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return bareControl{b}, nil
}

// bareControl is what SyscallConn returns for a socket that Go does not watch.
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

// peek looks at what the kernel has received from a peer without taking it. waiting: bytes wait; gone: the peer has
// closed. Both are false where it cannot look.
func peek(conn net.Conn) (waiting, gone bool) {
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

// socket is a Unix socket with a lock file beside it, as PostgreSQL's own has one. A server that is started there sees
// that the name is taken, and does not remove it.
type socket struct {
	net.Listener
	lock string
}

// openSocket listens at the path, unless another server has the name.
func openSocket(ctx context.Context, path string) (net.Listener, error) {
	lock := path + ".lock"
	if err := claimName(lock, path); err != nil {
		return nil, err
	}
	err := removeStale(ctx, path)
	var l net.Listener
	if err == nil {
		l, err = (&net.ListenConfig{}).Listen(ctx, "unix", path)
	}
	if err == nil {
		// As PostgreSQL's own socket: every user may connect, and the rules decide.
		if err = os.Chmod(path, 0o777); err != nil { //nolint:gosec // see above
			_ = l.Close()
		}
	}
	if err != nil {
		_ = os.Remove(lock)
		return nil, err
	}
	return socket{l, lock}, nil
}

// Close removes the socket and its lock file.
func (s socket) Close() error { return errors.Join(s.Listener.Close(), os.Remove(s.lock)) }

// claimName makes the lock file. Its first line is the process that has the name, as a postmaster reads and writes it.
// A file is replaced if its process has ended, or is this one before it executed itself again.
func claimName(lock, path string) error {
	for range 10 {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintf(f, "%d\ncoterie\n", os.Getpid())
			return errors.Join(err, f.Close())
		}
		if !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
		b, err := os.ReadFile(lock)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 0 {
			return fmt.Errorf("%s is no lock file of a server: look what made it, and remove it", lock)
		}
		if pid != os.Getpid() && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return fmt.Errorf("another server, process %d, has the name %s", pid, path)
		}
		if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
	}
	return fmt.Errorf("claim the name of %s: another server comes and goes there", path)
}

// removeStale removes a socket without a listening process.
func removeStale(ctx context.Context, path string) error {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil //nolint:nilerr // nothing to remove; Listen reports what stands in the way
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("another program listens on %s", path)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return nil
}

// loopConn is the connection below a client's TLS. On a loop it uses the loop's side: a read that would have to wait
// returns a temporary error there, after which TLS can be called again.
type loopConn struct {
	net.Conn
	side *side // nil: no loop carries the session yet
	dry  bool  // the last read got less than it asked for: nothing more until the next event
}

// errLater is that temporary error.
var errLater net.Error = laterError{}

type laterError struct{}

func (laterError) Error() string   { return "nothing to read at present" }
func (laterError) Timeout() bool   { return false }
func (laterError) Temporary() bool { return true }

func (u *loopConn) Read(b []byte) (int, error) {
	if u.side == nil {
		return u.Conn.Read(b)
	}
	if u.dry || len(b) == 0 {
		return 0, errLater
	}
	n, err := receive(u.side.fd, b)
	switch {
	case wouldWait(err):
		u.dry = true
		return 0, errLater
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	u.dry = n < len(b)
	return n, nil
}

func (u *loopConn) Write(b []byte) (int, error) {
	if u.side == nil {
		return u.Conn.Write(b)
	}
	if err := u.side.send(b, u.side.p.mayQueue()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close does nothing once a loop has the connection. The same is true of the deadlines.
func (u *loopConn) Close() error {
	if u.side == nil {
		return u.Conn.Close()
	}
	return nil
}

func (u *loopConn) SetDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetDeadline(t)
	}
	return nil
}

func (u *loopConn) SetReadDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetReadDeadline(t)
	}
	return nil
}

func (u *loopConn) SetWriteDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetWriteDeadline(t)
	}
	return nil
}

// fromTLS carries decrypted bytes, as far as they may be read now. epoll does not report bytes that stay in TLS:
// updateInterest looks for them.
func (p *loopSession) fromTLS(events bool) {
	if events {
		p.tlsConn.dry = false
	}
	buf := p.loop.buf
	for range fairShare {
		if !p.readsClient() {
			break
		}
		n, err := p.tls.Read(buf[:tlsRead])
		if err == errLater { //nolint:errorlint // our own
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
		return p.client.send(b, p.mayQueue())
	}
	_, err := p.tls.Write(b)
	return err
}

// tlsOf returns the TLS of a client on a loopable connection; nil if it is plain.
func (x *session) tlsOf() *tls.Conn {
	c, _ := x.client.(*tls.Conn)
	return c
}

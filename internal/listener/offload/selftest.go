package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// selfTest relays a request and its answer through the kernel before sessions do.
func (k *Path) selfTest() error {
	t, err := newTestPair()
	if err != nil {
		return fmt.Errorf("trying the path: %w", err)
	}
	defer t.close()
	d, err := k.Add(t.listener, t.toServer, t.sender)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(d.Returns) }()
	defer k.Remove(d)
	s := d.Slot
	s.DownLimit = MaxUnread
	atomic.StoreUint32(&s.Armed, 1)
	request, answer := []byte("Q\x00\x00\x00\x05\x00"), []byte("I\x00\x00\x00\x04Z\x00\x00\x00\x05T")
	if err := errors.Join(t.passes(t.client, t.server, request), t.passes(t.server, t.client, answer)); err != nil {
		return fmt.Errorf("trying the path: %w", err)
	}
	if s.Ups != 1 || s.Downs != 1 || s.Status != 'T' || string(s.Log[:s.Logged]) != string(request) {
		return fmt.Errorf("trying the path: the books say %d requests, %d answers, %d bytes logged, status %d", s.Ups, s.Downs, s.Logged, s.Status)
	}
	return nil
}

// testPair is a client and a server with nothing behind them.
type testPair struct {
	client, server     io.ReadWriteCloser
	listener, toServer int // the sockets in between
	sender             uint64
	closes             []func() error
}

func newTestPair() (t *testPair, err error) {
	t = &testPair{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	door, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return t, err
	}
	t.closes = append(t.closes, door.Close)
	_ = door.(*net.TCPListener).SetDeadline(time.Now().Add(testTimeout)) //nolint:forcetypeassert // it listens on TCP
	client, err := (&net.Dialer{}).DialContext(ctx, "tcp", door.Addr().String())
	if err != nil {
		return t, err
	}
	t.closes = append(t.closes, client.Close)
	middle, err := door.Accept()
	if err != nil {
		return t, err
	}
	t.closes = append(t.closes, middle.Close)
	if t.listener, err = descriptorOf(middle); err != nil {
		return t, err
	}
	t.closes = append(t.closes, func() error { return unix.Close(t.listener) })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return t, err
	}
	t.toServer = pair[0]
	t.closes = append(t.closes, func() error { return unix.Close(pair[0]) })
	file := os.NewFile(uintptr(pair[1]), "server")
	server, err := net.FileConn(file) // duplicates the descriptor
	if err != nil {
		_ = file.Close()
		return t, err
	}
	t.closes = append(t.closes, server.Close, file.Close)
	if t.sender, err = SenderCookie(pair[0]); err != nil {
		return t, err
	}
	own, err := unix.GetsockoptUint64(pair[1], unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return t, err
	}
	if own != t.sender {
		return t, fmt.Errorf("%w: the kernel says %d of %d", errNoPeer, t.sender, own)
	}
	_ = client.SetDeadline(time.Now().Add(testTimeout))
	_ = server.SetDeadline(time.Now().Add(testTimeout))
	t.client, t.server = client, server
	return t, nil
}

// descriptorOf returns a new descriptor of the same socket.
func descriptorOf(c net.Conn) (fd int, err error) {
	sys, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	var dup error
	err = sys.Control(func(old uintptr) { fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, dup)
}

// testTimeout is how long a piece may take through a working kernel, on a busy machine.
const testTimeout = 5 * time.Second

// passes sends b from one end to the other, and compares.
func (t *testPair) passes(from io.Writer, to io.Reader, b []byte) error {
	if _, err := from.Write(b); err != nil {
		return err
	}
	got := make([]byte, len(b))
	if _, err := io.ReadFull(to, got); err != nil {
		return err
	}
	if !bytes.Equal(got, b) {
		return fmt.Errorf("%q became %q", b, got)
	}
	return nil
}

func (t *testPair) close() {
	for _, f := range t.closes {
		_ = f()
	}
}

package listener

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// try relays a request and its answer through the kernel before sessions do.
func (k *shortcut) try() error {
	t, err := newTrial()
	if err != nil {
		return fmt.Errorf("trying the path: %w", err)
	}
	defer t.close()
	d, err := k.insert(t.listener, t.toServer, t.sender)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(d.returns) }()
	defer k.remove(d)
	s := d.slot
	s.downLimit = kernelUnread
	atomic.StoreUint32(&s.armed, 1)
	request, answer := []byte("Q\x00\x00\x00\x05\x00"), []byte("I\x00\x00\x00\x04Z\x00\x00\x00\x05T")
	if err := errors.Join(t.passes(t.client, t.server, request), t.passes(t.server, t.client, answer)); err != nil {
		return fmt.Errorf("trying the path: %w", err)
	}
	if s.ups != 1 || s.downs != 1 || s.status != 'T' || string(s.log[:s.logged]) != string(request) {
		return fmt.Errorf("trying the path: the books say %d requests, %d answers, %d bytes logged, status %d", s.ups, s.downs, s.logged, s.status)
	}
	return nil
}

// trial is a client and a server without anything behind them.
type trial struct {
	client, server     io.ReadWriteCloser
	listener, toServer int // the sockets between
	sender             uint64
	closes             []func() error
}

func newTrial() (t *trial, err error) {
	t = &trial{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	door, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return t, err
	}
	t.closes = append(t.closes, door.Close)
	_ = door.(*net.TCPListener).SetDeadline(time.Now().Add(trialTime)) //nolint:forcetypeassert // it listens on TCP
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
	if t.listener, err = duplicate(middle); err != nil {
		return t, err
	}
	t.closes = append(t.closes, func() error { return unix.Close(t.listener) })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return t, err
	}
	t.toServer = pair[0]
	server := &bareConn{fd: pair[1]}
	t.closes = append(t.closes, func() error { return unix.Close(pair[0]) }, server.Close)
	if t.sender, err = senderOf(pair[0]); err != nil {
		return t, err
	}
	own, err := unix.GetsockoptUint64(pair[1], unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return t, err
	}
	if own != t.sender {
		return t, fmt.Errorf("%w: the kernel says %d of %d", errNoPeer, t.sender, own)
	}
	_ = client.SetDeadline(time.Now().Add(trialTime))
	_ = server.SetDeadline(time.Now().Add(trialTime))
	t.client, t.server = client, server
	return t, nil
}

// trialTime is how long a piece may take through a kernel that works, on a machine that is busy.
const trialTime = 5 * time.Second

// passes sends b from one end to the other.
func (t *trial) passes(from io.Writer, to io.Reader, b []byte) error {
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

func (t *trial) close() {
	for _, f := range t.closes {
		_ = f()
	}
}

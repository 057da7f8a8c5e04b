package socket

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// barePair returns a bareConn and the descriptor of its other end.
func barePair(t *testing.T) (*Bare, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	return NewBare(fds[0]), fds[1]
}

func TestBareConn(t *testing.T) {
	b, other := barePair(t)
	if waiting, gone := Peek(b); waiting || gone {
		t.Errorf("idle: waiting %v, gone %v", waiting, gone)
	}
	if _, err := unix.Write(other, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if waiting, gone := Peek(b); !waiting || gone {
		t.Errorf("with bytes: waiting %v, gone %v", waiting, gone)
	}
	_ = b.SetDeadline(time.Now().Add(10 * time.Second)) // from here on Go watches it
	p := make([]byte, 5)
	if n, err := b.Read(p); err != nil || string(p[:n]) != "hello" {
		t.Errorf("%q, %v", p[:n], err)
	}
	if _, ok := b.Give(); ok {
		t.Error("a socket that Go watches was given away")
	}
	fd, err := Take(b)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if _, err := b.Write([]byte("x")); err != nil {
		t.Error("the copy was not one of its own:", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}

	b, other = barePair(t)
	fd, err = Take(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("what was given away was closed: %v", err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("what was given away was written to: %v", err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Error(err)
	}
	_ = unix.Close(fd)
	if n, err := unix.Read(other, make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("the other end read %d bytes, %v", n, err)
	}
}

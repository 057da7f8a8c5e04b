package uring

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The results of writes in one system call are those of single calls, for more turns than the ring has places.
func TestRingWritesAsSingleCallsDo(t *testing.T) {
	r := testRing(t)
	whole, full, closed, narrow := connectedSockets(t), connectedSockets(t), connectedSockets(t), connectedSockets(t)
	for {
		if _, err := unix.SendmsgN(full[0], make([]byte, 4096), nil, nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	_ = unix.Shutdown(closed[1], unix.SHUT_RDWR)
	if err := unix.SetsockoptInt(narrow[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	for turn := range 3 * Size {
		said := fmt.Appendf(nil, "turn %d", turn)
		list := []Write{{B: said}, {B: []byte("x")}, {B: []byte("x")}, {B: make([]byte, 1<<20)}, {B: []byte("x")}}
		for i, fd := range []int{whole[0], full[0], closed[0], narrow[0], -1} {
			list[i].FD = fd
		}
		r.Write(list)
		if list[0].N != len(said) || list[0].Err != nil {
			t.Fatalf("turn %d: a write that fits: %d, %v", turn, list[0].N, list[0].Err)
		}
		if list[1].N != 0 || list[1].Err != unix.EAGAIN { //nolint:errorlint // an errno
			t.Fatalf("turn %d: a full socket took %d, %v", turn, list[1].N, list[1].Err)
		}
		if list[2].Err != unix.EPIPE { //nolint:errorlint // an errno
			t.Fatalf("turn %d: a closed socket: %v", turn, list[2].Err)
		}
		if list[3].N == 0 || list[3].N == 1<<20 || list[3].Err != nil {
			t.Fatalf("turn %d: a narrow socket took %d, %v", turn, list[3].N, list[3].Err)
		}
		if list[4].Err != unix.EBADF { //nolint:errorlint // an errno
			t.Fatalf("turn %d: no socket: %v", turn, list[4].Err)
		}
		if n, err := unix.Read(whole[1], got); err != nil || !bytes.Equal(got[:n], said) {
			t.Fatalf("turn %d: %q came, %v", turn, got[:n], err)
		}
		for n := 1; n > 0; n, _ = unix.Read(narrow[1], got) {
		}
	}
}

func testRing(t *testing.T) *Ring {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(r.Close)
	return r
}

// connectedSockets returns two connected non-blocking sockets.
func connectedSockets(t *testing.T) [2]int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	return pair
}

package eventloop

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/socket"
)

// On a loop a read never waits: it asks to be called again, and does not look a second time before it is told to.
func TestBelowALoop(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
	there, _ := net.Pipe()
	u := &Below{Conn: there}
	w := Writer{FD: fds[0], batch: &Batch{}}
	u.Carry(&w, func() bool { return false })
	b := make([]byte, 10)
	reads := func(want string, wantErr error) {
		t.Helper()
		n, err := u.Read(b)
		if string(b[:n]) != want || !errors.Is(err, wantErr) {
			t.Errorf("read %q, %v; want %q, %v", b[:n], err, want, wantErr)
		}
	}
	reads("", ErrLater)
	_, _ = socket.Write(fds[1], []byte("abc"))
	reads("", ErrLater) // nobody has said that something arrived
	u.Refill()
	reads("abc", nil)
	reads("", ErrLater)
	if n, err := u.Write([]byte("answer")); n != 6 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if n, err := socket.Receive(fds[1], b); err != nil || string(b[:n]) != "answer" {
		t.Errorf("the peer got %q, %v", b[:n], err)
	}
	if err := errors.Join(u.Close(), u.SetDeadline(time.Now()), u.SetReadDeadline(time.Now()), u.SetWriteDeadline(time.Now())); err != nil {
		t.Error(err)
	}
	_ = unix.Shutdown(fds[1], unix.SHUT_WR)
	u.Refill()
	reads("", io.EOF)
}

// Off the loop it is the connection.
func TestBelowNoLoop(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _ = there.Close() }()
	u := &Below{}
	u.Leave(here)
	go func() { _, _ = there.Write([]byte("abc")) }()
	b := make([]byte, 10)
	if n, err := u.Read(b); err != nil || string(b[:n]) != "abc" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if _, err := u.Write([]byte("late")); err == nil {
		t.Error("a closed connection takes more")
	}
}

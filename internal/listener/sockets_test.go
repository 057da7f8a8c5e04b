package listener

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// barePair returns a bareConn and the descriptor of its other end.
func barePair(t *testing.T) (*bareConn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	return &bareConn{fd: fds[0]}, fds[1]
}

func TestBareConn(t *testing.T) {
	b, other := barePair(t)
	if waiting, gone := peek(b); waiting || gone {
		t.Errorf("idle: waiting %v, gone %v", waiting, gone)
	}
	if _, err := unix.Write(other, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if waiting, gone := peek(b); !waiting || gone {
		t.Errorf("with bytes: waiting %v, gone %v", waiting, gone)
	}
	_ = b.SetDeadline(time.Now().Add(10 * time.Second)) // from here on Go watches it
	p := make([]byte, 5)
	if n, err := b.Read(p); err != nil || string(p[:n]) != "hello" {
		t.Errorf("%q, %v", p[:n], err)
	}
	if _, ok := b.take(); ok {
		t.Error("a socket that Go watches was given away")
	}
	fd, err := take(b)
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
	fd, err = take(b)
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

func TestAnsweredIdle(t *testing.T) {
	done := pgwire.AppendMessage(nil, 'C', pgwire.AppendCString(nil, "DISCARD ALL"))
	idle := pgwire.AppendMessage(nil, 'Z', []byte{'I'})
	for _, tt := range []struct {
		name            string
		b               []byte
		whole, expected bool
	}{
		{"nothing yet", nil, false, true},
		{"a half", done[:7], false, true},
		{"the end is to come", done, false, true},
		{"done", append(append([]byte{}, done...), idle...), true, true},
		{"with a setting and a notice", append(append(pgwire.AppendMessage(nil, 'S', []byte("a\x00b\x00")), pgwire.AppendMessage(nil, 'N', nil)...), idle...), true, true},
		{"more behind it", append(append([]byte{}, idle...), 'N'), false, false},
		{"in a transaction", pgwire.AppendMessage(nil, 'Z', []byte{'T'}), false, false},
		{"an error", pgwire.AppendMessage(nil, 'E', nil), false, false},
		{"rows", pgwire.AppendMessage(nil, 'D', nil), false, false},
		{"a length below its own", []byte{'C', 0, 0, 0, 3}, false, false},
		{"a length beyond all bounds", []byte{'C', 0xff, 0xff, 0xff, 0xff}, false, false},
	} {
		if whole, expected := answeredIdle(tt.b); whole != tt.whole || expected != tt.expected {
			t.Errorf("%s: whole %v, expected %v", tt.name, whole, expected)
		}
	}
}

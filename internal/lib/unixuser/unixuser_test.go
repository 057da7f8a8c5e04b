package unixuser

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// listen makes a socket that everybody may connect to, and returns the user that its next client is to it.
func listen(t *testing.T) (socket string, client func() int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cotuu") // short: a socket's path has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o777)); err != nil {
		t.Fatal(err)
	}
	return socket, func() int {
		t.Helper()
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		uid := -1
		if err := raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				uid = int(cred.Uid)
			}
		}); err != nil {
			t.Fatal(err)
		}
		return uid
	}
}

// TestDial checks which user the server sees, and that the process itself stays what it is.
func TestDial(t *testing.T) {
	socket, client := listen(t)
	for _, uid := range []int{os.Getuid(), 12345} {
		c, err := Dial(socket, uid)
		if os.Getuid() != 0 && uid != os.Getuid() {
			if !errors.Is(err, syscall.EPERM) {
				t.Errorf("an ordinary user as another one: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := client(); got != uid {
			t.Errorf("the server sees user %d, want %d", got, uid)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if c, err := net.Dial("unix", socket); err != nil {
		t.Error(err)
	} else if got := client(); got != os.Getuid() {
		t.Errorf("afterwards the process connects as user %d", got)
	} else {
		_ = c.Close()
	}
}

// TestNobodyListens checks that the error names the socket and the cause.
func TestNobodyListens(t *testing.T) {
	_, err := Dial(filepath.Join(t.TempDir(), "s"), os.Getuid())
	if !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v", err)
	}
}

package sdnotify

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTell holds what a manager hears, and that none is found without its socket's name.
func TestTell(t *testing.T) {
	for name, socket := range map[string]string{"a path": filepath.Join(t.TempDir(), "s"), "abstract": "@coterie-test-" + strconv.Itoa(os.Getpid())} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(socketName, socket)
		m := Open()
		if m == nil {
			t.Fatalf("%s: no manager is found", name)
		}
		if err := m.Tell(Ready, Status+"two\nlines"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		_ = l.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := l.Read(b); err != nil || string(b[:n]) != "READY=1\nSTATUS=two lines" {
			t.Errorf("%s: it heard %q, %v", name, b[:n], err)
		}
		_ = l.Close()
		if m.Tell(Alive) == nil {
			t.Errorf("%s: a manager that is gone hears", name)
		}
	}
	for _, none := range []string{"", "relative", "vsock:2:1"} {
		t.Setenv(socketName, none)
		if Open() != nil {
			t.Errorf("a manager at %q", none)
		}
	}
}

// TestWatchdog holds that only the process that is meant sends signs of life, and how often they are expected.
func TestWatchdog(t *testing.T) {
	t.Setenv(socketName, "/x")
	for _, c := range []struct {
		pid, us string
		want    time.Duration
	}{
		{"", "", 0},
		{"", "60000000", time.Minute},
		{strconv.Itoa(os.Getpid()), "60000000", time.Minute},
		{"1", "60000000", 0},
		{"", "x", 0},
		{"", "-1", 0},
	} {
		t.Setenv(watchdogPID, c.pid)
		t.Setenv(watchdogTime, c.us)
		if m := Open(); m == nil || m.Watchdog != c.want {
			t.Errorf("pid %q, %q: %v", c.pid, c.us, m)
		}
	}
	if left := Without(os.Environ()); slices.ContainsFunc(left, func(e string) bool { return strings.HasPrefix(e, "NOTIFY_") || strings.HasPrefix(e, "WATCHDOG_") }) || len(left) == 0 {
		t.Errorf("a child finds %q", left)
	}
}

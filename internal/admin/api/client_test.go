package api

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInterruptedCall holds that a caller who does not wait is told in plain words what that means for what it asked.
func TestInterruptedCall(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	asked := make(chan func(), 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = c.Read(make([]byte, 1))
			(<-asked)()
		}
	}()
	for want, call := range map[string]func(context.Context, *Client) error{
		"interrupted before the agent answered": func(ctx context.Context, c *Client) error { _, err := c.Status(ctx); return err },
		"interrupted before the agent answered: what it was asked for may go on, and may be done already; see coterie status": func(ctx context.Context, c *Client) error {
			_, err := c.Failover(ctx, FailoverRequest{})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		asked <- cancel
		if err := call(ctx, NewClient(socket, os.Getuid())); err == nil || err.Error() != want || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestClientAsksOnlyTheNodesUser checks that a client sends nothing to a process that made the agent's socket as
// another user.
func TestClientAsksOnlyTheNodesUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to listen as another user")
	}
	const other = 65534
	dir := t.TempDir()
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "agent.sock")
	type listening struct {
		l   net.Listener
		err error
	}
	made := make(chan listening)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the user with it
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, other, other, other); errno != 0 {
			made <- listening{nil, errno}
			return
		}
		l, err := net.Listen("unix", socket)
		made <- listening{l, err}
	}()
	m := <-made
	if m.err != nil {
		t.Skipf("cannot listen as another user: %v", m.err)
	}
	defer func() { _ = m.l.Close() }()
	read := make(chan int, 2)
	go func() {
		for {
			c, err := m.l.Accept()
			if err != nil {
				return
			}
			n, _ := c.Read(make([]byte, 1))
			read <- n
			_ = c.Close()
		}
	}()
	_, err := NewClient(socket, os.Getuid()).Status(t.Context())
	if err == nil || errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "not this node's agent") {
		t.Fatalf("error %v", err)
	}
	if n := <-read; n != 0 {
		t.Fatal("the client sent something to a process of another user")
	}
	if _, err := NewClient(socket, other).Status(t.Context()); err == nil || strings.Contains(err.Error(), "not this node's agent") {
		t.Fatalf("the node's own user: error %v", err)
	}
	if n := <-read; n != 1 {
		t.Fatal("the client sent nothing to the node's own user")
	}
}

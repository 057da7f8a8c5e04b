package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/fail"
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

// TestSilentAgent holds that a request whose agent answers nothing ends, with what that means for what was asked.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	c := serving(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c.look, c.silent = 5*time.Millisecond, 20*time.Millisecond
	_, err := c.Failover(t.Context(), FailoverRequest{})
	for _, want := range []string{"has answered nothing for 20ms", "may be carried out when it goes on", "systemctl restart coterie"} {
		if fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a question: %v", err)
	}
}

// TestBusyAgent holds that an agent is waited for that answers anything else meanwhile, if only that there is no such
// path.
func TestBusyAgent(t *testing.T) {
	t.Parallel()
	looks := make(chan struct{}, 100)
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			looks <- struct{}{}
			http.NotFound(w, r)
			return
		}
		for range 5 {
			<-looks
		}
		_, _ = w.Write([]byte(`{"Primary":"n2"}`))
	})
	c.look, c.silent = time.Millisecond, time.Minute
	if _, err := c.Failover(t.Context(), FailoverRequest{}); err != nil {
		t.Error(err)
	}
}

// serving returns a client of an agent that answers so.
func serving(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: answer}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return NewClient(socket, os.Getuid())
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

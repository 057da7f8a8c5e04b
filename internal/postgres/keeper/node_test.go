package keeper

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
)

// patience is for waits whose end is certain on a healthy machine; a busy one is not a failure.
const patience = 2 * time.Minute

// node is a node directory with a keeper.
type node struct {
	t                 *testing.T
	dir, run, pgdata  string
	postgres, logFile string
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, run: filepath.Join(dir, "r"), pgdata: filepath.Join(dir, "pgdata"), postgres: exe, logFile: filepath.Join(dir, "postgres.log")}
	if err := os.Mkdir(n.pgdata, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.pgdata, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, f := range []string{n.logFile, filepath.Join(dir, "log", "keeper.log")} {
				b, _ := os.ReadFile(f)
				t.Logf("%s:\n%s", f, b)
			}
		}
		n.killKeeper()
		ctx, cancel := shortly()
		defer cancel()
		if err := endLeftovers(ctx, discard, n.pgdata, n.postgres); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	n.spawn()
	return n
}

func (n *node) spawn() {
	n.t.Helper()
	exe, err := os.Executable()
	if err == nil {
		err = Spawn(n.t.Context(), exe, n.dir, n.run)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) keeperPID() int {
	b, _ := os.ReadFile(filepath.Join(n.dir, "keeper", "lock"))
	pid, _ := strconv.Atoi(string(b))
	return pid
}

func (n *node) killKeeper() {
	if pid := n.keeperPID(); pid > 0 && alive(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for limit := time.Now().Add(patience); alive(pid) && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		}
	}
}

func (n *node) dial(incarnation string) (*Client, State) {
	n.t.Helper()
	c, s, err := Dial(n.t.Context(), filepath.Join(n.run, SocketName), incarnation)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c, s
}

// status asks as an observer.
func (n *node) status() State {
	n.t.Helper()
	c, s := n.dial("")
	_ = c.Close()
	return s
}

// dummy is a start of the stand-in.
func (n *node) dummy(backends int, traits ...string) StartRequest {
	return StartRequest{
		Postgres: n.postgres, PGData: n.pgdata, LogFile: n.logFile,
		Args: append([]string{"play-postmaster", n.pgdata, strconv.Itoa(backends)}, traits...),
	}
}

// startDummy starts it and waits until it and its backends are up.
func (n *node) startDummy(c *Client, req StartRequest, backends int) int {
	n.t.Helper()
	pid, err := c.Start(n.t.Context(), req)
	if err != nil {
		n.t.Fatal(err)
	}
	n.wait("the server to be up", func() bool {
		return datadir.ReadPIDFile(n.pgdata).PID == pid && n.status().Descendants == backends+1
	})
	return pid
}

func (n *node) wait(what string, cond func() bool) {
	n.t.Helper()
	for limit := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			n.t.Fatalf("waited in vain for %s; state %+v", what, n.status())
		}
	}
}

func (n *node) waitFenced() State {
	n.t.Helper()
	n.wait("the fence", func() bool { s := n.status(); return s.Fenced != nil && !s.Ending })
	s := n.status()
	if s.Descendants != 0 || s.Postmaster != 0 || s.Armed {
		n.t.Errorf("after the fence: %+v", s)
	}
	if !datadir.HasStandbySignal(n.pgdata) {
		n.t.Error("no standby.signal after the fence")
	}
	return s
}

func in(d time.Duration) time.Duration { return boottime.Now() + d }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want %v", err, kind)
	}
}

func (n *node) wait0(what string, cond func() bool) {
	n.t.Helper()
	for limit := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			n.t.Fatalf("waited in vain for %s", what)
		}
	}
}

package keeper

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

func TestDeadlineBounds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, s := n.dial("a")
	ctx := t.Context()
	if s.Version != Version || s.KeeperPID != n.keeperPID() || s.Armed {
		t.Errorf("first state %+v", s)
	}
	wantErr(t, c.Extend(ctx, 5, in(time.Second)), ErrNotArmed)
	wantErr(t, c.Detach(ctx, 5, in(time.Second)), ErrNotArmed)
	wantErr(t, c.Arm(ctx, 5, in(MaxLease+time.Second)), ErrDeadline)
	wantErr(t, c.Arm(ctx, 5, in(-time.Millisecond)), ErrDeadline)
	far := in(10 * time.Second)
	must(t, c.Arm(ctx, 5, far))
	wantErr(t, c.Arm(ctx, 4, far), ErrStaleEpoch)
	wantErr(t, c.Extend(ctx, 4, far+1), ErrStaleEpoch)
	wantErr(t, c.Extend(ctx, 6, far+1), ErrNotArmed)
	wantErr(t, c.Extend(ctx, 5, far-1), ErrDeadline)
	wantErr(t, c.Extend(ctx, 5, in(MaxLease+time.Second)), ErrDeadline)
	wantErr(t, c.Detach(ctx, 5, far+1), ErrDeadline)
	must(t, c.Extend(ctx, 5, far+1))
	if s, err := c.Status(ctx); err != nil || s.Deadline != far+1 || !s.Armed || s.Epoch != 5 {
		t.Errorf("state %+v, %v", s, err)
	}
	must(t, c.Disarm(ctx, 5))
	wantErr(t, c.Arm(ctx, 4, in(time.Second)), ErrStaleEpoch)
	wantErr(t, c.ask(ctx, "NONSENSE"), ErrRefused)
}

func (c *Client) ask(ctx context.Context, op string) error {
	_, err := c.call(ctx, quickly, request{Op: op})
	return err
}

// The log of the server reaches the agent as a file in memory, and is in the server's file when the agent hears of the
// end.
func TestLogInMemory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	log, err := c.Log(t.Context())
	must(t, err)
	defer func() { _ = log.Close() }()
	n.startDummy(c, n.dummy(2), 2)
	_, err = c.Stop(t.Context(), "fast", 5*time.Second)
	must(t, err)
	<-c.Exits()
	said := make([]byte, 1<<16)
	at, _ := log.ReadAt(said, 0)
	if b, err := os.ReadFile(n.logFile); at == 0 || err != nil || string(b) != string(said[:at]) {
		t.Errorf("the log in memory is %q, the file %q, %v", said[:at], b, err)
	}
	again, err := c.Log(t.Context())
	must(t, err)
	_ = again.Close()
	observer, _ := n.dial("")
	_, err = observer.Log(t.Context())
	wantErr(t, err, ErrObserver)
}

func TestStandbyOutlivesItsAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	pid := n.startDummy(c, n.dummy(2), 2)
	if saw, _ := os.ReadFile(filepath.Join(n.pgdata, "saw")); string(saw) != "standby" {
		t.Errorf("started as %s", saw)
	}
	_, err := c.Start(t.Context(), n.dummy(0))
	wantErr(t, err, ErrBusy)
	wantErr(t, c.Shutdown(t.Context()), ErrBusy)
	must(t, c.Close())
	time.Sleep(KillAfter + 200*time.Millisecond)
	c, s := n.dial("b")
	if s.Postmaster != pid || s.Generation != 1 || s.Descendants != 3 {
		t.Errorf("state %+v", s)
	}
	clean, err := c.Stop(t.Context(), "fast", 5*time.Second)
	if err != nil || !clean {
		t.Errorf("stop: clean %v, %v", clean, err)
	}
	if e := <-c.Exits(); e.PID != pid || !e.Clean || e.Fenced || e.Status != "exit status 0" {
		t.Errorf("exit %+v", e)
	}
	must(t, c.Shutdown(t.Context()))
	n.wait("the keeper to end", func() bool { return !alive(n.keeperPID()) })
	if _, open := <-c.Exits(); open {
		t.Error("exits not closed")
	}
}

func TestArmedAgentGone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	n.startDummy(c, n.dummy(3, "deaf"), 3)
	must(t, c.Arm(t.Context(), 7, in(15*time.Second)))
	began := time.Now()
	must(t, c.Close())
	s := n.waitFenced()
	if took := time.Since(began); took < KillAfter || took > 12*time.Second { // not the deadline's doing
		t.Errorf("the fence took %s", took)
	}
	if s.Fenced.Epoch != 7 || s.LastExit != "signal: killed" || s.ExitCount != 1 {
		t.Errorf("state %+v, fenced %+v", s, s.Fenced)
	}
	n.killKeeper() // the record survives
	n.spawn()
	c, s = n.dial("b")
	if s.Fenced == nil || s.Epoch != 7 {
		t.Errorf("the next keeper says %+v", s)
	}
	wantErr(t, c.Arm(t.Context(), 6, in(time.Second)), ErrStaleEpoch)
}

func TestDetach(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	pid := n.startDummy(c, n.dummy(1), 1)
	must(t, c.Arm(t.Context(), 1, in(10*time.Second)))
	must(t, c.Detach(t.Context(), 1, in(4*time.Second)))
	must(t, c.Close())
	c, s := n.dial("b")
	if s.Postmaster != pid || !s.Armed || s.Epoch != 1 {
		t.Fatalf("state after coming back %+v", s)
	}
	must(t, c.Extend(t.Context(), 1, in(19*time.Second)))
	time.Sleep(4100 * time.Millisecond)
	if s := n.status(); s.Postmaster != pid || s.Ending {
		t.Fatalf("fenced although the agent came back: %+v", s)
	}
	until := in(300 * time.Millisecond)
	must(t, c.Detach(t.Context(), 1, until))
	must(t, c.Close())
	s = n.waitFenced()
	if now := boottime.Now(); now < until || now > until+12*time.Second || !strings.Contains(s.Fenced.Reason, "detached") {
		t.Errorf("fenced %s after the announced end: %+v", now-until, s.Fenced)
	}
}

func TestNewestAgentWins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, _ := n.dial("a")
	pid := n.startDummy(a, n.dummy(0), 0)
	b, s := n.dial("b")
	if s.Postmaster != pid || s.Ending {
		t.Errorf("an unarmed change of agents ended the server: %+v", s)
	}
	if _, open := <-a.Exits(); open {
		t.Error("the first agent is still connected")
	}
	wantErr(t, a.Arm(t.Context(), 1, in(time.Second)), ErrClosed)
	observer, _ := n.dial("")
	wantErr(t, observer.Fence(t.Context(), "no"), ErrObserver)
	must(t, b.Arm(t.Context(), 1, in(10*time.Second)))
	n.dial("c")
	n.waitFenced()
}

func playAgent(socket string) {
	c, _, err := Dial(context.Background(), socket, "stopped")
	if err == nil {
		err = c.Arm(context.Background(), 3, in(time.Second))
	}
	fmt.Println("armed", err)
	time.Sleep(time.Minute)
}

func TestDeadlineWhileAgentIsStopped(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("first")
	n.startDummy(c, n.dummy(2), 2)
	cmd := exec.Command(n.postgres, "play-agent", filepath.Join(n.run, SocketName))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	line := make([]byte, 64)
	k, err := out.Read(line)
	if err != nil || string(line[:k]) != "armed <nil>\n" {
		t.Fatalf("agent: %q, %v", line[:k], err)
	}
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	if s := n.waitFenced(); s.Fenced.Epoch != 3 || !strings.Contains(s.Fenced.Reason, "deadline") {
		t.Errorf("fenced %+v", s.Fenced)
	}
}

func TestPostmasterKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	must(t, c.Arm(t.Context(), 1, in(15*time.Second)))
	pid := n.startDummy(c, n.dummy(5, "deaf"), 5)
	below := proc.Descendants(pid)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	e := <-c.Exits()
	for _, p := range below {
		if alive(p) {
			t.Errorf("process %d is alive when the exit is told", p)
		}
	}
	if e.PID != pid || e.Clean || e.Fenced || e.Status != "signal: killed" {
		t.Errorf("exit %+v", e)
	}
	if s := n.status(); !s.Armed || s.Fenced != nil || s.LastExit != "signal: killed" {
		t.Errorf("a crash is not a fence: %+v", s)
	}
	req := n.dummy(0)
	req.Leader, req.Epoch = true, 1
	n.startDummy(c, req, 0)
	must(t, c.Fence(t.Context(), "test"))
	n.waitFenced()
}

func TestPrimaryKeepsStandbySignal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	ctx := t.Context()
	req := n.dummy(0)
	req.Leader, req.Epoch = true, 2
	_, err := c.Start(ctx, req)
	wantErr(t, err, ErrNotArmed)
	must(t, c.Arm(ctx, 1, in(15*time.Second)))
	_, err = c.Start(ctx, req)
	wantErr(t, err, ErrNotArmed)
	must(t, c.Arm(ctx, 2, in(15*time.Second)))
	n.startDummy(c, req, 0)
	if saw, _ := os.ReadFile(filepath.Join(n.pgdata, "saw")); string(saw) != "primary" {
		t.Errorf("started as %s", saw)
	}
	n.wait("standby.signal to be put back", func() bool { return datadir.HasStandbySignal(n.pgdata) })
	wantErr(t, c.Disarm(ctx, 2), ErrLeading)
	clean, err := c.Stop(ctx, "fast", 5*time.Second)
	if err != nil || !clean {
		t.Errorf("stop: clean %v, %v", clean, err)
	}
	must(t, c.Disarm(ctx, 2))

	pid := n.startDummy(c, n.dummy(0), 0)
	must(t, c.Arm(ctx, 3, in(15*time.Second)))
	must(t, c.Disarm(ctx, 3)) // in recovery
	must(t, c.Arm(ctx, 3, in(16*time.Second)))
	must(t, syscall.Kill(pid, syscall.SIGUSR1)) // promotes, and removes the file as PostgreSQL does
	n.wait("the promotion", func() bool { return n.status().Leader })
	n.wait("standby.signal to be put back", func() bool { return datadir.HasStandbySignal(n.pgdata) })
	wantErr(t, c.Disarm(ctx, 3), ErrLeading)
	clean, err = c.Stop(ctx, "immediate", time.Second)
	if err != nil || clean {
		t.Errorf("immediate stop: clean %v, %v", clean, err)
	}
}

func TestPromotedUnarmed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	pid := n.startDummy(c, n.dummy(0), 0)
	must(t, syscall.Kill(pid, syscall.SIGUSR1))
	if s := n.waitFenced(); !strings.Contains(s.Fenced.Reason, "not armed") {
		t.Errorf("fenced %+v", s.Fenced)
	}
}

func TestStopOverBudget(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	n.startDummy(c, n.dummy(2, "slow", "deaf"), 2)
	began := time.Now()
	clean, err := c.Stop(t.Context(), "fast", 200*time.Millisecond)
	if err != nil || clean {
		t.Errorf("stop: clean %v, %v", clean, err)
	}
	if took := time.Since(began); took < 200*time.Millisecond+KillAfter {
		t.Errorf("the stop took %s", took)
	}
	if s := n.status(); s.Descendants != 0 || s.Fenced != nil {
		t.Errorf("state %+v", s)
	}
	if clean, err := c.Stop(t.Context(), "fast", time.Second); err != nil || clean {
		t.Errorf("stop without a server: clean %v, %v", clean, err)
	}
	_, err = c.Stop(t.Context(), "softly", time.Second)
	wantErr(t, err, ErrRefused)
}

// A fence must not wait for a polite stop that is under way.
func TestFenceDuringStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	n.startDummy(c, n.dummy(2, "slow", "deaf"), 2)
	stopped := make(chan error, 1)
	go func() {
		_, err := c.Stop(t.Context(), "fast", time.Minute)
		stopped <- err
	}()
	n.wait("the stop to begin", func() bool { return n.status().Ending })
	must(t, c.Fence(t.Context(), "test"))
	n.waitFenced()
	must(t, <-stopped)
}

func TestSecondKeeperRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	exe, err := os.Executable()
	must(t, err)
	out, err := exec.Command(exe, "keeper", "--dir", n.dir, "--run", filepath.Join(n.dir, "other")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitRefused || !strings.Contains(string(out), "another keeper") {
		t.Errorf("second keeper: %v\n%s", err, out)
	}
	// Another node directory, the same data directory.
	c, _ := n.dial("a")
	n.startDummy(c, n.dummy(0), 0)
	m := newNode(t)
	d, _ := m.dial("a")
	_, err = d.Start(t.Context(), n.dummy(0))
	wantErr(t, err, ErrBusy)
	if s := n.status(); s.Postmaster == 0 || s.Ending {
		t.Errorf("the other keeper ended our server: %+v", s)
	}
}

func TestKeeperKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	must(t, c.Arm(t.Context(), 4, in(15*time.Second)))
	req := n.dummy(3)
	req.Leader, req.Epoch = true, 4
	pid := n.startDummy(c, req, 3)
	must(t, c.Arm(t.Context(), 5, in(16*time.Second)))
	n.wait("the epoch to be remembered", func() bool {
		var m remembered
		_, err := readJSON(filepath.Join(n.dir, "keeper", "state"), &m)
		return err == nil && m.Epoch == 5
	})
	n.killKeeper()
	n.wait0("the postmaster to die", func() bool { return !alive(pid) })

	// Its backends do not: they got no signal. The next keeper sends it.
	if len(findServers(n.pgdata, n.postgres)) == 0 {
		t.Error("nothing left to clean up; the test proves nothing")
	}
	n.spawn()
	if left := findServers(n.pgdata, n.postgres); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
	if !datadir.HasStandbySignal(n.pgdata) {
		t.Error("no standby.signal")
	}
	c, s := n.dial("b")
	if s.Epoch != 5 || s.Generation != 1 || s.Armed {
		t.Errorf("state of the next keeper %+v", s)
	}
	n.startDummy(c, n.dummy(0), 0)
}

// A deaf server whose keeper is killed, and a keeper that learns of the data directory only with START.
func TestOrphanServerEndedBeforeStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	pid := n.startDummy(c, n.dummy(2, "deaf"), 2)
	n.killKeeper()
	must(t, os.Remove(filepath.Join(n.dir, "keeper", "state")))
	n.spawn()
	if !alive(pid) {
		t.Fatal("the server is gone already; the test proves nothing")
	}
	c, _ = n.dial("b")
	n.startDummy(c, n.dummy(1), 1)
	if alive(pid) {
		t.Error("the old server is alive")
	}
}

func TestForeignPidIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stranger := exec.Command("sleep", "60")
	stranger.Dir = n.pgdata // even there
	must(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	stale := fmt.Sprintf("%d\n%s\n%d\n5432\n%s\n\n\nready   \n", stranger.Process.Pid, n.pgdata, time.Now().Unix(), n.run)
	must(t, os.WriteFile(filepath.Join(n.pgdata, "postmaster.pid"), []byte(stale), 0o600))
	lock := filepath.Join(n.run, ".s.PGSQL.5432.lock")
	must(t, os.WriteFile(lock, []byte(stale), 0o600))
	other := filepath.Join(n.run, ".s.PGSQL.5433.lock")
	must(t, os.WriteFile(other, []byte(stale), 0o600))
	c, _ := n.dial("a")
	n.startDummy(c, n.dummy(0), 0)
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock of its socket is left: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another socket's lock: %v", err)
	}
	if !alive(stranger.Process.Pid) {
		t.Error("the stranger was killed")
	}
}

// TestStrangerWithThePidOfASingleUserServer holds that a server starts although the lock that a killed single-user
// server left behind names a process of another program by now.
func TestStrangerWithThePidOfASingleUserServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stranger := exec.Command("sleep", "60")
	must(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	lock := filepath.Join(n.pgdata, "postmaster.pid")
	must(t, os.WriteFile(lock, fmt.Appendf(nil, "-%d\n%s\n%d\n5432\n\n", stranger.Process.Pid, n.pgdata, time.Now().Unix()), 0o600))
	must(t, dropForeignPidFile(discard, n.pgdata, datadir.ReadPIDFile(n.pgdata)))
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock is left: %v", err)
	}
	if !alive(stranger.Process.Pid) {
		t.Error("the stranger was killed")
	}
}

// TestTornLocksAreRemoved holds that a server starts although its postmaster, or the machine, ended between making a
// lock and writing it. A lock that names a process, as that of a single-user server does, is left to PostgreSQL.
func TestTornLocksAreRemoved(t *testing.T) {
	t.Parallel()
	for content, torn := range map[string]bool{"": true, "\x00\x00\x00\x00": true, "0\n": true, "-7\n/data\n": false, "1": false} {
		n := newNode(t)
		pid, lock := filepath.Join(n.pgdata, "postmaster.pid"), filepath.Join(n.run, "pg", ".s.PGSQL.5432.lock")
		must(t, os.MkdirAll(filepath.Dir(lock), 0o700))
		for _, path := range []string{pid, lock} {
			must(t, os.WriteFile(path, []byte(content), 0o600))
		}
		must(t, dropTornLocks(discard, n.pgdata, n.run))
		for _, path := range []string{pid, lock} {
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) != torn {
				t.Errorf("%q in %s: %v", content, filepath.Base(path), err)
			}
		}
	}
}

// TestFloodOfQuestionsFencesNothing sends an armed agent's connection far more requests than the keeper may leave
// unanswered, first from many callers and then from a peer that reads no answer for a while.
func TestFloodOfQuestionsFencesNothing(t *testing.T) {
	n := newNode(t)
	c, _ := n.dial("a1")
	n.startDummy(c, n.dummy(2), 2)
	must(t, c.Arm(t.Context(), 1, in(20*time.Second)))
	var asking sync.WaitGroup
	for range 300 {
		asking.Go(func() {
			for range 20 {
				if _, err := c.Status(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asking.Wait()
	must(t, c.Extend(t.Context(), 1, in(20*time.Second)))

	c.mu.Lock() // the client's reader delivers nothing: answers pile up behind it
	var line []byte
	for i := range 5000 {
		line = fmt.Appendf(line, `{"id":%d,"op":%q}`+"\n", 1_000_000+i, opStatus)
	}
	wrote := make(chan error, 1)
	go func() { _, err := c.nc.Write(line); wrote <- err }()
	time.Sleep(500 * time.Millisecond) // no condition to wait for: a fence must not happen
	c.mu.Unlock()
	must(t, <-wrote)
	if st, err := c.Status(t.Context()); err != nil || !st.Armed || st.Postmaster == 0 {
		t.Errorf("after the flood: %+v, %v", st, err)
	}
	must(t, c.Fence(t.Context(), "the test ends"))
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for name, line := range map[string]string{
		"not json": "hello\n",
		"no hello": `{"id":1,"op":"FENCE"}` + "\n",
		"too long": `{"id":1,"op":"` + strings.Repeat("x", maxLine) + `"}` + "\n",
	} {
		nc, err := net.Dial("unix", filepath.Join(n.run, SocketName))
		must(t, err)
		_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = nc.Write([]byte(line))
		b := make([]byte, 4096)
		for err = nil; err == nil; {
			_, err = nc.Read(b)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays", name)
		}
		_ = nc.Close()
	}
	if s := n.status(); s.Fenced != nil {
		t.Errorf("state %+v", s)
	}
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c, _ := n.dial("a")
	pid := n.startDummy(c, n.dummy(1), 1)
	must(t, syscall.Kill(n.keeperPID(), syscall.SIGTERM))
	if e := <-c.Exits(); e.PID != pid || !e.Clean {
		t.Errorf("exit %+v", e)
	}
	n.wait0("the keeper to end", func() bool { return !alive(n.keeperPID()) })
}

func TestMeasureFence(t *testing.T) {
	t.Parallel()
	d, err := MeasureFence(t.Context(), 30)
	if err != nil || d < KillAfter || d > 10*time.Second {
		t.Errorf("measured %s, %v", d, err)
	}
	t.Logf("30 processes: %s", d)
}

// The process that must be on time links nothing that could keep it busy.
func TestImports(t *testing.T) {
	t.Parallel()
	source := os.Getenv("KEEPER_TEST_SOURCE")
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	below, _ := filepath.Glob(filepath.Join(source, "*", "*.go")) // the pattern is well formed
	if files = append(files, below...); err != nil || len(files) == 0 {
		t.Skip("no sources here")
	}
	module := map[string]bool{
		"golang.org/x/sys/unix":                                         true,
		"github.com/coteriedb/coterie/internal/ag":                      true,
		"github.com/coteriedb/coterie/internal/lib/boottime":            true,
		"github.com/coteriedb/coterie/internal/lib/durable":             true,
		"github.com/coteriedb/coterie/internal/lib/fault":               true, // the places at which tests end it
		"github.com/coteriedb/coterie/internal/lib/retry":               true,
		"github.com/coteriedb/coterie/internal/lib/rotating":            true, // renames on the copier's goroutine
		"github.com/coteriedb/coterie/internal/lib/sdnotify":            true, // the agent's socket is kept from the keeper
		"github.com/coteriedb/coterie/internal/postgres/keeper/datadir": true,
		"github.com/coteriedb/coterie/internal/postgres/keeper/memlog":  true,
		"github.com/coteriedb/coterie/internal/postgres/keeper/proc":    true,
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Skip("sources are not readable for this user")
		}
		for _, i := range f.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if strings.Contains(path, ".") && !module[path] || strings.HasPrefix(path, "net/") || strings.HasPrefix(path, "crypto/") {
				t.Errorf("%s imports %s", filepath.Base(name), path)
			}
		}
	}
}

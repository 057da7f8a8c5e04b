package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// PostgreSQL refuses root, and in production this package never runs as root: so as root, the tests run as user
// postgres.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz=") && a != "-test.fuzz=" }) {
		os.Exit(m.Run()) // fuzzing starts no server and needs its own directories
	}
	code, err := runAsPostgres()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests as user postgres:", err)
		os.Exit(m.Run()) // tests that need a server skip themselves
	}
	os.Exit(code)
}

func runAsPostgres() (code int, err error) {
	runtime.LockOSThread() // the death signal of the child is tied to this thread
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	dir, err := os.MkdirTemp("", "cotpg")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	binary := filepath.Join(dir, "test")
	content, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(binary, content, 0o755)
	}
	if err == nil {
		err = os.Chown(dir, uid, gid)
	}
	if err != nil {
		return 0, err
	}
	cover, coverTo := filepath.Join(dir, "cover.out"), ""
	var args []string
	for _, a := range os.Args[1:] {
		if to, ok := strings.CutPrefix(a, "-test.coverprofile="); ok {
			coverTo, a = to, "-test.coverprofile="+cover
		}
		if !strings.HasPrefix(a, "-test.testlogfile=") && !strings.HasPrefix(a, "-test.gocoverdir=") {
			args = append(args, a)
		}
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGTERM}
	err = cmd.Run()
	if coverTo != "" {
		if b, err := os.ReadFile(cover); err == nil {
			_ = os.WriteFile(coverTo, b, 0o644)
		}
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// server is an instance with its process, which in production belongs to the keeper.
type server struct {
	*Instance
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	done chan error
}

// newest returns the newest PostgreSQL here, or skips the test.
func newest(t *testing.T) programs.Install {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("PostgreSQL refuses root and there is no user postgres")
	}
	found, err := programs.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL 14 to 18 on this machine")
	}
	return found[0]
}

// newServer prepares directories for an instance whose upstream is another's private socket (nil for none).
func newServer(t *testing.T, upstream *server, slot string) *server {
	t.Helper()
	in := newest(t)
	dir, err := os.MkdirTemp("/tmp", "cotpg") // short: a socket's path ends at 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir}
	c := Config{
		Install: in, PGData: filepath.Join(dir, "d"), SocketDir: filepath.Join(dir, "s"), UpstreamDir: filepath.Join(dir, "u"),
		StateDir: filepath.Join(dir, "state"), LogDir: filepath.Join(dir, "log"), Slot: slot,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Extra:  map[string]string{"recovery_init_sync_method": "syncfs", "shared_buffers": "16MB", "wal_keep_size": "256MB", "max_wal_size": "128MB"},
	}
	for _, d := range []string{c.SocketDir, c.UpstreamDir, c.StateDir, c.LogDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if upstream != nil {
		c.UpstreamDir = upstream.Config().SocketDir
	}
	s.Instance = New(c)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Log(err)
		}
		s.kill(syscall.SIGQUIT)
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "log", "postgres.log"))
			t.Logf("%s:\n%s", dir, lastLines(string(b), 40))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// start runs the server as the keeper does: as a secondary, or, for a primary, without standby.signal.
func (s *server) start(primary bool) {
	s.t.Helper()
	s.launch(primary)
	s.waitFor("the server to accept sessions", func(ctx context.Context) error {
		select {
		case err := <-s.done:
			s.done <- err
			s.t.Fatalf("postgres ended: %v", err)
		default:
		}
		_, err := s.Observe(ctx)
		return err
	})
	if primary {
		if err := s.createStandbySignal(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// launch is start without the wait for the server.
func (s *server) launch(primary bool) {
	s.t.Helper()
	if s.cmd != nil {
		s.t.Fatal("the server is up already")
	}
	if err := s.PrepareStart(s.t.Context(), nil); err != nil {
		s.t.Fatal(err)
	}
	if primary {
		if err := os.Remove(s.path("standby.signal")); err != nil {
			s.t.Fatal(err)
		}
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log", "postgres.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	args, err := s.StartArgs(primary)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command(s.Binary(), args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan error, 1)
	go func() { s.done <- s.cmd.Wait() }()
}

// kill ends the server by a signal (INT fast, QUIT as after a crash) and waits for it.
func (s *server) kill(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case err := <-s.done:
		s.t.Logf("postgres ended by %v: %v", sig, err)
	case <-time.After(30 * time.Second):
		_ = s.cmd.Process.Kill()
		s.t.Errorf("postgres did not end by %v: %v", sig, <-s.done)
	}
	s.cmd = nil
}

// clone makes a secondary of s with a copy of its data.
func (s *server) clone(slot string) *server {
	s.t.Helper()
	c := newServer(s.t, s, slot)
	cmd := exec.CommandContext(s.t.Context(), s.bin("pg_basebackup"), "-h", s.cfg.Load().SocketDir, "-p", strconv.Itoa(session.Port), "-U", "postgres",
		"-D", c.cfg.Load().PGData, "-X", "stream", "-c", "fast", "--no-sync")
	cmd.Env = programs.ToolEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	if s.cfg.Load().ConfigFile != "" {
		c.cfg.Load().ConfigFile = filepath.Join(c.dir, "postgresql.conf")
		if _, err := copyDurably(s.cfg.Load().ConfigFile, c.cfg.Load().ConfigFile); err != nil {
			s.t.Fatal(err)
		}
	}
	return c
}

func (s *server) waitFor(what string, f func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // an error at the end of the time means nothing
			last = err
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			s.t.Fatalf("waited too long for %s: %v", what, last)
		}
	}
}

func (s *server) observe() Observation {
	s.t.Helper()
	o, err := s.Observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// sub runs a subtest in which the servers report to its t.
func sub(t *testing.T, name string, f func(*testing.T), servers ...*server) {
	t.Helper()
	t.Run(name, func(inner *testing.T) {
		for _, s := range servers {
			s.t = inner
			defer func() { s.t = t }()
		}
		f(inner)
	})
}

// sql runs commands as a client would.
func (s *server) sql(commands ...string) {
	s.t.Helper()
	err := s.server.Fresh(s.t.Context(), func(c *pgx.Conn) error {
		commands = append([]string{"SET search_path = public"}, commands...)
		for _, q := range commands {
			if _, err := c.Exec(s.t.Context(), q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) value(q string) (v string) {
	s.t.Helper()
	err := s.server.Fresh(s.t.Context(), func(c *pgx.Conn) error {
		if _, err := c.Exec(s.t.Context(), "SET search_path = public"); err != nil {
			return err
		}
		return c.QueryRow(s.t.Context(), q).Scan(&v)
	})
	if err != nil {
		s.t.Fatalf("%s: %v", q, err)
	}
	return v
}

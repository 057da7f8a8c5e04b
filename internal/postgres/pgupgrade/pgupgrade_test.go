package pgupgrade_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/majors"
)

// cluster is a cluster of the older version, with some rows, and the job that upgrades it.
type cluster struct {
	dir    string
	job    pgupgrade.Job
	socket string
}

// asServer runs the rest of the test as a user that may run servers. PostgreSQL refuses root.
func asServer(t *testing.T, name string) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("NOT RUN: PostgreSQL refuses root, and there is no user postgres")
	}
	dir, err := os.MkdirTemp("/tmp", "cotup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "test"), self, 0o755)
	}
	if err = errors.Join(err, os.Chown(dir, uid, gid)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^"+name+"$", "-test.v", "-test.timeout=10m")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as user postgres: %v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("SKIP")) {
		t.Skipf("%s", out)
	}
	return false
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	older, newer := majors.Two(t)
	dir, err := os.MkdirTemp("/tmp", "cotup")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: dir, socket: filepath.Join(dir, "s")}
	t.Cleanup(func() {
		_ = c.job.End(context.Background())
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	old := filepath.Join(dir, "data")
	c.job = pgupgrade.Job{
		Old: pgupgrade.Side{Install: older, Data: old}, New: pgupgrade.Side{Install: newer, Data: old + "-new"}, Superuser: "postgres", Work: filepath.Join(dir, "w"), Tried: filepath.Join(dir, "t"), Made: filepath.Join(dir, "made"),
	}
	if err := os.Mkdir(c.socket, 0o700); err != nil {
		t.Fatal(err)
	}
	c.job.Old.WAL, c.job.New.WAL = filepath.Join(dir, "wal"), filepath.Join(dir, "wal-new")
	c.tool(t, filepath.Join(older.BinDir, "initdb"), "-D", old, "--waldir="+c.job.Old.WAL, "-U", "postgres", "--auth=trust", "--data-checksums", "--encoding=UTF8", "--locale=C", "--no-sync")
	t.Logf("from %s to %s", older.Version, newer.Version)
	c.start(t, c.job.Old)
	conn := c.connect(t, "postgres")
	for _, sql := range []string{"CREATE TABLE kept AS SELECT i FROM generate_series(1, 1000) AS i", "ALTER SYSTEM SET work_mem = '5MB'"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	d := c.describe(t)
	if len(d.Obstacles) > 0 || d.Size == 0 {
		t.Fatalf("%+v", d)
	}
	c.job.Initdb = d.Initdb
	return c
}

func (c *cluster) tool(t *testing.T, path string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = programs.ToolEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", path, args, err, out)
	}
	return string(out)
}

func (c *cluster) start(t *testing.T, s pgupgrade.Side) {
	t.Helper()
	_ = os.Remove(filepath.Join(s.Data, "standby.signal")) // as the keeper starts a primary
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(s.Install.BinDir, "pg_ctl"), "-D", s.Data, "-w", "-t", "120", "-o", "-c listen_addresses='' -c unix_socket_directories="+c.socket, "start")
	cmd.Env, cmd.Stdout, cmd.Stderr = programs.ToolEnv(), log, log
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("start %s: %v\n%s", s.Data, err, text)
	}
}

func (c *cluster) stop(t *testing.T, s pgupgrade.Side) {
	t.Helper()
	c.tool(t, filepath.Join(s.Install.BinDir, "pg_ctl"), "-D", s.Data, "-w", "-t", "120", "-m", "fast", "stop")
}

func (c *cluster) open(t *testing.T, database string) (*pgx.Conn, error) {
	t.Helper()
	if database == "" {
		database = "template1"
	}
	return pgx.Connect(t.Context(), "host="+c.socket+" user=postgres dbname="+database)
}

func (c *cluster) connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := c.open(t, database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// holds checks that a cluster has the rows and the settings, and stops it.
func (c *cluster) holds(t *testing.T, s pgupgrade.Side) {
	t.Helper()
	c.start(t, s)
	conn := c.connect(t, "postgres")
	var rows, version int
	var memory string
	err := conn.QueryRow(t.Context(), "SELECT count(*), current_setting('work_mem'), current_setting('server_version_num')::int / 10000 FROM kept").Scan(&rows, &memory, &version)
	if err != nil || rows != 1000 || memory != "5MB" || version != s.Install.Major {
		t.Fatalf("%d rows, work_mem %s, version %d, %v", rows, memory, version, err)
	}
	_ = conn.Close(t.Context())
	c.stop(t, s)
}

// TestRealServerUpgrade upgrades a cluster by links, and takes that back. With COTERIE_LONG it does the same by copy
// before, from a look at the running server on. The way back from either leaves the old cluster as it was.
func TestRealServerUpgrade(t *testing.T) {
	if !asServer(t, t.Name()) {
		return
	}
	c := newCluster(t)
	modes := []bool{true}
	if os.Getenv("COTERIE_LONG") != "" {
		modes = []bool{false, true}
		if err := c.job.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(c.job.New.Data); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the look has left a directory behind")
	}
	c.stop(t, c.job.Old)
	for _, link := range modes {
		c.job.Link = link
		if err := c.job.Make(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{c.job.Old.Data, c.job.New.Data} {
			if _, err := os.Stat(filepath.Join(d, "standby.signal")); err != nil {
				t.Errorf("a server could start on %s as a primary by accident: %v", d, err)
			}
		}
		if at, err := os.Readlink(filepath.Join(c.job.New.Data, "pg_wal")); at != c.job.New.WAL {
			t.Errorf("the WAL of the new cluster is not where that of the old one is: %q %v", at, err)
		}
		if !link {
			c.holds(t, c.job.New)
		}
		if err := c.job.Undo(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(c.job.New.Data); !errors.Is(err, os.ErrNotExist) {
			t.Fatal("the new directory is still there")
		}
		if _, err := os.Stat(c.job.New.WAL); !errors.Is(err, os.ErrNotExist) {
			t.Fatal("the new WAL is still there")
		}
		c.holds(t, c.job.Old)
	}
}

// TestWhyAServerDidNotStart holds that a refusal says why a server did not start that pg_upgrade has started: its log
// is removed with the directory.
func TestWhyAServerDidNotStart(t *testing.T) {
	dir := t.TempDir()
	why := "LOG:  unrecognized configuration parameter"
	bin, output := filepath.Join(dir, "bin"), filepath.Join(dir, "t", "pg_upgrade_output.d", "now", "log")
	for name, script := range map[string]string{
		"initdb":     "mkdir -p " + filepath.Join(dir, "t"),
		"pg_upgrade": "mkdir -p " + output + "\nyes early | head -n 10000 >" + output + "/pg_upgrade_server.log\necho '" + why + "' >>" + output + "/pg_upgrade_server.log\nexit 1",
	} {
		if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	j := pgupgrade.Job{
		Old: pgupgrade.Side{Data: filepath.Join(dir, "data")}, New: pgupgrade.Side{Install: programs.Install{BinDir: bin}, Data: filepath.Join(dir, "data-new")},
		Superuser: "postgres", Work: filepath.Join(dir, "w"), Tried: filepath.Join(dir, "t"), Made: filepath.Join(dir, "made"),
	}
	if err := errors.Join(os.Mkdir(j.Old.Data, 0o700), os.WriteFile(filepath.Join(j.Old.Data, "postgresql.conf"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// A look that was killed has left its directory, and the place of the real cluster is somebody's.
	theirs := filepath.Join(j.New.Data, "theirs")
	if err := errors.Join(j.Mkdir(j.Tried), os.Mkdir(filepath.Join(j.Tried, "base"), 0o700), os.Mkdir(j.New.Data, 0o700), os.WriteFile(theirs, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := j.Check(t.Context()); err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 8<<10 {
		t.Errorf("it says %v", err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Errorf("the look has touched the place of the real cluster: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 { // bin, data, data-new, made
		t.Errorf("the look has left something: %v %v", entries, err)
	}
}

// TestUndoGivesRoomBackFirst removes the new cluster even where nothing can be written into the old one, as on a full
// disk: else it would stay full, and the old cluster stopped.
func TestUndoGivesRoomBackFirst(t *testing.T) {
	dir := t.TempDir()
	j := pgupgrade.Job{Old: pgupgrade.Side{Data: filepath.Join(dir, "data")}, New: pgupgrade.Side{Data: filepath.Join(dir, "new")}, Work: filepath.Join(dir, "w"), Made: filepath.Join(dir, "made")}
	unwritable := filepath.Join(j.Old.Data, "standby.signal"+durable.Suffix) // a directory in the place of the file
	if err := errors.Join(os.MkdirAll(unwritable, 0o700), j.Mkdir(j.New.Data), os.Mkdir(filepath.Join(j.New.Data, "base"), 0o700), os.Mkdir(j.Work, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(j.Old.Data, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := j.Undo(t.Context()); err == nil {
		t.Error("the old cluster was given back without its standby.signal")
	}
	if _, err := os.Stat(j.New.Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the new cluster still takes its room: %v", err)
	}
	if err := os.Remove(unwritable); err != nil {
		t.Fatal(err)
	}
	if err := j.Undo(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(j.Old.Data, "standby.signal")); err != nil {
		t.Error(err)
	}
}

// TestRealServerUpgradeKilled ends pg_upgrade while it runs, and leaves its servers and tools behind, as the death of
// the agent does. Undo ends them and gives the old cluster back; Make does, too, and makes the new one.
func TestRealServerUpgradeKilled(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("runs pg_upgrade several times; COTERIE_LONG=1 runs it")
	}
	if !asServer(t, t.Name()) {
		return
	}
	c := newCluster(t)
	c.stop(t, c.job.Old)
	for _, link := range []bool{false, true} {
		c.job.Link = link
		for _, at := range []string{"postmaster of the old cluster", "postmaster of the new cluster", "dump"} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.job.Make(ctx) }()
			limit, end := context.WithTimeout(t.Context(), 2*time.Minute)
			_ = retry.Until(limit, 5*time.Millisecond, func() (bool, error) { return c.comes(at), nil })
			end()
			for _, p := range c.running("pg_upgrade") {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
			t.Logf("%s: killed: %v", at, <-done)
			cancel()
			if err := c.job.Undo(t.Context()); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			if left := append(c.running(c.job.Old.Data), c.running(c.job.New.Data)...); len(left) > 0 {
				t.Errorf("%s: processes %v are left", at, left)
			}
			c.holds(t, c.job.Old)
		}
	}
	c.job.Link = false
	if err := c.job.Make(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.holds(t, c.job.New)
}

func (c *cluster) comes(at string) bool {
	switch at {
	case "postmaster of the old cluster":
		_, err := os.Stat(filepath.Join(c.job.Old.Data, "postmaster.pid"))
		return err == nil
	case "postmaster of the new cluster":
		_, err := os.Stat(filepath.Join(c.job.New.Data, "postmaster.pid"))
		return err == nil
	}
	return len(c.running("pg_dump")) > 0
}

// running lists the processes of this user whose command line has a text and names this test's directory.
func (c *cluster) running(text string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		b, err := os.ReadFile(l)
		if err != nil || !strings.Contains(string(b), text) || !strings.Contains(string(b), c.dir) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(l, "/")[2]); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

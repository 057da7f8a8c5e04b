package seeding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
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
)

// serverDir finds PostgreSQL's binaries, or skips the test with the reason.
func serverDir(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, dir := range filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")) {
		found = slices.Insert(found, 0, filepath.Join(dir, "postgres"))
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		found = append(found, p)
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL server is installed (apt install postgresql)")
	}
	return filepath.Dir(found[0])
}

// serverUser is whom servers run as: PostgreSQL refuses root. Nil: ourselves.
func serverUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("running as root, and there is no user postgres to run servers as")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// bed is a short directory that the server's user owns, with what runs in it.
type bed struct {
	bin string
	as  *syscall.Credential
	dir string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{bin: serverDir(t), as: serverUser(t)}
	dir, err := os.MkdirTemp("/tmp", "cotseed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b.dir = dir
	b.give(t, dir)
	return b
}

// give makes a tree the server user's.
func (b *bed) give(t *testing.T, dir string) {
	t.Helper()
	if b.as == nil {
		return
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(b.as.Uid), int(b.as.Gid)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bed) command(t *testing.T, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(filepath.Join(b.bin, name), args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.as}
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// start runs a server on data with its socket in a directory of its own, and returns that directory.
func (b *bed) start(t *testing.T, data string, settings ...string) string {
	t.Helper()
	sock, err := os.MkdirTemp(b.dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	b.give(t, sock)
	args := []string{"-D", data, "-k", sock, "-c", "listen_addresses=", "-c", "port=5432", "-c", "restart_after_crash=off"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	cmd, out := b.command(t, "postgres", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("server on %s:\n%s", data, out)
		}
	})
	waitFor(t, "the server on "+data, func() error {
		_, err := b.query(t, sock, "SELECT 'up'")
		return err
	})
	return sock
}

func (b *bed) query(t *testing.T, sock, sql string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, "host="+sock+" port=5432 user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	var s string
	err = c.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&s)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return s, err
}

func (b *bed) must(t *testing.T, sock, sql string) string {
	t.Helper()
	s, err := b.query(t, sock, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func waitFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// source makes a cluster with rows in it, a tablespace and settings of its own, and starts it.
func (b *bed) source(t *testing.T) string {
	t.Helper()
	data := filepath.Join(b.dir, "source")
	initdb, out := b.command(t, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-k", "-N", "-E", "UTF8", "--locale=C", "--no-instructions")
	if err := initdb.Run(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	sock := b.start(t, data, "fsync=off", "wal_level=replica", "log_directory=log")
	space := filepath.Join(b.dir, "space")
	if err := os.Mkdir(space, 0o700); err != nil {
		t.Fatal(err)
	}
	b.give(t, space)
	for _, sql := range []string{
		"CREATE TABLESPACE side LOCATION '" + space + "'",
		"ALTER SYSTEM SET work_mem = '7MB'",
		"ALTER SYSTEM SET primary_conninfo = 'host=/nowhere'",
		"CREATE TABLE t AS SELECT i, md5(i::text) AS x FROM generate_series(1, 50000) i",
		"CREATE TABLE aside TABLESPACE side AS SELECT i FROM generate_series(1, 1000) i",
		"CREATE TABLE marked AS SELECT 'flip-this-byte-0123456789' AS x",
		"CREATE UNLOGGED TABLE gone AS SELECT 1 AS i",
	} {
		b.must(t, sock, sql)
	}
	return sock
}

func (b *bed) dial(t *testing.T, sock string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(sock, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (b *bed) options(t *testing.T, sock string) Options {
	t.Helper()
	dir, err := os.MkdirTemp(b.dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	b.give(t, dir)
	return Options{
		Conn: b.dial(t, sock), User: "postgres", Slot: "cot_seed_" + strings.ToLower(filepath.Base(dir)), Fast: true,
		Target: filepath.Join(dir, "pgdata"), StateDir: filepath.Join(dir, "state"),
		TablespaceMap: func(oid uint32, _ string) (string, error) {
			return filepath.Join(dir, "ts"+strconv.Itoa(int(oid))), nil
		},
	}
}

const sums = "SELECT (SELECT count(*) || ' ' || sum(hashtext(x)::bigint) FROM t) || ' ' || (SELECT sum(i) FROM aside)"

// TestRealServer seeds from a running PostgreSQL, through connections that die and lie, and starts the copy as a standby.
func TestRealServer(t *testing.T) {
	b := newBed(t)
	sock := b.source(t)

	// How much a whole seeding reads.
	o := b.options(t, sock)
	var wire int64
	o.Progress = func(p Progress) { wire = p.Wire }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := b.must(t, sock, "SELECT system_identifier::text FROM pg_control_system()"); r.SystemID != want || r.Timeline != 1 || r.Start >= r.End {
		t.Errorf("result %+v, system identifier %s", r, want)
	}
	if wire < 20<<20 {
		t.Errorf("only %d bytes were read", wire)
	}
	b.mustStream(t, sock, o)

	for _, percent := range []int64{10, 50, 90} {
		t.Run(fmt.Sprintf("cut at %d %%", percent), func(t *testing.T) {
			o := b.options(t, sock)
			o.Conn = &cutConn{Conn: o.Conn, left: wire * percent / 100}
			if _, err := Run(t.Context(), o); err == nil {
				t.Fatal("a cut connection went unnoticed")
			}
			b.mustRefuse(t, o)
			o.Conn = b.dial(t, sock)
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			b.mustStream(t, sock, o)
		})
	}
	t.Run("changed byte", func(t *testing.T) {
		o := b.options(t, sock)
		c := &flipConn{Conn: o.Conn, at: []byte("flip-this-byte-0123456789")}
		o.Conn = c
		_, err := Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "has another checksum") || !c.done {
			t.Fatalf("error %v (flipped: %v)", err, c.done)
		}
		b.mustRefuse(t, o)
		// The same slot serves the next attempt.
		o.Conn = b.dial(t, sock)
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("role without replication", func(t *testing.T) {
		b.must(t, sock, "CREATE ROLE plain LOGIN")
		o := b.options(t, sock)
		o.User = "plain"
		var se *SourceError
		if _, err := Run(t.Context(), o); !errors.As(err, &se) || exists(o.Target) {
			t.Errorf("error %v; target exists: %v", err, exists(o.Target))
		}
	})
}

// mustRefuse checks that PostgreSQL itself will not start what a broken seeding left.
func (b *bed) mustRefuse(t *testing.T, o Options) {
	t.Helper()
	mustNotStart(t, o)
	if !HalfSeeded(o.Target, o.StateDir) {
		t.Error("it is not known to be half seeded")
	}
	b.give(t, filepath.Dir(o.Target))
	cmd, out := b.command(t, "postgres", "-D", o.Target, "-k", b.dir, "-c", "listen_addresses=")
	timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer timer.Stop()
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "could not") {
		t.Errorf("the server answered %v\n%s", err, out)
	}
}

// mustStream starts the copy as a standby of its source and waits until it has the same rows, later ones included.
func (b *bed) mustStream(t *testing.T, sock string, o Options) {
	t.Helper()
	b.give(t, filepath.Dir(o.Target))
	standby := b.start(t, o.Target, "primary_conninfo=host="+sock+" port=5432 user=postgres", "primary_slot_name="+o.Slot, "fsync=off")
	b.must(t, sock, "INSERT INTO t SELECT i, 'later' FROM generate_series(1, 10) i")
	want := b.must(t, sock, sums)
	waitFor(t, "the standby to have its source's rows", func() error {
		got, err := b.query(t, standby, sums)
		if err == nil && got != want {
			err = fmt.Errorf("it has %s instead of %s", got, want)
		}
		return err
	})
	if s := b.must(t, standby, "SELECT pg_is_in_recovery()::text"); s != "true" {
		t.Error("the copy is not a standby")
	}
	if s := b.must(t, standby, "SELECT current_setting('work_mem')"); s != "7MB" {
		t.Errorf("work_mem is %s: the source's ALTER SYSTEM is not in the copy", s)
	}
	if s := b.must(t, standby, "SELECT count(*)::text FROM pg_file_settings WHERE name = 'primary_conninfo'"); s != "0" {
		t.Error("the source's primary_conninfo is in the copy")
	}
	place := b.must(t, standby, "SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'side'")
	if filepath.Dir(place) != filepath.Dir(o.Target) {
		t.Errorf("the tablespace is at %s", place)
	}
}

// cutConn is a connection that dies after some bytes.
type cutConn struct {
	net.Conn
	left int64
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// flipConn changes one byte of a pattern as it passes.
type flipConn struct {
	net.Conn
	at   []byte
	tail []byte // end of what passed before
	done bool
}

func (c *flipConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.done {
		return n, err
	}
	seen := slices.Concat(c.tail, p[:n])
	if i := bytes.Index(seen, c.at); i >= 0 {
		p[i+len(c.at)-1-len(c.tail)] ^= 1 // the last byte has just come
		c.done = true
	}
	c.tail = bytes.Clone(seen[max(0, len(seen)-len(c.at)+1):])
	return n, err
}

package adopt_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres"
)

// bench is a place where clusters can be adopted: a program that every user may run, and a cluster to copy.
type bench struct {
	dir, coterie string
	in           postgres.Install
	uid, gid     int // of whoever runs servers
}

var shared *bench

func TestMain(m *testing.M) {
	b, err := newBench()
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a cluster to adopt:", err)
		os.Exit(1)
	}
	shared = b
	code := m.Run()
	if b != nil {
		_ = os.RemoveAll(b.dir)
	}
	os.Exit(code)
}

func newBench() (b *bench, err error) {
	found, err := postgres.Find(context.Background())
	if err != nil || len(found) == 0 {
		return nil, err
	}
	b = &bench{in: found[0], uid: os.Getuid(), gid: os.Getgid()}
	if b.uid == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, nil //nolint:nilerr // every test skips itself
		}
		b.uid, _ = strconv.Atoi(u.Uid)
		b.gid, _ = strconv.Atoi(u.Gid)
	}
	if b.dir, err = os.MkdirTemp("/tmp", "cotad"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(b.dir)
		}
	}()
	b.coterie = filepath.Join(b.dir, "coterie")
	build := exec.Command("go", "build", "-o", b.coterie, "../../cmd/coterie")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if err := errors.Join(os.Chown(b.dir, b.uid, b.gid), os.Chmod(b.dir, 0o755)); err != nil {
		return nil, err
	}
	return b, b.makeTemplate()
}

func (b *bench) template() string { return filepath.Join(b.dir, "template") }

func (b *bench) makeTemplate() error {
	if out, code := b.server("initdb", "-D", b.template(), "-U", "dba", "--no-sync", "--wal-segsize=1", "--auth-local=trust", "--auth-host=scram-sha-256"); code != 0 {
		return errors.New(out)
	}
	// Few settings: the server's program is run for each.
	if err := os.WriteFile(filepath.Join(b.template(), "postgresql.conf"), []byte("max_connections = 30\nshared_buffers = 16MB\n"), 0o600); err != nil {
		return err
	}
	return b.startAnd(b.template(), `CREATE ROLE app LOGIN PASSWORD 'old secret'; CREATE ROLE mute LOGIN;
SET password_encryption = md5; CREATE ROLE ancient LOGIN PASSWORD 'x'; CREATE TABLE t AS SELECT g FROM generate_series(1, 1000) g; GRANT ALL ON t TO app;`,
		"ALTER SYSTEM SET work_mem = '7MB'", "ALTER SYSTEM SET restore_command = 'cp /archive/%f %p'", "ALTER SYSTEM SET hot_standby_feedback = on")
}

// startAnd runs statements in the cluster and stops it in order.
func (b *bench) startAnd(data string, sql ...string) error {
	if out, code := b.server("pg_ctl", "start", "-w", "-D", data, "-l", data+".log", "-o", "-c listen_addresses='' -c fsync=off -c unix_socket_directories="+b.dir); code != 0 {
		return errors.New(out)
	}
	var failed error
	for _, s := range sql {
		if out, code := b.server("psql", "-X", "-h", b.dir, "-U", "dba", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", s); code != 0 {
			failed = errors.New(out)
		}
	}
	if out, code := b.server("pg_ctl", "stop", "-w", "-m", "fast", "-D", data); code != 0 {
		return errors.New(out)
	}
	return failed
}

// server runs one of PostgreSQL's programs as the user that runs servers.
func (b *bench) server(name string, args ...string) (string, int) {
	return b.as(true, filepath.Join(b.in.BinDir, name), args...)
}

// run runs coterie as whoever runs the tests; with ordinary as the server's user, which is another one only for root.
func (b *bench) run(ordinary bool, args ...string) (string, int) {
	return b.as(ordinary, b.coterie, args...)
}

func (b *bench) as(ordinary bool, name string, args ...string) (string, int) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := b.command(ctx, ordinary, name, args...)
	// Output goes through a file: a server that is started would hold a pipe open.
	f, err := os.CreateTemp("", "cotout")
	if err != nil {
		return err.Error(), -1
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	cmd.Stdout, cmd.Stderr = f, f
	err = cmd.Run()
	out, _ := os.ReadFile(f.Name())
	if cmd.ProcessState == nil {
		return err.Error(), -1
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (b *bench) command(ctx context.Context, ordinary bool, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = b.dir
	if ordinary && os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(b.uid), Gid: uint32(b.gid)}}
	}
	return cmd
}

// cluster copies the template: a data directory, with Debian's layout split over dir/etc/postgresql/MAJOR/shop.
func (b *bench) cluster(t *testing.T, debian bool) (dir string) {
	t.Helper()
	if b == nil {
		t.Skip("no PostgreSQL here, or root and no user postgres")
	}
	dir, err := os.MkdirTemp(b.dir, "c")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(dir, b.uid, b.gid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, node := range []string{"node", "joiner/node"} { // the directories of their sockets are elsewhere
			if l, err := config.NewLayout(filepath.Join(dir, node)); err == nil {
				_ = os.RemoveAll(l.Run)
			}
		}
		_ = os.RemoveAll(dir)
	})
	data := filepath.Join(dir, "data")
	if out, err := exec.Command("cp", "-a", b.template(), data).CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	if !debian {
		return dir
	}
	etc := b.etc(dir)
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"postgresql.conf", "pg_hba.conf", "pg_ident.conf"} {
		if err := os.Rename(filepath.Join(data, f), filepath.Join(etc, f)); err != nil {
			t.Fatal(err)
		}
	}
	b.write(t, filepath.Join(etc, "start.conf"), "# Automatic startup configuration\n\nauto\n")
	b.write(t, filepath.Join(etc, "conf.d", "shop.conf"), "maintenance_work_mem = 77MB\n")
	b.write(t, filepath.Join(etc, "postgresql.conf"), fmt.Sprintf("data_directory = '%s'\nhba_file = '%s/pg_hba.conf'\nident_file = '%s/pg_ident.conf'\n"+
		"external_pid_file = '%s/pid'\nunix_socket_directories = '%s'\nport = %d\ninclude_dir = 'conf.d'\nsynchronous_standby_names = 'elsewhere'\n", data, etc, etc, dir, dir, freePort(t)))
	return dir
}

func (b *bench) etc(dir string) string {
	return filepath.Join(dir, "etc", "postgresql", strconv.Itoa(b.in.Major), "shop")
}

func (b *bench) name() string { return strconv.Itoa(b.in.Major) + "/shop" }

// write appends to a file of the server's user.
func (b *bench) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close(), os.Chown(path, b.uid, b.gid), os.Chown(filepath.Dir(path), b.uid, b.gid)); err != nil {
		t.Fatal(err)
	}
}

// tree is a digest of everything under dir: names, modes, owners, contents and times of change.
func tree(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(h, path, st.Mode(), st.Size(), st.ModTime().UnixNano(), st.Sys().(*syscall.Stat_t).Uid)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ports are the flags that put everything on free loopback ports; the clients' port is the cluster's own.
func ports(t *testing.T) []string {
	t.Helper()
	at := func() string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }
	return []string{"--endpoint", at(), "--read-only", at(), "--http", at(), "--name", "n1"}
}

func TestRefusals(t *testing.T) {
	b := shared
	conf := func(text string) func(*testing.T, string) {
		return func(t *testing.T, data string) { b.write(t, filepath.Join(data, "postgresql.conf"), text) }
	}
	file := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, data string) { b.write(t, filepath.Join(data, name), text) }
	}
	sql := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, data string) {
			if err := b.startAnd(data, statements...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, data string)
		flags   []string
		want    []string
	}{
		{"running", file("postmaster.pid", fmt.Sprintf("%d\n", os.Getpid())), nil, []string{"the cluster is running"}},
		{"crashed", func(t *testing.T, data string) {
			opts := "-c listen_addresses='' -c unix_socket_directories=" + b.dir
			if out, code := b.server("pg_ctl", "start", "-w", "-D", data, "-l", data+".log", "-o", opts); code != 0 {
				t.Fatal(out)
			}
			b.server("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)
		}, nil, []string{"not cleanly shut down"}},
		{"many reasons", func(t *testing.T, data string) {
			for _, f := range []string{"standby.signal", "recovery.signal", "backup_label", "coterie.copy"} {
				file(f, "x")(t, data)
			}
			conf("wal_level = minimal\nmax_wal_senders = 0\nfsync = off\nrecovery_target_name = 'x'\n")(t, data)
			file("pg_hba.conf", "host all all 10.0.0.0/8 ldap ldapserver=x\nlocal all all peer map=m\nhost all @admins \\\n all md5\n")(t, data)
			b.write(t, filepath.Join(data, "../node/x"), "")
		}, nil, []string{
			"there is standby.signal", "there is recovery.signal", "never started", "already belongs to a group", "says wal_level=minimal", "fsync=off",
			"recovery target is set: recovery_target_name", "method ldap cannot be checked", `option "map=m" is not supported`, "lists in files", "is not empty",
		}},
		{"ran minimal", func(t *testing.T, data string) {
			conf("wal_level = minimal\nmax_wal_senders = 0\n")(t, data)
			sql("SELECT 1")(t, data)
			conf("wal_level = replica\n")(t, data)
		}, nil, []string{"ran with wal_level=minimal"}},
		{"unreadable", conf("nonsense = 1\n"), nil, []string{"configuration cannot be read"}},
		{"elsewhere", conf("data_directory = '/elsewhere'\n"), nil, []string{"configuration"}},
		{"slot", sql("SELECT pg_create_physical_replication_slot('old', true)"), nil, []string{"physical replication slots, so standbys or backup tools stream from this cluster: old"}},
		{"database", sql("SELECT pg_create_physical_replication_slot('old', true)", "CREATE DATABASE coterie"), []string{"--drop-standbys"}, []string{"a database named coterie"}},
		{"no cluster", func(t *testing.T, data string) {
			if err := os.Remove(filepath.Join(data, "PG_VERSION")); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"not the data directory of a cluster"}},
		{"too old", func(t *testing.T, data string) {
			if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("12\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"supported are 14 to 18"}},
		{"foreign owner", func(t *testing.T, data string) {
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			if err := os.Chown(data, 1, 1); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"belongs to user 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := b.cluster(t, false)
			data := filepath.Join(dir, "data")
			c.prepare(t, data)
			before := tree(t, dir)
			args := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt", data, "--yes", "--read-write", fmt.Sprintf("127.0.0.1:%d", freePort(t))}, ports(t)...)
			out, code := b.run(false, append(args, c.flags...)...)
			for _, want := range c.want {
				if code != 4 || !strings.Contains(out, want) {
					t.Errorf("exit %d, want 4 and %q:\n%s", code, want, out)
				}
			}
			if after := tree(t, dir); after != before {
				t.Error("a refusal changed something")
			}
		})
	}
}

// TestReport reads a report on a cluster in Debian's layout.
func TestReport(t *testing.T) {
	b := shared
	dir := b.cluster(t, true)
	before := tree(t, dir)
	base := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt-root", dir}, ports(t)...)
	for _, target := range []string{b.name(), filepath.Join(dir, "data")} {
		for _, flags := range [][]string{nil, {"--yes", "--dry-run"}} {
			out, code := b.run(false, append(append(base, "--adopt", target), flags...)...)
			if code != 0 {
				t.Fatalf("exit %d:\n%s", code, out)
			}
			for _, want := range []string{
				"known as       " + b.name(), filepath.Join(dir, "data"), "shut down", "start.conf: auto -> disabled", "local all all trust",
				"mute has no password", "ancient has an md5 password", "1 with a scram-sha-256 password", "restore_command = 'cp /archive/%f %p' -> ''",
				"synchronous_standby_names = elsewhere: recorded", ".s.PGSQL.", "Nothing was changed",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("the report on %s lacks %q:\n%s", target, want, out)
				}
			}
		}
	}
	if out, code := b.run(false, append(base, "--dry-run")...); code != 2 || !strings.Contains(out, "belong to --adopt") {
		t.Errorf("a dry run of a new cluster: exit %d:\n%s", code, out)
	}
	if out, code := b.run(false, append(base, "--adopt", "data")...); code != 4 || !strings.Contains(out, "relative path") {
		t.Errorf("a relative path: exit %d:\n%s", code, out)
	}
	if out, code := b.run(false, append(base, "--adopt", strconv.Itoa(b.in.Major)+"/other")...); code != 4 || !strings.Contains(out, "pg_lsclusters") {
		t.Errorf("an unknown cluster: exit %d:\n%s", code, out)
	}
	if tree(t, dir) != before {
		t.Error("a report changed something")
	}
}

// TestFailureTakesBack lets the adoption fail after it has begun.
func TestFailureTakesBack(t *testing.T) {
	b := shared
	dir := b.cluster(t, true)
	etc := filepath.Join(b.etc(dir), "start.conf")
	auto := filepath.Join(dir, "data", "postgresql.auto.conf")
	was, _ := os.ReadFile(auto)
	// The last change cannot be made: something is in its way.
	if err := os.Mkdir(filepath.Join(dir, "data", "postgresql.conf.coterie-tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt", b.name(), "--adopt-root", dir, "--yes", "--no-start"}, ports(t)...)
	out, code := b.run(false, args...)
	if code != 1 || !strings.Contains(out, "joining nodes") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if b, _ := os.ReadFile(etc); !strings.HasSuffix(string(b), "\nauto\n") {
		t.Errorf("start.conf is %q", b)
	}
	now, _ := os.ReadFile(auto)
	for line := range strings.Lines(string(was)) {
		if !strings.Contains(string(now), line) {
			t.Errorf("postgresql.auto.conf lost %q", line)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "data", "standby.signal")); err == nil {
		t.Error("standby.signal was left")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "node")); len(left) > 0 {
		t.Errorf("the node directory holds %v", left)
	}
}

// commands are the commands of docs/adopting.md, in their order.
func commands(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/adopting.md")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]string
	inside := false
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "":
			f := strings.Fields(line)
			if f[0] != "coterie" {
				t.Fatalf("the page has a command that this test does not run: %s", line)
			}
			all = append(all, f[1:])
		}
	}
	return all
}

// TestAdopt runs the page: report, adoption, life in a group of one, release, and life as before.
func TestAdopt(t *testing.T) {
	for _, ordinary := range []bool{false, true} {
		if ordinary && os.Getuid() != 0 {
			continue // the first round was it
		}
		t.Run(fmt.Sprintf("ordinary user %v", ordinary), func(t *testing.T) { testAdopt(t, shared, ordinary) })
	}
}

func testAdopt(t *testing.T, b *bench, ordinary bool) {
	dir := b.cluster(t, true)
	data, node := filepath.Join(dir, "data"), filepath.Join(dir, "node")
	systemctl := ""
	if os.Getuid() == 0 && !ordinary {
		systemctl = fakeSystemd(t, b, dir)
	}
	autoWas, _ := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	flags := ports(t)
	var stop func()
	for _, c := range commands(t) {
		for i := range c {
			if c[i] == "15/main" {
				c[i] = b.name()
			}
		}
		c = append(c, "--node", node)
		if c[0] == "init" {
			c = append(append(c, "--adopt-root", dir), flags...)
		}
		switch {
		case c[0] == "init" && strings.Contains(strings.Join(c, " "), "--yes"):
			stop = b.agent(t, ordinary, filepath.Join(dir, "out"), c...)
			b.waitPrimary(t, ordinary, node)
			checkRunning(t, b, dir)
			if !ordinary {
				checkJoin(t, b, dir)
			}
		case c[0] == "release":
			if out, code := b.run(ordinary, c...); code != 4 || !strings.Contains(out, "already runs") {
				t.Errorf("release beside a running agent: exit %d:\n%s", code, out)
			}
			stop()
			if !ordinary { // another replica is still in the group
				if out, code := b.run(ordinary, c...); code != 4 || !strings.Contains(out, "coterie remove n2") {
					t.Errorf("release beside another replica: exit %d:\n%s", code, out)
				}
				stop = b.agent(t, ordinary, filepath.Join(dir, "out"), "agent", "--node", node)
				b.waitPrimary(t, ordinary, node)
				if out, code := b.run(ordinary, "remove", "n2", "--node", node); code != 0 {
					t.Fatalf("remove: exit %d:\n%s", code, out)
				}
				waitForgotten(t, filepath.Join(node, "state", "group.json"), `"n2"`)
				stop()
			}
			if out, code := b.run(ordinary, c...); code != 0 || !strings.Contains(out, "pg_ctlcluster "+strings.Replace(b.name(), "/", " ", 1)+" start") {
				t.Fatalf("%v: exit %d:\n%s", c, code, out)
			}
		default:
			if out, code := b.run(ordinary, c...); code != 0 {
				t.Fatalf("%v: exit %d:\n%s", c, code, out)
			}
		}
	}
	checkReleased(t, b, dir, string(autoWas))
	if systemctl != "" {
		unit := "postgresql@" + strings.Replace(b.name(), "/", "-", 1) + ".service\n"
		if got, _ := os.ReadFile(systemctl); string(got) != "mask "+unit+"unmask "+unit {
			t.Errorf("systemctl was called with %q", got)
		}
	}
}

// waitForgotten waits until the agent has written down that the group is smaller.
func waitForgotten(t *testing.T, file, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && !strings.Contains(string(b), name) {
			return
		}
	}
	t.Fatalf("%s still names %s", file, name)
}

// fakeSystemd makes dir look as if systemd ran there, and returns the file that tells what was asked of it.
func fakeSystemd(t *testing.T, b *bench, dir string) (calls string) {
	t.Helper()
	calls = filepath.Join(dir, "systemctl.calls")
	b.write(t, filepath.Join(dir, "run/systemd/system/x"), "")
	b.write(t, filepath.Join(dir, "lib/systemd/system/postgresql@.service"), "[Service]\n")
	script := filepath.Join(dir, "bin", "systemctl")
	b.write(t, script, "#!/bin/sh\n[ $(id -u) = 0 ] && echo \"$@\" >>"+calls+"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(script)+":"+os.Getenv("PATH"))
	return calls
}

// checkJoin adds a second node: it gets the data and, although postgresql.conf is outside the data directory, the settings.
func checkJoin(t *testing.T, b *bench, dir string) {
	t.Helper()
	out, code := b.run(false, "token", "create", "--node", filepath.Join(dir, "node"))
	i := strings.Index(out, "coterie1.")
	if code != 0 || i < 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	token := strings.Fields(out[i:])[0]
	joiner := filepath.Join(dir, "joiner")
	if err := errors.Join(os.Mkdir(joiner, 0o700), os.Chown(joiner, b.uid, b.gid)); err != nil {
		t.Fatal(err)
	}
	at := func() string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }
	readOnly := at()
	stop := b.agent(t, false, filepath.Join(joiner, "out"), "join", token, "--node", filepath.Join(joiner, "node"), "--name", "n2", "--superuser", "dba",
		"--endpoint", at(), "--read-write", at(), "--read-only", readOnly, "--http", at())
	defer stop()
	var got string
	err := errors.New("not tried")
	for end := time.Now().Add(2 * time.Minute); err != nil && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var conn *pgx.Conn
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if conn, err = pgx.Connect(ctx, fmt.Sprintf("postgres://app:old%%20secret@%s/postgres", readOnly)); err == nil {
			// Until the copy is there, the port leads to the primary.
			err = conn.QueryRow(ctx, "SELECT current_setting('maintenance_work_mem') || ' ' || current_setting('work_mem') || ' ' || count(*) FROM t WHERE pg_is_in_recovery() AND g > 0").Scan(&got)
			if err == nil && strings.HasSuffix(got, " 0") {
				err = errors.New("not a secondary")
			}
			_ = conn.Close(ctx)
		}
		cancel()
	}
	if err != nil || got != "77MB 7MB 1000" {
		t.Errorf("the node that joined says %q, %v", got, err)
	}
}

// agent runs a command that ends with the agent in the foreground.
func (b *bench) agent(t *testing.T, ordinary bool, outFile string, args ...string) (stop func()) {
	t.Helper()
	f, err := os.Create(outFile)
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.command(context.Background(), ordinary, b.coterie, args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done: // its exit code after a signal says nothing
		case <-time.After(60 * time.Second):
			_ = cmd.Process.Kill()
			t.Error("the agent did not end")
		}
		_ = f.Close()
		if t.Failed() {
			out, _ := os.ReadFile(outFile)
			log, _ := os.ReadFile(filepath.Join(filepath.Dir(outFile), "node", "log", "agent.log"))
			t.Logf("output:\n%s\nlog:\n%s", out, log[max(0, len(log)-8000):])
		}
	}
	t.Cleanup(stop)
	return stop
}

func (b *bench) waitPrimary(t *testing.T, ordinary bool, node string) {
	t.Helper()
	var out string
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var code int
		if out, code = b.run(ordinary, "status", "--node", node); code == 0 {
			return
		}
	}
	t.Fatalf("no primary after two minutes:\n%s", out)
}

// checkRunning logs in through the listener with an old password, and looks at what survived.
func checkRunning(t *testing.T, b *bench, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	port := portOf(t, b, dir)
	// The listener took over the old TCP port and the old socket.
	for _, host := range []string{"127.0.0.1", dir} {
		conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=app password='old secret' dbname=postgres", host, port))
		if err != nil {
			t.Fatal(err)
		}
		for sql, want := range map[string]string{
			"SELECT count(*)::text FROM t WHERE g > 0": "1000", "SHOW work_mem": "7MB", "SHOW maintenance_work_mem": "77MB",
			"SHOW restore_command": "", "SHOW synchronous_standby_names": "", "SELECT session_user::text": "app", "SELECT pg_is_in_recovery()::text": "false",
		} {
			var got string
			if err := conn.QueryRow(ctx, sql).Scan(&got); err != nil || got != want {
				t.Errorf("%s through %s: %q, %v; want %q", sql, host, got, err, want)
			}
		}
		if _, err := conn.Exec(ctx, "INSERT INTO t VALUES (0)"); err != nil {
			t.Error(err)
		}
		_ = conn.Close(ctx)
	}
	if _, err := pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%s user=app password=wrong dbname=postgres sslmode=disable", port)); err == nil {
		t.Error("a wrong password was accepted")
	}
	for f, want := range map[string]string{filepath.Join(b.etc(dir), "start.conf"): "# Automatic startup configuration\n\ndisabled\n"} {
		if got, _ := os.ReadFile(f); string(got) != want {
			t.Errorf("%s is %q, want %q", f, got, want)
		}
	}
	if generated, _ := os.ReadFile(filepath.Join(dir, "data", "postgresql.conf")); !strings.Contains(string(generated), "maintenance_work_mem = '") || strings.Contains(string(generated), "data_directory") {
		t.Errorf("the configuration of joining nodes is:\n%s", generated)
	}
	if _, err := os.Lstat(filepath.Join(dir, "data", "standby.signal")); err != nil {
		t.Error("a start by accident would be a primary's: standby.signal is not there")
	}
}

func portOf(t *testing.T, b *bench, dir string) string {
	t.Helper()
	conf, _ := os.ReadFile(filepath.Join(b.etc(dir), "postgresql.conf"))
	_, after, ok := strings.Cut(string(conf), "\nport = ")
	for next := after; ok; { // the last one is in force
		if _, next, ok = strings.Cut(next, "\nport = "); ok {
			after = next
		}
	}
	port, _, _ := strings.Cut(after, "\n")
	return port
}

// checkReleased starts the cluster as its owner would have before.
func checkReleased(t *testing.T, b *bench, dir, autoWas string) {
	t.Helper()
	data := filepath.Join(dir, "data")
	if got, _ := os.ReadFile(filepath.Join(b.etc(dir), "start.conf")); !strings.HasSuffix(string(got), "\nauto\n") {
		t.Errorf("start.conf is %q", got)
	}
	for _, f := range []string{"standby.signal", "coterie.copy", "postgresql.conf"} {
		if _, err := os.Lstat(filepath.Join(data, f)); err == nil {
			t.Errorf("%s was left in the data directory", f)
		}
	}
	auto, _ := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	for line := range strings.Lines(autoWas) {
		if !strings.Contains(string(auto), line) {
			t.Errorf("postgresql.auto.conf lost %q; it is\n%s", line, auto)
		}
	}
	if out, code := b.server("pg_ctl", "start", "-w", "-D", data, "-l", filepath.Join(dir, "log"), "-o", "-c config_file="+filepath.Join(b.etc(dir), "postgresql.conf")); code != 0 {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Fatalf("the released cluster does not start: %s\n%s", out, log)
	}
	out, code := b.server("psql", "-X", "-At", "-h", dir, "-p", portOf(t, b, dir), "-U", "dba", "-d", "postgres", "-c", "SELECT count(*), pg_is_in_recovery() FROM t")
	if code != 0 || strings.TrimSpace(out) != "1002|f" {
		t.Errorf("the released cluster says %q", out)
	}
	if out, code := b.server("pg_ctl", "stop", "-w", "-m", "fast", "-D", data); code != 0 {
		t.Error(out)
	}
}

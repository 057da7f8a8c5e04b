package adopt_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// bench is a place where clusters can be adopted: a program that every user may run, and a cluster to copy.
type bench struct {
	dir, coterie string
	in           programs.Install
	uid, gid     int // of the user that runs servers
}

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
	found, err := programs.Find(context.Background())
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
	build := exec.Command("go", "build", "-o", b.coterie, "../../../cmd/coterie")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if err := errors.Join(os.Chown(b.dir, b.uid, b.gid), os.Chmod(b.dir, 0o755)); err != nil {
		return nil, err
	}
	return b, b.makeTemplate()
}

func (b *bench) makeTemplate() error {
	if out, code := b.server("initdb", "-D", b.template(), "-U", "dba", "--no-sync", "--wal-segsize=1", "--auth-local=trust", "--auth-host=scram-sha-256"); code != 0 {
		return errors.New(out)
	}
	// There are few settings, because the server's program is run for each.
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

// run runs coterie as the user that runs the tests. With ordinary it runs as the server's user, which differs only
// under root.
func (b *bench) run(ordinary bool, args ...string) (string, int) {
	return b.as(ordinary, b.coterie, args...)
}

func (b *bench) as(ordinary bool, name string, args ...string) (string, int) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := b.command(ctx, ordinary, name, args...)
	// The output goes to a file, because a server that is started would hold a pipe open.
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
		"external_pid_file = '%s/pid'\nunix_socket_directories = '%s'\nport = %d\ninclude_dir = 'conf.d'\nsynchronous_standby_names = 'elsewhere'\n", data, etc, etc, dir, dir, ports.One(t)))
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

// tree returns a digest of everything under dir: names, modes, owners, contents and modification times.
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

// portFlags returns the flags that put everything on free loopback ports. The clients' port is the cluster's own.
func portFlags(t *testing.T) []string {
	t.Helper()
	return []string{"--endpoint", ports.Address(t), "--read-only", ports.Address(t), "--http", ports.Address(t), "--name", "n1"}
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
		case <-done: // its exit code after a signal means nothing
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

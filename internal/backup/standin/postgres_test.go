package standin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/window"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// pair is a primary that archives, its secondary, and the primary's part in backups.
type pair struct {
	primary, secondary *pgtest.Server
	dir                string
	windows            *window.Service
	leads              atomic.Bool
	cut                atomic.Bool // the primary is not reached
}

// servers makes a pair with a repository.
func servers(t *testing.T) *pair {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real servers")
	}
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	dir, err := os.MkdirTemp("/tmp", "cb") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &pair{dir: dir}
	p.leads.Store(true)
	archives := pgtest.Options{Settings: []string{
		"archive_mode=on", "archive_command=pgbackrest --config=" + p.config("p") + " --config-include-path=" + dir + "/none --stanza=s archive-push %p",
	}}
	p.primary, err = pgtest.NewWith(archives)
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip("NOT RUN: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.primary.Remove() })
	if p.secondary, err = p.primary.ReplicaWith(archives); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.secondary.Remove() })
	for name, s := range map[string]*pgtest.Server{"p": p.primary, "s": p.secondary} {
		text := fmt.Sprintf("[global]\nrepo1-path=%[1]s/repo\nrepo1-retention-full=2\nstart-fast=y\narchive-timeout=20\nlog-level-file=off\nlog-level-console=detail\nlock-path=%[1]s/lock-%[2]s\nlog-path=%[1]s\nspool-path=%[1]s\n"+
			"[s]\npg1-path=%[3]s\npg1-socket-path=%[4]s\npg1-user=postgres\n", dir, name, s.Data(), s.Dir())
		if err := os.WriteFile(p.config(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "none"), 0o700); err != nil { // else files of the machine are read
		t.Fatal(err)
	}
	p.own(t, dir, filepath.Join(dir, "none"), p.config("p"), p.config("s"))
	p.windows = window.New(window.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, p.primary.DSN()) }, Leads: p.leads.Load, Log: slog.New(slog.DiscardHandler),
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = p.windows.Run(ctx); close(ended) }()
	t.Cleanup(func() { end(); <-ended })
	p.must(t, "p", "stanza-create")
	return p
}

func (p *pair) config(name string) string { return filepath.Join(p.dir, name+".conf") }

// own gives files to the servers' user.
func (p *pair) own(t *testing.T, files ...string) {
	t.Helper()
	st, err := os.Stat(p.primary.Data())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Chown(f, p.user(t), int(st.Sys().(*syscall.Stat_t).Gid)); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *pair) user(t *testing.T) int {
	t.Helper()
	st, err := os.Stat(p.primary.Data())
	if err != nil {
		t.Fatal(err)
	}
	return int(st.Sys().(*syscall.Stat_t).Uid)
}

// tool prepares pgBackRest with the configuration of one of the two.
func (p *pair) tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd, err := p.primary.Command("postgres")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "pgbackrest", append([]string{"--config=" + p.config(name), "--config-include-path=" + p.dir + "/none", "--stanza=s"}, args...)...)
	c.Dir, c.SysProcAttr = p.dir, cmd.SysProcAttr
	return c
}

func (p *pair) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := p.tool(t, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// Step is what the agents do in between.
func (p *pair) step(ctx context.Context, r backup.StepRequest) (backup.StepAnswer, error) {
	if p.cut.Load() {
		return backup.StepAnswer{}, errors.New("the primary is not reached")
	}
	return p.windows.Do(ctx, "n2", r)
}

// backup makes a backup of the secondary. It returns what the tool said, and the first failure of the stand-in.
func (p *pair) backup(t *testing.T, renew time.Duration) (said string, err error, failed error) {
	t.Helper()
	ctx, end := context.WithCancelCause(t.Context())
	s, err := Listen(ctx, Config{
		Run: p.dir, User: p.user(t), Renew: renew, Primary: p.step, ReplayLimit: 5 * time.Second, Waiting: func(string) {},
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, p.secondary.DSN()) },
	}, end)
	if err != nil {
		t.Fatal(err)
	}
	p.own(t, s.Dir(), filepath.Join(s.Dir(), socketName))
	served := make(chan struct{})
	go func() { s.Serve(ctx); close(served) }()
	cmd := p.tool(t, "s", "backup", "--type=full", "--pg2-path="+p.secondary.Data(), "--pg2-socket-path="+s.Dir(), "--pg2-user=postgres")
	cmd.Env = append(os.Environ(), "PGBACKREST_BACKUP_STANDBY=y")
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	out, err := cmd.CombinedOutput()
	stop()
	failed = context.Cause(ctx)
	end(nil)
	<-served
	if _, gone := os.Stat(s.Dir()); !os.IsNotExist(gone) {
		t.Errorf("the socket stays: %v", gone)
	}
	return string(out), err, failed
}

func (p *pair) sql(t *testing.T, on *pgtest.Server, statement string) (out string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), on.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(c)
	if err := c.QueryRow(t.Context(), statement).Scan(&out); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", statement, err)
	}
	return out
}

// TestBackupOfASecondary makes a backup with the real program of a secondary of a primary that is written to, restores
// it, and looks for every row that was committed before the backup ended.
func TestBackupOfASecondary(t *testing.T) {
	p := servers(t)
	p.sql(t, p.primary, "create table rows (i bigserial)")
	p.sql(t, p.primary, "insert into rows select from generate_series(1, 100000)")
	p.sql(t, p.primary, "create database another")
	ctx, end := context.WithCancel(t.Context())
	var committed atomic.Int64
	written := make(chan struct{})
	go func() {
		defer close(written)
		c, err := pgx.Connect(ctx, p.primary.DSN())
		for err == nil && ctx.Err() == nil {
			var i int64
			if err = c.QueryRow(ctx, "insert into rows default values returning i").Scan(&i); err == nil {
				committed.Store(i)
			}
		}
	}()
	said, err, failed := p.backup(t, time.Second)
	last := committed.Load()
	end()
	<-written
	if err != nil || failed != nil {
		t.Fatalf("%v, %v\n%s", err, failed, said)
	}
	p.sql(t, p.primary, "select pg_switch_wal()::text")
	p.must(t, "p", "check")
	to := filepath.Join(p.dir, "restored")
	p.must(t, "p", "restore", "--pg1-path="+to, "--type=default")
	restored := start(t, p, to)
	if n := restored(t, "select count(*)::text from rows where i <= "+fmt.Sprint(last)); n != fmt.Sprint(last) {
		t.Errorf("%s rows of %d that were committed before the backup ended", n, last)
	}
	if n := restored(t, "select datname::text from pg_database where datname = 'another'"); n != "another" {
		t.Error("a database is missing")
	}
	if n := p.sql(t, p.primary, "select count(*)::text from pg_locks where locktype = 'advisory'"); n != "0" {
		t.Errorf("%s locks stay", n)
	}
}

// start starts a server on a restored directory, and returns how it is asked.
func start(t *testing.T, p *pair, data string) func(*testing.T, string) string {
	t.Helper()
	cmd, err := p.primary.Command("postgres", "-D", data, "-k", p.dir, "-c", "listen_addresses=", "-c", "archive_mode=off", "-c", "cluster_name=")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(p.dir, "restored.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGQUIT); _ = cmd.Wait(); _ = log.Close() })
	dsn := "postgres://postgres@/postgres?host=" + p.dir
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = retry.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		c, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return false, nil
		}
		defer closed(c)
		var recovery bool
		err = c.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&recovery)
		return err == nil && !recovery, nil
	})
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, text)
	}
	return func(t *testing.T, statement string) (out string) {
		t.Helper()
		c, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(c)
		if err := c.QueryRow(t.Context(), statement).Scan(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// TestBackupsThatFail holds that a backup fails, and with which words, where the primary is not reached or leads no
// more, or where replay stands still; and that the next one succeeds.
func TestBackupsThatFail(t *testing.T) {
	p := servers(t)
	p.sql(t, p.primary, "create table bulk as select i, (select string_agg(md5(random()::text), '') from generate_series(1, 8) x where i = i) t from generate_series(1, 100000) i")
	// during calls f once the primary is in backup mode.
	during := func(f func()) {
		go func() {
			c, err := pgx.Connect(t.Context(), p.primary.DSN())
			if err != nil {
				return
			}
			defer closed(c)
			for range 600 {
				var n int
				if c.QueryRow(t.Context(), "select count(*) from pg_locks where locktype = 'advisory'").Scan(&n) == nil && n > 0 {
					f()
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	for _, tt := range []struct {
		name    string
		f, undo func()
		says    string
	}{
		{"the way is cut", func() { p.cut.Store(true) }, func() { p.cut.Store(false) }, "the primary is not reached"},
		{"another one leads", func() { p.leads.Store(false) }, func() { p.leads.Store(true) }, "the primary is not in this backup any more"},
	} {
		during(tt.f)
		said, err, failed := p.backup(t, 100*time.Millisecond)
		tt.undo()
		if err == nil || failed == nil || !strings.Contains(failed.Error(), tt.says) && !strings.Contains(failed.Error(), "is not the primary") {
			t.Errorf("%s: %v, %v\n%s", tt.name, err, failed, said)
		}
	}
	p.sql(t, p.secondary, "select pg_wal_replay_pause()::text")
	said, err, failed := p.backup(t, time.Second)
	p.sql(t, p.secondary, "select pg_wal_replay_resume()::text")
	if err == nil || !errors.Is(failed, ErrLags) {
		t.Errorf("replay stands still: %v, %v\n%s", err, failed, said)
	}
	if said, err, failed := p.backup(t, time.Second); err != nil || failed != nil {
		t.Errorf("the next one: %v, %v\n%s", err, failed, said)
	}
}

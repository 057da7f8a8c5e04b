package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	nodemajors "github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/majors"
)

// waiter is a session that counts, and notes how long it had to wait and what it was told.
type waiter struct {
	longest atomic.Int64
	counted atomic.Int64 // transactions
	ended   atomic.Int64 // how often its session ended, and it connected again
	errs    chan error
	done    chan struct{}
	end     context.CancelFunc
}

// counts begins a session that increments a row, one transaction after the other, until end.
func (g *group) counts(t *testing.T) *waiter {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	w := &waiter{errs: make(chan error, 100), done: make(chan struct{}), end: end}
	conn, err := pgx.Connect(ctx, g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.done)
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		for ctx.Err() == nil {
			began := time.Now()
			for {
				_, err := conn.Exec(ctx, "UPDATE counted SET n = n + 1", pgx.QueryExecModeSimpleProtocol)
				if err == nil || ctx.Err() != nil {
					break
				}
				var told *pgconn.PgError
				if !errors.As(err, &told) || told.Code != "40001" && told.Code != "57P01" {
					w.errs <- err
					return
				}
				w.ended.Add(1)
				if conn, err = pgx.Connect(ctx, g.ReadWrite()); err != nil {
					w.errs <- err
					return
				}
			}
			if took := int64(time.Since(began)); took > w.longest.Load() {
				w.longest.Store(took)
			}
			w.counted.Add(1)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return w
}

// goesOn waits until the session has made a transaction from now on, or has failed.
func (w *waiter) goesOn(t *testing.T) {
	t.Helper()
	was, end := w.counted.Load(), time.Now().Add(2*time.Minute)
	for w.counted.Load() < was+2 && len(w.errs) == 0 {
		if time.Now().After(end) {
			t.Fatal("the session makes no transaction any more")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends it, and returns the longest wait and the first error.
func (w *waiter) stop() (time.Duration, error) {
	w.end()
	<-w.done
	select {
	case err := <-w.errs:
		return time.Duration(w.longest.Load()), err
	default:
		return time.Duration(w.longest.Load()), nil
	}
}

// keepers are sessions that are idle while a group passes to another version: kept has state that can go along, lost
// has what cannot.
type keepers struct{ kept, lost *pgx.Conn }

func (g *group) keepers(t *testing.T) keepers {
	t.Helper()
	open := func(statement string) *pgx.Conn {
		c, err := pgx.Connect(t.Context(), g.ReadWrite())
		if err == nil {
			t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
			_, err = c.Exec(t.Context(), statement)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	k := keepers{open("SET work_mem = '9MB'"), open("CREATE TEMP TABLE mine (i int)")}
	if _, err := k.kept.Prepare(t.Context(), "one", "SELECT t FROM big WHERE i = $1"); err != nil {
		t.Fatal(err)
	}
	return k
}

// judge checks them on the new version.
func (k keepers) judge(t *testing.T, newer programs.Install) {
	t.Helper()
	var row, memory string
	err := k.kept.QueryRow(t.Context(), "one", 1).Scan(&row)
	if err == nil {
		err = k.kept.QueryRow(t.Context(), "SHOW work_mem").Scan(&memory)
	}
	if version := k.kept.PgConn().ParameterStatus("server_version"); err != nil || len(row) != 32 || memory != "9MB" || !strings.HasPrefix(version, strconv.Itoa(newer.Major)+".") {
		t.Errorf("a session that is moved: row %q, work_mem %q, version %q: %v", row, memory, version, err)
	}
	if _, err := k.lost.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a session with a temporary table goes on")
	}
}

// logical has the group's servers write WAL that can be decoded.
func (g *group) logical(t *testing.T) {
	t.Helper()
	primary := *g.ready(t).Primary
	must(t, "settings", "set", "wal_level=logical", "--node", g.node(primary))
	must(t, "restart", "--postgres", "--all", "--node", g.node(primary))
	g.ready(t)
	if l := sql(t, g.ReadWrite(), "SHOW wal_level"); l != "logical" {
		t.Fatalf("wal_level is %s", l)
	}
}

// TestEndToEndBlueGreen upgrades a group under load by blue/green. Sessions go on at the new version; every
// acknowledged row is there; what is not rows is there as well.
func TestEndToEndBlueGreen(t *testing.T) {
	long(t)
	_, newer := twoMajors(t)
	if to := os.Getenv("COTERIE_GREEN_TO"); to != "" {
		newer = majors.Of(t, to)
	}
	g := newGroup(t, lab.Options{Replicas: 2, Profile: os.Getenv("COTERIE_GREEN_PROFILE")})
	g.logical(t)
	for _, s := range []string{
		"CREATE TABLE big AS SELECT i, md5(i::text) AS t FROM generate_series(1, 200000) AS i", "ALTER TABLE big ADD PRIMARY KEY (i)",
		"CREATE TABLE counted (id int PRIMARY KEY, n bigint)", "INSERT INTO counted VALUES (1, 0)", "CREATE SEQUENCE seq", "SELECT setval('seq', 4711)",
		"CREATE ROLE app LOGIN PASSWORD 'secret'", "ALTER ROLE app SET work_mem = '7MB'", "GRANT SELECT ON big TO app", "COMMENT ON TABLE big IS 'the big one'",
		"CREATE MATERIALIZED VIEW few AS SELECT count(*) AS n FROM big", "CREATE TABLE parts (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED) PARTITION BY RANGE (id)",
		"CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (1000)", "INSERT INTO parts SELECT generate_series(1, 500)",
		"ALTER TABLE big ENABLE ROW LEVEL SECURITY", "CREATE TABLE bare (x int)",
	} {
		sql(t, g.ReadWrite(), s)
	}
	primary := *g.ready(t).Primary
	a := coterie(t, g.upgradeMajor(primary, newer, "--blue-green", "--dry-run")...)
	if a.code != 4 || !strings.Contains(a.out+a.err, "ALTER TABLE public.bare REPLICA IDENTITY FULL") {
		t.Fatalf("a table without an identity: %d %s %s", a.code, a.out, a.err)
	}
	sql(t, g.ReadWrite(), "ALTER TABLE bare REPLICA IDENTITY FULL")
	sql(t, g.ReadWrite(), "ALTER TABLE coterie_ledger.entry REPLICA IDENTITY FULL")
	g.await(t, "a look that finds nothing in the way", func(lab.Status) bool {
		a = coterie(t, g.upgradeMajor(primary, newer, "--blue-green", "--dry-run")...)
		t.Logf("%d %s", a.code, a.out)
		return a.code == 0
	})

	w, k := g.counts(t), g.keepers(t)
	began := time.Now()
	a = must(t, g.upgradeMajor(primary, newer, "--blue-green", "--primary-only")...)
	t.Logf("upgraded in %v:\n%s", time.Since(began).Round(100*time.Millisecond), a.err)
	w.goesOn(t)
	took, err := w.stop()
	t.Logf("the session waited for %v at most", took.Round(time.Millisecond))
	if err != nil || w.ended.Load() > 0 {
		t.Errorf("the session ended %d times: %v", w.ended.Load(), err)
	}
	k.judge(t, newer)
	if took > time.Minute { // seconds, on a machine that does nothing else
		t.Errorf("the session waited for %v", took)
	}
	for q, want := range map[string]string{
		"SELECT count(*) FROM big": "200000", "SELECT nextval('seq')": "4712", "SELECT n FROM few": "200000", "SELECT sum(g) FROM parts": "250500",
		"SELECT obj_description('big'::regclass)": "the big one", "SELECT setconfig[1] FROM pg_db_role_setting WHERE setrole = 'app'::regrole": "work_mem=7MB",
		"SELECT has_table_privilege('app', 'big', 'SELECT')": "true", "SELECT count(*) FROM pg_publication WHERE pubname <> 'coterie_blue'": "0", "SELECT count(*) FROM pg_subscription": "0",
		"SELECT current_setting('server_version_num')::int / 10000": fmt.Sprint(newer.Major), "SELECT left(rolpassword, 5) FROM pg_authid WHERE rolname = 'app'": "SCRAM",
	} {
		if got := sql(t, g.ReadWrite(), q); got != want {
			t.Errorf("%s: %q, not %q", q, got, want)
		}
	}
	must(t, g.upgradeMajor(primary, newer)...) // the other follows
	g.haveMajor(t, newer)
	g.judge(t)
	g.write(t)
	must(t, "failover", "--to", secondaries(g.ready(t))[0], "--node", g.node(primary))
	g.ready(t)
	g.acknowledged(t, 20)
	g.judge(t)
	g.down(t)
}

// greenCrash makes a group for the crash points of upgrades by blue/green and of their way back, and returns the two
// versions.
func greenCrash(t *testing.T) (c *crash, older, newer programs.Install) {
	t.Helper()
	long(t)
	if os.Getenv("COTERIE_CRASHPOINTS") == "" {
		t.Skip("make crashpoints runs it (COTERIE_CRASHPOINTS=all, or the beginning of a name)")
	}
	older, newer = twoMajors(t)
	c = &crash{points: armable(t)}
	c.group = raise(t, lab.Options{Replicas: 2, Profile: os.Getenv("COTERIE_GREEN_PROFILE")})
	c.logical(t)
	if err := c.run(t, "CREATE TABLE kept (n int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return c, older, newer
}

// TestCrashPointsOfBlueGreen ends the primary's agent at each point of an upgrade by blue/green. Each time the group
// has the old cluster or the new one, with every row, and the same command makes the upgrade.
func TestCrashPointsOfBlueGreen(t *testing.T) {
	c, older, newer := greenCrash(t)
	for i, name := range selected(points("a major upgrade by blue/green")) {
		t.Run(name, func(t *testing.T) {
			was := c.ready(t)
			if err := c.run(t, fmt.Sprintf("INSERT INTO kept VALUES (%d)", i)); err != nil {
				t.Fatal(err)
			}
			if err := c.points.Arm(name); err != nil {
				t.Fatal(err)
			}
			c.command(t, c.upgradeMajor(*was.Primary, newer, "--blue-green")...)
			c.fired(t, name)
			c.revived(t)
			c.ready(t)
			c.keeps(t, i+1)
			primary := c.finishes(t, func(primary string) []string { return c.upgradeMajor(primary, newer, "--blue-green") })
			c.haveMajor(t, newer)
			c.keeps(t, i+1)
			c.finishes(t, func(primary string) []string {
				return []string{"upgrade", "major", "--rollback", "--yes", "--pg-bindir", older.BinDir, "--node", c.node(primary)}
			})
			c.haveMajor(t, older)
			c.keeps(t, i+1)
			if err := os.RemoveAll(c.newData(t, primary, older, newer)); err != nil {
				t.Fatal(err)
			}
			c.told.WriteString(fmt.Sprintf("%-20s there and back\n", name))
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	c.down(t)
}

// filling begins an upgrade by blue/green and returns when the server of the new cluster has the definitions. It gets
// no rows before held is closed, whose transaction is open. over has the command's exit code when it ends.
func (g *group) filling(t *testing.T, primary string, newer programs.Install) (held *pgx.Conn, green int, over chan int) {
	t.Helper()
	held, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err == nil {
		_, err = held.Exec(t.Context(), "BEGIN; INSERT INTO kept VALUES (-1)", pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, g.upgradeMajor(primary, newer, "--blue-green", "--primary-only")...)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over = make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		over <- cmd.ProcessState.ExitCode()
	}()
	layout, err := config.NewLayout(g.node(primary))
	if err != nil {
		t.Fatal(err)
	}
	g.await(t, "the new cluster to be defined", func(lab.Status) bool {
		u, err := nodemajors.Read(layout)
		if err != nil || u.Stage != major.Defined || u.Phase != major.Copying {
			return false
		}
		b, err := os.ReadFile(filepath.Join(u.To.Data, "postmaster.pid"))
		first, _, _ := strings.Cut(string(b), "\n")
		green, _ = strconv.Atoi(first)
		return err == nil && green > 1
	})
	return held, green, over
}

// TestKillsWhileGreenIsFilled ends a server, a node, the command or the leadership while the new cluster is filled. The
// group goes on with the old one, of the new one nothing is left, and the same command makes the upgrade in the end.
func TestKillsWhileGreenIsFilled(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := raise(t, lab.Options{Replicas: 2})
	g.logical(t)
	sql(t, g.ReadWrite(), "CREATE TABLE kept (n int PRIMARY KEY)")
	sql(t, g.ReadWrite(), "INSERT INTO kept SELECT generate_series(1, 1000)")
	for _, f := range []struct {
		what string
		do   func(t *testing.T, s lab.Status, green int)
	}{
		{"the server of the new cluster is killed", func(t *testing.T, _ lab.Status, green int) { signal(t, green, syscall.SIGKILL) }},
		{"the server of the old cluster is killed", func(t *testing.T, s lab.Status, _ int) {
			signal(t, pid(t, s, *s.Primary, lab.WhatPostgres), syscall.SIGKILL)
		}},
		{"another replica leads", func(t *testing.T, s lab.Status, _ int) {
			must(t, "failover", "--to", secondaries(s)[0], "--cut", "--drain", "1s", "--node", g.node(*s.Primary))
		}},
		{"the node is killed", func(t *testing.T, s lab.Status, _ int) {
			g.kill(t, *s.Primary)
			g.newPrimary(t, s)
			g.revive(t, *s.Primary)
		}},
	} {
		t.Run(f.what, func(t *testing.T) {
			was := g.ready(t)
			dir := g.newData(t, *was.Primary, older, newer)
			held, green, over := g.filling(t, *was.Primary, newer)
			f.do(t, was, green)
			if code := <-over; code == 0 {
				t.Error("the upgrade was made")
			}
			_ = held.Close(context.WithoutCancel(t.Context()))
			g.ready(t)
			g.haveMajor(t, older)
			g.await(t, "nothing to be left of the new cluster", func(lab.Status) bool { return !g.exists(dir) && len(g.greenSlots(t)) == 0 })
			if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM kept"); got != "1000" {
				t.Errorf("%s of 1000 rows", got)
			}
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Run("the command is killed", func(t *testing.T) {
		was := g.ready(t)
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, exe, g.upgradeMajor(*was.Primary, newer, "--blue-green")...)
		cmd.Dir = "/"
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		g.await(t, "the upgrade to begin", func(lab.Status) bool { return g.exists(g.newData(t, *was.Primary, older, newer)) })
		cancel()
		_ = cmd.Wait()
		must(t, g.upgradeMajor(*was.Primary, newer, "--blue-green")...)
		g.haveMajor(t, newer)
		if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM kept"); got != "1000" {
			t.Errorf("%s of 1000 rows", got)
		}
	})
	g.down(t)
}

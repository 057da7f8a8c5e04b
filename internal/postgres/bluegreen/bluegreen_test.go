package bluegreen_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/bluegreen"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/test/majors"
)

// asServer runs the rest of the test as a user that may run servers. PostgreSQL refuses root.
func asServer(t *testing.T) bool {
	t.Helper()
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("NOT RUN: set COTERIE_LONG=1")
	}
	if os.Geteuid() != 0 {
		return true
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("NOT RUN: PostgreSQL refuses root, and there is no user postgres")
	}
	dir, err := os.MkdirTemp("/tmp", "cotbg")
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
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("as user postgres: %v", err)
	}
	if bytes.Contains(out, []byte("SKIP")) {
		t.Skip("as user postgres")
	}
	return false
}

// twins is blue, which runs, and green, which is empty.
type twins struct {
	*bluegreen.Pair
	blue   session.Server
	older  programs.Install
	dir    string
	server *exec.Cmd // blue's
}

// endBlue ends blue's server in order, and returns its control file.
func (w *twins) endBlue(t *testing.T) pgfiles.Control {
	t.Helper()
	_ = w.server.Process.Signal(syscall.SIGINT)
	if err := w.server.Wait(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.older.BinDir, "pg_controldata"), "-D", filepath.Join(w.dir, "blue"))
	cmd.Env = programs.ToolEnv()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := pgfiles.ParseControl(string(out))
	if err != nil || ctl.State != "shut down" {
		t.Fatalf("%s, %v", ctl.State, err)
	}
	return ctl
}

// end is how far a cluster has flushed.
func end(t *testing.T, open func(context.Context, string) (*pgx.Conn, error)) (x string) {
	t.Helper()
	c, err := open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	if err := c.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&x); err != nil {
		t.Fatal(err)
	}
	return x
}

// run executes statements in sessions that open begins, one transaction each.
func run(t *testing.T, open func(context.Context, string) (*pgx.Conn, error), database string, statements ...string) {
	t.Helper()
	c, err := open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	for _, s := range statements {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// filled has green get everything of blue so far, and returns the fingerprint.
func (w *twins) filled(t *testing.T) (print string) {
	t.Helper()
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	print, err := w.Define(t.Context())
	if err == nil {
		err = w.Subscribe(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	w.copied(t)
	if err := w.MakeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return print
}

// TestStraggler: a session on blue's own socket commits after green had everything. The number of the next transaction
// in the control file tells it, and is the one that Finish has returned where nobody did.
func TestStraggler(t *testing.T) {
	if !asServer(t) {
		return
	}
	for _, late := range []bool{false, true} {
		w := newTwins(t)
		w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		print := w.filled(t)
		next, err := w.Finish(t.Context(), end(t, w.Blue), bluegreen.Shape{Print: print, Databases: []string{"postgres", "template1"}})
		if err != nil {
			t.Fatal(err)
		}
		if late {
			w.exec(t, "", "INSERT INTO t VALUES (2)")
		}
		if ctl := w.endBlue(t); (ctl.NextXID == next) == late {
			t.Errorf("somebody wrote: %v; the next transaction is %d, and was to be %d", late, ctl.NextXID, next)
		}
	}
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	older, newer := majors.Two(t)
	if to := os.Getenv("COTERIE_GREEN_TO"); to != "" {
		newer = majors.Of(t, to)
	}
	dir, err := os.MkdirTemp("/tmp", "cotbg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, d := range []string{"b", "g"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hba := filepath.Join(dir, "hba")
	if err := os.WriteFile(hba, []byte("local all all trust\nlocal replication all trust\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, in := range map[string]programs.Install{"blue": older, "green": newer} {
		tool(t, filepath.Join(in.BinDir, "initdb"), "-D", filepath.Join(dir, path), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	}
	w := &twins{blue: session.Server{SocketDir: filepath.Join(dir, "b"), Superuser: "postgres", Major: older.Major}, older: older, dir: dir}
	server := exec.Command(filepath.Join(older.BinDir, "postgres"), "-D", filepath.Join(dir, "blue"), "-c", "listen_addresses=", "-c", "unix_socket_directories="+w.blue.SocketDir,
		"-c", "port="+strconv.Itoa(session.Port), "-c", "wal_level=logical", "-c", "hba_file="+hba, "-c", "max_prepared_transactions=2", "-c", "max_replication_slots=20", "-c", "max_wal_senders=20", "-c", "fsync=off")
	server.Env = programs.ToolEnv()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.server = server
	t.Cleanup(func() { _ = server.Process.Signal(syscall.SIGQUIT); _ = server.Wait() })
	w.Pair = &bluegreen.Pair{
		Blue: func(ctx context.Context, database string) (*pgx.Conn, error) {
			return w.blue.Connect(ctx, func(c *pgx.ConnConfig) {
				if database != "" {
					c.Database = database
				}
			})
		},
		Sockets: w.blue.SocketDir, Install: newer, Data: filepath.Join(dir, "green"), Work: filepath.Join(dir, "g"), HBA: hba, LogFile: filepath.Join(dir, "green.log"), Superuser: "postgres",
	}
	t.Cleanup(func() { _ = w.End(false) })
	err = retry.Until(t.Context(), 20*time.Millisecond, func() (bool, error) {
		c, err := w.Blue(t.Context(), "")
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("from %s to %s", older.Version, newer.Version)
	return w
}

func tool(t *testing.T, path string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = programs.ToolEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", path, args, err, out)
	}
}

// exec executes statements on one of the clusters, one transaction each.
func (w *twins) exec(t *testing.T, database string, statements ...string) {
	t.Helper()
	c, err := w.Blue(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	for _, s := range append([]string{"SET search_path = public"}, statements...) {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// has checks the answer of green to a query.
func (w *twins) has(t *testing.T, database, query, want string) {
	t.Helper()
	c, err := w.Green(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	var got any
	if err := c.QueryRow(t.Context(), query).Scan(&got); err != nil || fmt.Sprint(got) != want {
		t.Errorf("%s: %v, not %s (%v)", query, got, want, err)
	}
}

// copied waits until green has all rows.
func (w *twins) copied(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var p bluegreen.Progress
	err := retry.Until(ctx, 50*time.Millisecond, func() (done bool, err error) {
		p, err = w.Progress(ctx)
		return err == nil && p.Tables == 0 && p.Of > 0 && p.Lag < 1<<20, err
	})
	if err != nil {
		t.Fatalf("%+v, %v", p, err)
	}
}

// TestPair fills a new cluster from one that serves, and holds what it has at the end, and that nothing is left.
func TestPair(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", `CREATE ROLE "A pp" LOGIN PASSWORD 'secret'`, `ALTER ROLE "A pp" SET work_mem = '7MB'`, "CREATE DATABASE shop", "ALTER DATABASE postgres SET work_mem = '3MB'",
		`ALTER ROLE "A pp" IN DATABASE shop SET work_mem = '5MB'`, "CREATE TABLE here (i int PRIMARY KEY)", "INSERT INTO here VALUES (1)")
	w.exec(t, "shop",
		"CREATE TABLE t (i int PRIMARY KEY, x text)", "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 5000) i", "CREATE TABLE bare (x int)", "CREATE UNLOGGED TABLE u (i int PRIMARY KEY)",
		"CREATE TABLE p (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, g int GENERATED ALWAYS AS (7) STORED) ", `CREATE SEQUENCE "S eq"`, `SELECT setval('"S eq"', 41, false)`,
		"CREATE MATERIALIZED VIEW m2 AS SELECT count(*) AS n FROM t", "CREATE MATERIALIZED VIEW m3 AS SELECT n + 1 AS n FROM m2", "SELECT lo_create(7)", "CREATE TABLE member (i int PRIMARY KEY)", "ALTER EXTENSION plpgsql ADD TABLE member", `GRANT SELECT ON t TO "A pp"`,
		"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.x := 1; RETURN NEW; END'", "CREATE TRIGGER tr BEFORE INSERT ON bare FOR EACH ROW EXECUTE FUNCTION f()",
		"ALTER TABLE bare ENABLE ALWAYS TRIGGER tr", "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
		"CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (100)", "INSERT INTO parts VALUES (5)")
	f, err := w.Look(t.Context())
	all := strings.Join(f.Obstacles, "\n")
	for _, want := range []string{
		"ALTER TABLE public.bare REPLICA IDENTITY FULL", "ALTER TABLE public.u SET LOGGED", "1 large objects", "member belongs to extension plpgsql", "ALTER TABLE public.bare ENABLE TRIGGER tr",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not named (%v):\n%s", want, err, all)
		}
	}
	if len(f.Obstacles) != 5 || len(f.Notes) != 3 {
		t.Errorf("%d obstacles, %d notes: %s\n%s", len(f.Obstacles), len(f.Notes), all, strings.Join(f.Notes, "\n"))
	}
	w.exec(t, "shop", "ALTER TABLE bare REPLICA IDENTITY FULL", "ALTER TABLE u SET LOGGED", "SELECT lo_unlink(7)", "ALTER EXTENSION plpgsql DROP TABLE member", "DROP TABLE member", "ALTER TABLE bare ENABLE TRIGGER tr")
	if f, err := w.Look(t.Context()); err != nil || len(f.Obstacles) > 0 {
		t.Fatalf("%v, %v", f.Obstacles, err)
	}
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	print, err := w.Define(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.copied(t)
	w.exec(t, "shop", "UPDATE t SET x = 'new' WHERE i <= 10", "DELETE FROM t WHERE i > 4990", "INSERT INTO bare VALUES (1), (2)", "UPDATE bare SET x = 3 WHERE ctid = '(0,2)'", "INSERT INTO p DEFAULT VALUES",
		"CREATE TEMP TABLE nobody (i int)", "ANALYZE", "TRUNCATE u", "SELECT nextval('\"S eq\"')", "VACUUM t")
	if err := w.MakeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	databases, err := w.Databases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	finish := func(print string) error {
		c, err := w.Blue(t.Context(), "")
		if err != nil {
			return err
		}
		defer session.Close(c)
		var x string
		if err := c.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&x); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		next, err := w.Finish(ctx, x, bluegreen.Shape{Print: print, Databases: databases})
		if err == nil {
			var now uint64
			if err := c.QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&now); err != nil || now != next {
				t.Errorf("the next transaction is %d, not %d (%v)", now, next, err)
			}
		}
		return err
	}
	if err := finish(print + "0"); !errors.Is(err, bluegreen.ErrChanged) || w.Over() {
		t.Fatalf("other definitions: %v", err)
	}
	began := time.Now()
	if err := finish(print); err != nil {
		t.Fatal(err)
	}
	t.Logf("finished in %v", time.Since(began))
	if w.Runs() || !w.Over() {
		t.Fatal("green still runs")
	}
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"SELECT count(*) FROM public.t": "4990", "SELECT count(*) FROM public.t WHERE x = 'new'": "10", "SELECT string_agg(x::text, ',' ORDER BY x) FROM public.bare": "1,3",
		"SELECT n FROM public.m3": "4991", "SELECT g FROM public.p": "7", "SELECT nextval('public.\"S eq\"')": "42", "SELECT nextval('public.p_id_seq')": "2", "SELECT count(*) FROM public.parts1": "1",
		"SELECT count(*) FROM pg_subscription": "0", "SELECT count(*) FROM pg_publication": "0", `SELECT has_table_privilege('A pp', 'public.t', 'SELECT')`: "true",
		"SELECT relrowsecurity FROM pg_class WHERE relname = 't'": "true", "SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'A pp'": "true",
		"SELECT count(*) FROM pg_db_role_setting": "3",
	} {
		w.has(t, "shop", query, want)
	}
	w.has(t, "postgres", "SELECT count(*) FROM public.here", "1")
	c, err := w.Blue(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	var left int
	if err := c.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)").Scan(&left); err != nil || left > 0 {
		t.Errorf("%d slots and publications are left (%v)", left, err)
	}
}

// TestDefinitionsThatChange holds which changes on blue are found, and which are none.
func TestDefinitionsThatChange(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY, x text)", "CREATE ROLE r", "CREATE SEQUENCE s", "CREATE TYPE e AS ENUM ('a')", "CREATE INDEX ix ON t (x)")
	databases, err := w.Databases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := func() string {
		p, err := w.Fingerprint(t.Context(), databases)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	was := now()
	for _, s := range []string{"INSERT INTO t VALUES (1)", "ANALYZE t", "VACUUM FREEZE t", "TRUNCATE t", "SELECT nextval('s')", "CREATE TEMP TABLE z (i int)", "CHECKPOINT", "REINDEX INDEX ix", "VACUUM FREEZE"} {
		if w.exec(t, "", s); now() != was {
			t.Errorf("%s is taken for a change of definitions", s)
			was = now()
		}
	}
	for _, s := range []string{
		"ALTER TABLE t ADD y int", "CREATE TABLE t2 (i int)", "ALTER TABLE t REPLICA IDENTITY FULL", "GRANT SELECT ON t TO r", "ALTER ROLE r PASSWORD 'x'", "ALTER TYPE e ADD VALUE 'b'", "DROP INDEX ix",
		"CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "ALTER DATABASE postgres SET work_mem = '1MB'", "ALTER SEQUENCE s INCREMENT 5", "COMMENT ON TABLE t IS 'c'", "CREATE VIEW v AS SELECT 1",
		"CREATE POLICY p ON t", "ALTER TABLE t ALTER x SET DEFAULT 'd'", "CREATE SCHEMA sc", "GRANT r TO CURRENT_USER",
		"GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_file(text) TO r", "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_sleep(float8) FROM PUBLIC", "GRANT SELECT ON pg_catalog.pg_authid TO r",
		"GRANT SELECT (rolpassword) ON pg_catalog.pg_authid TO r", "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC", "REVOKE USAGE ON TYPE pg_catalog.int4 FROM PUBLIC", "ALTER SEQUENCE s OWNED BY t.i",
		"CREATE TEXT SEARCH CONFIGURATION c (COPY = simple)", "ALTER TEXT SEARCH CONFIGURATION c DROP MAPPING FOR url", "CREATE OPERATOR FAMILY fam USING btree", "ALTER OPERATOR FAMILY fam USING btree RENAME TO fam2",
		"ALTER OPERATOR FAMILY fam2 USING btree ADD FUNCTION 1 (int4, int8) btint48cmp(int4, int8)", "CREATE ACCESS METHOD am TYPE INDEX HANDLER bthandler", "CREATE TEXT SEARCH TEMPLATE tt (LEXIZE = dsimple_lexize)",
		"ALTER EXTENSION plpgsql ADD FUNCTION f()", "CREATE PUBLICATION pub", "ALTER PUBLICATION pub ADD TABLE t", "ALTER TABLE t2 ADD PRIMARY KEY (i)", "ALTER TABLE t2 SET UNLOGGED", "CREATE RULE ru AS ON DELETE TO t2 DO ALSO NOTHING",
		"ALTER TABLE t2 ENABLE ALWAYS RULE ru", "CREATE DATABASE other", "CREATE ROLE late", "CREATE TYPE row2 AS (i int, x text)", "ALTER TABLE t2 ADD x text, ALTER x SET STATISTICS 7", "CREATE STATISTICS st ON i, x FROM t2",
	} {
		if w.exec(t, "", s); now() == was {
			t.Errorf("%s is not found", s)
		}
		was = now()
	}
	if w.blue.Major < 15 {
		return
	}
	for _, s := range []string{"ALTER PUBLICATION pub ADD TABLES IN SCHEMA sc", "GRANT SET ON PARAMETER log_statement TO r"} {
		if w.exec(t, "", s); now() == was {
			t.Errorf("%s is not found", s)
		}
		was = now()
	}
}

// TestObstacleBeforeDefine holds that what cannot go along is found where it is made between the first look and the
// definitions, and that the fingerprint finds it if it is made behind them.
func TestObstacleBeforeDefine(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY)", "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
	if f, err := w.Look(t.Context()); err != nil || len(f.Obstacles) > 0 {
		t.Fatalf("%q, %v", f.Obstacles, err)
	}
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	obstacles := []struct{ does, undoes, want string }{
		{"CREATE UNLOGGED TABLE u (i int PRIMARY KEY)", "DROP TABLE u", "table public.u is unlogged"},
		{"CREATE TABLE bare (i int)", "DROP TABLE bare", "table public.bare has no primary key"},
		{"CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER tr", "DROP TRIGGER tr ON t", "trigger tr of public.t fires in replication"},
		{"SELECT lo_create(7)", "SELECT lo_unlink(7)", "1 large objects"},
		{"CREATE DATABASE shut ALLOW_CONNECTIONS false", "DROP DATABASE shut", "database shut takes no connections"},
	}
	for _, o := range obstacles {
		w.exec(t, "", o.does)
		if _, err := w.Define(t.Context()); err == nil || !strings.Contains(err.Error(), o.want) {
			t.Errorf("after %s: %v", o.does, err)
		}
		w.exec(t, "", o.undoes)
	}
	w.exec(t, "", "CREATE TABLE late (i int PRIMARY KEY)")
	print, err := w.Define(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range obstacles {
		w.exec(t, "", o.does)
		now, err := w.Fingerprint(t.Context(), []string{"postgres", "template1"})
		if carried := w.Carried(t.Context(), []string{"postgres", "template1"}); err != nil || now == print && carried == nil {
			t.Errorf("%s behind the definitions is not found: %v", o.does, err)
		}
		w.exec(t, "", o.undoes)
	}
}

// TestSweep holds that a copy that was given up leaves neither slots nor publications, however green ended.
func TestSweep(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE TABLE t AS SELECT i FROM generate_series(1, 200000) i", "ALTER TABLE t ADD PRIMARY KEY (i)", "SELECT pg_create_physical_replication_slot('mine')")
	if err := w.Start(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Define(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.End(false); err != nil { // as a kill would
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.Sweep(ctx, true); err != nil {
		t.Fatal(err)
	}
	c, err := w.Blue(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(c)
	var slots, publications int
	if err := c.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication)").Scan(&slots, &publications); err != nil || slots != 1 || publications != 0 {
		t.Errorf("%d slots and %d publications are left (%v)", slots, publications, err)
	}
}

// TestSlotThatIsGone holds that green is not believed to have everything when nothing says what it has.
func TestSlotThatIsGone(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	if err := w.Start(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	print, err := w.Define(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.copied(t)
	w.exec(t, "", "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active", "DO $$ BEGIN PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots; END $$", "INSERT INTO t VALUES (2)")
	if p, err := w.Progress(t.Context()); err != nil || !strings.Contains(p.Failed, "slot of the new cluster is gone") {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := w.Finish(t.Context(), "0/0", bluegreen.Shape{Print: print, Databases: []string{"postgres", "template1"}}); err == nil || !strings.Contains(err.Error(), "is gone") || w.Over() {
		t.Errorf("it is believed to have everything: %v", err)
	}
}

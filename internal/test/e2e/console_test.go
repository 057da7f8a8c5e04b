package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestConsole uses the console of a real group: with the installed drivers, with bad input, from several sessions at
// once, and checks with real reads where the published routing statements send them.
func TestConsole(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{})
	t.Run("the published statements", g.publishedRouting)
	t.Run("psql", g.consolePsql)
	t.Run("pgx", g.consolePgx)
	t.Run("psycopg 3", g.consolePsycopg)
	t.Run("pgjdbc", g.consolePgjdbc)
	t.Run("nonsense", g.nonsense)
	t.Run("statements at once", g.statementsAtOnce)
	t.Run("without a majority", g.withoutMajority)
	g.down(t)
}

// console is the address of the console of a node.
func (g *group) console(t *testing.T, node string) *url.URL {
	t.Helper()
	u, err := url.Parse(g.DSN(node))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/coterie"
	return u
}

// publishedRouting runs the two statements with which routing is set up in the literature, except for the names, and
// reads by them.
func (g *group) publishedRouting(t *testing.T) {
	names := strings.NewReplacer("DemoAG", "lab", "SRV153", "N1", "SRV154", "N2", "SRV155", "N3")
	for _, s := range []string{
		`ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY, READ_ONLY_ROUTING_URL = N'TCP://SRV153.contoso.com:1433'));`,
		`ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('SRV154','SRV155'),'SRV153')));`,
	} {
		sql(t, g.console(t, "n1").String(), names.Replace(s))
	}
	read := func() map[string]int {
		out := map[string]int{}
		for range 6 {
			conn, err := pgx.Connect(t.Context(), g.ReadOnly())
			if err != nil {
				t.Fatal(err)
			}
			r, err := g.answered(t, "n1", fmt.Sprintf("SELECT replica FROM coterie.sessions WHERE client = '%s'", conn.PgConn().Conn().LocalAddr()))
			if err != nil || len(r.Rows) != 1 {
				t.Fatalf("%v %v", r.Rows, err)
			}
			out[fmt.Sprint(r.Rows[0][0])]++
			_ = conn.Close(context.Background())
		}
		return out
	}
	if got := read(); got["n2"] != 3 || got["n3"] != 3 {
		t.Errorf("a set takes turns: %v", got)
	}
	g.says(t, "n1", "ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON 'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('n3','n1')))")
	if got := read(); got["n3"] != 6 {
		t.Errorf("the first entry takes all: %v", got)
	}
	g.says(t, "n1", "ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON 'n3' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))")
	if got := read(); got["n1"] != 6 {
		t.Errorf("nobody but the last entry takes readers: %v", got)
	}
	g.says(t, "n1", "ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON 'n3' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY))")
}

// output runs a program and returns what it printed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (g *group) consolePsql(t *testing.T) {
	bin := filepath.Join(server(t).BinDir, "psql")
	if _, err := os.Stat(bin); err != nil {
		t.Skip("NOT RUN: psql is not installed")
	}
	for _, c := range [][2]string{
		{`\d sys.dm_hadr_cluster`, "quorum_state_desc"},
		{`\dt`, "Did not find any relations."},
		{`\dv coterie.*`, "settings"},
		{`\conninfo`, "SSL connection"},
		{"SELECT count(*) FROM sys.availability_replicas; EXPLAIN FAILOVER", "n3"},
	} {
		if out := output(t, bin, "-XwP", "pager=off", g.console(t, "n3").String(), "-c", c[0]); !strings.Contains(out, c[1]) {
			t.Errorf("%s: no %q in\n%s", c[0], c[1], out)
		}
	}
}

func (g *group) consolePgx(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), g.console(t, "n2").String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, view := range g.views(t, "n2") { // binary results of every type
		rows, err := conn.Query(t.Context(), "SELECT * FROM "+view)
		if err != nil {
			t.Errorf("%s: %v", view, err)
			continue
		}
		for rows.Next() {
			if _, err := rows.Values(); err != nil {
				t.Errorf("%s: %v", view, err)
			}
		}
		if rows.Err() != nil {
			t.Errorf("%s: %v", view, rows.Err())
		}
	}
	var pgErr *pgconn.PgError
	_, err = conn.Exec(t.Context(), "ALTER AVAILABILITY GROUP lab FAILOVER TO 'n1'")
	if !errors.As(err, &pgErr) || !strings.HasPrefix(pgErr.Message, "Msg 41122") || pgErr.Hint == "" {
		t.Errorf("FAILOVER to the primary: %v", err)
	}
}

// driversDir is where scripts/test-drivers puts drivers.
func driversDir() string { return os.Getenv("COTERIE_DRIVERS") }

func (g *group) consolePsycopg(t *testing.T) {
	python := filepath.Join(driversDir(), "venv", "bin", "python3")
	if driversDir() == "" {
		python = "python3"
	}
	if exec.Command(python, "-c", "import psycopg").Run() != nil {
		t.Skip("NOT RUN: psycopg is not installed; make test-drivers installs and runs it")
	}
	got := output(t, python, "../../admin/console/testdata/probe.py", g.console(t, "n2").String(), "lab", "n1", "n2")
	if want := "n1 10 True\n3\n1\n42601 27\n1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func (g *group) consolePgjdbc(t *testing.T) {
	jars, _ := filepath.Glob(filepath.Join(driversDir(), "postgresql-*.jar"))
	if _, err := exec.LookPath("javac"); err != nil || len(jars) == 0 || driversDir() == "" {
		t.Skip("NOT RUN: pgjdbc or a Java compiler is not here; make test-drivers fetches and runs it")
	}
	u := g.console(t, "n3")
	password, _ := u.User.Password()
	got := output(t, "java", "-cp", jars[0], "../../admin/console/testdata/Probe.java", "jdbc:postgresql://"+u.Host+"/coterie?sslmode=require", u.User.Username(), password, "lab", "n1", "n2")
	if want := "PostgreSQL\ncoterie.replicas\nn1 10 true\n3\n42601\ntrue"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// nonsense is typed, whole, in part and in bulk: each is refused, the session continues, and nothing has changed.
func (g *group) nonsense(t *testing.T) {
	before := g.columns(t, "n1", []string{"coterie.options", "coterie.databases"})
	conn, err := pgx.Connect(t.Context(), g.console(t, "n2").String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, text := range []string{
		"ALTER AVAILABILITY GROUP", "ALTER AVAILABILITY GROUP [lab", "ALTER AVAILABILITY GROUP lab SET (", "ALTER AVAILABILITY GROUP lab SET ()", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = )",
		"ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF, HEALTH_CHECK_TIMEOUT = 1)", "ALTER AVAILABILITY GROUP other SET (DB_FAILOVER = OFF)",
		"ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON N'n2' WITH (BACKUP_PRIORITY = 5, SESSION_TIMEOUT = 99999)", "ALTER AVAILABILITY GROUP lab ADD DATABASE [coterie]",
		"ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((('n2')))))", "ALTER AVAILABILITY GROUP lab ADD REPLICA ON N'nobody'",
		"ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON N'n2' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY)", "ALTER AVAILABILITY GROUP lab SET (BASIC)", "CREATE AVAILABILITY GROUP two FOR REPLICA ON N'n1'",
		"DROP AVAILABILITY GROUP lab2", "DBCC TRACEON (1, -1)", "DBCC CHECKDB", "ALTER DATABASE nosuch SET HADR SUSPEND", "RESUME REPLICA ON N''", "SELECT '", "SELECT 1 /*", "\x01\x02", "GO", ";;;;SELECT nosuch",
		"ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF); ALTER AVAILABILITY GROUP lab", "SELECT " + strings.Repeat("(", 5000), strings.Repeat("x", 300_000), "SELECT '" + strings.Repeat("x", 600_000) + "'",
		"ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (" + strings.Repeat("'n2',", 5000) + "'n1')))", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n",
	} {
		_, err := conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
		var pgErr *pgconn.PgError
		if err == nil && text != "GO" || err != nil && (!errors.As(err, &pgErr) || pgErr.Code == "XX000") {
			t.Errorf("%.90q: %v", text, err)
		}
		if err := conn.Ping(t.Context()); err != nil {
			t.Fatalf("%.90q: the session has ended: %v", text, err)
		}
	}
	g.says(t, "n1", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = ON)") // the first of the two statements was whole, and done
	if after := g.columns(t, "n1", []string{"coterie.options", "coterie.databases"}); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("nonsense changed the group:\n%v\n%v", before, after)
	}
	half, err := pgx.Connect(t.Context(), g.console(t, "n3").String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = half.PgConn().Conn().Write([]byte{'Q', 0, 0, 1, 0, 'A', 'L'}) // and no more
	_ = half.PgConn().Conn().Close()
	g.says(t, "n3", "SELECT 1")
}

// statementsAtOnce has every node change the same replica at the same time: each statement takes effect, and none
// undoes another's.
func (g *group) statementsAtOnce(t *testing.T) {
	options := []string{"BACKUP_PRIORITY = 11", "SESSION_TIMEOUT = 17", "SEED_MAX_RATE = 5 MB", "LOG_COMPRESSION = LZ4", "SEED_COMPRESSION = ZSTD:3", "SECONDARY_ROLE (READ_ONLY_ROUTING_URL = N'TCP://x:1')"}
	var wg sync.WaitGroup
	failed := make(chan error, len(options))
	for i, o := range options {
		wg.Go(func() {
			_, err := g.answered(t, fmt.Sprintf("n%d", i%3+1), "ALTER AVAILABILITY GROUP lab MODIFY REPLICA ON N'n3' WITH ("+o+")")
			failed <- err
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Error(err)
		}
	}
	r, err := g.answered(t, "n2", "SELECT string_agg(value, ' ') FROM (SELECT value FROM coterie.options WHERE replica = 'n3' AND is_set ORDER BY option)")
	if err != nil {
		t.Fatal(err)
	}
	got := []byte(fmt.Sprint(r.Rows[0][0]))
	for _, want := range []string{"11", "17", "LZ4", "ZSTD:3", "TCP://x:1"} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

// withoutMajority asks the one remaining node.
func (g *group) withoutMajority(t *testing.T) {
	lost := secondaries(g.ready(t))
	for _, n := range lost {
		if err := g.Kill(n, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	g.await(t, "the console to know that there is no majority", func(lab.Status) bool {
		r, err := g.answered(t, "n1", "SELECT quorum FROM coterie.record")
		return err == nil && r.Rows[0][0] == false
	})
	if _, err := g.answered(t, "n1", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF)"); err == nil || !strings.Contains(err.Error(), "988") {
		t.Errorf("a statement without a majority: %v", err)
	}
	for _, n := range lost {
		if err := g.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	s := g.ready(t)
	if r, err := g.answered(t, *s.Primary, "SELECT db_failover FROM sys.availability_groups"); err != nil || r.Rows[0][0] != true {
		t.Errorf("what was refused was done: %v %v", r.Rows, err)
	}
}

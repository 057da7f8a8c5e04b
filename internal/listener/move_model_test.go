package listener

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// stateScript is a random script of statements that change and show the state of a session.
func stateScript(r *rand.Rand) (script []string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	n := func() string { return fmt.Sprint(1 + r.IntN(3)) }
	value := func() string { return pick("'1'", "'two'", "''", "'it''s \\\\ three'") }
	name := func() string { return pick("my.x", "my.y", "My.X", "my.z.z") }
	for range 10 + r.IntN(25) {
		script = append(script, pick(
			"set work_mem = '"+n()+"MB'", "set local work_mem = '"+n()+"MB'", "reset work_mem", "show work_mem",
			"set "+name()+" = "+value(), "set local "+name()+" = "+value(), "reset "+name(),
			"select set_config('"+name()+"', "+value()+", "+pick("true", "false")+")",
			"select current_setting('my.x', true), current_setting('my.y', true), current_setting('my.z.z', true)",
			"do $$ begin set my.y = 'done'; end $$",
			"begin", "begin isolation level serializable", "commit", "commit", "rollback", "savepoint s", "rollback to s", "release s",
			"select 1/0", "set work_mem = '9MB'; select 1/0", "set my.x = 'lost'; select 1/0",
			"prepare p"+n()+" as select "+n(), "prepare q"+n()+" (text) as select x || $1 from t", "execute p"+n(), "execute q"+n()+"('!')",
			"deallocate p"+n(), "deallocate all", "set search_path to s"+n()+", public", "reset search_path", "select x from t", "show search_path",
			"set role lender", "set role none", "reset role", "select current_user, session_user", "select x from secret order by x",
			"set time zone '"+pick("UTC", "Europe/Berlin", "-3:30")+"'", "show timezone", "set datestyle = '"+pick("sql, dmy", "iso, ymd")+"'", "select date '2024-02-01'",
			"set default_transaction_isolation = 'repeatable read'", "show transaction_isolation", "set application_name = "+value(), "show application_name",
			"listen coterie_lost", "listen c"+n(), "unlisten *", "select count(*) from pg_listening_channels()",
			"discard plans", "reset all", "discard all", "set extra_float_digits = "+n(), "set client_encoding = "+pick("'LATIN1'", "'UTF8'"), "select 'ü'", "show client_encoding",
			"set bytea_output = 'escape'", "select '\\x01'::bytea", "select count(*) from pg_prepared_statements",
		))
	}
	return append(script, "select name, setting from pg_settings where source = 'session' order by name", "select name, statement from pg_prepared_statements order by name",
		"select current_setting('my.x', true), current_setting('my.y', true), current_setting('my.z.z', true), current_user, session_user")
}

// observe executes a statement and returns all that its client sees of it.
func observe(t *testing.T, conn *pgconn.PgConn, statement string) (seen string, lost bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	results, err := conn.Exec(ctx, statement).ReadAll()
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintf(&b, "%s ", r.CommandTag)
		for _, f := range r.FieldDescriptions { // the number of a table differs between these servers
			fmt.Fprintf(&b, "%s %d %d ", f.Name, f.DataTypeOID, f.Format)
		}
		for _, row := range r.Rows {
			fmt.Fprintf(&b, "%q ", row)
		}
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		fmt.Fprintf(&b, "%s %s %s", pg.Severity, pg.Code, pg.Message)
	} else if err != nil {
		fmt.Fprintf(&b, "%v", err)
	}
	fmt.Fprintf(&b, " %c", conn.TxStatus())
	for _, reported := range []string{"client_encoding", "DateStyle", "TimeZone", "application_name", "standard_conforming_strings"} {
		fmt.Fprintf(&b, " %s", conn.ParameterStatus(reported))
	}
	return b.String(), pg != nil && pg.Severity == "FATAL"
}

// TestMovedSessionsAreTheSame executes random scripts on a session that is moved at a random boundary, and on one that
// is not. Everything that a client can see is the same, or the move was refused.
func TestMovedSessionsAreTheSame(t *testing.T) {
	movedAreTheSame(t, movingGroup(t, nil), 40)
}

// The same of sessions that the kernel relays whenever it can.
func TestSessionsMovedFromTheKernelAreTheSame(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity = always })
	movedAreTheSame(t, g, 20)
	if st := g.srv.Stats(); st.RelayedByKernel < 50 {
		t.Errorf("the kernel has relayed %d requests", st.RelayedByKernel)
	}
}

func movedAreTheSame(t *testing.T, g *group, n int) {
	t.Helper()
	g.role("mover", "login")
	g.role("lender", "")
	defer sameSchemas(t, g)()
	refused, scripts := runScripts(t, n, func(r *rand.Rand) bool { return sameWhenMoved(t, g, stateScript(r), r.IntN(30)) })
	if refused > scripts/2 {
		t.Errorf("%d of %d moves were refused: %v", refused, scripts, g.srv.Stats().Unmoved)
	}
	t.Logf("%d of %d moves were refused: %v", refused, scripts, g.srv.Stats().Unmoved)
}

// runScripts calls same so often, or 25 times as often in a long run, and returns how often it reported false.
func runScripts(t *testing.T, n int, same func(*rand.Rand) bool) (refused, scripts int) {
	t.Helper()
	seed, scripts := uint64(1), n
	if os.Getenv("COTERIE_LONG") != "" {
		seed, scripts = uint64(time.Now().UnixNano()), 25*n
	}
	t.Logf("seed %d", seed)
	for i := range scripts {
		if !same(rand.New(rand.NewPCG(seed, uint64(i)))) {
			refused++
		}
		if t.Failed() {
			t.Fatalf("script %d of seed %d", i, seed)
		}
	}
	return refused, scripts
}

// sameSchemas makes the schemas and tables that the scripts use, on each server. remove drops them.
func sameSchemas(t *testing.T, g *group) (remove func()) {
	t.Helper()
	for _, s := range g.servers {
		s.sql(t, "grant lender to mover", "drop schema if exists s1, s2, s3 cascade", "create schema s1", "create schema s2", "create schema s3",
			"create table s1.t as select 'one'::text x", "create table s2.t as select 'two'::text x", "drop table if exists public.t, public.secret", "create table public.t as select 'public'::text x",
			"create table public.secret as select '1'::text x union all select 'two'", "alter table public.secret enable row level security",
			"create policy own on public.secret using (x = current_setting('my.x', true))",
			"grant usage on schema s1, s2 to public", "grant select on s1.t, s2.t, public.t, public.secret to public")
	}
	return func() {
		for _, s := range g.servers {
			s.sql(t, "drop schema s1, s2, s3 cascade", "drop table public.t, public.secret")
		}
	}
}

// sameWhenMoved executes one script. It reports false if the move was refused.
func sameWhenMoved(t *testing.T, g *group, script []string, at int) bool {
	t.Helper()
	moved := g.mustDial(g.rw, "user=mover").PgConn()
	stays, err := pgconn.Connect(t.Context(), "host="+g.servers["a"].dir+" user=mover dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = moved.Close(context.Background()), stays.Close(context.Background())
		waitFor(t, "its session has ended", func() bool { return len(g.srv.Sessions()) == 0 })
		g.failOver("a")
	}()
	done := false
	for i, statement := range script {
		if i >= at && !done && moved.TxStatus() == 'I' {
			g.failOver("b")
			done = true
		}
		got, lost := observe(t, moved, statement)
		want, _ := observe(t, stays, statement)
		switch {
		case lost && done && strings.Contains(got, "57P01"):
			return false
		case got != want:
			t.Errorf("moved before %d of %q:\n%d %s\n%s\nwant\n%s", at, script, i, statement, got, want)
			return true
		}
	}
	return true
}

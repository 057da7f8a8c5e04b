package listener

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/listener/replay"
)

// replayingPair is farPrimary with CONTINUITY = REPLAY.
func replayingPair(t *testing.T) (far, near *group) {
	t.Helper()
	return farPrimary(t, func(c *Config) { c.Replay = always })
}

// both executes statements on both servers.
func (g *group) both(statements ...string) {
	g.t.Helper()
	for _, s := range g.servers {
		s.sql(g.t, statements...)
	}
}

// A transaction goes on at the new primary if its answers are the same there, whatever the client does next.
func TestTransactionsGoOn(t *testing.T) {
	far, near := replayingPair(t)
	transactionsGoOn(t, near, deaths{near.dies, func() { near.returns(far) }, "sslmode=disable"})
}

func transactionsGoOn(t *testing.T, near *group, d deaths) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	simple := func(text string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error { _, err := c.PgConn().Exec(ctx, text).ReadAll(); return err }
	}
	extended := func(text string, args ...any) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error {
			_, err := c.Exec(ctx, text, append([]any{pgx.QueryExecModeExec}, args...)...)
			return err
		}
	}
	named := func(c *pgx.Conn) error {
		_, err := c.PgConn().ExecPrepared(ctx, "named", [][]byte{[]byte("7")}, nil, nil).Close()
		return err
	}
	prepared := func(name string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error {
			_, err := c.PgConn().ExecPrepared(ctx, name, nil, nil, nil).Close()
			return err
		}
	}
	defer near.rowsOnce()()
	for _, c := range []struct {
		name   string
		before []func(*pgx.Conn) error
		after  []func(*pgx.Conn) error // the last one ends the transaction
		rows   string
	}{
		{"queries", []func(*pgx.Conn) error{simple("begin"), simple("insert into once values (1, 1)")}, []func(*pgx.Conn) error{simple("insert into once values (1, 2)"), simple("commit")}, "1 2"},
		{"COMMIT follows", []func(*pgx.Conn) error{simple("begin"), simple("insert into once values (1, 1)")}, []func(*pgx.Conn) error{simple("commit")}, "1"},
		{"ROLLBACK follows", []func(*pgx.Conn) error{simple("begin"), simple("insert into once values (1, 1)")}, []func(*pgx.Conn) error{simple("rollback")}, ""},
		{"several in one text", []func(*pgx.Conn) error{simple("begin; insert into once values (1, 1); select 1")}, []func(*pgx.Conn) error{simple("commit")}, "1"},
		{"extended", []func(*pgx.Conn) error{extended("begin"), extended("insert into once values ($1, $2)", 1, 3)}, []func(*pgx.Conn) error{extended("insert into once values ($1, $2)", 1, 4), extended("commit")}, "3 4"},
		{"a prepared statement", []func(*pgx.Conn) error{simple("begin"), named}, []func(*pgx.Conn) error{named, simple("commit")}, "7 7"},
		{"a prepared BEGIN and COMMIT", []func(*pgx.Conn) error{prepared("begin"), named}, []func(*pgx.Conn) error{named, prepared("commit")}, "7 7"},
		{"a savepoint and an error", []func(*pgx.Conn) error{
			simple("begin isolation level serializable"), simple("insert into once values (1, 1)"), simple("savepoint s"),
			func(c *pgx.Conn) error {
				if _, err := c.PgConn().Exec(ctx, "select 1/0").ReadAll(); sqlstate(err) != "22012" {
					return fmt.Errorf("division: %w", err)
				}
				return nil
			}, simple("rollback to s"), simple("insert into once values (1, 2)"),
		}, []func(*pgx.Conn) error{simple("rollback to s"), simple("insert into once values (1, 3)"), simple("commit")}, "1 3"},
		{"a pipeline", []func(*pgx.Conn) error{func(c *pgx.Conn) error {
			p := c.PgConn().StartPipeline(ctx)
			p.SendQueryParams("begin", nil, nil, nil, nil)
			for range 3 { // more than sockets hold
				p.SendQueryParams("select repeat('x', 3000) from generate_series(1, 1000)", nil, nil, nil, nil)
			}
			p.SendQueryParams("insert into once values (1, 1)", nil, nil, nil, nil)
			_ = p.Sync() // Close returns its error
			return p.Close()
		}}, []func(*pgx.Conn) error{simple("commit")}, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			near.both("truncate public.once")
			conn := near.mustDial(near.rw, "user=postgres "+d.with)
			defer d.returns()
			defer func() { _ = conn.Close(context.Background()) }()
			for name, text := range map[string]string{"named": "insert into once values (1, $1::int)", "begin": "begin", "commit": "commit"} {
				if _, err := conn.PgConn().Prepare(ctx, name, text, nil); err != nil {
					t.Fatal(err)
				}
			}
			near.known()
			for i, f := range c.before {
				if err := f(conn); err != nil {
					t.Fatalf("before, %d: %v", i, err)
				}
			}
			d.dies()
			for i, f := range c.after {
				if err := f(conn); err != nil {
					t.Fatalf("after, %d: %v; %v", i, err, near.srv.Stats().Unreplayed)
				}
			}
			if got := conn.PgConn().TxStatus(); got != 'I' {
				t.Errorf("the status is %c", got)
			}
			if got := near.one(conn, "select current_setting('cluster_name') || coalesce(string_agg(i::text, ' ' order by i), '') from once"); got != "b"+c.rows {
				t.Errorf("the rows are %q", got)
			}
		})
	}
	if st := near.srv.Stats(); st.Replayed != 9 || len(st.Unreplayed) != 0 {
		t.Errorf("%+v", st)
	}
	if n := near.srv.rules.Logs.Used(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}

// A statement that was under way, and BEGIN itself, go on as well.
func TestStatementUnderWayGoesOn(t *testing.T) {
	far, near := replayingPair(t)
	defer near.rowsOnce()()
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(conn, "begin", "insert into once values (1, 1)")
	const slow = "insert into once select 1, 2 from pg_sleep(1)"
	ended := later(conn, slow)
	waitFor(t, "it runs", func() bool { return near.waiting(slow) > 0 })
	near.dies()
	if err := <-ended; err != nil {
		t.Fatalf("%v; %v", err, near.srv.Stats().Unreplayed)
	}
	near.do(conn, "commit")
	near.shows(conn, map[string]string{"select current_setting('cluster_name') || string_agg(i::text, ' ' order by i) from once": "b1 2"})
	near.returns(far)
	if n := value[int](t, near.direct("a"), "select count(*)::int from once"); n != 0 {
		t.Errorf("%d rows on the lost server", n)
	}
}

func (g *group) direct(id string) *pgx.Conn {
	g.t.Helper()
	for name, s := range g.servers {
		if string(name) == id {
			conn, err := s.connect(g.t.Context(), "postgres")
			if err != nil {
				g.t.Fatal(err)
			}
			g.t.Cleanup(func() { _ = conn.Close(context.Background()) })
			return conn
		}
	}
	g.t.Fatal(id)
	return nil
}

// A transaction fails with 40001 and the reason if it cannot be executed again.
func TestTransactionsThatDoNotGoOn(t *testing.T) {
	far, near := replayingPair(t)
	near.both("drop table if exists public.rows", "create table public.rows (x int primary key, v int)", "insert into public.rows values (1, 1)", "drop sequence if exists public.numbers", "create sequence public.numbers",
		"drop extension if exists adminpack")
	defer near.both("drop table public.rows", "drop sequence public.numbers")
	for _, c := range []struct {
		name   string
		before []string
		change string // of the new primary, before the death
		why    string
	}{
		{"a row that has changed", []string{"begin", "select v + 0 from rows where x = 1"}, "update public.rows set v = v + 1", replay.Differs},
		{"another number of rows", []string{"begin", "update rows set v = v"}, "insert into public.rows values (2, 2)", replay.Differs},
		{"a row that another one has inserted", []string{"begin", "insert into rows values (3, 3)"}, "insert into public.rows values (3, 4)", replay.Differs},
		{"the time", []string{"begin", "select now()"}, "", replay.Differs},
		{"a random value", []string{"begin", "select random()"}, "", replay.Differs},
		{"the process", []string{"begin", "select pg_backend_pid()"}, "", replay.Differs},
		{"a sequence", []string{"begin", "select nextval('numbers')"}, "select nextval('public.numbers')", replay.Differs},
		{"setval", []string{"begin", "select setval('numbers', 3)"}, "", replay.NotTwice},
		{"a long transaction", []string{"begin", "select length('" + strings.Repeat("x", 2<<20) + "')"}, "", ""}, // arrives in pieces: its session ends
		{"many statements", append([]string{"begin"}, slicesRepeat("select '"+strings.Repeat("x", 500)+"'", 2100)...), "", replay.TooLong},
		{"a statement behind another one", []string{"select 1; begin"}, "", replay.NotKept},
		{"a lock", []string{"begin", "update rows set v = 9 where x = 1"}, "lock", "it was not executed in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := near.mustDial(near.rw, "user=postgres")
			defer near.returns(far)
			defer func() { _ = conn.Close(context.Background()) }()
			near.known()
			near.do(conn, c.before...)
			if c.change == "lock" {
				holder := near.direct("b")
				near.do(holder, "begin", "update public.rows set v = v")
				defer near.do(holder, "rollback")
			} else if c.change != "" {
				near.servers["b"].sql(t, c.change)
			}
			near.dies()
			_, err := conn.Exec(t.Context(), "commit", pgx.QueryExecModeSimpleProtocol)
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "40001" || c.why != "" && (pg.Severity != "ERROR" || !strings.Contains(pg.Detail, c.why)) {
				t.Fatalf("%v %+v", err, pg)
			}
			if c.why == "" {
				return
			}
			if got := conn.PgConn().TxStatus(); got != 'I' {
				t.Errorf("the status is %c", got)
			}
			if got := near.one(conn, "select current_setting('cluster_name')"); got != "b" || near.srv.Stats().Unreplayed[c.why] == 0 {
				t.Errorf("it goes on at %q; %v", got, near.srv.Stats().Unreplayed)
			}
		})
	}
	if st := near.srv.Stats(); st.Replayed != 0 {
		t.Errorf("%+v", st)
	}
	if n := near.srv.rules.Logs.Used(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}

func slicesRepeat(s string, n int) (list []string) {
	for range n {
		list = append(list, s)
	}
	return list
}

// A transaction is executed again once: what has brought down two servers does not go on to a third one.
func TestExecutedAgainOnce(t *testing.T) {
	far, near := replayingPair(t)
	defer near.rowsOnce()()
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(conn, "begin", "insert into once values (1, 1)")
	cut := func() { // its server ends, and its node lives
		far.srv.mu.Lock()
		for _, x := range far.srv.sessions {
			_ = x.backend.Close()
		}
		far.srv.mu.Unlock()
	}
	cut()
	near.do(conn, "insert into once values (1, 2)")
	if st := near.srv.Stats(); st.Replayed != 1 {
		t.Fatalf("%+v", st)
	}
	cut()
	waitFor(t, "it has no server", func() bool { return len(near.srv.Sessions()) == 0 })
	var pg *pgconn.PgError
	if err := <-later(conn, "commit"); !errors.As(err, &pg) || pg.Code != "40001" || pg.Severity != "ERROR" || !strings.Contains(pg.Detail, replay.Repeated) {
		t.Fatal(err)
	}
	near.shows(conn, map[string]string{"select count(*)::text from once": "0"})
}

// TestReplayedTransactionsAreTheSame executes random transactions on a session whose node dies at a random boundary,
// and on one that lives. Everything that a client sees is the same, up to an honest 40001.
func TestReplayedTransactionsAreTheSame(t *testing.T) {
	far, near := replayingPair(t)
	near.role("mover", "login")
	near.both("drop table if exists public.t", "create table public.t (x int primary key, v text)", "grant all on public.t to public")
	defer near.both("drop table public.t")
	d := deaths{near.dies, func() { near.returns(far) }, "sslmode=disable"}
	lost, scripts := runScripts(t, 30, func(r *rand.Rand) bool { return sameWhenReplayed(t, near, d, r) })
	st := near.srv.Stats()
	t.Logf("%d of %d transactions were lost, %d executed again: %v", lost, scripts, st.Replayed, st.Unreplayed)
	if lost > scripts/2 || st.Replayed < uint64(scripts/10) {
		t.Error("few were executed again")
	}
}

// rowScript is a random script of transactions.
func rowScript(r *rand.Rand) (script []string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	n := func() string { return fmt.Sprint(1 + r.IntN(9)) }
	for range 30 {
		script = append(script, pick("begin", "begin", "begin isolation level repeatable read", "start transaction read write", "commit", "rollback", "savepoint s", "rollback to s", "release s",
			"insert into t values ("+n()+", '"+n()+"')", "insert into t values ("+n()+", '"+n()+"') on conflict do nothing", "update t set v = v || '"+n()+"' where x < "+n(),
			"delete from t where x = "+n()+" returning v || ''", "select x + 0, v || '' from t order by 1", "select count(*) from t", "select 1/0", "", "select sum(x) from t; select max(v) from t",
			"with w as (delete from t where x = "+n()+" returning x) select count(*) from w", "show transaction_isolation", "select upper(v) from t where x = "+n()+" for update"))
	}
	return append(script, "rollback", "select x + 0, v || '' from t order by 1")
}

// sameWhenReplayed executes one script. It reports false if a transaction was lost.
func sameWhenReplayed(t *testing.T, near *group, d deaths, r *rand.Rand) bool {
	t.Helper()
	near.both("truncate public.t", "insert into public.t select i, i from generate_series(1, 5) i")
	script, at := rowScript(r), r.IntN(28)
	moved := near.mustDial(near.rw, "user=mover "+d.with).PgConn()
	// The servers are not replicas of each other: both have what was committed before the death.
	stays, err := pgconn.Connect(t.Context(), "host="+near.servers["c"].dir+" user=mover dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pgconn.Connect(t.Context(), "host="+near.servers["b"].dir+" user=mover dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _, _ = moved.Close(context.Background()), stays.Close(context.Background()), other.Close(context.Background())
		waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
		d.returns()
	}()
	near.known()
	died := false
	for i, statement := range script {
		if i >= at && !died && (moved.TxStatus() == 'T' || i > at+10 && moved.TxStatus() == 'I') {
			if other.TxStatus() != 'I' { // what is not committed yet
				_, _ = observe(t, other, "rollback")
			}
			d.dies()
			died = true
		}
		got, _ := observe(t, moved, statement)
		if died && strings.Contains(got, " 40001 ") {
			return false
		}
		want, _ := observe(t, stays, statement)
		if !died {
			_, _ = observe(t, other, statement)
		}
		if got != want {
			t.Errorf("the node died before %d of %q:\n%d %s\n%s\nwant\n%s", at, script, i, statement, got, want)
			return true
		}
	}
	return true
}

// Transfers that are executed again are there once if they were acknowledged, and not if they failed with 40001.
func TestReplayedTransactionsAreExecutedOnce(t *testing.T) {
	far, near := replayingPair(t)
	ledger(t, far, near, 8)
	st := near.srv.Stats()
	t.Logf("%d executed again, %v", st.Replayed, st.Unreplayed)
	if st.Replayed == 0 {
		t.Error("none was executed again")
	}
}

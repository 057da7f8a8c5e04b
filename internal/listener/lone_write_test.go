package listener

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// replaying has CONTINUITY be REPLAY.
func replaying(c *Config) { c.Replay = always }

// changes executes a change by the extended protocol and returns what the client hears: rows, the tag or the error, and
// the state of the transaction.
func changes(conn *pgx.Conn, text string) <-chan string {
	heard := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := conn.PgConn()
		r := c.ExecParams(ctx, text, nil, nil, nil, nil).Read()
		var words []string
		for _, row := range r.Rows {
			words = append(words, string(row[0]))
		}
		var pg *pgconn.PgError
		switch {
		case errors.As(r.Err, &pg):
			words = append(words, pg.Severity, pg.Code)
		case r.Err != nil:
			words = append(words, r.Err.Error())
		default:
			words = append(words, r.CommandTag.String())
		}
		heard <- strings.Join(append(words, string(c.TxStatus())), " ")
	}()
	return heard
}

// simply does the same by the simple protocol.
func simply(conn *pgx.Conn, text string) <-chan string {
	heard := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := conn.PgConn()
		results, err := c.Exec(ctx, text).ReadAll()
		var words []string
		for _, r := range results {
			for _, row := range r.Rows {
				words = append(words, string(row[0]))
			}
			if r.Err == nil {
				words = append(words, r.CommandTag.String())
			}
		}
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg):
			words = append(words, pg.Severity, pg.Code)
		case err != nil:
			words = append(words, err.Error())
		}
		heard <- strings.Join(append(words, string(c.TxStatus())), " ")
	}()
	return heard
}

// With REPLAY the outcome of a change outside a transaction is proved by the new primary. One that is not committed is
// executed again, and none twice.
func TestLoneChangeInDoubt(t *testing.T) { loneChangeInDoubt(t, changes) }

// The same by the simple protocol.
func TestLoneQueryInDoubt(t *testing.T) { loneChangeInDoubt(t, simply) }

func loneChangeInDoubt(t *testing.T, changes func(*pgx.Conn, string) <-chan string) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes a minute: set COTERIE_LONG=1")
	}
	const insert = "insert into ledger values (1) returning key"
	const done, unknown = "1 INSERT 0 1 I", "FATAL 08007"
	for _, c := range []struct {
		name     string
		text     string
		deaf     bool // b does not get the commit
		runs     bool // it is being executed when a dies, else it waits for members
		stranger int  // transactions of others on b before it is open
		spoil    func(*replicas)
		want     string
	}{
		{name: "committed", text: insert, want: done},
		{name: "not executed", text: "insert into ledger select 1 from pg_sleep(case current_setting('wal_keep_size') when '64MB' then 67 else 0 end) returning key", runs: true, want: done},
		{name: "not replicated", text: insert, deaf: true, want: done},
		{name: "not replicated, and its number is another one's", text: insert, deaf: true, stranger: 20, want: done},
		{name: "committed, and the numbers are not known", text: insert, want: unknown, spoil: func(r *replicas) { r.timelines[1].Xids = ag.Xids{} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReplicas(t, replaying)
			conn := r.near.mustDial(r.near.rw, "user=postgres")
			r.near.known()
			r.near.unasked()
			r.holdCommits(true)
			r.caughtUp()
			if c.deaf {
				r.deafen(true)
			}
			heard := changes(conn, c.text)
			event := map[bool]string{true: "PgSleep", false: "SyncRep"}[c.runs]
			waitFor(t, "it is under way", func() bool {
				return asked[bool](t, r.a, "select exists (select from pg_stat_activity where wait_event = '"+event+"' and query like 'insert%')")
			})
			r.succeeds(c.deaf, c.stranger, c.spoil)
			r.leads(true)
			got := <-heard
			if got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
			if n := r.rows(1); n != 1 {
				t.Errorf("%d rows", n)
			}
			if c.want != unknown {
				if got := <-changes(conn, "insert into ledger values (2)"); got != "INSERT 0 1 I" || r.rows(2) != 1 {
					t.Errorf("the session does not go on: %q", got)
				}
			}
			t.Log(r.timelines, r.near.srv.Stats().Doubts)
		})
	}
}

// A change whose number was asked for is not sent before that is known: if its server dies without an answer, it goes
// to the next one. Of any change the client gets the answer that PostgreSQL gives.
func TestLoneChangeIsSentOnce(t *testing.T) { loneChangeIsSentOnce(t, changes) }

// The same by the simple protocol.
func TestLoneQueryIsSentOnce(t *testing.T) { loneChangeIsSentOnce(t, simply) }

func loneChangeIsSentOnce(t *testing.T, changes func(*pgx.Conn, string) <-chan string) {
	_, near := farPrimary(t, replaying)
	for _, s := range near.servers {
		s.sql(t, "drop table if exists sent", "create table sent (x int, y text)", "insert into sent values (0, 'old')")
	}
	a, b := near.servers["a"], near.servers["b"]
	conn := near.mustDial(near.rw, "user=postgres")
	pid := near.one(conn, "select pg_backend_pid()::text")
	for name, text := range map[string]string{"put": "insert into sent values ($1)", "get": "select count(*) from sent where x = $1", "bad": "insert into sent values ($1 / 0)"} {
		if _, err := conn.Prepare(t.Context(), name, text); err != nil {
			t.Fatal(err)
		}
	}
	near.known()
	near.unasked()
	for _, c := range []struct{ text, want string }{
		{"insert into sent values (1), (2)", "INSERT 0 2 I"},
		{"update sent set y = 'new' where x < 2 returning x", "0 1 UPDATE 2 I"},
		{"delete from sent where x = 7", "DELETE 0 I"},
		{"insert into sent values (1 / 0)", "ERROR 22012 I"},
		{"insert into nothing values (1)", "ERROR 42P01 I"},
		{"with gone as (delete from sent where x = 2 returning x) select x from gone", "2 SELECT 1 I"},
		{"insert into sent select n, repeat('x', 3000) from generate_series(10, 29) n returning y", strings.Repeat(strings.Repeat("x", 3000)+" ", 20) + "INSERT 0 20 I"}, // more than is held
		{"insert into sent values (3, repeat('y', 20000)) returning y", strings.Repeat("y", 20000) + " INSERT 0 1 I"},
		{"select y from sent where x = 0 for update", "new SELECT 1 I"},
	} {
		if got := <-changes(conn, c.text); got != c.want {
			t.Errorf("%s: the client hears %.80q, want %.80q", c.text, got, c.want)
		}
	}
	for range 3 {
		if _, err := conn.Exec(t.Context(), "put", 40); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), "bad", 1); sqlstate(err) != "22012" {
		t.Error(err)
	}
	if n := asked[int](t, a, "select count(*)::int from sent where x = 40"); n != 3 {
		t.Errorf("%d rows by a prepared statement", n)
	}
	x := near.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	if !x.work.Numberless.IsZero() || !x.work.Idle() || x.work.Lone.On() {
		t.Errorf("numberless %v, idle %v", x.work.Numberless, x.work.Idle())
	}
	x.work.Unlock()
	stop(t, pid)
	heard := changes(conn, "insert into sent values (5) returning x")
	waitFor(t, "the number is asked for", func() bool { return x.work.Writes() })
	if list := near.srv.Continuity(); len(list) != 1 || list[0].Node.Fate != "KEPT" {
		t.Errorf("%+v", list)
	}
	near.dies()
	if got := <-heard; got != "5 INSERT 0 1 I" {
		t.Errorf("the client hears %q", got)
	}
	if n, m := asked[int](t, a, "select count(*)::int from sent where x = 5"), asked[int](t, b, "select count(*)::int from sent where x = 5"); n != 0 || m != 1 {
		t.Errorf("%d rows on the old server and %d on the new one", n, m)
	}
	near.do(conn, "begin", "select 1", "commit")
}

// The question calls nothing of others, whatever the search path.
func TestQuestionForANumberCallsOnlyItsOwn(t *testing.T) {
	_, near := farPrimary(t, replaying)
	a := near.servers["a"]
	a.sql(t, "create schema traps", "create table traps.written (x int)", "create function traps.spring(text, text) returns text language plpgsql as $$begin raise 'sprung'; end$$",
		"create operator traps.|| (leftarg = text, rightarg = text, function = traps.spring)")
	defer a.sql(t, "drop schema traps cascade")
	conn := near.mustDial(near.rw, "user=postgres")
	near.do(conn, "set search_path = traps, pg_catalog")
	near.known()
	near.unasked()
	if got := <-changes(conn, "insert into written values (1)"); got != "INSERT 0 1 I" {
		t.Errorf("the client hears %q", got)
	}
	x := near.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	defer x.work.Unlock()
	if x.work.Asking.Refused || !x.work.Numberless.IsZero() {
		t.Error("the question has failed")
	}
}

// If the number may not be told, changes are executed as ever.
func TestLoneChangeWithoutItsNumber(t *testing.T) {
	_, near := farPrimary(t, replaying)
	near.role("numberless", "login")
	a := near.servers["a"]
	a.sql(t, "drop table if exists numbered", "create table numbered (x int)", "grant all on numbered to public", "revoke execute on function pg_catalog.pg_current_xact_id() from public")
	defer a.sql(t, "grant execute on function pg_catalog.pg_current_xact_id() to public")
	conn := near.mustDial(near.rw, "user=numberless")
	near.known()
	near.unasked()
	for range 3 {
		if got := <-changes(conn, "insert into numbered values (1)"); got != "INSERT 0 1 I" {
			t.Errorf("the client hears %q", got)
		}
	}
	if n := asked[int](t, a, "select count(*)::int from numbered"); n != 3 {
		t.Errorf("%d rows", n)
	}
	if got := near.one(conn, "select count(*)::text from pg_prepared_statements where name like 'coterie%'"); got != "0" {
		t.Errorf("%s statements of the question are left", got)
	}
	if x := near.sessionOf(conn.PgConn().Conn()); !x.work.Idle() {
		t.Error("the session is not idle")
	}
}

// A session ends with its backend, also while the number of a change is asked for.
func TestBackendEndsWhileItIsAskedForANumber(t *testing.T) {
	_, near := farPrimary(t, replaying)
	conn := near.mustDial(near.rw, "user=postgres")
	pid := near.one(conn, "select pg_backend_pid()::text")
	near.known()
	near.unasked()
	x := near.sessionOf(conn.PgConn().Conn())
	stop(t, pid)
	heard := changes(conn, "insert into nothing values (1)")
	waitFor(t, "the number is asked for", func() bool { return x.work.Writes() })
	near.servers["a"].sql(t, "select pg_terminate_backend("+pid+")")
	goOn(t, pid)
	if got := <-heard; !strings.HasPrefix(got, "FATAL 57P01") {
		t.Errorf("the client hears %q", got)
	}
	waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
}

// stop has a process of a server answer nothing until goOn, or until the test ends.
func stop(t *testing.T, pid string) {
	t.Helper()
	signal(t, pid, syscall.SIGSTOP)
	t.Cleanup(func() { signal(t, pid, syscall.SIGCONT) })
}

// goOn has it answer again.
func goOn(t *testing.T, pid string) {
	t.Helper()
	signal(t, pid, syscall.SIGCONT)
}

func signal(t *testing.T, pid string, s syscall.Signal) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, s)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// With REPLAY, too, requests are executed once, whenever the node dies and whenever a planned failover begins.
func TestNumberedChangesExecuteOnce(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes ten seconds: set COTERIE_LONG=1")
	}
	far, near := farPrimary(t, replaying)
	hammer(t, near, "disable", diesByTurns(t, far, near))
	t.Logf("%+v", near.srv.Stats())
}

func TestNumberedChangesMoveOnce(t *testing.T) {
	quick := func(c *Config) { c.keepTick, c.Replay = time.Millisecond, always }
	executesOnce(t, movingGroup(t, quick), movingGroup(t, quick), "disable")
}

// A cancel request that meets the question is one of the change, which is not executed. The session is asked on.
func TestCanceledQuestionCancelsTheChange(t *testing.T) {
	_, near := farPrimary(t, replaying)
	a := near.servers["a"]
	a.sql(t, "drop table if exists canceled", "create table canceled (x int)")
	conn := near.mustDial(near.rw, "user=postgres")
	pid := near.one(conn, "select pg_backend_pid()::text")
	near.known()
	near.unasked()
	x := near.sessionOf(conn.PgConn().Conn())
	other, err := a.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	waits, cancel := "select exists (select from pg_locks where pid = "+pid+" and not granted)", "select pg_cancel_backend("+pid+")"
	if _ = value[bool](t, other, waits); !value[bool](t, other, cancel) { // the functions are known to it from now on
		t.Fatal("no cancel request was sent")
	}
	for _, execute := range []func(*pgx.Conn, string) <-chan string{changes, simply} {
		for _, text := range []string{"begin", "lock table pg_catalog.pg_proc in access exclusive mode"} {
			if _, err := other.Exec(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		heard := execute(conn, "insert into canceled values (1)")
		waitFor(t, "the number is asked for, and the question waits", func() bool { return x.work.Writes() && value[bool](t, other, waits) })
		_ = value[bool](t, other, cancel)
		if got := <-heard; got != "ERROR 57014 I" {
			t.Errorf("the client hears %q", got)
		}
		if _, err := other.Exec(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
		if x.work.Lock(); !x.work.Idle() || !x.work.Numberless.IsZero() || x.work.Lone.On() {
			t.Errorf("idle %v, numberless %v", x.work.Idle(), x.work.Numberless)
		}
		x.work.Unlock()
	}
	if got := <-simply(conn, "insert into canceled values (2) returning x"); got != "2 INSERT 0 1 I" {
		t.Errorf("the client hears %q", got)
	}
	if n := asked[int](t, a, "select count(*)::int from canceled"); n != 1 {
		t.Errorf("%d rows", n)
	}
	if got := near.one(conn, "select count(*)::text from pg_prepared_statements where name like 'coterie%'"); got != "0" {
		t.Errorf("%s statements of the question are left", got)
	}
}

// A client that leaves while its server is silent is noticed.
func TestClientLeavesWhileItIsAskedForANumber(t *testing.T) {
	_, near := farPrimary(t, replaying, func(c *Config) { c.keepTick = 10 * time.Millisecond })
	conn := near.mustDial(near.rw, "user=postgres")
	pid := near.one(conn, "select pg_backend_pid()::text")
	near.known()
	near.unasked()
	x := near.sessionOf(conn.PgConn().Conn())
	stop(t, pid)
	_ = changes(conn, "insert into nothing values (1)")
	waitFor(t, "the number is asked for", func() bool { return x.work.Writes() })
	_ = conn.PgConn().Conn().Close()
	waitFor(t, "its direction of the session has ended", x.way.Terminated.Load)
}

// A change whose number is not told in time was not sent, and its client hears so.
func TestSilentServerIsNotAwaitedForEver(t *testing.T) {
	_, near := farPrimary(t, replaying, func(c *Config) { c.HoldMax, c.ConnectWait = 300*time.Millisecond, 300*time.Millisecond })
	conn := near.mustDial(near.rw, "user=postgres")
	pid := near.one(conn, "select pg_backend_pid()::text")
	near.known()
	near.unasked()
	stop(t, pid)
	if got := <-changes(conn, "insert into nothing values (1)"); !strings.HasPrefix(got, "FATAL 40001") {
		t.Errorf("the client hears %q", got)
	}
	goOn(t, pid)
	waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
}

package listener

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// rowsOnce makes an empty table on each server. remove drops it.
func (g *group) rowsOnce() (remove func()) {
	g.t.Helper()
	for _, s := range g.servers {
		s.sql(g.t, "drop table if exists public.once", "create table public.once (c int, i int)")
	}
	return func() {
		for _, s := range g.servers {
			s.sql(g.t, "drop table public.once")
		}
	}
}

// The next request of a client whose transaction was lost between two requests fails with 40001, unless it is a
// ROLLBACK. Nothing of it is executed, and the session goes on.
func TestNextRequestAfterALostTransaction(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	exec := func(text string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error { _, err := c.PgConn().Exec(ctx, text).ReadAll(); return err }
	}
	params := func(text string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error {
			_, err := c.PgConn().ExecParams(ctx, text, nil, nil, nil, nil).Close()
			return err
		}
	}
	far, near := farPrimary(t)
	defer near.rowsOnce()()
	for _, c := range []struct {
		name   string
		next   func(*pgx.Conn) error
		code   string
		status byte
	}{
		{"a query", exec("insert into once values (2, 2)"), "40001", 'E'},
		{"COMMIT", exec("commit"), "40001", 'I'},
		{"END with a comment", exec("/* a */ end;"), "40001", 'I'},
		{"COMMIT AND CHAIN", exec("commit and chain"), "40001", 'I'},
		{"ROLLBACK", exec("rollback"), "", 'I'},
		{"ROLLBACK AND CHAIN", exec("rollback and chain"), "40001", 'E'},
		{"ROLLBACK TO", exec("rollback to s"), "40001", 'E'},
		{"several statements", exec("insert into once values (2, 2); commit"), "40001", 'E'},
		{"extended", params("insert into once values (2, 2)"), "40001", 'E'},
		{"extended COMMIT", params("commit"), "40001", 'I'},
		{"extended ROLLBACK", params("rollback"), "", 'I'},
		{"COPY", func(c *pgx.Conn) error {
			_, err := c.PgConn().CopyFrom(ctx, strings.NewReader("2\t2\n"), "copy once from stdin")
			return err
		}, "40001", 'E'},
		{"a pipeline", func(c *pgx.Conn) error {
			p := c.PgConn().StartPipeline(ctx)
			for range 3 {
				p.SendQueryParams("insert into once values (2, 2)", nil, nil, nil, nil)
			}
			_ = p.Sync() // Close returns its error
			return p.Close()
		}, "40001", 'E'},
		{"a pipeline with COMMIT behind", func(c *pgx.Conn) error {
			p := c.PgConn().StartPipeline(ctx)
			p.SendQueryParams("insert into once values (2, 2)", nil, nil, nil, nil)
			_ = p.Sync() // Close returns their errors
			p.SendQueryParams("commit", nil, nil, nil, nil)
			_ = p.Sync()
			return p.Close()
		}, "40001", 'I'},
		{"a statement to prepare", func(c *pgx.Conn) error { _, err := c.Prepare(ctx, "lost", "select 1"); return err }, "40001", 'E'},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := near.mustDial(near.rw, "user=postgres")
			near.known()
			near.do(conn, "begin", "savepoint s", "insert into once values (1, 1)")
			near.dies()
			defer near.returns(far)
			defer func() { _ = conn.Close(context.Background()) }()
			err := c.next(conn)
			var pg *pgconn.PgError
			if errors.As(err, &pg); (err != nil || c.code != "") && (pg == nil || pg.Code != c.code || pg.Severity != "ERROR") {
				t.Fatalf("%v, want %q", err, c.code)
			}
			if got := conn.PgConn().TxStatus(); got != c.status {
				t.Errorf("the status is %c", got)
			}
			if c.status == 'E' {
				near.do(conn, "rollback")
			}
			if got := near.one(conn, "select current_setting('cluster_name') || count(*) from once"); got != "b0" {
				t.Errorf("it goes on as %q", got)
			}
			if _, err := conn.Prepare(ctx, "lost", "select 2"); err != nil { // it was not prepared
				t.Error(err)
			}
		})
	}
	if st := near.srv.Stats(); st.Moved != 15 {
		t.Errorf("%+v", st)
	}
}

// A prepared statement that the client closes at the beginning of the next request is closed.
func TestCloseInTheNextRequest(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	for _, name := range []string{"kept", "closed"} {
		if _, err := conn.Prepare(t.Context(), name, "select '"+name+"'"); err != nil {
			t.Fatal(err)
		}
	}
	near.known()
	near.do(conn, "begin")
	near.dies()
	raw := conn.PgConn()
	b := pgwire.AppendMessage(nil, 'C', []byte("Sclosed\x00"))
	b = append(pgwire.AppendMessage(b, 'B', []byte("\x00kept\x00\x00\x00\x00\x00\x00\x00")), pgwire.AppendMessage(nil, 'S', nil)...)
	if _, err := raw.Conn().Write(b); err != nil {
		t.Fatal(err)
	}
	heard := ""
	for !strings.Contains(heard, "Z") {
		typ, _, err := pgwire.ReadMessage(raw.Conn(), pgwire.MaxControl)
		if err != nil {
			t.Fatal(err)
		}
		heard += string(typ)
	}
	if heard != "3EZ" {
		t.Errorf("it hears %s", heard)
	}
	near.do(conn, "rollback")
	near.shows(conn, map[string]string{"select string_agg(name, ' ') from pg_prepared_statements": "kept"})
}

// Drivers that name each statement prepare COMMIT and ROLLBACK, too.
func TestPreparedEndAfterALostTransaction(t *testing.T) {
	far, near := farPrimary(t)
	for name, code := range map[string]string{"rollback": "", "commit": "40001"} {
		conn := near.mustDial(near.rw, "user=postgres")
		for _, name := range []string{"rollback", "commit"} {
			if _, err := conn.PgConn().Prepare(t.Context(), name, name, nil); err != nil {
				t.Fatal(err)
			}
		}
		near.known()
		near.do(conn, "begin")
		near.dies()
		_, err := conn.PgConn().ExecPrepared(t.Context(), name, nil, nil, nil).Close()
		if got := conn.PgConn().TxStatus(); sqlstate(err) != code || got != 'I' {
			t.Errorf("%s: %v, the status is %c", name, err, got)
		}
		near.shows(conn, map[string]string{"select current_setting('cluster_name')": "b"})
		_ = conn.Close(t.Context())
		near.returns(far)
	}
}

// A client that waits for nothing is told when the listener stops, and one that leaves is forgotten.
func TestLostTransactionThatNobodyAsksFor(t *testing.T) {
	_, near := farPrimary(t)
	leaves, stays := near.mustDial(near.rw, "user=postgres"), near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(leaves, "begin")
	near.do(stays, "begin")
	near.dies()
	waitFor(t, "both have no server", func() bool { return len(near.srv.Sessions()) == 0 })
	_ = leaves.Close(t.Context())
	keys := func() int {
		near.srv.mu.Lock()
		defer near.srv.mu.Unlock()
		return len(near.srv.keys)
	}
	waitFor(t, "one is forgotten", func() bool { return keys() == 1 })
	near.srv.Shutdown(t.Context())
	var pg *pgconn.PgError
	if err := <-later(stays, "select 1"); !errors.As(err, &pg) || pg.Severity != "FATAL" || pg.Code != "40001" {
		t.Errorf("%v", err)
	}
	if n := keys(); n != 0 {
		t.Errorf("%d cancel keys are left", n)
	}
}

// TestLostBlocksAreTheSame is TestOutlivingSessionsAreTheSame for a death at any boundary: a transaction that was open
// is lost by the next request, and everything after that is as if a statement of it had failed.
func TestLostBlocksAreTheSame(t *testing.T) {
	far, near := farPrimary(t)
	near.role("mover", "login")
	near.role("lender", "")
	defer sameSchemas(t, near)()
	lost := 0
	ended, scripts := runScripts(t, 25, func(r *rand.Rand) bool { return sameWhenLost(t, far, near, r, &lost) })
	t.Logf("%d of %d sessions ended, %d transactions were lost", ended, scripts, lost)
	if ended > scripts*3/4 || lost == 0 { // on a busy machine, more sessions end because their state is not known yet
		t.Error("most sessions ended, or no transaction was open")
	}
}

// blockScript is a random script of transactions that change nothing in the session.
func blockScript(r *rand.Rand) (script []string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	script = stateScript(r)[:5]
	for range 10 + r.IntN(20) {
		script = append(script, pick("begin", "begin isolation level serializable", "start transaction", "select 1", "select x from t", "select 1/0", "savepoint s", "rollback to s", "release s",
			"commit", "end", "rollback", "abort", "commit and chain", "rollback and chain", "select 1; commit", "commit; select 1", "select current_user, session_user", ""))
	}
	return append(script, "rollback", "select name, setting from pg_settings where source = 'session' order by name",
		"select name, statement from pg_prepared_statements order by name", "select current_user, session_user")
}

func sameWhenLost(t *testing.T, far, near *group, r *rand.Rand, lost *int) bool {
	t.Helper()
	script := blockScript(r)
	at := 5 + r.IntN(len(script)-5)
	moved := near.mustDial(near.rw, "user=mover").PgConn()
	stays, err := pgconn.Connect(t.Context(), "host="+near.servers["a"].dir+" user=mover dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = moved.Close(context.Background()), stays.Close(context.Background())
		waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
		near.returns(far)
	}()
	for i, statement := range script {
		if i == 5 {
			for end := time.Now().Add(time.Second); near.knownStates() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // some cannot be known
			}
		}
		open := false
		if i == at {
			open = moved.TxStatus() == 'T'
			near.dies()
		}
		got, ended := observe(t, moved, statement)
		if ended && i >= at {
			return false
		}
		ending := stmt.EndingOf([]byte(statement))
		switch {
		case open && ending == stmt.EndsNothing: // the error of a failed block is another one
			*lost++
			for _, s := range []string{"rollback", "begin", resume.LostBlock} { // savepoints are lost, too
				_, _ = observe(t, stays, s)
			}
			if !strings.Contains(got, "ERROR 40001") || moved.TxStatus() != 'E' {
				t.Errorf("%d of %q: %s", i, script, got)
			}
			continue
		case open && ending == stmt.EndsByCommit:
			*lost++
			_, _ = observe(t, stays, "rollback")
			if !strings.Contains(got, "ERROR 40001") || moved.TxStatus() != 'I' {
				t.Errorf("%d of %q: %s", i, script, got)
			}
			continue
		}
		if want, _ := observe(t, stays, statement); got != want {
			t.Errorf("the node died before %d of %q:\n%d %s\n%s\nwant\n%s", at, script, i, statement, got, want)
			return true
		}
	}
	return true
}

// ledger has clients book transfers in transactions, with pauses between their statements, while the far node dies and
// returns. A client whose connection lives goes on with it. Each transfer is there once if its COMMIT was acknowledged,
// and not if it failed with 40001. wentOn is how often one did after that.
func ledger(t *testing.T, far, near *group, rounds int) (wentOn int64) {
	t.Helper()
	return ledgerOf(t, near, deaths{near.dies, func() { near.returns(far) }, "sslmode=disable"}, rounds)
}

// deaths is how the server of a node's sessions dies and returns, and how clients connect.
type deaths struct {
	dies, returns func()
	with          string
}

// ledgerOf is ledger with deaths of another kind.
func ledgerOf(t *testing.T, near *group, d deaths, rounds int) (wentOn int64) {
	t.Helper()
	for _, s := range near.servers {
		s.sql(t, "drop table if exists public.once", "create table public.once (c int, i int)")
		defer s.sql(t, "drop table public.once")
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	var lived atomic.Int64
	acked, failed := &marks{acked: make(map[mark]bool), failed: make(map[mark]bool)}, map[mark]bool{}
	for c := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(c)))
			for next := 0; !stop.Load(); {
				conn, err := near.dial(near.rw, "user=postgres "+d.with)
				for until := time.Now().Add(time.Second); err == nil && time.Now().Before(until) && !near.stateKnown(conn); {
					time.Sleep(10 * time.Millisecond) // idle sessions are asked
				}
				for err == nil && !stop.Load() {
					from := next
					next += 1 + r.IntN(4)
					err = transfer(conn, r, c, from, next)
					acked.note(c, from, next, err)
					var pg *pgconn.PgError
					switch {
					case err == nil:
					case !errors.As(err, &pg) || pg.Code != "57P01" && pg.Code != "40001" && pg.Code != "08007" && pg.Code != "57P03":
						if pg != nil {
							t.Errorf("client %d: %v", c, err)
						}
					case pg.Code == "40001":
						acked.mu.Lock()
						for k := from; k < next; k++ {
							failed[mark{c, k}] = true
						}
						acked.mu.Unlock()
						if pg.Severity == "ERROR" {
							lived.Add(1)
							err = nil
							if conn.PgConn().TxStatus() != 'I' {
								err = <-later(conn, "rollback")
							}
						}
					}
				}
				if conn != nil {
					_ = conn.Close(context.Background())
				}
			}
		})
	}
	for range rounds {
		waitFor(t, "states are known", func() bool { return near.knownStates() >= 2 })
		time.Sleep(20 * time.Millisecond)
		d.dies()
		time.Sleep(50 * time.Millisecond)
		d.returns()
	}
	stop.Store(true)
	all.Wait()
	near.insertedOnce(acked)
	for _, id := range []ag.ReplicaID{"a", "b"} {
		for m := range failed {
			if near.countOf(id, m) != 0 {
				t.Errorf("%v failed with 40001 and is there", m)
			}
		}
	}
	t.Logf("%d times a client went on after 40001", lived.Load())
	return lived.Load()
}

// countOf returns how often a row is on a server.
func (g *group) countOf(id ag.ReplicaID, m mark) int {
	g.t.Helper()
	conn, err := g.servers[id].connect(context.Background(), "postgres")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return value[int](g.t, conn, "select count(*)::int from public.once where c = $1 and i = $2", m.client, m.row)
}

// transfer inserts rows in a transaction, by one protocol or the other.
func transfer(conn *pgx.Conn, r *rand.Rand, client, from, to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	mode := pgx.QueryExecModeSimpleProtocol
	if r.IntN(2) == 0 {
		mode = pgx.QueryExecModeExec
	}
	statements := []string{"begin"}
	for k := from; k < to; k++ {
		statements = append(statements, fmt.Sprintf("insert into once values (%d, %d)", client, k), "select count(*) * 0 from once")
	}
	for _, s := range append(statements, "commit") {
		if _, err := conn.Exec(ctx, s, mode); err != nil {
			return err
		}
		time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
	}
	return nil
}

func TestLostTransactionsAreNotExecuted(t *testing.T) {
	far, near := farPrimary(t)
	if ledger(t, far, near, 6) == 0 {
		t.Error("none went on after 40001")
	}
}

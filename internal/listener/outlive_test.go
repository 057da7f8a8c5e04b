package listener

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// farPrimary is a group of two nodes. Clients come to near, which is b; far, which is a, is the primary.
func farPrimary(t *testing.T, change ...func(*Config)) (far, near *group) {
	t.Helper()
	quick := func(c *Config) {
		c.keepTick = 5 * time.Millisecond
		for _, f := range change {
			f(c)
		}
	}
	return pairOf(movingGroup(t, quick), movingGroup(t, quick))
}

// pairOf joins two nodes as farPrimary says.
func pairOf(a, b *group) (far, near *group) {
	b.remote["a"] = a.srv
	a.publish(pairRoutes(1, "a", "a"))
	b.publish(pairRoutes(1, "b", "a"))
	return a, b
}

// pairRoutes are the routes of one of two nodes.
func pairRoutes(epoch ag.Epoch, self, primary ag.ReplicaID) *ag.Routes {
	return &ag.Routes{
		Epoch: epoch, Self: self, Primary: primary, WriteOpen: true,
		Targets: []ag.Target{{ID: "a", Local: self == "a", Healthy: true}, {ID: "b", Local: self == "b", Healthy: true}},
	}
}

// dies has the far node die, and the near one become the primary.
func (g *group) dies() {
	epoch := g.routes.Load().Epoch + 1
	g.cutOff()
	g.publish(pairRoutes(epoch, "b", "b"))
	g.srv.CloseEpoch(epoch, "the primary has changed")
}

// loses has the far node die before there is another primary.
func (g *group) loses() {
	shut := *g.routes.Load()
	shut.Primary, shut.WriteOpen = "", false
	g.publish(&shut)
	g.cutOff()
}

// cutOff resets the connections to the far node, and those that come.
func (g *group) cutOff() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cuts = true
	g.cut()
}

// returns has the far node become the primary again.
func (g *group) returns(far *group) {
	epoch := g.routes.Load().Epoch + 1
	g.mu.Lock()
	g.cuts = false
	g.mu.Unlock()
	far.publish(pairRoutes(epoch, "a", "a"))
	g.publish(pairRoutes(epoch, "b", "a"))
	g.srv.CloseEpoch(epoch, "the primary has changed")
}

// known waits until the state of all sessions is known.
func (g *group) known() {
	g.t.Helper()
	waitFor(g.t, "the states of its sessions are known", func() bool {
		n := len(g.srv.Sessions())
		return n > 0 && g.knownStates() == n
	})
}

// unasked has no session asked from now on.
func (g *group) unasked() {
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	for _, x := range g.srv.sessions {
		x.work.Lock()
		x.work.Known.Next = time.Now().Add(time.Hour)
		x.work.Unlock()
	}
}

// stateKnown reports whether the state of a client's session is known.
func (g *group) stateKnown(conn *pgx.Conn) bool {
	x := g.sessionOf(conn.PgConn().Conn())
	if x == nil {
		return false
	}
	x.work.Lock()
	defer x.work.Unlock()
	return x.work.Known.Told != nil && x.work.Known.Unchanged.Holds() && !x.work.RelayedUnseen()
}

// knownStates returns of how many sessions the state is known.
func (g *group) knownStates() (n int) {
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	for _, x := range g.srv.sessions {
		x.work.Lock()
		if x.work.Known.Told != nil && x.work.Known.Unchanged.Holds() && !x.work.RelayedUnseen() {
			n++
		}
		x.work.Unlock()
	}
	return n
}

func TestSessionsOutliveTheirNode(t *testing.T) {
	_, near := farPrimary(t)
	near.role("mover", "login")
	near.role("lender", "")
	for _, s := range near.servers {
		s.sql(t, "grant lender to mover")
	}
	conn := near.mustDial(near.rw, "user=mover")
	pid := conn.PgConn().PID()
	near.do(conn, "set work_mem = '7MB'", "set my.tenant = '42'", "set time zone 'Europe/Berlin'", "prepare p (int) as select $1 + 1", "listen coterie_lost", "set role lender")
	if _, err := conn.Prepare(t.Context(), "named", "select lower($1)"); err != nil {
		t.Fatal(err)
	}
	near.known()
	if got := near.one(conn, "named", "A"); got != "a" { // what is known holds
		t.Fatal(got)
	}
	near.dies()
	near.shows(conn, map[string]string{
		"select current_setting('cluster_name')": "b", "show work_mem": "7MB", "select current_setting('my.tenant')": "42", "show timezone": "Europe/Berlin",
		"select current_user": "lender", "execute p(41)": "42",
	})
	if got := near.one(conn, "named", "B"); got != "b" {
		t.Errorf("the prepared statement returns %q", got)
	}
	near.movedOne(conn, pid)
}

// A session outlives its PostgreSQL while the node lives, too: that node leaves the judgement to the client's.
func TestSessionsOutliveTheirServer(t *testing.T) {
	far, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.do(conn, "set my.tenant = '42'")
	near.known()
	far.srv.mu.Lock()
	for _, x := range far.srv.sessions {
		_ = x.backend.Close()
	}
	far.srv.mu.Unlock()
	waitFor(t, "it goes on", func() bool { return near.srv.Stats().Moved == 1 })
	if got := near.one(conn, "select current_setting('cluster_name') || ' ' || current_setting('my.tenant')"); got != "a 42" {
		t.Errorf("it goes on as %q", got)
	}
}

// After a forced failover no session goes on.
func TestNoSessionOutlivesAForcedFailover(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.cutOff()
	forced := pairRoutes(2, "b", "b")
	forced.Lossless = 2
	near.publish(forced)
	near.srv.CloseEpoch(2, "the failover was forced")
	var pg *pgconn.PgError
	if _, err := conn.Exec(t.Context(), "select 1"); !errors.As(err, &pg) || pg.Severity != "FATAL" || !strings.Contains(pg.Message, "forced") {
		t.Errorf("%v", err)
	}
}

// A request that was under way when the node died ends the session or not, by whether it may have been committed.
func TestWhatWasUnderWayWhenTheNodeDied(t *testing.T) {
	for _, c := range []struct {
		name, before, during string
		code                 string // of the error that the client gets
		status               byte   // of its transaction afterwards; 0: its session is over
	}{
		{"a statement of a transaction", "begin", "select pg_sleep(61)", "40001", 'E'},
		{"a statement of a failed transaction", "begin; select 1/0", "", "", 'E'},
		{"a statement alone", "", slowOn("a"), "", 'I'},
		{"a change alone", "", "insert into outlived select 1 from pg_sleep(62)", "08007", 0},
		{"an open transaction", "begin", "", "40001", 'E'},
		{"an open transaction with a setting", "begin; set local work_mem = '9MB'", "", "40001", 0},
		{"a setting since", "set work_mem = '9MB'", "", "57P01", 0},
		{"a function since", "select quiet_function()", "", "57P01", 0},
		{"a temporary table", "create temp table t (x int)", "", "57P01", 0},
		{"a table by SELECT INTO", "select 1 as x into temp t", "", "57P01", 0},
		{"currval", "create temp sequence s; select nextval('s'); select currval('s')", "", "57P01", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, near := farPrimary(t)
			for _, s := range near.servers {
				s.sql(t, "create or replace function public.quiet_function() returns int language sql as 'select 1'", "create table if not exists outlived (x int)")
			}
			conn := near.mustDial(near.rw, "user=postgres")
			near.known()
			near.unasked() // the session is judged by what it has sent since
			if c.before != "" {
				if err := <-later(conn, c.before); err != nil {
					t.Log(err) // one of them fails
				}
			}
			ended := make(<-chan error)
			if c.during != "" {
				ended = later(conn, c.during)
				waitFor(t, "it runs", func() bool { return near.waiting(c.during) > 0 })
			}
			near.dies()
			var err error
			if c.during != "" {
				err = <-ended
			} else {
				_, err = conn.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
			}
			var pg *pgconn.PgError
			switch {
			case c.code == "" && c.status == 'E' && errors.As(err, &pg) && pg.Code == "25P02":
			case c.code == "" && c.status == 'I' && err == nil:
			case !errors.As(err, &pg) || pg.Code != c.code || (pg.Severity == "FATAL") != (c.status == 0):
				t.Fatalf("%v, want %s", err, c.code)
			}
			if c.code == "57P01" && !strings.Contains(pg.Message, "could not be continued: ") {
				t.Errorf("it does not say why: %s", pg.Message)
			}
			if c.status == 0 {
				return
			}
			if got := conn.PgConn().TxStatus(); got != c.status {
				t.Errorf("the status is %c", got)
			}
			if c.status != 'I' {
				near.do(conn, "rollback")
			}
			near.do(conn, "begin", "select 1", "commit")
			if got := near.one(conn, "select current_setting('cluster_name')"); got != "b" {
				t.Errorf("it goes on on %q", got)
			}
		})
	}
}

// A prepared BEGIN that is under way when the node dies has committed nothing: the client hears 40001 and goes on, and
// with REPLAY it hears nothing.
func TestPreparedBeginUnderWay(t *testing.T) {
	for _, replays := range []bool{false, true} {
		_, near := farPrimary(t, func(c *Config) { c.Replay = func() bool { return replays } })
		conn := near.mustDial(near.rw, "user=postgres")
		pid := near.one(conn, "select pg_backend_pid()::text")
		if _, err := conn.Prepare(t.Context(), "begin", "begin"); err != nil {
			t.Fatal(err)
		}
		near.known()
		backend, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil { // so that it does not answer
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(backend, syscall.SIGCONT) })
		ended := make(chan error, 1)
		x := near.sessionOf(conn.PgConn().Conn())
		go func() {
			_, err := conn.Exec(t.Context(), "begin")
			ended <- err
		}()
		waitFor(t, "it is under way", func() bool { return x.work.Owed.Load() == 1 })
		near.dies()
		var pg *pgconn.PgError
		switch err := <-ended; {
		case replays && err != nil:
			t.Errorf("with REPLAY: %v; %v", err, near.srv.Stats().Unreplayed)
		case !replays && (!errors.As(err, &pg) || pg.Code != "40001" || pg.Severity != "ERROR"):
			t.Fatalf("without REPLAY: %v", err)
		case !replays:
			near.do(conn, "rollback", "begin")
		}
		if got := near.one(conn, "select current_setting('cluster_name')"); got != "b" || conn.PgConn().TxStatus() != 'T' {
			t.Errorf("it goes on on %q, %c", got, conn.PgConn().TxStatus())
		}
		near.do(conn, "commit")
		_ = conn.Close(t.Context())
	}
}

// waiting returns how many sessions of the far server execute a statement.
func (g *group) waiting(statement string) int {
	g.t.Helper()
	return g.active("query = $2", statement)
}

// active returns how many sessions of the far server execute a statement of this group for which the condition with $2
// holds.
func (g *group) active(condition, text string) int {
	g.t.Helper()
	conn, err := g.servers["a"].connect(g.t.Context(), "postgres")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return value[int](g.t, conn, "select count(*)::int from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and query_start > $1 and "+condition, g.born, text)
}

// Requests are executed once, whenever the node dies, and whatever its sessions are asked at that moment.
func TestOutlivingExecutesOnce(t *testing.T) {
	far, near := farPrimary(t)
	hammer(t, near, "disable", diesByTurns(t, far, near))
}

// diesByTurns has the far node die and return by turns. A session that was idle is kept.
func diesByTurns(t *testing.T, far, near *group) func(i int) {
	return func(i int) {
		if i%2 == 1 {
			near.returns(far)
			return
		}
		idle := near.mustDial(near.rw, "user=postgres") // of the others none may be at a moment in which it can go on
		near.do(idle, "set my.x = 'kept'")
		waitFor(t, "the states of this session and of another one are known", func() bool {
			return near.stateKnown(idle) && near.knownStates() >= 2
		})
		near.dies()
		near.shows(idle, map[string]string{"select current_setting('my.x')": "kept"})
		_ = idle.Close(context.Background())
	}
}

// Planned failovers give sessions back while their nodes ask for their states.
func TestMoveWhileStatesAreAsked(t *testing.T) {
	quick := func(c *Config) { c.keepTick = time.Millisecond }
	executesOnce(t, movingGroup(t, quick), movingGroup(t, quick), "disable")
}

// TestOutlivingSessionsAreTheSame is TestMovedSessionsAreTheSame for the death of the node: everything that a client
// sees afterwards is the same, or its session has ended.
func TestOutlivingSessionsAreTheSame(t *testing.T) {
	far, near := farPrimary(t)
	near.role("mover", "login")
	near.role("lender", "")
	defer sameSchemas(t, near)()
	ended, scripts := runScripts(t, 25, func(r *rand.Rand) bool { return sameWhenOutlived(t, near, near.dies, func() { near.returns(far) }, r) })
	t.Logf("%d of %d sessions ended: %v", ended, scripts, near.srv.Stats().Unmoved)
	if ended > scripts*3/4 {
		t.Error("most sessions ended")
	}
}

// sameWhenOutlived executes one script, and has the node die at a boundary, after a while or at once. It reports false
// if the session ended.
func sameWhenOutlived(t *testing.T, near *group, dies, returns func(), r *rand.Rand) bool {
	t.Helper()
	script, at, patient := stateScript(r), r.IntN(20), r.IntN(3) > 0
	moved := near.mustDial(near.rw, "user=mover").PgConn()
	stays, err := pgconn.Connect(t.Context(), "host="+near.servers["a"].dir+" user=mover dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = moved.Close(context.Background()), stays.Close(context.Background())
		waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
		returns()
	}()
	died := false
	for i, statement := range script {
		if i >= at && !died && moved.TxStatus() == 'I' {
			for end := time.Now().Add(time.Second); patient && near.knownStates() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // some cannot be known
			}
			dies()
			died = true
		}
		got, lost := observe(t, moved, statement)
		want, _ := observe(t, stays, statement)
		switch {
		case lost && died && (strings.Contains(got, "57P01") || strings.Contains(got, "before the transaction was begun")):
			return false
		case got != want:
			t.Errorf("the node died before %d of %q:\n%d %s\n%s\nwant\n%s", at, script, i, statement, got, want)
			return true
		}
	}
	return true
}

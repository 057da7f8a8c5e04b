package listener

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// ownReplays are the carriers of sessions of the node's own server, with CONTINUITY = REPLAY. When that dies, b leads.
func ownReplays(t *testing.T, f func(t *testing.T, g *group, d deaths)) {
	t.Helper()
	ownPaths(t, func(t *testing.T, g *group, with string) {
		dies := func() {
			sessions := g.srv.localSessions()
			g.serverDies()
			for _, x := range sessions {
				waitFor(t, "its session has noticed", func() bool { return x.ended.Load() != nil || x.closed.Load() || x.moving.isOver.Load() })
			}
			g.succeeds()
		}
		returns := func() {
			r := *g.routes.Load()
			r.Epoch++
			r.Primary = "a"
			g.publish(&r)
			g.srv.CloseEpoch(r.Epoch, "the primary has changed")
		}
		f(t, g, deaths{dies, returns, with})
	}, func(c *Config) { c.Replay = always })
}

// A transaction of the node's own server goes on at the new primary, too.
func TestTransactionsOfTheOwnServerGoOn(t *testing.T) {
	longTest(t)
	ownReplays(t, transactionsGoOn)
}

// longTest skips a test that takes longer than some seconds.
func longTest(t *testing.T) {
	t.Helper()
	if !longTests() {
		t.Skip("takes half a minute: set COTERIE_LONG=1")
	}
}

func longTests() bool { return os.Getenv("COTERIE_LONG") != "" }

// It goes on at the same server once that is back, and only once.
func TestTransactionsOutliveARestartOfTheirServer(t *testing.T) {
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		defer g.rowsOnce()()
		conn := g.mustDial(g.rw, "user=postgres "+d.with)
		g.known()
		g.do(conn, "begin", "insert into once values (1, 1)")
		g.serverDies()
		g.do(conn, "insert into once values (1, 2)")
		x := g.sessionOf(conn.PgConn().Conn())
		g.serverDies()
		waitFor(t, "it has no server", func() bool { return x.ended.Load() != nil })
		var bad *pgconn.PgError
		if err := <-later(conn, "commit"); !errors.As(err, &bad) || bad.Code != "40001" || !strings.Contains(bad.Detail, replay.Repeated) {
			t.Errorf("the client is told %v", err)
		}
		g.shows(conn, map[string]string{"select count(*)::text from once": "0"})
		if st := g.srv.Stats(); st.Replayed != 1 || g.srv.rules.Logs.Used() != 0 {
			t.Errorf("%+v, %d bytes are in use", st, g.srv.rules.Logs.Used())
		}
	})
}

// A session that ends in its transaction gives the memory of that back.
func TestMemoryOfTransactionsIsGivenBack(t *testing.T) {
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		conn := g.mustDial(g.rw, "user=postgres "+d.with)
		g.known()
		g.do(conn, "begin", "select 1")
		if g.srv.rules.Logs.Used() == 0 {
			t.Error("nothing is kept")
		}
		_ = conn.PgConn().Conn().Close()
		waitFor(t, "it is given back", func() bool { return g.srv.rules.Logs.Used() == 0 })
	})
}

// Random transactions of the node's own server are the same after it has died.
func TestReplayedTransactionsOfTheOwnServerAreTheSame(t *testing.T) {
	longTest(t)
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		g.role("mover", "login")
		g.both("drop table if exists public.t", "create table public.t (x int primary key, v text)", "grant all on public.t to public")
		defer g.both("drop table public.t")
		lost, scripts := runScripts(t, 10, func(r *rand.Rand) bool { return sameWhenReplayed(t, g, d, r) })
		st := g.srv.Stats()
		t.Logf("%d of %d transactions were lost, %d executed again: %v", lost, scripts, st.Replayed, st.Unreplayed)
		if lost > scripts/2 || st.Replayed == 0 {
			t.Error("few were executed again")
		}
	})
}

// Transfers at the node's own server are there once if they were acknowledged, and not if they failed with 40001.
func TestReplayedTransactionsOfTheOwnServerAreExecutedOnce(t *testing.T) {
	longTest(t)
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		d.dies = func() {
			g.serverDies()
			time.Sleep(5 * time.Millisecond) // some are told before there is another primary
			g.succeeds()
		}
		ledgerOf(t, g, d, 4)
		st := g.srv.Stats()
		t.Logf("%d executed again, %v", st.Replayed, st.Unreplayed)
		if st.Replayed == 0 {
			t.Error("none was executed again")
		}
	})
}

// The outlook of an open transaction is what happens when its server dies right after it was read.
func TestOutlookOfOpenTransactions(t *testing.T) {
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		if !longTests() && !strings.HasSuffix(t.Name(), "/loop") {
			t.Skip("takes some seconds on each path: set COTERIE_LONG=1 for all")
		}
		defer g.rowsOnce()()
		kept := continuity.Prospect{Fate: continuity.Kept}
		for _, c := range []struct {
			name  string
			texts []string
			want  continuity.Prospect
		}{
			{"none", []string{"select 1"}, continuity.Prospect{}},
			{"rows", []string{"begin", "insert into once values (1, 1)"}, kept},
			{"behind another statement", []string{"select 1; begin"}, continuity.Prospect{Fate: continuity.Ends, Why: replay.NotKept}},
			{"not twice", []string{"begin", "select setval('numbers', 3)"}, continuity.Prospect{Fate: continuity.Ends, Why: replay.NotTwice}},
			{"failed", []string{"begin; select 1/0"}, continuity.Prospect{}},
		} {
			g.both("drop sequence if exists public.numbers", "create sequence public.numbers")
			conn := g.mustDial(g.rw, "user=postgres application_name=open "+d.with)
			g.known()
			g.unasked()
			for _, text := range c.texts {
				if err := <-later(conn, text); err != nil && c.name != "failed" {
					t.Fatal(err)
				}
			}
			got := g.outlook("open")
			if got.Transaction != c.want || got.Server != kept {
				t.Errorf("%s: %+v", c.name, got.Outlook)
			}
			if list := g.srv.Sessions(); len(list) != 1 || list[0].Outlook() != got.Outlook {
				t.Errorf("%s: of the session alone: %+v", c.name, list)
			}
			d.dies()
			if err := <-later(conn, "select 1"); (err == nil) != (got.Transaction == kept || c.name == "none") {
				t.Errorf("%s: then the client is told %v", c.name, err)
			}
			g.ends(conn)
			d.returns()
		}
		g.both("drop sequence public.numbers")
	})
}

// A planned failover that cuts what is busy has transactions executed again, as if their server were lost, and says so
// beforehand. It ends what would not outlive its server.
func TestTransactionsThatAPlannedFailoverCutsGoOn(t *testing.T) {
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		defer g.rowsOnce()()
		open := func(name string, texts ...string) *pgx.Conn {
			conn := g.mustDial(g.rw, "user="+name+" "+d.with)
			waitFor(t, "its state is known", func() bool { return g.stateKnown(conn) })
			g.unasked()
			g.do(conn, texts...)
			return conn
		}
		for _, name := range []string{"replayed", "twice", "changed", "idle", "seed", "sleeps"} {
			g.role(name, "login")
		}
		g.both("grant all on once to public", "drop sequence if exists numbers", "create sequence numbers", "grant all on numbers to public")
		defer g.both("drop sequence numbers")
		replayed := open("replayed", "begin", "insert into once values (1, 1)")
		twice := open("twice", "begin", "select setval('numbers', 3)")
		changed := open("changed", "set my.x = 'y'", "begin")
		_ = open("seed", "select setseed(0.5)", "begin")
		idle, sleeps := open("idle"), open("sleeps")
		const slow = "select pg_sleep(case current_setting('cluster_name') when 'a' then 600 else 0 end)"
		slept := later(sleeps, slow)
		waitFor(t, "it sleeps", func() bool { return g.waiting(slow) > 0 })
		busy := func(cut string) ag.SessionMove { return ag.SessionMove{Why: inquiry.Busy, Waits: true, Cut: cut} }
		want := map[string]ag.SessionMove{
			"replayed": busy("executed again"), "twice": busy("its transaction fails with 40001: " + replay.NotTwice), "idle": {}, "sleeps": busy("executed again"),
			"changed": busy("ends: its state had changed and was not read since"), "seed": {Why: "it has set the seed of random"},
		}
		for _, m := range g.srv.Moves(t.Context()) {
			if w := want[m.User]; m.Why != w.Why || m.Waits != w.Waits || m.Cut != w.Cut {
				t.Errorf("%s: %+v", m.User, m)
			}
		}
		g.srv.HoldNew(true)
		g.srv.Drain(true)
		if n := g.srv.CutBusy("planned failover"); n != 2 {
			t.Errorf("%d sessions were cut", n)
		}
		g.drained()
		g.srv.ReadStates(t.Context())
		g.srv.CloseServer("planned failover")
		r := *g.routes.Load()
		r.Epoch++
		r.Primary = "b"
		g.publish(&r)
		g.srv.CloseEpoch(r.Epoch, "the primary has changed")
		g.srv.Drain(false)
		g.srv.HoldNew(false)
		g.do(replayed, "insert into once values (1, 2)", "commit")
		if err := <-later(twice, "select 1"); sqlstate(err) != "40001" {
			t.Errorf("one that is not executed twice: %v", err)
		}
		g.do(twice, "rollback", "select 1")
		if err := <-later(changed, "select 1"); sqlstate(err) != "57P01" {
			t.Errorf("one that is not known: %v", err)
		}
		must(t, <-slept)
		g.do(idle, "select 1")
		if n := value[int](t, idle, "select count(*)::int from once"); n != 2 {
			t.Errorf("%d rows at the new primary", n)
		}
	})
}

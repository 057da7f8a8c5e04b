package listener

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// ownLink is ownReplays with a link before the server, which is its own successor: it can only prove that a transaction
// was not committed.
func ownLink(t *testing.T, f func(t *testing.T, g *group, l *lossyLink, with string)) {
	t.Helper()
	ownReplays(t, func(t *testing.T, g *group, d deaths) {
		l := newLossyLink(t, g.servers["a"])
		g.servers = map[ag.ReplicaID]*server{"a": {name: "a", dir: l.dir}, "b": g.servers["b"]}
		defer g.rowsOnce()()
		f(t, g, l, d.with)
	})
}

// crashes has the server lose all sessions while no other one leads, and lead again on the same timeline.
func (g *group) crashes(l *lossyLink) {
	g.t.Helper()
	shut := *g.routes.Load()
	shut.Primary, shut.WriteOpen = "", false
	g.publish(&shut)
	l.loses.Store(nil)
	pids := []string{"0"} // those of other tests may still sleep there
	for _, x := range g.srv.localSessions() {
		pids = append(pids, strconv.FormatUint(uint64(x.pid), 10))
	}
	g.serverDies()
	waitFor(g.t, "its processes have gone", func() bool {
		return asked[int](g.t, l.to, "select count(*)::int from pg_stat_activity where state <> 'idle' and pid in ("+strings.Join(pids, ", ")+")") == 0
	})
	again := pairRoutes(shut.Epoch, "a", "a")
	again.Timelines = []ag.TimelineEntry{{TLI: 1, Epoch: 1}}
	g.publish(again)
}

// begins opens a session whose state is known, with a transaction that has written a row.
func (g *group) begins(t *testing.T, with string, statements ...string) *pgx.Conn {
	t.Helper()
	conn := g.mustDial(g.rw, "user=postgres "+with)
	preparesCommit(t, conn)
	g.known()
	g.unasked()
	g.do(conn, append([]string{"begin", "insert into once values (1, 1)"}, statements...)...)
	return conn
}

// A COMMIT that is proved not to have happened is executed again with its transaction, once.
func TestLostCommitIsExecutedAgain(t *testing.T) {
	ownLink(t, func(t *testing.T, g *group, l *lossyLink, with string) {
		what := "request bytes"
		for i, how := range []string{bySimple, byUnnamed, byNamed} {
			conn := g.begins(t, with, "select count(*) from once")
			if i > 0 {
				g.do(conn, "savepoint s")
			}
			l.lost.Store(false)
			l.loses.Store(&what)
			told := sendsCommit(conn, how)
			waitFor(t, "it is lost", l.lost.Load)
			time.Sleep(20 * time.Millisecond) // what is not lost arrives
			g.crashes(l)
			if got := <-told; got != "COMMIT I" {
				t.Errorf("%s: the client is told %q; %v", how, got, g.srv.Stats().Unreplayed)
			}
			g.shows(conn, map[string]string{"select count(*)::text from once": "1"})
			g.do(conn, "truncate once")
			g.ends(conn)
		}
		if st := g.srv.Stats(); st.Replayed != 3 || st.Doubts["aborted"] != 3 || len(st.Unreplayed) != 0 || g.srv.rules.Logs.Used() != 0 {
			t.Errorf("%+v, %d bytes are in use", st, g.srv.rules.Logs.Used())
		}
	})
}

// ends closes a session of the group's client.
func (g *group) ends(conn *pgx.Conn) {
	g.t.Helper()
	_ = conn.Close(context.Background())
	waitFor(g.t, "its session has ended", g.over)
}

// over reports whether no client has a session, nor waits for a server that continues it.
func (g *group) over() bool {
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	return len(g.srv.sessions)+len(g.srv.unserved) == 0
}

// It is not executed again where that cannot be seen to be the same, and not if it may have been committed.
func TestLostCommitIsNotExecutedAgain(t *testing.T) {
	ownLink(t, func(t *testing.T, g *group, l *lossyLink, with string) {
		for _, c := range []struct {
			name, loses, statement, change string
			want, why, rows                string
		}{
			{"another answer", "request bytes", "select count(*) from once", "insert into once values (2, 2)", "ERROR 40001 I", replay.Differs, "1"},
			{"the time", "request bytes", "select now()", "", "ERROR 40001 I", replay.Differs, "0"},
			{"executed, and nobody else has it", "answer bytes", "select 1", "", "FATAL 08007", "", "1"},
		} {
			t.Run(c.name, func(t *testing.T) {
				before := g.srv.Stats().Unreplayed[c.why]
				conn := g.begins(t, with, c.statement)
				l.lost.Store(false)
				l.loses.Store(&c.loses)
				told := sendsCommit(conn, bySimple)
				waitFor(t, "it is lost", l.lost.Load)
				time.Sleep(20 * time.Millisecond) // what is not lost arrives
				if c.change != "" {
					l.to.sql(t, c.change)
				}
				g.crashes(l)
				if got := <-told; !strings.HasPrefix(got, c.want) {
					t.Errorf("the client is told %q", got)
				}
				if n := asked[int](t, l.to, "select count(*)::int from once"); string(rune('0'+n)) != c.rows {
					t.Errorf("%d rows", n)
				}
				if n := g.srv.Stats().Unreplayed[c.why]; c.why != "" && n != before+1 {
					t.Errorf("%v", g.srv.Stats().Unreplayed)
				}
				l.to.sql(t, "truncate once")
				g.ends(conn)
			})
		}
	})
}

// Wherever the requests or the answers around a COMMIT are cut, the client is told the truth: COMMIT is there once,
// 40001 is not there, and 08007 at most once.
func TestCommitCutAnywhere(t *testing.T) {
	step := 31
	if longTests() {
		step = 1
	}
	ownLink(t, func(t *testing.T, g *group, l *lossyLink, with string) {
		outcomes := map[string]int{}
		for _, what := range []string{"request bytes", "answer bytes"} {
			for n, whole := 0, false; !whole; n += step {
				conn := g.begins(t, with)
				l.lost.Store(false)
				l.left.Store(int64(n))
				l.loses.Store(&what)
				told := sendsCommit(conn, []string{bySimple, byUnnamed, byNamed}[n%3])
				waitFor(t, "it is lost, or not", func() bool { return l.lost.Load() || len(told) > 0 })
				time.Sleep(10 * time.Millisecond) // what is not lost arrives
				whole = len(told) > 0
				g.crashes(l)
				got := <-told
				got = got[:min(len(got), len("ERROR 40001"))]
				rows := asked[int](t, l.to, "select count(*)::int from once")
				if right := map[string]bool{"COMMIT I": rows == 1, "ERROR 40001": rows == 0, "FATAL 08007": rows <= 1}[got]; !right {
					t.Errorf("cut after %d %s: the client is told %q, and there are %d rows", n, what, got, rows)
				}
				outcomes[got]++
				l.to.sql(t, "truncate once")
				g.ends(conn)
			}
		}
		t.Log(outcomes, g.srv.Stats().Doubts, g.srv.Stats().Unreplayed)
		if g.srv.rules.Logs.Used() != 0 {
			t.Errorf("%d bytes are in use", g.srv.rules.Logs.Used())
		}
	})
}

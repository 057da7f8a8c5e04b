package listener

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// The outcome of a COMMIT of the node's own server is proved, too, when that has died and the node lives.
func TestCommitOfTheOwnServerInDoubt(t *testing.T) {
	longTest(t)
	const committed, lost = "COMMIT I", "ERROR 40001 I"
	for i, c := range []struct {
		name, how string
		value     string // of the row: deferred, so that the COMMIT is being executed
		deaf      bool   // b does not get the COMMIT
		loses     string // what the link to a loses
		want      string
		rows      int
	}{
		{"committed", bySimple, "false", false, "", committed, 1},
		{"committed, prepared", byNamed, "false", false, "", committed, 1},
		{"the answer is lost", byUnnamed, "false", false, "answer", committed, 1},
		{"lost on its way", byNamed, "false", false, "request", lost, 0},
		{"not executed", bySimple, "true", false, "", lost, 0},
		{"not replicated", byNamed, "false", true, "", lost, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ownPaths(t, func(t *testing.T, g *group, with string) {
				if path := []string{"/loop", "/loop_TLS", "/goroutines"}; !strings.HasSuffix(t.Name(), path[i%3]) {
					t.Skip("another case is run on this path")
				}
				g.publish(pairRoutes(1, "a", "a"))
				r := replicasOf(t, g, "a")
				conn := g.mustDial(g.rw, "user=postgres "+with)
				preparesCommit(t, conn)
				g.known()
				g.unasked()
				r.holdCommits(c.loses == "")
				r.caughtUp()
				if c.deaf {
					r.deafen(true)
				}
				g.do(conn, "begin", "insert into ledger values (1, "+c.value+")")
				r.link.loses.Store(&c.loses)
				told := sendsCommit(conn, c.how)
				r.underWay(c.loses != "", c.value == "true", c.rows)
				if !c.deaf {
					r.caughtUp()
				}
				if !c.deaf && c.loses == "" {
					_ = r.a.cmd.Process.Signal(syscall.SIGKILL) // its processes notice
				}
				r.promote(c.deaf)
				r.leads(true)
				if got := <-told; got != c.want && !strings.HasPrefix(got, c.want+" ") {
					t.Errorf("the client is told %q, want %q", got, c.want)
				}
				if n := r.rows(1); n != c.rows {
					t.Errorf("%d rows", n)
				}
				g.do(conn, "begin", "insert into ledger values (2)", "commit")
				if n := r.rows(2); n != 1 {
					t.Errorf("the session does not go on: %d rows", n)
				}
				t.Log(r.timelines, g.srv.Stats().Doubts)
			})
		})
	}
}

// A server that has crashed and leads again, on a timeline of its own, proves the COMMITs of before.
func TestCommitInDoubtAtTheSameServer(t *testing.T) {
	longTest(t)
	g := movingGroup(t, func(c *Config) { c.keepTick = 5 * time.Millisecond })
	g.publish(pairRoutes(1, "a", "a"))
	r := replicasOf(t, g, "a")
	waits, runs := g.mustDial(g.rw, "user=postgres sslmode=disable"), g.mustDial(g.rw, "user=postgres sslmode=disable")
	preparesCommit(t, waits)
	g.known()
	g.unasked()
	r.holdCommits(true)
	g.do(waits, "begin", "insert into ledger values (1)")
	g.do(runs, "begin", "insert into ledger values (2, true)")
	of := sendsCommit(waits, byNamed)
	r.holding("SyncRep")
	not := sendsCommit(runs, bySimple)
	r.holding("PgSleep")
	shut := *g.routes.Load()
	shut.Primary, shut.WriteOpen = "", false
	g.publish(&shut)
	_ = r.a.cmd.Process.Signal(syscall.SIGKILL)
	_ = r.a.cmd.Wait()
	r.again()
	routes := pairRoutes(2, "a", "a")
	routes.Timelines = r.timelines
	g.publish(routes)
	g.srv.CloseEpoch(2, "the primary has changed")
	if got := <-of; got != "COMMIT I" {
		t.Errorf("the client whose COMMIT was executed is told %q", got)
	}
	if got := <-not; !strings.HasPrefix(got, "ERROR 40001 I") {
		t.Errorf("the client whose COMMIT was not executed is told %q", got)
	}
	if n := asked[int](t, r.a, "select sum(key)::int from ledger"); n != 1 {
		t.Errorf("the keys add up to %d", n)
	}
	g.do(runs, "begin", "insert into ledger values (3)", "commit")
}

// again starts a after a crash, and has it lead on a timeline of its own.
func (r *replicas) again() {
	r.t.Helper()
	r.standby(r.a)
	r.a.args = append(slices.Clone(r.a.args), "-c", "synchronous_standby_names=")
	waitFor(r.t, "its old processes have gone", func() bool {
		links, _ := filepath.Glob("/proc/[0-9]*/cwd")
		return !slices.ContainsFunc(links, func(l string) bool { dir, _ := os.Readlink(l); return dir == r.a.dir+"/data" })
	})
	r.start(r.a)
	xmax := "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	var x ag.Xids
	x.Kept = uint64(asked[int64](r.t, r.a, xmax))
	r.a.sql(r.t, "select pg_promote()")
	x.Lost = uint64(asked[int64](r.t, r.a, xmax))
	r.timelines = append(r.timelines, ag.TimelineEntry{TLI: 2, Parent: 1, Epoch: 2, Xids: x})
}

// A COMMIT of nothing at the node's own server is answered as one, on every path.
func TestCommitOfNothingAtTheOwnServer(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		link := newLossyLink(t, g.servers["a"])
		g.servers = map[ag.ReplicaID]*server{"a": {name: "a", dir: link.dir}, "b": g.servers["b"]}
		for _, how := range []string{bySimple, byUnnamed, byNamed} {
			conn := g.mustDial(g.rw, "user=postgres "+with)
			preparesCommit(t, conn)
			g.known()
			g.unasked()
			g.do(conn, "begin", "select 1")
			what := "answer"
			link.lost.Store(false)
			link.loses.Store(&what)
			told := sendsCommit(conn, how)
			waitFor(t, "it is lost", link.lost.Load)
			time.Sleep(50 * time.Millisecond) // what is not lost arrives
			link.loses.Store(nil)
			g.serverDies()
			g.succeeds()
			if got := <-told; got != "COMMIT I" {
				t.Errorf("%s: the client is told %q", how, got)
			}
			g.shows(conn, map[string]string{"select current_setting('cluster_name')": "b"})
			_ = conn.Close(t.Context())
			waitFor(t, "its session has ended", func() bool { return len(g.srv.Sessions()) == 0 })
			g.publish(pairRoutes(g.routes.Load().Epoch+1, "a", "a"))
		}
		if st := g.srv.Stats(); st.Doubts["committed"] != 3 || len(st.Doubts) != 1 {
			t.Errorf("%v", st.Doubts)
		}
	})
}

// The answer to a COMMIT at the node's own server is the client's own, byte by byte.
func TestAnswerOfACommitAtTheOwnServerByteByByte(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		link := newLossyLink(t, g.servers["a"])
		g.servers = map[ag.ReplicaID]*server{"a": {name: "a", dir: link.dir}, "b": g.servers["b"]}
		conn := g.mustDial(g.rw, "user=postgres "+with)
		preparesCommit(t, conn)
		g.known()
		g.unasked()
		for _, how := range []string{bySimple, byUnnamed, byNamed} {
			g.do(conn, "begin", "select 1")
			link.cuts.Store(true)
			if got := <-sendsCommit(conn, how); got != "COMMIT I" {
				t.Errorf("%s: the client is told %q", how, got)
			}
			link.cuts.Store(false)
			g.shows(conn, map[string]string{"select current_setting('cluster_name')": "a"})
		}
		x := g.sessionOf(conn.PgConn().Conn())
		x.work.Lock()
		defer x.work.Unlock()
		if x.work.Asking.Timeline != 1 {
			t.Errorf("its server has told timeline %d: it was not asked", x.work.Asking.Timeline)
		}
	})
}

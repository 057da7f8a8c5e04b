package listener

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/release"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// A state that is too large is not moved. To read it ends no session.
func TestLargeStateIsRefused(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(conn, "set my.x = '"+strings.Repeat("x", 2<<20)+"'")
	x := near.sessionOf(conn.PgConn().Conn())
	waitFor(t, "it was asked", func() bool {
		x.work.Lock()
		defer x.work.Unlock()
		return x.ended.Load() != nil || x.work.Known.Unchanged.Holds() && time.Until(x.work.Known.Next) > 0
	})
	near.do(conn, "select 1")
	if got := near.one(conn, "select length(current_setting('my.x'))::text"); got != "2097152" {
		t.Error(got)
	}
}

// A question that fails leaves nothing in the session, and the next one succeeds.
func TestQuestionThatFails(t *testing.T) {
	_, near := farPrimary(t)
	near.role("asked", "login")
	conn := near.mustDial(near.rw, "user=asked")
	near.known()
	const function = "function pg_catalog.pg_listening_channels()" // the question calls it
	far := near.servers["a"]
	far.sql(t, "revoke execute on "+function+" from public")
	defer far.sql(t, "grant execute on "+function+" to public")
	near.do(conn, "set my.x = 'kept'")
	x, last, failed := near.sessionOf(conn.PgConn().Conn()), time.Time{}, -1
	waitFor(t, "two questions have failed", func() bool {
		x.work.Lock()
		defer x.work.Unlock()
		if k := &x.work.Known; k.Told == nil && !k.Next.Equal(last) { // the first time, it may be under way
			last, failed = k.Next, failed+1
		}
		return failed == 2
	})
	far.sql(t, "grant execute on "+function+" to public")
	near.known()
	if got := near.one(conn, "select coalesce(string_agg(name, ' '), '') from pg_prepared_statements where name like 'coterie%'"); got != "" {
		t.Errorf("it leaves %q", got)
	}
	near.known()
	near.dies()
	if got := near.one(conn, "select current_setting('cluster_name') || ' ' || current_setting('my.x')"); got != "b kept" {
		t.Error(got)
	}
}

// A transaction that was lost with its server is over when the client has rolled it back: the next move of the session
// is one of an idle session.
func TestLostTransactionIsLostOnce(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(conn, "begin")
	ended := later(conn, "select pg_sleep(63)")
	waitFor(t, "it runs", func() bool { return near.waiting("select pg_sleep(63)") > 0 })
	near.dies()
	if err := <-ended; sqlstate(err) != "40001" {
		t.Fatal(err)
	}
	near.do(conn, "rollback")
	near.srv.Drain(true)
	near.drained()
	near.srv.ReadStates(t.Context())
	near.srv.CloseServer("planned failover")
	near.srv.Drain(false)
	near.do(conn, "select 1", "begin", "commit")
	if n := near.srv.Stats().Moved; n != 2 {
		t.Errorf("moved %d times", n)
	}
}

// A reader whose replica is lost goes on at the primary, where new readers go.
func TestReadersOutliveTheirReplica(t *testing.T) {
	far, near := farPrimary(t)
	routes := func(self ag.ReplicaID, lost bool) *ag.Routes {
		r := pairRoutes(1, self, "b")
		r.Targets[0].Healthy, r.Targets[0].Readable = !lost, !lost
		r.ReadList = [][]ag.ReplicaID{{"a"}, {"b"}}
		return r
	}
	far.publish(routes("a", false))
	near.publish(routes("b", false))
	conn := near.mustDial(near.ro, "user=postgres")
	near.do(conn, "set my.x = 'kept'")
	near.known()
	near.publish(routes("b", true))
	near.cutOff()
	waitFor(t, "it has moved", func() bool { return near.srv.Stats().Moved == 1 })
	if got := near.one(conn, "select current_setting('cluster_name') || current_setting('my.x')"); got != "bkept" {
		t.Errorf("%q", got)
	}
}

// A session that waits for the end of a planned failover ends if that is followed by a forced one.
func TestNoMovingSessionSurvivesAForcedFailover(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres")
	g.srv.HoldNew(true)
	g.srv.Drain(true)
	g.drained()
	g.srv.ReadStates(t.Context())
	g.srv.CloseServer("planned failover to b")
	forced := *g.routes.Load()
	forced.Epoch, forced.Primary, forced.Lossless = 2, "c", 2
	g.publish(&forced)
	g.srv.CloseEpoch(2, "the failover was forced")
	g.srv.Drain(false)
	g.srv.HoldNew(false)
	if err := <-later(conn, "select 1"); err == nil || !strings.Contains(err.Error(), "forced") {
		t.Error(err)
	}
}

// An answer that is on its way to the client while its server is found lost is not followed by an error for its
// request. Its transaction is one that is open between two statements.
func TestAnswerWhileTheServerIsLost(t *testing.T) {
	_, near := farPrimary(t)
	client, rest := net.Pipe()
	backend, server := net.Pipe()
	defer func() { _, _ = rest.Close(), server.Close() }()
	x := &session{srv: near.srv, client: client, raw: client, backend: backend, work: underway.Work{OnPrimary: true, Rules: &near.srv.rules}, cut: make(chan struct{}), moving: newMoving(nil)}
	x.work.Known.Follows, x.work.Known.Told = true, &continuity.State{}
	x.work.Known.Unchanged.Asked()
	x.work.Status.Store('T')
	x.work.Requests.Answered('T', true)
	x.work.Requests.Forwarded('Q', []byte("select 1\x00"))
	x.work.Owed.Store(1)
	if !x.outlive() {
		t.Fatal("the request is not cut")
	}
	heard := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(rest)
		heard <- b
	}()
	answer := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("SELECT 1\x00")), 'Z', []byte{'T'})
	if _, err := x.pass(answer, 0); err != nil {
		t.Fatal(err)
	}
	up := make(chan struct{})
	close(up)
	if !x.detach(up) || x.work.Loss.Interrupted || x.work.Loss.Failed || !x.work.Loss.Open {
		t.Errorf("its request fails: %v, its transaction is open: %v", x.work.Loss.Interrupted, x.work.Loss.Open)
	}
	_ = client.Close()
	if b := <-heard; !bytes.Equal(b, answer) {
		t.Errorf("it hears %q", b)
	}
}

// A use of currval since the state was known ends the session: no view shows its value.
func TestOutlivingKnowsWhatNoViewShows(t *testing.T) {
	_, near := farPrimary(t)
	for _, s := range near.servers {
		s.sql(t, "drop sequence if exists public.outlive_s", "create sequence public.outlive_s")
		defer s.sql(t, "drop sequence public.outlive_s")
	}
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.do(conn, "select nextval('public.outlive_s')", "select currval('public.outlive_s')")
	near.dies()
	if err := <-later(conn, "select currval('public.outlive_s')"); sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "currval") {
		t.Error(err)
	}
}

// A session whose server is lost waits for the next one as long as a login does: a takeover may take longer than a
// request is held in a planned failover.
func TestOutlivingWaitsAsALoginDoes(t *testing.T) {
	quick := func(c *Config) { c.keepTick, c.HoldMax = 5*time.Millisecond, 50*time.Millisecond }
	_, near := pairOf(movingGroup(t, quick), movingGroup(t, quick))
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.loses()
	waitFor(t, "it has left", func() bool { return len(near.srv.Sessions()) == 0 })
	waits := later(conn, "select 1")
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		waiting(t, waits)
	}
	near.publish(pairRoutes(2, "b", "b"))
	must(t, <-waits)
}

// Sessions that wait for a server that refuses them try ever more seldom.
func TestMovesAreTriedEverMoreSeldom(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	for len(near.hellos) > 0 {
		<-near.hellos
	}
	began := time.Now()
	near.loses()
	near.publish(pairRoutes(1, "b", "a")) // it would take sessions
	const tries = 9
	waitFor(t, "it was tried again and again", func() bool { return len(near.hellos) >= tries })
	if took := time.Since(began); took < tries*release.LongestPause/2 {
		t.Errorf("%d times in %v", tries, took)
	}
	near.dies()
	near.do(conn, "select 1")
}

// A setting that a trigger changes, and that the server reports, is a change of the state.
func TestReportedSettingIsAChange(t *testing.T) {
	_, near := farPrimary(t)
	for _, s := range near.servers {
		s.sql(t, "drop table if exists public.turning", "create table public.turning (x int)",
			"create or replace function public.turn() returns trigger language plpgsql as $$ begin perform set_config('TimeZone', 'Asia/Tokyo', false); return new; end $$",
			"create trigger turn before insert on public.turning for each row execute function public.turn()")
		defer s.sql(t, "drop table public.turning", "drop function public.turn")
	}
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.unasked()
	near.do(conn, "insert into public.turning values (1)")
	near.dies()
	near.lostOrSame(conn, "show timezone", "Asia/Tokyo")
}

// A text that arrives in pieces is judged as one that arrives whole.
func TestLongTextsChangeNothing(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	x := near.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	x.work.Known.Next = time.Now().Add(time.Hour)
	x.work.Unlock()
	near.do(conn, "select '"+strings.Repeat("x", 40<<10)+"'")
	if !near.stateKnown(conn) {
		t.Fatal("a long text counts as a change")
	}
	near.dies()
	if got := near.one(conn, "select current_setting('cluster_name')"); got != "b" {
		t.Error(got)
	}
}

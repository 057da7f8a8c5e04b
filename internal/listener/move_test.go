package listener

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

func always() bool { return true }

// movingGroup is a group whose listener moves sessions, with server b as the next primary.
func movingGroup(t *testing.T, change func(*Config)) *group {
	t.Helper()
	return newGroup(t, func(c *Config) {
		c.Rules, c.Continuity, c.NoKernelPath = trustAll, always, true
		if change != nil {
			change(c)
		}
	})
}

// failOver carries out what an agent has its listener do in a planned failover. Every other time it is one whose
// preparation has not read the states of sessions.
func (g *group) failOver(to ag.ReplicaID) {
	g.t.Helper()
	if g.failovers++; g.failovers%2 == 1 {
		g.srv.ReadAhead(g.t.Context(), func(int, int) {})
	}
	g.srv.HoldNew(true)
	g.srv.Drain(true)
	g.drained()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	defer cancel()
	g.srv.ReadStates(ctx)
	g.srv.CloseServer("planned failover to " + string(to))
	r := *g.routes.Load()
	r.Epoch++
	r.Primary = to
	g.publish(&r)
	g.srv.CloseEpoch(r.Epoch, "the primary has changed")
	g.srv.Drain(false)
	g.srv.HoldNew(false)
}

func (g *group) one(conn *pgx.Conn, query string, args ...any) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	defer cancel()
	var s string
	if err := conn.QueryRow(ctx, query, args...).Scan(&s); err != nil {
		g.t.Fatalf("%s: %v", query, err)
	}
	return s
}

// do runs statements by the simple protocol.
func (g *group) do(conn *pgx.Conn, statements ...string) {
	g.t.Helper()
	for _, q := range statements {
		if err := <-later(conn, q); err != nil {
			g.t.Fatalf("%s: %v", q, err)
		}
	}
}

func TestMoveKeepsTheSession(t *testing.T) {
	g := movingGroup(t, nil)
	g.role("mover", "login")
	g.role("lender", "")
	for _, s := range g.servers {
		s.sql(t, "grant lender to mover", "create table if not exists public.moved (x int)", "grant all on public.moved to public")
	}
	conn := g.mustDial(g.rw, "user=mover application_name=first")
	pid := conn.PgConn().PID()
	g.do(conn, "set work_mem = '7MB'", "set my.tenant = '42'", "set search_path to pg_catalog, public", "set time zone interval '-08:00' hour to minute",
		"set application_name = 'it''s \\ second'", "prepare p (int) as select $1 + 1", "listen coterie_lost", `listen "odd ""name"`, "set role lender")
	if _, err := conn.Prepare(t.Context(), "named", "select count(*)::text from moved where x = $1"); err != nil {
		t.Fatal(err)
	}
	if got := g.one(conn, "select current_setting('cluster_name')"); got != "a" {
		t.Fatalf("it begins on %q", got)
	}
	g.failOver("b")
	g.shows(conn, map[string]string{
		"select current_setting('cluster_name')":     "b",
		"show work_mem":                              "7MB",
		"select current_setting('my.tenant')":        "42",
		"show search_path":                           "pg_catalog, public",
		"show timezone":                              "<-08>+08",
		"select current_setting('application_name')": "it's \\ second",
		"select current_user":                        "lender",
		"select session_user":                        "mover",
		"execute p(41)":                              "42",
		"select string_agg(c, ' ' order by c) from pg_listening_channels() c":          `coterie_lost odd "name`,
		"select count(*)::text from pg_prepared_statements where name like 'coterie%'": "0",
	})
	if got := g.one(conn, "named", 3); got != "0" {
		t.Errorf("the prepared statement returns %q", got)
	}
	g.movedOne(conn, pid)
}

// shows holds what statements return by the simple protocol.
func (g *group) shows(conn *pgx.Conn, want map[string]string) {
	g.t.Helper()
	for query, want := range want {
		ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
		var got string
		err := conn.QueryRow(ctx, query, pgx.QueryExecModeSimpleProtocol).Scan(&got)
		cancel()
		if err != nil || got != want {
			g.t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
}

// movedOne holds that the one session, which listens to coterie_lost, has moved and none was cut. pid is the process
// of its client's cancel key.
func (g *group) movedOne(conn *pgx.Conn, pid uint32) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	defer cancel()
	if n, err := conn.WaitForNotification(ctx); err != nil || n.Channel != "coterie_lost" {
		g.t.Errorf("notification %+v, %v", n, err)
	}
	if conn.PgConn().PID() != pid {
		g.t.Error("the client's cancel key has changed")
	}
	if st := g.srv.Stats(); st.Moved != 1 || len(st.Cut) != 0 {
		g.t.Errorf("%+v", st)
	}
}

func TestMoveForwardsWhatWasHeld(t *testing.T) {
	g := movingGroup(t, nil)
	var held []<-chan error
	var conns []*pgx.Conn
	for range 5 {
		conns = append(conns, g.mustDial(g.rw, "user=postgres"))
	}
	open := g.mustDial(g.rw, "user=postgres")
	must(t, <-later(open, "begin"))
	g.srv.Drain(true)
	for _, c := range conns {
		held = append(held, later(c, "select 1"))
	}
	waiting(t, held[0])
	must(t, <-later(open, "commit"))
	g.failOver("b")
	for _, h := range held {
		must(t, <-h)
	}
	for _, c := range append(conns, open) {
		if got := g.one(c, "select current_setting('cluster_name')"); got != "b" {
			t.Errorf("it is on %q", got)
		}
	}
}

func TestMoveCancelKeyWorksAfterwards(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres")
	g.failOver("b")
	done := later(conn, "select pg_sleep(60)")
	waitFor(t, "it runs", func() bool { list := g.srv.Sessions(); return len(list) == 1 && list[0].State == "active" })
	var err error
	for range 100 { // the request may arrive before the query begins
		must(t, conn.PgConn().CancelRequest(t.Context()))
		select {
		case err = <-done:
		case <-time.After(100 * time.Millisecond):
			continue
		}
		break
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "57014" {
		t.Errorf("cancelled: %v", err)
	}
}

// A session that cannot be moved ends as it did before, and the error says why.
func TestMoveRefusesWhatWouldBeLost(t *testing.T) {
	g := movingGroup(t, nil)
	for statement, why := range map[string]string{
		"create temp table t (x int)":                                  "temporary objects",
		"select pg_advisory_lock(4711)":                                "advisory lock",
		"declare c cursor with hold for select 1":                      "WITH HOLD",
		"select setseed(0.5)":                                          "seed",
		"listen news":                                                  "listens to channels",
		"select set_config('my.' || 'name', 'x', false)":               "set_config",
		"prepare a as select 1; prepare b as select 2":                 "together",
		"load 'plpgsql'":                                               "library",
		"set standard_conforming_strings = off; prepare q as select 1": "together",
	} {
		conn := g.mustDial(g.rw, "user=postgres")
		g.do(conn, statement)
		g.failOver("b")
		_, err := conn.Exec(t.Context(), "select 1")
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "57P01") {
			t.Errorf("%s: %v, want %q", statement, err, why)
		}
		g.failOver("a")
	}
	if st := g.srv.Stats(); st.Moved != 0 || len(st.Unmoved) == 0 {
		t.Errorf("%+v", st)
	}
}

// Settings that take long to be unpacked are not read when a session is asked: those of another database do not keep
// it from moving, and its own do.
func TestMoveBesideLargeSettings(t *testing.T) {
	g := movingGroup(t, nil)
	large := func(of string) string {
		return "do $$ begin execute 'alter " + of + " set search_path = ''' || repeat('x', 4 << 20) || ''''; end $$"
	}
	g.do(g.mustDial(g.rw, "user=postgres"), "create database theirs", large("database theirs"))
	conn := g.mustDial(g.rw, "user=postgres")
	g.do(conn, "select 1")
	g.failOver("b")
	if got := g.one(conn, "select current_setting('cluster_name')"); got != "b" {
		t.Errorf("it is at %q", got)
	}
	g.failOver("a")
	conn = g.mustDial(g.rw, "user=postgres")
	g.do(g.mustDial(g.rw, "user=postgres"), "drop database theirs", large("role postgres"))
	g.do(conn, "select 1")
	g.failOver("b")
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "too large to be read") {
		t.Errorf("its own settings: %v", err)
	}
	g.failOver("a")
	g.do(g.mustDial(g.rw, "user=postgres"), "alter role postgres reset search_path")
}

// A session is moved from the kernel whatever it has sent, because texts that matter for its state are left to the
// loop.
func TestMoveFromTheKernel(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity = always })
	prepared, texts, own, odd := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres")
	if _, err := prepared.Prepare(t.Context(), "named", "select current_setting('cluster_name') || $1"); err != nil {
		t.Fatal(err)
	}
	sends := func(c *pgx.Conn, times int, sql ...string) {
		for range times {
			for _, s := range sql {
				must(t, <-later(c, s))
			}
		}
	}
	relayed := func(c *pgx.Conn) { // a client that is faster than the end of its loop's turn has to go on
		waitFor(t, "the kernel relays the session's requests", func() bool {
			sends(c, 10, "begin", "select 1", "commit")
			return g.relayedByKernel(c)
		})
	}
	for _, c := range []*pgx.Conn{texts, own, odd} {
		relayed(c)
	}
	sends(own, 1, "set my.own = 'kept'")
	sends(odd, 1, "select setseed(0.5)")
	for _, c := range []*pgx.Conn{texts, own, odd} {
		relayed(c)
	}
	waitFor(t, "the kernel relays the prepared statement", func() bool {
		return g.one(prepared, "named", "!") == "a!" && g.relayedByKernel(prepared)
	})
	g.failOver("b")
	for range 50 {
		if got := g.one(prepared, "named", "!"); got != "b!" {
			t.Fatalf("it returns %q", got)
		}
	}
	sends(texts, 10, "begin", "select 1", "commit")
	if got := g.one(own, "select current_setting('cluster_name') || current_setting('my.own')"); got != "bkept" {
		t.Errorf("it returns %q", got)
	}
	if _, err := odd.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "it has set the seed of random") {
		t.Errorf("%v; %+v", err, g.srv.Stats())
	}
}

// A failover that is given up leaves the sessions where they are.
func TestMoveGivenUp(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres")
	g.do(conn, "set my.x = '1'", "create temp table t (x int)")
	for range 3 {
		g.srv.Drain(true)
		held := later(conn, "insert into t values (1)")
		g.drained()
		g.srv.ReadStates(t.Context())
		g.srv.Drain(false)
		must(t, <-held)
	}
	if got := g.one(conn, "select count(*)::text from t"); got != "3" {
		t.Errorf("%s rows", got)
	}
}

// A session of another node's client is given back to that node, which moves it.
func TestMoveOfAnotherNodesSession(t *testing.T) {
	far := movingGroup(t, nil) // the old primary's node
	near := movingGroup(t, nil)
	near.remote["a"] = far.srv
	near.routes.Store(&ag.Routes{Epoch: 1, Self: "b", Primary: "a", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}})
	conn, held := near.mustDial(near.rw, "user=postgres"), near.mustDial(near.rw, "user=postgres")
	near.do(conn, "set my.x = 'kept'", "set work_mem = '3MB'", "prepare p as select 'prepared'")
	far.srv.Drain(true)
	far.drained()
	waits := later(held, "select 1")
	waiting(t, waits)
	far.srv.ReadStates(t.Context())
	closed := *far.routes.Load()
	closed.WriteOpen = false
	far.publish(&closed)
	far.srv.CloseServer("planned failover")
	near.publish(&ag.Routes{Epoch: 2, Self: "b", Primary: "b", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}})
	near.srv.CloseEpoch(2, "the primary has changed")
	must(t, <-waits)
	for query, want := range map[string]string{
		"select current_setting('cluster_name')": "b", "select current_setting('my.x')": "kept", "show work_mem": "3MB", "execute p": "prepared",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), query, pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v", query, got, err)
		}
	}
	if st := near.srv.Stats(); st.Moved != 2 {
		t.Errorf("near: %+v", st)
	}
	if list := far.srv.Sessions(); len(list) != 0 {
		t.Errorf("far: %+v", list)
	}
}

// A client that pipelines long requests into a drain gets all of its answers.
func TestMoveOfAPipeline(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	g.srv.Drain(true)
	p := conn.StartPipeline(ctx)
	for i := range 50 {
		p.SendQueryParams("select $1::text", [][]byte{[]byte(fmt.Sprint(i, strings.Repeat("x", 10_000)))}, nil, nil, nil)
		must(t, p.Sync())
	}
	done := make(chan error, 1)
	go func() { done <- p.Flush() }()
	g.failOver("b")
	must(t, <-done)
	must(t, p.Close())
}

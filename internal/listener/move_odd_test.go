package listener

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
)

// lostOrSame checks that a session either has kept what query shows, or was ended with a reason.
func (g *group) lostOrSame(conn *pgx.Conn, query, want string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	defer cancel()
	var got string
	err := conn.QueryRow(ctx, query, pgx.QueryExecModeSimpleProtocol).Scan(&got)
	switch {
	case err != nil && strings.Contains(err.Error(), "57P01"):
		g.t.Logf("%s: %v", query, err)
	case err != nil:
		g.t.Errorf("%s: %v", query, err)
	case got != want:
		g.t.Errorf("%s: %q after the move; want %q", query, got, want)
	}
}

// extended executes statements by the extended protocol, with the unnamed statement.
func (g *group) extended(conn *pgx.Conn, statements ...string) {
	g.t.Helper()
	for _, q := range statements {
		if _, err := conn.PgConn().ExecParams(g.t.Context(), q, nil, nil, nil, nil).Close(); err != nil {
			g.t.Fatalf("%s: %v", q, err)
		}
	}
}

// A setting of one's own is kept, however it was set, or the session ends.
func TestMoveKeepsSettingsHoweverTheyAreSet(t *testing.T) {
	g := movingGroup(t, nil)
	for _, statement := range []string{
		"set my.x = 'kept'", "set /* a */ my.x = 'kept'", "set -- a\n my.x = 'kept'",
		"set session /* a */ my.x = 'kept'", "set my . x = 'kept'", `set "my" . "x" to 'kept'`, `set U&"m\0079".x = 'kept'`,
		"select set_config -- a\n('my.x', 'kept', false)", `select U&"s\0065t_config"('my.x', 'kept', false)`,
		"select pg_catalog. set_config('my.x', 'kept', false)", "set /* a /* b */ c */ my.x = 'kept'",
		"select '--', set_config -- a\n('my.x', 'kept', false)", `select U&"set!005fconfig" uescape '!' ('my.x', 'kept', false)`,
	} {
		for _, protocol := range []string{"simple", "extended"} {
			conn := g.mustDial(g.rw, "user=postgres")
			if protocol == "simple" {
				g.do(conn, statement)
			} else {
				g.extended(conn, statement)
			}
			g.failOver("b")
			t.Logf("%q by the %s protocol", statement, protocol)
			g.lostOrSame(conn, "select current_setting('my.x', true)", "kept")
			g.failOver("a")
		}
	}
}

// A function that is called by a message of the protocol, as by PQfn of libpq, is one that is called by a text.
func TestMoveOfFunctionCalls(t *testing.T) {
	g := movingGroup(t, nil)
	for name, c := range map[string]struct {
		arguments []string
		why       string // "": it moves
	}{
		"set_config":                          {[]string{"my.x", "kept", "f"}, "set_config"},
		"setseed":                             {[]string{"0.5"}, "seed"},
		"pg_backup_start":                     {[]string{"test", "t"}, "backup"},
		"pg_replication_origin_session_setup": {[]string{"test"}, "origin"},
		"currval":                             {[]string{"numbers"}, "currval"},
		"lastval":                             {nil, "currval"},
		"char_length":                         {[]string{"test"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := g.onLoop()
			g.servers["a"].sql(t, "drop sequence if exists numbers", "create sequence numbers", "select pg_replication_origin_create('test') where to_regclass('numbers') is not null and not exists (select from pg_replication_origin)")
			g.ask(conn, "select nextval('numbers')")
			control, err := g.servers["a"].connect(t.Context(), "postgres")
			must(t, err)
			defer func() { _ = control.Close(t.Context()) }()
			number := value[uint32](t, control, "select min(oid::int) from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname = $1", name)
			body := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, number), 0)
			body = binary.BigEndian.AppendUint16(body, uint16(len(c.arguments)))
			for _, a := range c.arguments {
				body = append(binary.BigEndian.AppendUint32(body, uint32(len(a))), a...)
			}
			_, _ = conn.Write(pgwire.AppendMessage(nil, 'F', binary.BigEndian.AppendUint16(body, 0)))
			readUntil(t, conn, 'V')
			readUntil(t, conn, 'Z')
			g.failOver("b")
			_, _ = conn.Write(query("select 1"))
			switch typ, body, err := pgwire.ReadMessage(conn, 1<<20); {
			case err != nil, c.why == "" && typ != 'T', c.why != "" && (typ != 'E' || !strings.Contains(string(body), c.why)):
				t.Errorf("it is told %c %q, %v; want %q", typ, body, err, c.why)
			}
			g.failOver("a")
		})
	}
}

// A setting of one's own that a role brings is that with which the session began.
func TestMoveKeepsSettingsOfTheRole(t *testing.T) {
	g := movingGroup(t, nil)
	g.role("mover", "login")
	all := func(statement string) {
		for _, s := range g.servers {
			s.sql(t, statement)
		}
	}
	all("alter role mover set my.x = 'first'")
	defer all("alter role mover reset all")
	conn := g.mustDial(g.rw, "user=mover")
	all("alter role mover set my.x = 'second'")
	g.failOver("b")
	if got := g.one(conn, "select current_setting('my.x', true)"); got != "first" {
		t.Errorf("my.x is %q", got)
	}
	g.failOver("a")
	conn = g.mustDial(g.rw, "user=mover")
	was := g.one(conn, "show work_mem")
	all("alter role all set work_mem = '9MB'")
	defer all("alter role all reset all")
	g.failOver("b")
	g.lostOrSame(conn, "show work_mem", was)
}

// Any kind of temporary object keeps a session where it is.
func TestMoveSeesTemporaryObjects(t *testing.T) {
	g := movingGroup(t, nil)
	for _, statement := range []string{
		"create collation pg_temp.c (locale = 'C')", "create operator pg_temp.### (function = int4pl, leftarg = int4, rightarg = int4)",
		"create text search configuration pg_temp.c (copy = simple)", "create view pg_temp.v as select 1", "create sequence pg_temp.s",
		"create domain pg_temp.d as int", "create function pg_temp.f() returns int language sql as 'select 1'",
		"do $$ begin create temp table t (x int); end $$", "set seed = 0.5", "select set_config('seed', '0.5', false)",
		"select pg_create_physical_replication_slot('passing', false, true)",
	} {
		conn := g.mustDial(g.rw, "user=postgres")
		g.do(conn, statement)
		g.failOver("b")
		if _, err := conn.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
			t.Errorf("%s: %v", statement, err)
		}
		g.failOver("a")
	}
}

// A session cannot hide settings of a superuser behind another user.
func TestMoveSeesSettingsOfTheSuperuser(t *testing.T) {
	g := movingGroup(t, nil)
	g.role("mover", "login")
	conn := g.mustDial(g.rw, "user=postgres")
	g.do(conn, "set dynamic_library_path = '/kept'", "set session authorization mover")
	g.failOver("b")
	if err := <-later(conn, "reset session authorization"); err == nil || !strings.Contains(err.Error(), "57P01") {
		g.lostOrSame(conn, "show dynamic_library_path", "/kept")
	}
}

// The question means the same under every search path.
func TestMoveAsksUnderAnySearchPath(t *testing.T) {
	g := movingGroup(t, nil)
	all := func(statement string) {
		for _, s := range g.servers {
			s.sql(t, statement)
		}
	}
	all("drop schema if exists evil cascade")
	all("create schema evil")
	defer all("drop schema evil cascade")
	for _, of := range []string{"text", "name", "oid", "int4", "bool"} {
		for _, op := range []string{"=", "<>"} {
			all("create or replace function evil.no(" + of + ", " + of + ") returns bool language plpgsql as 'begin raise exception ''called''; end'")
			all("create operator evil." + op + " (function = evil.no, leftarg = " + of + ", rightarg = " + of + ")")
		}
	}
	conn := g.mustDial(g.rw, "user=postgres")
	g.do(conn, "prepare p as select 'p'", "set work_mem = '7MB'", "set search_path = evil, pg_catalog")
	g.failOver("b")
	var got string
	if err := conn.QueryRow(t.Context(), "show work_mem", pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != "7MB" {
		t.Errorf("%q, %v", got, err)
	}
}

// A statement whose result has other columns since it was prepared fails, as it does without a move.
func TestMoveNoticesChangedResults(t *testing.T) {
	g := movingGroup(t, nil)
	all := func(statement string) {
		for _, s := range g.servers {
			s.sql(t, statement)
		}
	}
	all("drop table if exists public.changing")
	all("create table public.changing as select 1 x")
	defer all("drop table public.changing")
	conn := g.mustDial(g.rw, "user=postgres")
	if version := g.one(conn, "show server_version_num"); version < "160000" {
		t.Skip("PostgreSQL tells the types of results from 16 on; this is", version)
	}
	if _, err := conn.Prepare(t.Context(), "named", "select x from public.changing"); err != nil {
		t.Fatal(err)
	}
	all("alter table public.changing alter column x type text")
	g.failOver("b")
	r := conn.PgConn().ExecPrepared(t.Context(), "named", nil, nil, []int16{1}).Read()
	if r.Err == nil {
		t.Errorf("a client that expects a number gets %q", r.Rows)
	}
}

// A session of another node's client keeps texts that are not UTF-8, and settings that only a prepared statement sets.
func TestMoveOfAnotherNodesSessionKeepsItsBytes(t *testing.T) {
	far, near := movingGroup(t, nil), movingGroup(t, nil)
	near.remote["a"] = far.srv
	near.routes.Store(&ag.Routes{Epoch: 1, Self: "b", Primary: "a", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}})
	conn := near.mustDial(near.rw, "user=postgres")
	near.do(conn, "set client_encoding = latin1", "prepare p as select '\xfc'::text, length('\xfc')::text", "set my.x = '\xfc'",
		"prepare q as select set_config('my.q', 'kept', false)")
	far.srv.Drain(true)
	far.drained()
	far.srv.ReadStates(t.Context())
	far.srv.CloseServer("planned failover")
	near.publish(&ag.Routes{Epoch: 2, Self: "b", Primary: "b", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}})
	near.srv.CloseEpoch(2, "the primary has changed")
	for query, want := range map[string]string{"execute p": "\xfc", "show my.x": "\xfc", "execute q": "kept"} {
		results, err := conn.PgConn().Exec(t.Context(), query).ReadAll()
		if err != nil || string(results[0].Rows[0][0]) != want {
			t.Errorf("%s: %v, %v; want %q", query, results, err, want)
		}
	}
	near.srv.Drain(true)
	near.drained()
	near.srv.ReadStates(t.Context())
	for _, x := range near.srv.localSessions() {
		if st := x.moving.inquiry.State; st == nil || st.Settings["my.q"] != "kept" {
			t.Errorf("state %+v, refusal %q", st, x.moving.inquiry.Refusal)
		}
	}
	near.srv.Drain(false)
}

// The unnamed statement is not lost between the two halves of a request.
func TestMoveBetweenParseAndBind(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres").PgConn()
	if _, err := conn.Prepare(t.Context(), "", "select $1::text", nil); err != nil {
		t.Fatal(err)
	}
	g.failOver("b")
	r := conn.ExecPrepared(t.Context(), "", [][]byte{[]byte("x")}, nil, nil).Read()
	if r.Err != nil && !strings.Contains(r.Err.Error(), "57P01") && !strings.Contains(r.Err.Error(), "40001") {
		t.Error(r.Err)
	}
	g.failOver("a")
	whole := g.mustDial(g.rw, "user=postgres")
	g.extended(whole, "select 1")
	g.failOver("b")
	g.extended(whole, "select 1")
}

// A prepared statement means what it meant, or the session ends.
func TestMoveKeepsTheMeaningOfStatements(t *testing.T) {
	g := movingGroup(t, nil)
	dates := g.mustDial(g.rw, "user=postgres")
	g.do(dates, "set datestyle = 'iso, dmy'", "prepare p as select date '01/02/2024'::text", "prepare d as select extract(month from date '01/02/2024')::text", "set datestyle = 'iso, mdy'")
	zone := g.mustDial(g.rw, "user=postgres")
	g.do(zone, "prepare d as select extract(epoch from timestamptz '2024-01-02 00:00')::int::text")
	kept := g.mustDial(g.rw, "user=postgres")
	g.do(kept, "set datestyle = 'iso, dmy'", "prepare d as select extract(month from date '01/02/2024')::text")
	params := g.mustDial(g.rw, "user=postgres")
	g.do(params, "prepare d (int) as select ($1 + 1)::text", "set time zone 'Asia/Tokyo'")
	epoch := g.one(zone, "select extract(epoch from timestamptz '2024-01-02 00:00')::int::text")
	g.do(zone, "set time zone 'Asia/Tokyo'")
	g.failOver("b")
	g.lostOrSame(dates, "execute d", "2")
	for statement, conn := range map[string]*pgx.Conn{"execute d": kept, "execute d(1)": params} {
		if err := <-later(conn, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	g.lostOrSame(zone, "execute d", epoch)
}

// A failover that is given up after the server was closed leaves the sessions' state as it was.
func TestMoveBackToTheSameServer(t *testing.T) {
	g := movingGroup(t, nil)
	conn, open := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres")
	g.do(conn, "set my.x = 'kept'", "prepare p as select 'prepared'")
	g.do(open, "begin", "set local my.x = 'local'", "select set_config('my.y', 'local', true)", "declare c cursor for select 1", "commit")
	for range 3 {
		g.failOver("a")
	}
	g.lostOrSame(conn, "select current_setting('my.x')", "kept")
	g.lostOrSame(conn, "execute p", "prepared")
	g.lostOrSame(open, "select concat(current_setting('my.x', true), current_setting('my.y', true))", "")
	g.do(conn, "discard all")
	g.failOver("b")
	g.lostOrSame(conn, "select count(*)::text from pg_prepared_statements", "0")
	if st := g.srv.Stats(); st.Moved < 3 {
		t.Errorf("%+v", st)
	}
}

// TestWhoseClientWaits: a client that listens to channels waits, too: what is sent there until its session has moved is
// lost to it.
func TestWhoseClientWaits(t *testing.T) {
	x := new(session)
	x.moving.inquiry.State = &continuity.State{Channels: []string{continuity.LostChannel}}
	if !x.holds() {
		t.Error("a session that listens is an idle one")
	}
	if x.moving.inquiry.State.Channels = nil; x.holds() {
		t.Error("an idle session waits")
	}
}

// TestOneThatDoesNotLeave: hundreds of sessions are waited for while they leave, and a moment longer for one that does
// not.
func TestOneThatDoesNotLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = leaveEach
		var all []*session
		for n := range 200 {
			x := &session{moving: newMoving(nil), cut: make(chan struct{})}
			if all = append(all, x); n > 0 {
				time.AfterFunc(time.Duration(n)*each, x.moving.over)
			}
		}
		began := time.Now()
		awaitLeft(t.Context(), slices.Clone(all))
		if took := time.Since(began); took < 199*each || took > 199*each+leaveTimeout+leaveLook || !all[199].hasLeft() {
			t.Errorf("it took %v", took)
		}
		began = time.Now()
		awaitLeft(t.Context(), slices.Clone(all))
		if took := time.Since(began); took != leaveTimeout {
			t.Errorf("one that does not leave is waited for %v", took)
		}
	})
}

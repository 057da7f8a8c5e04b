package listener

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// slowOn is a query that takes long on one server and returns at once, with that server's name, on another.
func slowOn(server string) string {
	return "select current_setting('cluster_name') from pg_sleep(case current_setting('cluster_name') when '" + server + "' then 67 else 0 end)"
}

// asks sends a request in one of the ways of the protocol and returns what the client hears: columns and errors.
func asks(conn *pgx.Conn, way string, texts ...string) <-chan string {
	heard := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := conn.PgConn()
		var all []*pgconn.Result
		var err error
		switch way {
		case "simple":
			all, err = c.Exec(ctx, strings.Join(texts, "; ")).ReadAll()
		case "extended":
			all = []*pgconn.Result{c.ExecParams(ctx, texts[0], nil, nil, nil, nil).Read()}
		case "by name":
			all = []*pgconn.Result{c.ExecPrepared(ctx, texts[0], nil, nil, nil).Read()}
		case "pipeline":
			b := &pgconn.Batch{}
			for _, text := range texts {
				b.ExecParams(text, nil, nil, nil, nil)
			}
			all, err = c.ExecBatch(ctx, b).ReadAll()
		}
		var words []string
		for _, r := range all {
			for _, row := range r.Rows {
				words = append(words, string(row[0]))
			}
			err = errors.Join(err, r.Err)
		}
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg):
			words = append(words, pg.Severity, pg.Code, string(c.TxStatus()))
		case err != nil:
			words = append(words, err.Error())
		}
		heard <- strings.Join(words, " ")
	}()
	return heard
}

// A query outside a transaction that is under way when the node of its server dies is executed again, and the client
// hears of nothing.
func TestLoneQueryIsExecutedAgain(t *testing.T) {
	for _, c := range []struct {
		way, want string
		texts     []string
	}{
		{"simple", "1 b 2", []string{"select 1", slowOn("a"), "select 2"}},
		{"extended", "b", []string{slowOn("a")}},
		{"by name", "b", []string{"slow"}},
		{"pipeline", "1 b 2", []string{"select 1", slowOn("a"), "select 2"}},
	} {
		t.Run(c.way, func(t *testing.T) {
			_, near := farPrimary(t)
			conn := near.mustDial(near.rw, "user=postgres")
			if _, err := conn.Prepare(t.Context(), "slow", slowOn("a")); err != nil {
				t.Fatal(err)
			}
			near.known()
			near.unasked()
			heard := asks(conn, c.way, c.texts...)
			waitFor(t, "it runs", func() bool { return near.runs("%pg_sleep(case%") > 0 })
			list := near.srv.Continuity()
			if len(list) != 1 || list[0].Node.Fate != "KEPT" {
				t.Errorf("%+v", list)
			}
			near.dies()
			if got := <-heard; got != c.want {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
			near.do(conn, "begin", "select 1", "commit")
			if st := near.srv.Stats(); st.Repeated != 1 || st.Moved != 1 || len(st.Cut) != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A client may send its next request while its query is executed again, and can write nothing. The request comes after
// that, on every version of PostgreSQL: it writes, and is committed.
func TestRequestBehindARepeatedQuery(t *testing.T) {
	_, near := farPrimary(t)
	near.servers["b"].sql(t, "drop table if exists behind", "create table behind (x int)")
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.unasked()
	raw, err := conn.PgConn().Hijack()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Conn.Close() }()
	send := func(q string) {
		raw.Frontend.Send(&pgproto3.Query{String: q})
		must(t, raw.Frontend.Flush())
	}
	send("select 'again' from pg_sleep(case current_setting('cluster_name') when 'a' then 67 else 3 end)")
	waitFor(t, "it runs", func() bool { return near.runs("select 'again'%") > 0 })
	near.dies()
	watch, err := near.servers["b"].connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Close(context.Background()) }()
	waitFor(t, "it runs again", func() bool {
		return value[int](t, watch, "select count(*)::int from pg_stat_activity where wait_event = 'PgSleep' and query like 'select ''again''%'") > 0
	})
	send("insert into behind values (1)")
	must(t, raw.Conn.SetReadDeadline(time.Now().Add(time.Minute)))
	var heard string
	for strings.Count(heard, "Z") < 2 {
		message, err := raw.Frontend.Receive()
		if err != nil {
			t.Fatalf("%v after %q", err, heard)
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			heard += string(m.Values[0]) + " "
		case *pgproto3.CommandComplete:
			heard += string(m.CommandTag) + " "
		case *pgproto3.ErrorResponse:
			heard += m.Code + " "
		case *pgproto3.ReadyForQuery:
			heard += "Z" + string(m.TxStatus) + " "
		}
	}
	if want := "again SELECT 1 ZI INSERT 0 1 ZI "; heard != want {
		t.Errorf("the client hears %q, want %q", heard, want)
	}
	if n := value[int](t, watch, "select count(*)::int from behind"); n != 1 {
		t.Errorf("%d rows are committed", n)
	}
}

// A message of which the server has got only a part was not executed, whatever it is: it goes on at the next one.
func TestMessageInPart(t *testing.T) {
	far, near := farPrimary(t)
	set := pgwire.AppendMessage(nil, 'Q', []byte("set my.x = 'whole'; select current_setting('my.x')\x00"))
	prepare := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'P', []byte("new\x00select 1\x00\x00\x00")), 'S', nil)
	for _, c := range []struct {
		request []byte
		at      int
		want    string
	}{{set, 3, "CTDCZ"}, {set, 30, "CTDCZ"}, {set, len(set) - 1, "CTDCZ"}, {prepare, 9, "1Z"}} {
		conn := near.mustDial(near.rw, "user=postgres")
		near.known()
		near.unasked()
		x, raw := near.sessionOf(conn.PgConn().Conn()), conn.PgConn().Conn()
		before := x.bytesIn.Load()
		_, err := raw.Write(c.request[:c.at])
		must(t, err)
		waitFor(t, "a part has come, and is forwarded", func() bool {
			x.work.Lock()
			defer x.work.Unlock()
			return x.bytesIn.Load() == before+uint64(c.at)
		})
		near.dies()
		waitFor(t, "the session has moved or ended", func() bool { return near.sessionOf(raw) != x })
		_, _ = raw.Write(c.request[c.at:])
		types := ""
		for _, m := range heardOf(t, raw) {
			types += m[:1]
		}
		if types != c.want {
			t.Errorf("%d bytes of %.40q: the client hears %s, want %s", c.at, c.request, types, c.want)
		}
		_ = conn.Close(context.Background())
		near.returns(far)
	}
}

// runs returns how many sessions of the far server execute a statement like that.
func (g *group) runs(like string) int {
	g.t.Helper()
	return g.active("wait_event = 'PgSleep' and query like $2", like)
}

// A query of whose answer the client has got a part cannot be executed again. It fails, and the connection stays. So
// does one that was executed again once already.
func TestLoneQueryFails(t *testing.T) {
	far, near := farPrimary(t)
	for _, way := range []string{"simple", "extended", "pipeline"} {
		conn := near.mustDial(near.rw, "user=postgres")
		near.known()
		near.unasked()
		// More than the server's buffer is sent before it sleeps.
		heard := asks(conn, way, "select repeat('x', 3000), pg_sleep(case when n = 9 and current_setting('cluster_name') = 'a' then 67 else 0 end) from generate_series(1, 9) n")
		x := near.sessionOf(conn.PgConn().Conn())
		waitFor(t, "a part of the answer has come", func() bool { return x.bytesOut.Load() > 8000 })
		near.dies()
		if got := <-heard; !strings.HasSuffix(got, "x ERROR 40001 I") {
			t.Errorf("%s: the client hears %.50q … %q", way, got, got[max(0, len(got)-50):])
		}
		if got := near.one(conn, "select current_setting('cluster_name')"); got != "b" {
			t.Errorf("it goes on on %q", got)
		}
		_ = conn.Close(t.Context())
		near.returns(far)
	}
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	mark := strconv.FormatInt(time.Now().UnixNano(), 10) // backends of earlier runs may still sleep
	heard := asks(conn, "simple", "select '"+mark+"' from pg_sleep(67)")
	waitFor(t, "it runs", func() bool { return near.runs("%"+mark+"%") > 0 })
	near.dies()
	waitFor(t, "it runs again", func() bool {
		return asked[bool](t, near.servers["b"], "select exists (select from pg_stat_activity where wait_event = 'PgSleep' and query like '%"+mark+"%' and pid <> pg_backend_pid())")
	})
	near.serverDies()
	near.returns(far)
	if got := <-heard; got != "ERROR 40001 I" {
		t.Errorf("the client hears %q", got)
	}
	if got := near.one(conn, "select current_setting('cluster_name')"); got != "a" {
		t.Errorf("it goes on on %q", got)
	}
}

// The same of sessions of the node's own listener whose PostgreSQL dies.
func TestLoneQueryOfTheOwnServer(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		conn := g.mustDial(g.rw, "user=postgres "+with)
		waitFor(t, "it is known", func() bool { return g.stateKnown(conn) })
		heard := asks(conn, "extended", slowOn("a"))
		waitFor(t, "it runs", func() bool { return g.runs("%pg_sleep(case%") > 0 })
		g.serverDies()
		g.succeeds()
		if got := <-heard; got != "b" {
			t.Errorf("the client hears %q", got)
		}
		g.do(conn, "select 1")
	})
}

// A reader's query goes on at the next replica of the list.
func TestLoneQueryOfAReader(t *testing.T) {
	far, near := farPrimary(t)
	routes := func(self ag.ReplicaID, readable ...ag.ReplicaID) *ag.Routes {
		r := pairRoutes(1, self, "c")
		for i := range r.Targets {
			r.Targets[i].Readable = false
			for _, id := range readable {
				r.Targets[i].Readable = r.Targets[i].Readable || r.Targets[i].ID == id
			}
		}
		r.ReadList = [][]ag.ReplicaID{{"a"}, {"b"}}
		return r
	}
	far.publish(routes("a", "a", "b"))
	near.publish(routes("b", "a", "b"))
	conn := near.mustDial(near.ro, "user=postgres")
	near.known()
	heard := asks(conn, "simple", slowOn("a"))
	waitFor(t, "it runs", func() bool { return near.runs("%pg_sleep(case%") > 0 })
	near.publish(routes("b", "b"))
	near.cutOff()
	if got := <-heard; got != "b" {
		t.Errorf("the client hears %q", got)
	}
	near.do(conn, "select 1")
}

// A query that writes by a function that cannot be seen does not write twice, in any way of the protocol. It is not
// known whether it has written once.
func TestLoneQueryWritesOnce(t *testing.T) {
	far, near := farPrimary(t)
	for _, s := range near.servers {
		s.sql(t, "create table hidden (server text)",
			"create function hides() returns int language plpgsql as $$begin insert into hidden values (current_setting('cluster_name')); perform pg_sleep(case current_setting('cluster_name') when 'a' then 67 else 0 end); return 1; end$$",
			"create view hiding as select hides()")
	}
	defer func() {
		for _, s := range near.servers {
			s.sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'", "drop table hidden; drop view hiding; drop function hides")
		}
	}()
	for i, c := range []struct {
		way   string
		texts []string
	}{{"simple", []string{"select 1", "table hiding"}}, {"by name", []string{"hides"}}, {"pipeline", []string{"select 1", "table hiding"}}, {"simple", []string{"table hiding"}}, {"extended", []string{"table hiding"}}} {
		if i > 2 && os.Getenv("COTERIE_LONG") == "" {
			break // the others are much the same
		}
		conn := near.mustDial(near.rw, "user=postgres")
		if _, err := conn.Prepare(t.Context(), "hides", "table hiding"); err != nil {
			t.Fatal(err)
		}
		near.known()
		heard := asks(conn, c.way, c.texts...)
		waitFor(t, "it runs", func() bool { return near.runs("%hiding%") > i })
		near.dies()
		if got := <-heard; !strings.Contains(got, "FATAL 08007") {
			t.Errorf("%s %q: the client hears %q", c.way, c.texts, got)
		}
		if n := asked[int](t, near.servers["b"], "select count(*)::int from hidden"); n != 0 {
			t.Errorf("%s %q: it has written %d times on b", c.way, c.texts, n)
		}
		near.returns(far)
	}
}

// A change outside a transaction ends its session, and so does a query that may have changed something.
func TestLoneChangeEndsTheSession(t *testing.T) {
	_, near := farPrimary(t)
	a := near.servers["a"]
	a.sql(t, "create table lone (x int)", "insert into lone values (1)")
	defer a.sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'", "drop table lone")
	for i, text := range []string{
		"delete from lone where pg_sleep(67) is null", "select pg_sleep(67) from lone for update", "with a as (delete from lone returning x) select pg_sleep(67) from a",
		"select 1; update lone set x = 2 where pg_sleep(67) is null",
	} {
		conn := near.mustDial(near.rw, fmt.Sprintf("user=postgres application_name=lone%d", i))
		waitFor(t, "it is known", func() bool { return near.stateKnown(conn) })
		heard := asks(conn, "simple", text)
		waitFor(t, "it runs", func() bool { return near.runs("%lone%") > i })
		if got := near.outlook(fmt.Sprintf("lone%d", i)); got.Node.Fate != "ENDS" || got.Node.Why != "a statement outside a transaction was under way that may have changed something" {
			t.Errorf("%s: %+v", text, got)
		}
		defer func() {
			if got := <-heard; !strings.HasPrefix(got, "FATAL 08007") && !strings.HasPrefix(got, "1 FATAL 08007") {
				t.Errorf("%s: the client hears %q", text, got)
			}
		}()
	}
	near.dies()
}

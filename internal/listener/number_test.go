package listener

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// numberOf returns the number that is known of the open transaction of a session; 0: it is not known, or not certain.
func (g *group) numberOf(conn *pgx.Conn) uint64 {
	g.t.Helper()
	x := g.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	defer x.work.Unlock()
	if x.work.Status.Load() != 'T' {
		return 0
	}
	return x.work.Asking.Known(x.work.Requests.Endings())
}

// The number of a transaction that has changed rows is asked for before its next request, and is that of no other one.
func TestNumberOfOpenTransaction(t *testing.T) {
	_, near := farPrimary(t)
	for _, s := range near.servers {
		s.sql(t, "drop table if exists public.numbered", "create table public.numbered (x int)")
		defer s.sql(t, "drop table public.numbered")
	}
	conn := near.mustDial(near.rw, "user=postgres application_name=numbered")
	for name, text := range map[string]string{"puts": "insert into public.numbered values (1)", "gets": "select x from public.numbered"} {
		if _, err := conn.Prepare(t.Context(), name, text); err != nil {
			t.Fatal(err)
		}
	}
	near.known()
	near.unasked()
	const insert, read = "insert into public.numbered values (1)", "select 1"
	for _, c := range []struct {
		texts []string
		known bool
	}{
		{[]string{"begin", insert}, false}, // it is asked for before the next request
		{[]string{"begin", insert, read}, true},
		{[]string{"begin", "puts", "gets"}, true},
		{[]string{"begin", insert, insert, insert}, true},
		{[]string{"begin", insert, "savepoint a", insert, "rollback to a", read}, true},
		{[]string{"begin", read, read}, false}, // it has none
		{[]string{"begin", "update public.numbered set x = 1 where x = 0", read}, false},
		{[]string{"begin", "update public.numbered set x = 1 where x = 0", insert, read}, true},
		{[]string{"begin", insert, "show work_mem"}, false}, // one that does not fail in a failed block
		{[]string{"begin", insert, "show work_mem", read}, true},
		{[]string{"begin", insert, read, "rollback and chain"}, false},
		{[]string{"begin", insert, read, "rollback and chain", read}, false},
		{[]string{"begin", insert, read, "rollback and chain", insert, read}, true},
		{[]string{"begin", insert, read, "commit; begin"}, false},
		{[]string{insert, "begin", read}, false},
	} {
		for _, text := range c.texts {
			if text != "puts" && text != "gets" {
				near.do(conn, text)
			} else if err := conn.PgConn().ExecPrepared(t.Context(), text, nil, nil, nil).Read().Err; err != nil {
				t.Fatal(err)
			}
		}
		got := near.numberOf(conn)
		if known := got != 0; known != c.known {
			t.Errorf("%q: the number is %d", c.texts, got)
		}
		const is = "select coalesce(max(backend_xid::text::bigint), 0) from pg_stat_activity where application_name = 'numbered'"
		if is := asked[int64](t, near.servers["a"], is); c.known && uint64(is) != got {
			t.Errorf("%q: the number is %d, and is known as %d", c.texts, is, got)
		}
		near.do(conn, "rollback")
		if got := near.numberOf(conn); got != 0 {
			t.Errorf("%q: after the transaction its number is %d", c.texts, got)
		}
	}
	if st := near.srv.Stats(); len(st.Unknown) > 0 {
		t.Error(st.Unknown)
	}
}

// A COMMIT of which its server gets nothing, or of which its client gets nothing, is proved by the number that was
// asked for before an earlier request.
func TestCommitInDoubtIsNumbered(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes ten seconds: set COTERIE_LONG=1")
	}
	for _, c := range []struct {
		loses, want string
		rows        int
	}{{"request bytes", "ERROR 40001 I", 0}, {"answer bytes", "COMMIT I", 1}} {
		t.Run(c.loses, func(t *testing.T) {
			r := newReplicas(t)
			conn := r.near.mustDial(r.near.rw, "user=postgres")
			preparesCommit(t, conn)
			r.near.known()
			r.near.unasked()
			r.near.do(conn, "begin", "insert into ledger values (1)", "select 1")
			if n := r.near.numberOf(conn); n == 0 {
				t.Fatal("the number is not known")
			}
			r.link.loses.Store(&c.loses)
			heard := sendsCommit(conn, byNamed)
			r.underWay(true, false, c.rows)
			r.succeeds(false, 0, nil)
			r.leads(true)
			if got := <-heard; got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
			if n := r.rows(1); n != c.rows {
				t.Errorf("%d rows", n)
			}
		})
	}
}

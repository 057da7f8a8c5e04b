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

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// The question before a COMMIT takes nothing away: an unnamed statement that was executed before can be bound again
// after the COMMIT by a prepared statement, and the views show the client's own statement.
func TestQuestionLeavesTheUnnamedStatement(t *testing.T) {
	_, near, _ := linkedPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	preparesCommit(t, conn)
	near.known()
	near.unasked()
	near.do(conn, "begin")
	x := near.sessionOf(conn.PgConn().Conn())
	m := func(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }
	bind, execute, sync := m('B', "\x00\x00\x00\x00\x00\x00\x00\x00"), m('E', "\x00\x00\x00\x00\x00"), m('S', "")
	raw, err := conn.PgConn().Hijack()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Conn.Close() }()
	ask := func(messages ...[]byte) (types string) {
		for _, b := range messages {
			if _, err := raw.Conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := raw.Conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for {
			typ, body, err := pgwire.ReadMessage(raw.Conn, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if types += string(typ); typ == 'Z' {
				return types + string(body)
			}
		}
	}
	if got := ask(append(append(append(m('P', "\x00select 42\x00\x00\x00"), bind...), execute...), sync...)); got != "12DCZT" {
		t.Fatalf("the unnamed statement: %s", got)
	}
	if got := ask(append(append(m('B', "\x00the_commit\x00\x00\x00\x00\x00\x00\x00"), execute...), sync...)); got != "2CZI" {
		t.Fatalf("the COMMIT: %s", got)
	}
	x.work.Lock()
	timeline := x.work.Asking.Timeline
	x.work.Unlock()
	if timeline != 1 {
		t.Errorf("its server has told timeline %d: it was not asked", timeline)
	}
	if got := ask(append(append(bind, execute...), sync...)); got != "2DCZI" {
		t.Errorf("the unnamed statement, again: %s", got)
	}
}

// A name that was a COMMIT when the server was asked may be another statement since. Its name proves nothing then.
func TestNameThatIsNoCommitAnyMore(t *testing.T) {
	_, near, _ := linkedPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	preparesCommit(t, conn)
	near.known()
	near.unasked()
	near.do(conn, "deallocate the_commit")
	if _, err := conn.PgConn().Prepare(t.Context(), "the_commit", "select pg_sleep(67)", nil); err != nil {
		t.Fatal(err)
	}
	near.do(conn, "begin")
	heard := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().ExecPrepared(t.Context(), "the_commit", nil, nil, nil).Close()
		heard <- err
	}()
	waitFor(t, "it runs", func() bool { return near.waiting("select pg_sleep(67)") > 0 })
	x := near.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	doubt := x.work.Asking.Commit
	x.work.Unlock()
	near.dies()
	if err := <-heard; doubt != nil || err == nil || !strings.Contains(err.Error(), "FATAL") {
		t.Errorf("the client hears %v, and is in doubt of %v", err, doubt)
	}
}

// sendsBatch sends statements with one Sync behind them, as pipelines of drivers do, and returns what the client hears:
// the last tag or the error, and the state of the session.
func sendsBatch(conn *pgx.Conn, texts ...string) <-chan string {
	done := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		c := conn.PgConn()
		p := c.StartPipeline(ctx)
		for _, text := range texts {
			if text == "the_commit" {
				p.SendQueryPrepared(text, nil, nil, nil)
				continue
			}
			p.SendQueryParams(text, nil, nil, nil, nil)
		}
		err := p.Sync()
		var tags []string
		for err == nil {
			var got any
			if got, err = p.GetResults(); err != nil {
				break
			}
			if _, synced := got.(*pgconn.PipelineSync); synced {
				break
			}
			if r, ok := got.(*pgconn.ResultReader); ok {
				var tag pgconn.CommandTag
				tag, err = r.Close()
				tags = append(tags, tag.String())
			}
		}
		if closed := p.Close(); err == nil {
			err = closed
		}
		switch pg := (*pgconn.PgError)(nil); {
		case errors.As(err, &pg):
			done <- fmt.Sprintf("%s, %s %s %c %s", strings.Join(tags, ", "), pg.Severity, pg.Code, c.TxStatus(), pg.Message)
		case err != nil:
			done <- err.Error()
		default:
			done <- fmt.Sprintf("%s %c", strings.Join(tags, ", "), c.TxStatus())
		}
	}()
	return done
}

// chainCase is a COMMIT at the end of a batch, or one with AND CHAIN.
type chainCase struct {
	name  string
	begun []string // requests of their own before it
	batch []string // the last of them is the COMMIT
	loses string   // what the link to the server loses; "": the COMMIT waits
	deaf  bool
	want  string
	rows  int
}

// in sends the requests of the case and returns what the client hears of the last one.
func (c chainCase) in(g *group, conn *pgx.Conn) <-chan string {
	g.do(conn, c.begun...)
	if len(c.batch) > 1 {
		return sendsBatch(conn, c.batch...)
	}
	done := make(chan string, 1)
	go func() {
		all, err := conn.PgConn().Exec(context.Background(), c.batch[0]).ReadAll()
		pg := (*pgconn.PgError)(nil)
		switch {
		case errors.As(err, &pg):
			done <- fmt.Sprintf("%s %s %c", pg.Severity, pg.Code, conn.PgConn().TxStatus())
		case err != nil:
			done <- err.Error()
		default:
			done <- fmt.Sprintf("%s %c", all[0].CommandTag, conn.PgConn().TxStatus())
		}
	}()
	return done
}

// The outcome of a COMMIT at the end of a batch, and of one with AND CHAIN, is proved as that of any other.
func TestCommitOfABatchInDoubt(t *testing.T) {
	longTest(t)
	const insert = "insert into ledger values (1, false)"
	for _, c := range []chainCase{
		{"a batch that begins it, committed", nil, []string{"begin", insert, "commit"}, "", false, "BEGIN, INSERT 0 1, COMMIT I", 1},
		{"a batch that begins it, and the answer is lost", nil, []string{"begin", insert, "select 7", "end"}, "answer", false, "BEGIN, INSERT 0 1, SELECT 1, COMMIT I", 1},
		{"a batch that begins it, lost on its way", nil, []string{"begin", insert, "commit"}, "request", false, "BEGIN, INSERT 0 1, ERROR 40001 I", 0},
		{"a batch, not replicated", []string{"begin"}, []string{insert, "commit"}, "", true, "INSERT 0 1, ERROR 40001 I", 0},
		{"a batch, committed by name", []string{"begin"}, []string{insert, "the_commit"}, "answer", false, "INSERT 0 1, COMMIT I", 1},
		{"AND CHAIN at the end of a batch", []string{"begin isolation level serializable"}, []string{insert, "commit and chain"}, "answer", false, "INSERT 0 1, COMMIT T", 1},
		{"AND CHAIN", []string{"begin isolation level serializable", insert}, []string{"commit and chain"}, "", false, "COMMIT T", 1},
		{"AND CHAIN, lost on its way", []string{"begin isolation level serializable", insert}, []string{"commit and chain"}, "request", false, "ERROR 40001 I", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReplicas(t)
			conn := r.near.mustDial(r.near.rw, "user=postgres")
			preparesCommit(t, conn)
			r.near.known()
			r.near.unasked()
			r.holdCommits(c.loses == "")
			r.caughtUp()
			if c.deaf {
				r.deafen(true)
			}
			r.link.loses.Store(&c.loses)
			heard := c.in(r.near, conn)
			r.underWay(c.loses != "", false, c.rows)
			r.succeeds(c.deaf, 0, nil)
			r.leads(true)
			if got := <-heard; got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
			if n := r.rows(1); n != c.rows {
				t.Errorf("%d rows", n)
			}
			if strings.HasSuffix(c.want, "COMMIT T") {
				r.near.shows(conn, map[string]string{"show transaction_isolation": "serializable"})
				r.near.do(conn, "insert into ledger values (2)", "commit")
			} else {
				r.near.do(conn, "begin", "insert into ledger values (2)", "commit")
			}
			if n := r.rows(2); n != 1 {
				t.Errorf("the session does not go on: %d rows", n)
			}
			t.Log(r.near.srv.Stats().Doubts)
		})
	}
}

// The same of transactions that have written nothing. Without a failure the client gets the answers of PostgreSQL and
// nothing else.
func TestCommitOfABatchOfNothing(t *testing.T) {
	for _, c := range []chainCase{
		{"a batch that begins it", nil, []string{"begin", "select 1", "commit"}, "answer", false, "BEGIN, SELECT 1, COMMIT I", 0},
		{"a batch", []string{"begin"}, []string{"select 1", "select 2", "end work"}, "answer", false, "SELECT 1, SELECT 1, COMMIT I", 0},
		{"by name", []string{"begin"}, []string{"select 1", "the_commit"}, "answer", false, "SELECT 1, COMMIT I", 0},
		{"AND CHAIN", []string{"begin isolation level repeatable read, read only"}, []string{"commit and chain"}, "answer", false, "COMMIT T", 0},
	} {
		far, near, link := linkedPrimary(t)
		conn := near.mustDial(near.rw, "user=postgres")
		preparesCommit(t, conn)
		near.known()
		near.unasked()
		for range 2 { // without a failure
			if got := <-c.in(near, conn); got != c.want {
				t.Errorf("%s: without a failure the client hears %q", c.name, got)
			}
			if strings.HasSuffix(c.want, "T") {
				near.do(conn, "commit")
			}
		}
		near.shows(conn, map[string]string{"select count(*)::text from pg_prepared_statements where name like 'coterie%'": "0"})
		x := near.sessionOf(conn.PgConn().Conn())
		x.work.Lock()
		x.work.Asking.Timeline = 0 // it is asked for again: the link looks for that
		x.work.Unlock()
		link.loses.Store(&c.loses)
		heard := c.in(near, conn)
		waitFor(t, "it is lost", link.lost.Load)
		time.Sleep(50 * time.Millisecond)
		shut := *near.routes.Load()
		shut.Primary, shut.WriteOpen = "", false
		near.publish(&shut) // it must not go on at the same server
		far.serverDies()
		waitFor(t, "its server is lost", func() bool { return len(far.srv.Sessions()) == 0 })
		near.dies()
		if got := <-heard; got != c.want {
			t.Errorf("%s: the client hears %q", c.name, got)
		}
		if strings.HasSuffix(c.want, "T") {
			near.shows(conn, map[string]string{"show transaction_isolation": "repeatable read", "show transaction_read_only": "on", "show transaction_deferrable": "off"})
			near.do(conn, "commit")
		}
		near.shows(conn, map[string]string{"select current_setting('cluster_name')": "b"})
		if st := near.srv.Stats(); st.Doubts["committed"] != 1 {
			t.Errorf("%s: %v", c.name, st.Doubts)
		}
	}
}

// Batches that are not one transaction with its COMMIT behind it are passed on as they are.
func TestBatchesThatAreNotAskedFor(t *testing.T) {
	_, near, _ := linkedPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.unasked()
	for _, c := range []struct {
		batch []string
		want  string
	}{
		{[]string{"commit", "begin", "select 1", "commit"}, "COMMIT, BEGIN, SELECT 1, COMMIT I"},
		{[]string{"begin", "rollback", "begin", "commit"}, "BEGIN, ROLLBACK, BEGIN, COMMIT I"},
		{[]string{"select 1", "commit"}, "SELECT 1, COMMIT I"},
		{[]string{"begin", "select 1/0", "commit"}, "BEGIN, ERROR 22012 E"},
		{[]string{"rollback"}, "ROLLBACK I"},
		{[]string{"begin", "commit", "select 1"}, "BEGIN, COMMIT, SELECT 1 I"},
	} {
		before := near.sessionOf(conn.PgConn().Conn())
		if got := <-sendsBatch(conn, c.batch...); got != c.want && !strings.HasPrefix(got, c.want+" ") {
			t.Errorf("%q: the client hears %q, want %q", c.batch, got, c.want)
		}
		before.work.Lock()
		if d := before.work.Asking.Commit; d != nil {
			t.Errorf("%q: in doubt of %+v", c.batch, d)
		}
		before.work.Unlock()
	}
}

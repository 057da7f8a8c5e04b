package listener

import (
	"strings"
	"testing"
	"time"

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
	x.drained.mu.Lock()
	timeline := x.moving.timeline
	x.drained.mu.Unlock()
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
	x.drained.mu.Lock()
	doubt := x.moving.doubt
	x.drained.mu.Unlock()
	near.dies()
	if err := <-heard; doubt != nil || err == nil || !strings.Contains(err.Error(), "FATAL") {
		t.Errorf("the client hears %v, and is in doubt of %v", err, doubt)
	}
}

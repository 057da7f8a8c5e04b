package listener

import (
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// A session is not asked for its state while a COPY of the extended protocol runs that was sent behind a request which
// was not answered yet: the answer to the COPY would be taken for that to the question.
func TestCopyBehindARequest(t *testing.T) {
	_, near := farPrimary(t)
	near.servers["a"].sql(t, "drop table if exists copied", "create table copied (x text)",
		"create or replace function copies() returns trigger language plpgsql as 'begin perform pg_sleep(0.3); return new; end'",
		"create trigger copies before insert on copied for each row execute function copies()")
	m := func(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }
	executes := func(text string) []byte {
		return slices.Concat(m('P', "\x00"+text+"\x00\x00\x00"), m('B', "\x00\x00\x00\x00\x00\x00\x00\x00"), m('E', "\x00\x00\x00\x00\x00"))
	}
	conn := near.mustDial(near.rw, "user=postgres")
	c := conn.PgConn().Conn()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	for range 3 {
		_, err := c.Write(slices.Concat(executes("select pg_sleep(0.1)"), m('S', ""), executes("copy copied from stdin"), m('d', "1\n"), m('c', ""), m('S', "")))
		must(t, err)
		var types []byte
		for ready := 0; ready < 2; {
			typ, _, err := pgwire.ReadMessage(c, 1<<20)
			must(t, err)
			if types = append(types, typ); typ == 'Z' {
				ready++
			}
		}
		if string(types) != "12DCZ12GCZ" {
			t.Fatalf("the client gets messages %q", types)
		}
	}
	must(t, c.SetDeadline(time.Time{}))
	near.shows(conn, map[string]string{"select count(*)::text from copied": "3"})
}

package listener

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// refusesSettings makes a listener that refuses changes of settings that begin with cot_test.
func refusesSettings(c *Config) {
	trusting(c)
	c.Reserved = func(name string) (string, bool) { return "do $this instead", strings.HasPrefix(name, "cot_test.") }
}

// A setting of the group is not changed by ALTER SYSTEM, in whatever spelling, protocol and number of pieces. The
// session goes on where PostgreSQL had nothing of the statement yet. Others pass.
func TestChangesOfSettingsAreRefused(t *testing.T) {
	g := newGroup(t, refusesSettings)
	server, err := g.servers["a"].connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close(context.Background()) })
	changed := func() int {
		return value[int](t, server, "select count(*)::int from pg_file_settings where name like 'cot_test.%'")
	}
	t.Cleanup(func() { _, _ = server.Exec(context.Background(), "alter system reset log_autovacuum_min_duration") })
	{
		conn := g.mustDial(g.rw, "user=postgres")
		for _, text := range []string{
			"alter system set cot_test.x = 1", "ALTER /* ' */ SYSTEM\nSET \"COT_test\".x TO 'a;b'", "-- x\n;; alter system reset cot_test.x;",
			"alter system reset all", `alter system set U&"\0063ot_test.x" = 1`, "select 1; alter system set cot_test.x = 1",
			"alter role postgres set synchronous_commit = off", "alter database postgres set synchronous_commit from current", "begin; alter role all set Synchronous_commit = 'local'; commit",
		} {
			for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
				_, err := conn.Exec(t.Context(), text, mode)
				if mode != pgx.QueryExecModeSimpleProtocol && strings.Contains(text, "; alter") && err != nil {
					continue // PostgreSQL allows one statement there
				}
				if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "42501" || !strings.Contains(e.Message, " allowed") && e.Hint != "do this instead" {
					t.Errorf("%s in mode %v: %v", text, mode, err)
				}
			}
		}
		// The statements around it in a pipeline are answered in order.
		b := &pgx.Batch{}
		b.Queue("select 1")
		b.Queue("alter system set cot_test.x = 1")
		b.Queue("select 2")
		r := conn.SendBatch(t.Context(), b)
		if _, err := r.Exec(); err != nil {
			t.Errorf("before the refused statement: %v", err)
		}
		if _, err := r.Exec(); err == nil {
			t.Error("a pipelined ALTER SYSTEM passed")
		}
		_ = r.Close()
		if got := value[int](t, conn, "select 5"); got != 5 {
			t.Error("the session does not go on")
		}
		if _, err := conn.Exec(t.Context(), "alter system set log_autovacuum_min_duration = 5000"); err != nil {
			t.Errorf("a setting of nobody: %v", err)
		}
	}
	if n := changed(); n != 0 {
		t.Errorf("%d entries were written", n)
	}
}

// PostgreSQL itself refuses ALTER SYSTEM where the listener cannot see it: in functions, procedures and DO, and beside
// other statements. The refusal of changes rests on that.
func TestAlterSystemIsAStatementOfItsOwn(t *testing.T) {
	g := newGroup(t, trusting)
	conn := g.mustDial(g.rw, "user=postgres")
	for _, text := range []string{
		"do $$ begin execute 'alter system set cot_test.y = 1'; end $$",
		"do $$ begin commit; execute 'alter system set cot_test.y = 1'; end $$",
		"select 1; alter system set cot_test.y = 1",
		"begin; commit; alter system set cot_test.y = 1",
		"alter system set cot_test.y = 1; select 1",
		"create procedure pg_temp.p() language plpgsql as $$ begin commit; alter system set cot_test.y = 1; end $$; call pg_temp.p()",
		"create function pg_temp.f() returns void language sql as $$ alter system set cot_test.y = 1 $$; select pg_temp.f()",
		"prepare p as alter system set cot_test.y = 1",
	} {
		_, err := conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			t.Errorf("%s: PostgreSQL did it", text)
		}
		_, _ = conn.Exec(t.Context(), "rollback", pgx.QueryExecModeSimpleProtocol)
	}
	if n := value[int](t, conn, "select count(*)::int from pg_file_settings where name = 'cot_test.y'"); n != 0 {
		t.Errorf("%d entries were written", n)
	}
}

// A statement that arrives in pieces is refused before PostgreSQL has its end, and the session ends.
func TestChangeInPiecesIsRefused(t *testing.T) {
	g := newGroup(t, refusesSettings)
	for _, message := range [][]byte{
		query("alter system set cot_test.z = 1"),
		pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendMessage(nil,
			'P', []byte("s\x00alter system set cot_test.z = 1\x00\x00\x00")), 'B', []byte("\x00s\x00\x00\x00\x00\x00\x00\x00")), 'E', []byte("\x00\x00\x00\x00\x00")), 'S', nil),
	} {
		for _, at := range []int{3, 9, 25, 30} {
			conn := g.begin((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
			readUntil(t, conn, 'Z')
			write(t, conn, message[:at])
			time.Sleep(20 * time.Millisecond) // the pieces arrive one by one
			write(t, conn, message[at:])
			readUntilError(t, conn, "57P01")
			_ = conn.Close()
		}
	}
	conn := g.mustDial(g.rw, "user=postgres")
	if n := value[int](t, conn, "select count(*)::int from pg_file_settings where name = 'cot_test.z'"); n != 0 {
		t.Errorf("%d entries were written", n)
	}
}

// A session that the kernel relays is refused the same.
func TestKernelPathRefusesChanges(t *testing.T) {
	g := offloadGroup(t, refusesSettings)
	conn, x := g.offloadedSession()
	for _, text := range []string{"/* */ alter system set cot_test.k = 1", "select 1; alter role postgres set synchronous_commit = 0"} {
		for range 3 {
			g.ask(conn, "select 1")
		}
		waitFor(t, "the kernel carries it", x.work.Offloaded)
		write(t, conn, query(text))
		readUntilError(t, conn, "42501")
		readUntil(t, conn, 'Z')
	}
}

func write(t *testing.T, conn net.Conn, b []byte) {
	t.Helper()
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

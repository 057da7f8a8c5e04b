package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// canceller inserts rows and has half of the statements cancelled, most of them while the commit waits, in sessions
// that hide PostgreSQL's warning of that in random spellings. Half of the sessions have no TLS, for the kernel's path.
// Acknowledged rows must exist.
type canceller struct {
	dsn       string
	rng       *rand.Rand
	acked     map[int]time.Duration // when
	said      map[string]bool       // the spellings that were used
	cancelled int
}

// perSession is how many rows a session of the canceller inserts before the next one hides the warning differently.
const perSession = 50

func newCanceller(t *testing.T, dsn string, seed uint64) *canceller {
	t.Helper()
	sql(t, dsn, "drop table if exists cancelled")
	sql(t, dsn, "create table cancelled (id int primary key)")
	sql(t, dsn, "create or replace procedure cancelled_insert(i int) language plpgsql as $$ begin insert into cancelled values (i); commit; end $$")
	sql(t, dsn, "create or replace function cancelled_write(i int) returns int language sql as $$ insert into cancelled values (i) returning id $$")
	sql(t, dsn, "create or replace function hush() returns text language sql as $$ select set_config('client_min' || '_messages', 'error', false) $$")
	return &canceller{dsn: dsn, rng: rand.New(rand.NewPCG(seed, 1)), acked: map[int]time.Duration{}, said: map[string]bool{}}
}

func (c *canceller) run(ctx context.Context) {
	var conn *pgx.Conn
	drop := func() {
		if conn != nil {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(end)
			cancel()
			conn = nil
		}
	}
	defer drop()
	for id := 0; ctx.Err() == nil; id++ {
		time.Sleep(5 * time.Millisecond)
		if id%perSession == 0 {
			drop()
		}
		each, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		err := error(nil)
		if conn == nil {
			if conn, err = pgx.Connect(each, c.pick(c.dsn, plain(c.dsn, valuesInText))); err == nil {
				err = c.hide(each, conn)
			}
		}
		if err == nil {
			if err = c.insert(each, conn, id); err == nil {
				c.acked[id] = boottime.Now()
			}
		}
		if err != nil && conn != nil && (conn.IsClosed() || each.Err() != nil || conn.PgConn().TxStatus() != 'I') {
			drop()
		}
		cancel()
	}
}

// hide has the session hide the warning, or not.
func (c *canceller) hide(ctx context.Context, conn *pgx.Conn) error {
	name := c.capitals("client_min_messages")
	level, at := c.pick("error", "Error", "ERROR"), 1+c.rng.IntN(len(name)-1)
	composed := "'" + name[:at] + "' || '" + name[at:] + "'"
	text := c.pick(
		"select 'it hides nothing'",
		c.capitals("set ")+c.capitals("session ")+name+" = "+level,
		"set/**/"+name+" to "+level,
		"select set_config('"+name+"', '"+level+"', false)",
		"select set_config("+composed+", '"+level+"', false)",
		"update pg_settings set setting = '"+strings.ToLower(level)+"' where name like 'client%in_mess%'",
		"do $$ begin execute 'set ' || "+composed+" || ' = "+level+"'; end $$",
		"select hush()",
	)
	mode := pgx.QueryExecModeSimpleProtocol
	if c.rng.IntN(2) == 0 {
		mode = pgx.QueryExecModeExec
	}
	c.said[text] = true
	_, err := conn.Exec(ctx, text, mode)
	return err
}

// insert commits the row in one of many ways, and has half of them cancelled.
func (c *canceller) insert(ctx context.Context, conn *pgx.Conn, id int) error {
	if c.rng.IntN(10) == 0 {
		return c.timesOut(ctx, conn, id)
	}
	row := strconv.Itoa(id)
	text, mode := c.pick("insert into cancelled values ("+row+")", "select cancelled_write("+row+")", "do $$ begin insert into cancelled values ("+row+"); end $$",
		"with x as (insert into cancelled values ("+row+") returning id) select id from x", "begin"), pgx.QueryExecModeSimpleProtocol
	if c.rng.IntN(2) == 0 {
		mode = pgx.QueryExecModeExec
	}
	if text == "begin" {
		if _, err := conn.Exec(ctx, "begin; insert into cancelled values ("+row+")", pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		text = c.pick("commit", "END", "commit work", "/* at last */ Commit Transaction")
	}
	c.said[strings.ReplaceAll(text, row, "1")] = true
	sent := c.cancels(ctx, conn)
	_, err := conn.Exec(ctx, text, mode)
	<-sent
	return err
}

// timesOut commits the row inside a procedure or a block, whose wait the session's own timeout cuts.
func (c *canceller) timesOut(ctx context.Context, conn *pgx.Conn, id int) error {
	c.cancelled++
	if _, err := conn.Exec(ctx, fmt.Sprintf("set statement_timeout = '%dms'", 1+c.rng.IntN(20)), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	text := c.pick(c.capitals("call")+" cancelled_insert(%d)", "do $$ begin insert into cancelled values (%d); commit; end $$")
	c.said[text] = true
	_, err := conn.Exec(ctx, fmt.Sprintf(text, id), pgx.QueryExecModeSimpleProtocol)
	_, _ = conn.Exec(ctx, "reset statement_timeout", pgx.QueryExecModeSimpleProtocol) // if that fails, so does the next row
	return err
}

// cancels cancels the next statement after a moment, half of the times: by a request, or by another session. The
// channel is closed when it has.
func (c *canceller) cancels(ctx context.Context, conn *pgx.Conn) <-chan struct{} {
	sent := make(chan struct{})
	if c.rng.IntN(2) == 0 {
		close(sent)
		return sent
	}
	c.cancelled++
	after, byRequest := time.Duration(c.rng.IntN(5000))*time.Microsecond, c.rng.IntN(4) > 0
	go func() {
		defer close(sent)
		time.Sleep(after)
		ask, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if byRequest {
			_ = conn.PgConn().CancelRequest(ask)
			return
		}
		other, err := pgx.Connect(ask, c.dsn)
		if err != nil {
			return
		}
		_, _ = other.Exec(ask, "select pg_cancel_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and wait_event = 'SyncRep' and query ilike '%cancelled%'",
			pgx.QueryExecModeSimpleProtocol)
		_ = other.Close(ask)
	}()
	return sent
}

func (c *canceller) pick(of ...string) string { return of[c.rng.IntN(len(of))] }

// capitals returns the words in random capitals.
func (c *canceller) capitals(s string) string { return capitals(c.rng, s) }

func capitals(rng *rand.Rand, s string) string {
	b := []byte(s)
	for i := range b {
		if rng.IntN(3) == 0 {
			b[i] = strings.ToUpper(s[i : i+1])[0]
		}
	}
	return string(b)
}

// verify checks that what was acknowledged since then exists: what came before may be lost where an operator accepted
// that.
func (c *canceller) verify(t *testing.T, dsn string, since time.Duration) {
	t.Helper()
	have := map[string]bool{}
	for _, id := range strings.Fields(sql(t, dsn, "select id::text from cancelled")) {
		have[id] = true
	}
	for id, at := range c.acked {
		if at > since && !have[strconv.Itoa(id)] {
			t.Errorf("row %d was acknowledged to a client that cancels, and is lost", id)
		}
	}
}

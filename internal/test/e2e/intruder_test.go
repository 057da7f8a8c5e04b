package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// intruder is readers, one at each replica, that try to write in random spellings. None may ever succeed, nor stand on
// a server that is not in recovery: where no routing list names the primary, it answers no session of read-only intent.
type intruder struct {
	dsns  []string
	seed  uint64
	tried atomic.Int64

	mu   sync.Mutex
	bad  []string
	errs []error
}

func newIntruder(t *testing.T, dsn string, readOnly []string, seed uint64) *intruder {
	t.Helper()
	sql(t, dsn, "drop table if exists intruders")
	sql(t, dsn, "drop sequence if exists intrusions")
	sql(t, dsn, "create table intruders (id bigint)")
	sql(t, dsn, "create sequence intrusions")
	sql(t, dsn, "create or replace procedure intrude(i bigint) language plpgsql as $$ begin insert into intruders values (i); commit; end $$")
	sql(t, dsn, "create or replace function intrusion(i bigint) returns bigint language sql as $$ insert into intruders values (i) returning id $$")
	return &intruder{dsns: readOnly, seed: seed}
}

func (x *intruder) run(ctx context.Context) {
	var all sync.WaitGroup
	for i, dsn := range x.dsns {
		all.Go(func() { x.read(ctx, i, dsn) })
	}
	all.Wait()
}

// read is one reader.
func (x *intruder) read(ctx context.Context, n int, dsn string) {
	rng := rand.New(rand.NewPCG(x.seed, 100+uint64(n)))
	s, err := session.New(session.Options{DSN: dsn, Timeout: 10 * time.Second, Name: "coterie intruder"})
	if err != nil {
		x.mu.Lock()
		x.errs = append(x.errs, err)
		x.mu.Unlock()
		return
	}
	defer s.Close()
	for i := 0; ctx.Err() == nil; i++ {
		if s.Conn() == nil && s.Connect(ctx) != nil {
			session.Pause(ctx)
			continue
		}
		id := int64(n)<<32 + int64(i)
		_, _, _ = s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return x.attempt(ctx, rng, conn, s.Host(), id) })
		if rng.IntN(40) == 0 {
			s.Drop() // the next has other settings
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// attempt asks for the role of the server, or tries to write.
func (x *intruder) attempt(ctx context.Context, rng *rand.Rand, conn *pgx.Conn, host string, id int64) error {
	x.tried.Add(1)
	tell := func(format string, args ...any) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.bad = append(x.bad, fmt.Sprintf("at %s: ", host)+fmt.Sprintf(format, args...))
	}
	if rng.IntN(3) == 0 {
		var recovers bool
		err := conn.QueryRow(ctx, "select pg_is_in_recovery()", pgx.QueryExecModeSimpleProtocol).Scan(&recovers)
		if err == nil && !recovers {
			tell("a reader is answered by a server that is not in recovery")
		}
		return err
	}
	var err error
	text := "copy intruders from stdin"
	if rng.IntN(12) == 0 {
		_, err = conn.PgConn().CopyFrom(ctx, strings.NewReader(fmt.Sprintf("%d\n", id)), text)
	} else {
		text = spelling(rng, id)
		_, err = conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	}
	if err == nil {
		tell("a reader's write was acknowledged: %s", text)
	}
	if conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
		_, e := conn.Exec(ctx, "rollback", pgx.QueryExecModeSimpleProtocol)
		err = errors.Join(err, e)
	}
	return err
}

// spelling is a text that writes, in one of many ways.
func spelling(rng *rand.Rand, id int64) string {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	begin := pick("", "", "begin read write; ", "start transaction isolation level serializable, read write; ", "begin; set transaction read write; ")
	before := pick("", "", "set default_transaction_read_only = off; ", "set session characteristics as transaction read write; ",
		"select set_config('default_' || 'transaction_read_only', 'off', false); ")
	write := fmt.Sprintf(pick("insert into intruders values (%d)", "with x as (insert into intruders values (%d) returning id) select id from x",
		"select intrusion(%d)", "do $$ begin insert into intruders values (%d); end $$", "prepare p as insert into intruders values (%d); execute p; deallocate p",
		"delete from coterie_register.count where n > %d - %[1]d", "update coterie_register.count set n = n + 0 * %d", "select nextval('intrusions') + %d",
		"create temp table t%d (id int)", "select n + %d from coterie_register.count for update", "lock table intruders in exclusive mode; select %d"), id)
	if begin+before == "" && rng.IntN(4) == 0 {
		return capitals(rng, "call") + fmt.Sprintf(" intrude(%d)", id)
	}
	if begin == "" {
		return before + capitals(rng, write[:6]) + write[6:]
	}
	return before + begin + capitals(rng, write[:6]) + write[6:] + "; " + pick("commit", "end", "Commit Work")
}

// verify checks that no reader has written.
func (x *intruder) verify(t *testing.T, dsn string) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, err := range x.errs {
		t.Errorf("readers that try to write: %v", err)
	}
	for i, s := range x.bad {
		if t.Errorf("%s", s); i == 20 {
			t.Logf("and %d more", len(x.bad)-i)
			break
		}
	}
	if got := sql(t, dsn, "select count(*) from intruders"); got != "0" {
		t.Errorf("readers have written %s rows", got)
	}
	if x.tried.Load() == 0 {
		t.Error("no reader tried to write: this proves nothing")
	}
}

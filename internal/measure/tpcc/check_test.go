package tpcc

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// mustHold fails the test for every condition that is broken.
func mustHold(t *testing.T, dsn string) {
	t.Helper()
	start := time.Now()
	found, err := Check(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 12 {
		t.Fatalf("%d conditions, want 12", len(found))
	}
	for i, c := range found {
		if c.Number != i+1 || c.Violations != 0 {
			t.Errorf("condition %d (%s): %d violations, such as %s", c.Number, c.Name, c.Violations, c.Sample)
		}
	}
	t.Logf("checked in %v", time.Since(start))
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := session.Open(t.Context(), dsn, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	return conn
}

// patience of clients of a machine that has much else to do: a transaction that is slow there is not lost.
const patience = time.Minute

// TestLoadRunCheck is the life of a benchmark: the loaded rows pass the checks, also after a run.
func TestLoadRunCheck(t *testing.T) {
	dsn := loaded(t)
	mustHold(t, dsn)

	before := orderNumbers(t, dsn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var ticks []Interval
	var done float64
	res, err := Run(ctx, RunOptions{DSN: dsn, ReadDSN: dsn, Clients: 8, Seed: 1, Timeout: patience, Tick: func(i Interval) {
		ticks = append(ticks, i)
		done += i.TPS * i.Length.Seconds()
		if len(ticks) >= 2 && done > 2000 { // two seconds, or as long as a busy machine takes for every kind to have its turn
			cancel()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f tx/s, %.0f NOPM, errors %v, reads %v", res.TPS, res.NOPM, res.Errors, res.Reads)
	for _, k := range res.Types {
		t.Logf("%-12s ok %d rolled back %d p50 %v p95 %v p99 %v max %v", k.Name, k.OK, k.RolledBack, k.P50, k.P95, k.P99, k.Max)
		if k.OK == 0 {
			t.Errorf("no %s in the mix", k.Name)
		}
	}
	if res.Fail != 0 || res.Unknown != 0 || res.RolledBack == 0 {
		t.Errorf("fail %d, unknown %d, rolled back %d; errors %v", res.Fail, res.Unknown, res.RolledBack, res.Errors)
	}
	counted := orderNumbers(t, dsn) - before
	if nopm := float64(counted) / res.Elapsed.Minutes(); counted != res.Types[0].OK || math.Abs(nopm-res.NOPM) > 0.01*nopm {
		t.Errorf("%d new orders counted, %.0f NOPM; by the database's numbers %d, %.0f", res.Types[0].OK, res.NOPM, counted, nopm)
	}
	if len(ticks) < 2 || ticks[0].TPS == 0 || ticks[0].P99 == 0 || ticks[0].Reads["only"] == 0 {
		t.Errorf("ticks %+v", ticks)
	}
	if res.Reads["only"] == 0 || len(res.Clients) != 8 || res.Clients[0].LongestGap == 0 || res.Clients[0].Reconnects != 0 {
		t.Errorf("reads %v, clients %+v", res.Reads, res.Clients)
	}
	// The same by statements from the client: the conditions must hold as they do with functions.
	for i, mode := range []Mode{ClientSQL, Pipeline} {
		res, err := Run(t.Context(), RunOptions{DSN: dsn, ReadDSN: dsn, Clients: 4, Seed: uint64(10 + i), Mode: mode, Transactions: 115, Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.0f tx/s, %d rolled back, errors %v", mode, res.TPS, res.RolledBack, res.Errors)
		if res.Unknown != 0 || res.OK+res.RolledBack+res.Fail != 4*115 || res.Fail > 10 || res.Reads["only"] != 4*115*2/23 {
			t.Errorf("%s: ok %d, rolled back %d, fail %d, unknown %d, errors %v, reads %v", mode, res.OK, res.RolledBack, res.Fail, res.Unknown, res.Errors, res.Reads)
		}
	}
	warmUpIsNotCounted(t, dsn)
	sameInputsAgain(t, dsn)
	vacuumInTurns(t, dsn)
	mustHold(t, dsn)
	after := digest(t, dsn)
	if after == shared.digest {
		t.Error("digest did not change in a run")
	}
	if again := digest(t, dsn); again != after {
		t.Errorf("digest changed from %s to %s while nothing was written", after, again)
	}
}

// vacuumInTurns holds that autovacuum is allowed again after a measurement, also after one that was given up.
func vacuumInTurns(t *testing.T, dsn string) {
	t.Helper()
	forbidden := func() (n int) {
		const q = "select count(*) from pg_class where relnamespace = 'tpcc'::regnamespace and 'autovacuum_enabled=false' = any (reloptions)"
		if err := connect(t, dsn).QueryRow(t.Context(), q).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	allow, err := ForbidAutovacuum(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := Vacuum(ctx, dsn); err != nil {
		t.Error(err)
	}
	if n := forbidden(); n != len(tables) {
		t.Errorf("autovacuum is kept from %d tables of %d", n, len(tables))
	}
	cancel()
	if err := allow(); err != nil {
		t.Error(err)
	}
	if n := forbidden(); n != 0 {
		t.Errorf("autovacuum is still kept from %d tables", n)
	}
}

// warmUpIsNotCounted: after a warm-up every terminal has all of its transactions counted, and the database has numbered
// at least as many orders since counting began as are counted.
func warmUpIsNotCounted(t *testing.T, dsn string) {
	t.Helper()
	var atBegin int64
	began := 0
	res, err := Run(t.Context(), RunOptions{DSN: dsn, Clients: 4, Seed: 20, Timeout: patience, WarmUp: 200 * time.Millisecond, Transactions: 46, Begin: func() {
		began++
		atBegin = orderNumbers(t, dsn)
	}})
	if err != nil {
		t.Fatal(err)
	}
	counted, all := orderNumbers(t, dsn)-atBegin, res.Types[0].OK
	if began != 1 || res.OK+res.RolledBack != 4*46 || all == 0 || counted < all {
		t.Errorf("began %d times, %d counted of %d, %d orders of %d by the database's numbers", began, res.OK+res.RolledBack, 4*46, all, counted)
	}
	res, err = Run(t.Context(), RunOptions{DSN: dsn, Clients: 1, Timeout: patience, Duration: 100 * time.Millisecond})
	if err != nil || res.Elapsed < 100*time.Millisecond {
		t.Errorf("100 ms took %v: %v", res.Elapsed, err)
	}
}

// sameInputsAgain has a transaction fail as one that others are in the way of: it is tried again, and that is counted.
func sameInputsAgain(t *testing.T, dsn string) {
	t.Helper()
	s, err := session.New(session.Options{DSN: dsn, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	states := []string{"40001", "40P01", "40001"}
	rec, tries := newRecorder(), 0
	rec.begin()
	try := func(states []string) (e event) {
		tries = 0
		e.again(t.Context(), s, func(ctx context.Context, c *pgx.Conn) error {
			tries++
			if tries <= len(states) {
				_, err := c.Exec(ctx, "do $$ begin raise exception using errcode = '"+states[tries-1]+"'; end $$")
				return err
			}
			return nil
		})
		rec.add(e)
		return e
	}
	if e := try(states); e.outcome != session.OK || tries != 4 || !slices.Equal(e.retried, states) {
		t.Errorf("%d tries, %+v", tries, e)
	}
	if e := try([]string{"22012"}); e.outcome != session.Fail || tries != 1 {
		t.Errorf("an error of its own was tried %d times: %+v", tries, e)
	}
	if e := try(slices.Repeat(states[:1], 99)); e.outcome != session.Fail || tries != maxRetries+1 {
		t.Errorf("what never succeeds was tried %d times: %+v", tries, e)
	}
	if r := rec.result(); r.Retries["40001"] != 2+maxRetries || r.Retries["40P01"] != 1 || r.Errors["40001"] != 1 || r.OK != 1 {
		t.Errorf("%+v", r)
	}
}

// orderNumbers counts the orders that the database has numbered.
func orderNumbers(t *testing.T, dsn string) (n int64) {
	t.Helper()
	if err := connect(t, dsn).QueryRow(t.Context(), "select sum(d_next_o_id) from tpcc.district").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func digest(t *testing.T, dsn string) string {
	t.Helper()
	start := time.Now()
	d, err := Digest(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("digest in %v", time.Since(start))
	return d
}

// breakages breaks each condition in one way that it, and no other instrument, has to notice.
var breakages = [12][]string{
	{`update tpcc.district set d_ytd = d_ytd + 0.01 where d_w_id = 1 and d_id = 3`, `delete from tpcc.district where d_id = 4`},
	{
		`update tpcc.district set d_next_o_id = d_next_o_id + 1 where d_w_id = 1 and d_id = 3`,
		`delete from tpcc.new_order where no_d_id = 3 and no_o_id = (select max(no_o_id) from tpcc.new_order where no_d_id = 3)`,
	},
	{`delete from tpcc.new_order where no_d_id = 3 and no_o_id = (select min(no_o_id) + 5 from tpcc.new_order where no_d_id = 3)`},
	{
		`delete from tpcc.order_line where ol_d_id = 3 and ol_o_id = 17 and ol_number = 2`,
		`update tpcc.orders set o_ol_cnt = o_ol_cnt + 1 where o_d_id = 3 and o_id = 17`,
	},
	{
		`update tpcc.orders set o_carrier_id = null where o_d_id = 3 and o_id = 17`,
		`update tpcc.orders set o_carrier_id = 1 where o_d_id = 3 and o_id = 2999`,
		`insert into tpcc.new_order values (1, 3, 17)`,
		`delete from tpcc.orders where o_d_id = 3 and o_id = 2999`,
	},
	{
		`delete from tpcc.order_line where ol_d_id = 3 and ol_o_id = 17 and ol_number = 2`,
		`update tpcc.order_line set ol_o_id = 18, ol_number = 99 where ol_d_id = 3 and ol_o_id = 17 and ol_number = 2`,
		`delete from tpcc.orders where o_d_id = 3 and o_id = 17`,
	},
	{
		`update tpcc.order_line set ol_delivery_d = null where ol_d_id = 3 and ol_o_id = 17 and ol_number = 2`,
		`update tpcc.order_line set ol_delivery_d = now() where ol_d_id = 3 and ol_o_id = 2999 and ol_number = 2`,
	},
	{
		`delete from tpcc.history where ctid = (select min(ctid) from tpcc.history)`,
		`update tpcc.warehouse set w_ytd = w_ytd + 0.01`,
	},
	{
		`delete from tpcc.history where ctid = (select min(ctid) from tpcc.history)`,
		`update tpcc.district set d_ytd = d_ytd + 0.01 where d_id = 3`,
	},
	{
		`update tpcc.customer set c_balance = c_balance + 0.01 where c_d_id = 3 and c_id = 17`,
		`update tpcc.history set h_amount = h_amount + 1 where ctid = (select min(ctid) from tpcc.history)`,
	},
	{
		`delete from tpcc.new_order where no_d_id = 3 and no_o_id = (select min(no_o_id) from tpcc.new_order where no_d_id = 3)`,
		`update tpcc.customer set c_delivery_cnt = c_delivery_cnt + 1 where c_d_id = 3 and c_id = 17`,
	},
	{
		`update tpcc.customer set c_ytd_payment = c_ytd_payment + 0.01 where c_d_id = 3 and c_id = 17`,
		`update tpcc.order_line set ol_amount = 1 where ol_d_id = 3 and ol_o_id = 17 and ol_number = 2`,
	},
}

// TestEachConditionCanFail breaks each condition inside a transaction that is rolled back.
func TestEachConditionCanFail(t *testing.T) {
	conn := connect(t, loaded(t))
	for i, statements := range breakages {
		for _, sql := range statements {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tag, err := tx.Exec(t.Context(), sql)
			if err != nil || tag.RowsAffected() == 0 {
				t.Fatalf("%s: %d rows, %v", sql, tag.RowsAffected(), err)
			}
			got, err := conditions[i].check(t.Context(), tx)
			if err != nil {
				t.Fatal(err)
			}
			if got.Violations == 0 || got.Sample == "" {
				t.Errorf("condition %d (%s) did not notice: %s", got.Number, got.Name, sql)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLoadLeavesForeignSchemasAlone(t *testing.T) {
	dsn := loaded(t)
	conn := connect(t, dsn)
	for _, sql := range []string{"create database other", "create database again"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	other := "postgres://postgres@/other?host=" + shared.server.Dir()
	oc := connect(t, other)
	if _, err := oc.Exec(t.Context(), "create schema tpcc; create table tpcc.precious (i int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), other, LoadOptions{}); !errors.Is(err, ErrNotOurs) {
		t.Errorf("load over a foreign schema: %v, want ErrNotOurs", err)
	}
	if _, err := oc.Exec(t.Context(), "table tpcc.precious"); err != nil {
		t.Errorf("the foreign table is gone: %v", err)
	}
	if _, err := Run(t.Context(), RunOptions{DSN: other}); err == nil {
		t.Error("run without a load succeeded")
	}
}

// TestReloadGivesTheSameDigest loads over an earlier load that did not end, with another number of connections, and in
// two goes.
func TestReloadGivesTheSameDigest(t *testing.T) {
	loaded(t)
	if _, err := connect(t, shared.server.DSN()).Exec(t.Context(), "create database reload"); err != nil {
		t.Fatal(err)
	}
	dsn := "postgres://postgres@/reload?host=" + shared.server.Dir()
	if err := createSchema(t.Context(), connect(t, dsn), LoadOptions{Warehouses: 3, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), RunOptions{DSN: dsn}); err == nil {
		t.Error("ran on a load that did not end")
	}
	// Of other rows, the unfinished load is replaced. This one is interrupted, and the next one continues it.
	ctx, cancel := context.WithCancel(t.Context())
	o := LoadOptions{Seed: testSeed, Parallel: 4, Resume: true, Progress: func(done, total int64) {
		if done > total/4 {
			cancel()
		}
	}}
	if _, err := Load(ctx, dsn, o); err == nil {
		t.Fatal("the load was not interrupted")
	}
	o.Progress = nil
	made, err := Load(t.Context(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	if made == 0 || made >= shared.rows {
		t.Errorf("%d of %d rows were made again", made, shared.rows)
	}
	if again, err := Load(t.Context(), dsn, o); err != nil || again != 0 {
		t.Errorf("a complete load was loaded again: %d rows, %v", again, err)
	}
	if digestOfLoad(t, dsn) != shared.digest {
		t.Error("two loads of one seed differ")
	}
	t.Run("a wrong generator is caught", func(t *testing.T) { wrongGeneratorIsCaught(t, dsn) })
	if err := Drop(t.Context(), dsn); err != nil {
		t.Error(err)
	}
	if _, err := Run(t.Context(), RunOptions{DSN: dsn}); err == nil {
		t.Error("ran on what was dropped")
	}
}

// TestReplica points everything that only reads at a streaming replica, while the primary is written.
func TestReplica(t *testing.T) {
	dsn := loaded(t)
	replica, err := shared.server.Replica()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := replica.Remove(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var reads int64
	var busy []Condition // seen during replay
	var busyErr error
	res, err := Run(ctx, RunOptions{DSN: dsn, ReadDSN: replica.DSN(), Clients: 4, Seed: 2, Tick: func(i Interval) {
		if reads += i.Reads["copy"]; reads > 0 && busy == nil {
			busy, busyErr = Check(t.Context(), replica.DSN())
			cancel()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if busyErr != nil || len(busy) != 12 {
		t.Errorf("%d conditions checked on a busy replica, %v", len(busy), busyErr)
	}
	for _, c := range busy {
		if c.Violations != 0 {
			t.Errorf("on a busy replica, condition %d (%s): %d violations, such as %s", c.Number, c.Name, c.Violations, c.Sample)
		}
	}
	if res.Reads["copy"] == 0 || res.Reads["only"] != 0 || res.OK == 0 {
		t.Errorf("reads %v, %d acknowledged", res.Reads, res.OK)
	}
	var end string
	if err := connect(t, dsn).QueryRow(t.Context(), "select pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		t.Fatal(err)
	}
	rc := connect(t, replica.DSN())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var there bool
		if err := rc.QueryRow(t.Context(), "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", end).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("waited a minute for the replica")
		}
	}
	if p, r := digest(t, dsn), digest(t, replica.DSN()); p != r {
		t.Errorf("primary %s, replica %s", p, r)
	}
	mustHold(t, replica.DSN())
	for _, seen := range []bool{false, true} {
		server, found, err := CheckUnseen(t.Context(), replica.DSN(), func(server string) bool { return seen && server == "copy" })
		if err != nil || server != "copy" || (len(found) == 0) != seen {
			t.Errorf("seen %v: %d conditions checked on %s, %v", seen, len(found), server, err)
		}
	}
	// A write to a replica fails, and is not in doubt.
	short, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	res, err = Run(short, RunOptions{DSN: replica.DSN(), Clients: 1})
	if err != nil || res.Errors["25006"] == 0 || res.Unknown != 0 {
		t.Errorf("writing to a replica: %v, errors %v", err, res.Errors)
	}
}

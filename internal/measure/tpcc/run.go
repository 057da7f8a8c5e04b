package tpcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// RunOptions describes what Run runs.
type RunOptions struct {
	DSN        string          // libpq URI of the read-write address; several hosts are tried in turn
	ReadDSN    string          // where Order-Status and Stock-Level go; default: where everything goes
	Clients    int             // terminals; default 8
	Mode       Mode            // default Functions
	Waits      Waits           // of each terminal, around each transaction; default: none
	Seed       uint64          // of the terminals' inputs
	Warehouses int             // default: as many as are loaded
	Timeout    time.Duration   // after which an operation's outcome is unknown; default 5 s
	Dial       pgconn.DialFunc // where connections are made from; default: here

	WarmUp       time.Duration  // at the beginning; nothing of it is counted
	Begin        func()         // called when counting begins; may be nil
	Duration     time.Duration  // of what is counted; default: until ctx ends
	Transactions int64          // of each terminal, counted, answered or not, after which it ends; default: until Duration is over
	Tick         func(Interval) // called once every Every by one goroutine, if set
	Every        time.Duration  // default a second
}

// Interval is what happened between two ticks.
type Interval struct {
	At       time.Duration    // since the start of the run, at the interval's end
	Length   time.Duration    // about one second
	TPS      float64          // acknowledged transactions per second
	P50, P99 time.Duration    // of acknowledged transactions; zero if there were none
	Errors   map[string]int64 // by SQLSTATE, or the session's word where no server spoke
	Unknown  int64            // of Errors, those whose outcome is not known
	Reads    map[string]int64 // read-only transactions by the server that answered
}

// Result is what happened in a run.
type Result struct {
	Elapsed           time.Duration
	TPS               float64 // acknowledged transactions per second
	NOPM              float64 // acknowledged New-Orders per minute; not tpmC
	OK, Fail, Unknown int64
	RolledBack        int64 // New-Orders that had to roll back and did; in none of the other counts
	Types             []TypeResult
	Errors            map[string]int64 // by SQLSTATE, or the session's word where no server spoke
	Retries           map[string]int64 // tries that were followed by another, by SQLSTATE
	Reads             map[string]int64 // read-only transactions by the server that answered
	SkippedDeliveries int64            // districts that had no new order
	Clients           []ClientResult
}

// TypeResult is the share of one of the five transactions.
type TypeResult struct {
	Name                          string
	OK, Fail, Unknown, RolledBack int64
	P50, P95, P99, Max            time.Duration // of acknowledged ones
}

// ClientResult is what one terminal lived through.
type ClientResult struct {
	Host       string        // its read-write session's last address
	Reconnects int           // of all its sessions
	LongestGap time.Duration // between two acknowledged read-write transactions
}

// Run connects every terminal and runs the mix until Duration is over, every terminal has had its Transactions, or ctx
// ends, which is not an error. A transaction that is under way then is completed. A transaction that failed with a
// serialization failure or a deadlock, and no other, is sent again with the same inputs. A terminal that loses its
// server looks for another until the end.
func Run(ctx context.Context, o RunOptions) (Result, error) {
	if o.Clients <= 0 {
		o.Clients = 8
	}
	loaded, cLast, err := readMark(ctx, o.DSN)
	if err != nil {
		return Result{}, err
	}
	if o.Warehouses <= 0 {
		o.Warehouses = loaded
	}
	if o.Warehouses > loaded {
		return Result{}, fmt.Errorf("%d warehouses asked for, %d loaded", o.Warehouses, loaded)
	}
	c := runConstants(o.Seed, cLast)
	terminals := make([]*terminal, o.Clients)
	for i := range terminals {
		if terminals[i], err = newTerminal(o, c, i); err != nil {
			return Result{}, err
		}
	}
	rec := newRecorder()
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	each := func(do func(*terminal) error) {
		var wg sync.WaitGroup
		for _, t := range terminals {
			wg.Go(func() {
				if err := do(t); err != nil {
					cancel(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(t *terminal) error { return t.connect(rctx) })
	timed := o.time(rctx, cancel, rec)
	stop := rec.every(cmp.Or(o.Every, time.Second), o.Tick)
	each(func(t *terminal) error { defer t.close(); return t.run(rctx, rec) })
	stop()
	res := rec.result()
	err = context.Cause(rctx)
	cancel(nil)
	timed()
	for _, t := range terminals {
		res.Clients = append(res.Clients, ClientResult{Host: t.write.Host(), Reconnects: t.reconnects(), LongestGap: t.gap})
	}
	if err != nil && !errors.Is(err, errDone) && ctx.Err() == nil {
		return res, err
	}
	return res, nil
}

// errDone ends a run whose time is up.
var errDone = errors.New("the measured time is over")

// time begins to count after the warm-up, at once where there is none, and ends the run after its Duration. The
// function that it returns waits until all of that has ended; the context must have ended by then.
func (o RunOptions) time(ctx context.Context, cancel context.CancelCauseFunc, rec *recorder) (wait func()) {
	begin := func() {
		if o.Begin != nil {
			o.Begin()
		}
		rec.begin()
	}
	if o.WarmUp <= 0 {
		begin()
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if o.WarmUp > 0 {
			if pause(ctx, o.WarmUp); ctx.Err() != nil {
				return
			}
			begin()
		}
		if o.Duration > 0 {
			pause(ctx, o.Duration)
			cancel(errDone)
		}
	})
	return wg.Wait
}

// every calls tick once per period until the function it returns is called.
func (r *recorder) every(period time.Duration, tick func(Interval)) (stop func()) {
	if tick == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(period)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if i, ok := r.tick(); ok {
					tick(i)
				}
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// readMark reads what Load left for a run.
func readMark(ctx context.Context, dsn string) (warehouses, cLast int, err error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return 0, 0, err
	}
	defer closeConn(conn)
	var complete bool
	const look = `select warehouses, c_last, loaded_at is not null from tpcc.coterie_bench`
	if err := conn.QueryRow(ctx, look).Scan(&warehouses, &cLast, &complete); err != nil {
		return 0, 0, fmt.Errorf("read what is loaded: %w", err)
	}
	if !complete {
		return 0, 0, errors.New("the load of schema tpcc did not end: load it again")
	}
	return warehouses, cLast, nil
}

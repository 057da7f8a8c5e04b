package experiment

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Workload is a load beside the ledger's writers while the primary fails. The ledger's writers alone measure the
// outage.
type Workload struct {
	Name string // in words
	Unit string // unit of its rate
	// Prepare loads the data of the workload; nil if it has none.
	Prepare func(ctx context.Context, dsn string) error
	// Run works until ctx ends, which is not an error, and calls tick with the rate of every step. It returns the
	// number of failed operations by SQLSTATE.
	Run func(ctx context.Context, dsn string, tick func(at, length time.Duration, rate float64)) (map[string]int64, error)
	// Check checks the written data on every replica after the run; nil: no check exists.
	Check func(ctx context.Context, b *Bed, write string) error
}

// QueryWorkload returns a workload of that many clients that send one query.
func QueryWorkload(sql string, clients int) *Workload {
	return &Workload{
		Name: fmt.Sprintf("%d clients asking %q", clients, sql), Unit: "queries/s",
		Run: func(ctx context.Context, dsn string, tick func(at, length time.Duration, rate float64)) (map[string]int64, error) {
			const endless = 24 * time.Hour
			r, err := method.Run(ctx, method.Load{
				Clients: clients, Duration: endless, Every: step, Tick: func(p method.Point) { tick(p.At, p.Length, p.Rate()) },
			}, workload.Query{DSN: dsn, SQL: sql}.Worker)
			return r.Errors, err
		},
	}
}

// TproccWorkload returns a workload of that many users that run the TPC-C-derived mix on one warehouse.
func TproccWorkload(users int, seed uint64) *Workload {
	return &Workload{
		Name: fmt.Sprintf("%d users of the TPC-C-derived mix", users), Unit: "transactions/s",
		Prepare: func(ctx context.Context, dsn string) error {
			_, err := tpcc.Load(ctx, dsn, tpcc.LoadOptions{Warehouses: 1, Seed: seed, Resume: true})
			return err
		},
		Run: func(ctx context.Context, dsn string, tick func(at, length time.Duration, rate float64)) (map[string]int64, error) {
			r, err := tpcc.Run(ctx, tpcc.RunOptions{DSN: dsn, Clients: users, Seed: seed, Every: step, Tick: func(i tpcc.Interval) { tick(i.At, i.Length, i.TPS) }})
			return r.Errors, err
		},
		Check: func(ctx context.Context, b *Bed, write string) error {
			_, err := b.conditionsHold(ctx, write)
			return err
		},
	}
}

// worked is what a workload did in one run.
type worked struct {
	began  time.Time
	points [][2]float64 // seconds after began, and rate
	errors map[string]int64
	err    error
}

// start runs the workload until end is called. Without a workload, end returns an empty result.
func (w *Workload) start(ctx context.Context, dsn string) (end func() worked) {
	if w == nil {
		return func() worked { return worked{} }
	}
	ctx, cancel := context.WithCancel(ctx)
	res := worked{began: time.Now()}
	var wg sync.WaitGroup
	wg.Go(func() {
		res.errors, res.err = w.Run(ctx, dsn, func(at, length time.Duration, rate float64) {
			res.points = append(res.points, [2]float64{(at - length/2).Seconds(), rate})
		})
	})
	return func() worked {
		cancel()
		wg.Wait()
		return res
	}
}

// series returns the rate in the span around the event, in seconds from the event.
func (w worked) series(name, unit string, event time.Time, span [2]float64) report.Series {
	s := report.Series{Name: name, Unit: unit, Points: [][2]float64{}}
	shift := w.began.Sub(event).Seconds()
	for _, p := range w.points {
		if at := p[0] + shift; at >= span[0] && at <= span[1] {
			s.Points = append(s.Points, [2]float64{at, p[1]})
		}
	}
	return s
}

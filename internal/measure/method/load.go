package method

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Event is one operation that ended.
type Event struct {
	Outcome session.Outcome
	State   string   // SQLSTATE, or the session's word; of what was not answered
	Server  string   // that answered, if it is known
	Routed  bool     // the server was a secondary
	Retried []string // SQLSTATE of each try before this one
	Rows    int64
	Bytes   int64
}

// Worker is one client. Do runs one operation, and connects first where it has to. A worker that lost its server looks
// for it again in its next Do: it never leaves the run. An error of Do ends the whole run, and is for failures that no
// waiting can mend.
type Worker interface {
	Do(ctx context.Context) (Event, error)
	Close()
}

// Preparer is a Worker that has something to do before its first operation, such as connecting. It is not measured.
type Preparer interface {
	Prepare(ctx context.Context) error
}

// Load describes how operations are asked for.
type Load struct {
	Clients    int           // default 1
	Rate       float64       // operations per second that all clients together intend; 0: a closed loop, each as fast as it is answered
	Uniform    bool          // intended starts are evenly spaced instead of a Poisson process
	WarmUp     time.Duration // at the beginning, not counted
	Duration   time.Duration // of what is counted; 0: until Iterations
	Iterations int64         // of each client, counted; 0: until Duration
	Seed       uint64
	Every      time.Duration // of a point of the series; default a second
	Ended      func()        // is called when the last operation has ended and no worker is closed yet; may be nil
	Tick       func(Point)   // is called with every point as it ends, by one goroutine
}

// ErrLoad means that a Load has no operations.
var ErrLoad = errors.New("say how long, or how many operations: a load needs Duration or Iterations")

// Run starts operations until the load is done or ctx ends; the end of ctx is not an error. Every operation that began
// is completed.
func Run(ctx context.Context, l Load, worker func(client int) (Worker, error)) (Result, error) {
	l.Clients = max(l.Clients, 1)
	if l.Every <= 0 {
		l.Every = time.Second
	}
	if l.Duration <= 0 && l.Iterations <= 0 {
		return Result{}, ErrLoad
	}
	workers := make([]Worker, 0, l.Clients)
	defer func() {
		for _, w := range workers {
			w.Close()
		}
	}()
	for i := range l.Clients {
		w, err := worker(i)
		if err != nil {
			return Result{}, err
		}
		workers = append(workers, w)
		if p, ok := w.(Preparer); ok {
			if err := p.Prepare(ctx); err != nil {
				return Result{}, err
			}
		}
	}
	r := &run{Load: l, schedule: newSchedule(l), recorder: newRecorder()}
	res, err := r.all(ctx, workers)
	if l.Ended != nil {
		l.Ended()
	}
	return res, err
}

type run struct {
	Load
	schedule *schedule // of an open loop; nil: closed
	recorder *recorder
	counting atomic.Bool
}

func (r *run) all(ctx context.Context, workers []Worker) (Result, error) {
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var warm, wg sync.WaitGroup
	if r.WarmUp <= 0 {
		r.begin()
	} else {
		warm.Go(func() {
			if SleepUntil(wctx, time.Now().Add(r.WarmUp)) {
				r.begin()
				if r.Duration > 0 {
					r.endAfter(wctx, cancel)
				}
			}
		})
	}
	if r.WarmUp <= 0 && r.Duration > 0 {
		warm.Go(func() { r.endAfter(wctx, cancel) })
	}
	stop := r.recorder.every(r.Every, r.Tick)
	for _, w := range workers {
		wg.Go(func() {
			if err := r.client(wctx, w); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	res := r.recorder.end()
	stop()
	err := context.Cause(wctx)
	cancel(nil)
	warm.Wait()
	if err != nil && !errors.Is(err, errDone) && ctx.Err() == nil {
		return res, err
	}
	return res, nil
}

// errDone ends a run whose time is up.
var errDone = errors.New("the measured time is over")

func (r *run) begin() {
	r.recorder.begin()
	r.counting.Store(true)
}

func (r *run) endAfter(ctx context.Context, cancel context.CancelCauseFunc) {
	if SleepUntil(ctx, time.Now().Add(r.Duration)) {
		cancel(errDone)
	}
}

// client runs one worker. An operation that began before counting is not counted.
func (r *run) client(ctx context.Context, w Worker) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for counted := int64(0); ctx.Err() == nil && (r.Iterations <= 0 || counted < r.Iterations); {
		intended, free := time.Now(), time.Time{}
		if r.schedule != nil {
			intended = r.schedule.next()
			if left := time.Until(intended); left > 0 {
				timer.Reset(left)
				select {
				case <-ctx.Done():
					return nil
				case <-timer.C:
				}
				free = time.Now()
			}
		}
		counting, start := r.counting.Load(), free
		if start.IsZero() {
			start = time.Now()
		}
		e, err := w.Do(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !counting {
			continue
		}
		end := time.Now()
		m := measured{Event: e, latency: end.Sub(intended), service: end.Sub(start)}
		if !free.IsZero() {
			m.late = free.Sub(intended)
		}
		r.recorder.add(m)
		counted++
	}
	return nil
}

// schedule hands out the intended starts of an open loop, in order, to any worker.
type schedule struct {
	mu      sync.Mutex
	rand    *rand.Rand
	at      time.Time
	mean    time.Duration
	uniform bool
}

func newSchedule(l Load) *schedule {
	if l.Rate <= 0 {
		return nil
	}
	return &schedule{
		rand: rand.New(rand.NewPCG(l.Seed, 3)), //nolint:gosec // guards nothing
		at:   time.Now(), mean: time.Duration(float64(time.Second) / l.Rate), uniform: l.Uniform,
	}
}

func (s *schedule) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	gap := s.mean
	if !s.uniform {
		gap = time.Duration(s.rand.ExpFloat64() * float64(s.mean))
	}
	s.at = s.at.Add(gap)
	return s.at
}

// ErrUncapped is what MustBeCapped refuses with.
var ErrUncapped = errors.New("nothing limits the nodes")

// MustBeCapped refuses an experiment whose claim rests on limits of the nodes where there are none.
func MustBeCapped(experiment string, capped bool) error {
	if capped {
		return nil
	}
	return fmt.Errorf("%s compares machines of a given size, and %w here: their work would be done by the same processors in both arms; "+
		"run it on a lab as root with control groups, or on nodes that are machines of their own (--nodes-apart)", experiment, ErrUncapped)
}

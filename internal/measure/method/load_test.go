package method

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// workerFunc is a Worker of one function.
type workerFunc func(context.Context) (Event, error)

func (f workerFunc) Do(ctx context.Context) (Event, error) { return f(ctx) }
func (f workerFunc) Close()                                {}

func all(f workerFunc) func(int) (Worker, error) {
	return func(int) (Worker, error) { return f, nil }
}

// TestOpenLoopSeesTheStall: a server that stalls once makes every operation that was meant for that time late, and only
// the latency from the intended start shows it.
func TestOpenLoopSeesTheStall(t *testing.T) {
	const stall = 400 * time.Millisecond
	var n atomic.Int64
	serve := workerFunc(func(context.Context) (Event, error) {
		if n.Add(1) == 50 {
			time.Sleep(stall)
		}
		return Event{Outcome: session.OK, Rows: 2, Bytes: 10, Server: "only", Routed: true}, nil
	})
	r, err := Run(t.Context(), Load{Clients: 1, Rate: 500, Uniform: true, Iterations: 500}, all(serve))
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != 500 || r.Rows != 1000 || r.Bytes != 5000 || r.Servers["only"] != 500 || r.RoutedPct() != 100 {
		t.Errorf("counted %+v", r)
	}
	// The stall is 200 intended starts long: a fifth of all, at least, waited.
	if got := Quantile(r.Latency, 90); got < stall/10 {
		t.Errorf("p90 from the intended start %v: the stall does not show", got)
	}
	if service, latency := Quantile(r.Service, 90), Quantile(r.Latency, 90); service >= latency {
		t.Errorf("p90 of service %v, of latency %v", service, latency)
	}
	if r.Elapsed < 900*time.Millisecond {
		t.Errorf("500 operations at 500 per second took %v", r.Elapsed)
	}
}

func TestClosedLoopCountsAfterWarmUp(t *testing.T) {
	began := time.Now()
	var early, points atomic.Int64
	serve := workerFunc(func(context.Context) (Event, error) {
		if time.Since(began) < 200*time.Millisecond { // counting begins after that, also on a loaded machine
			early.Add(1)
		}
		time.Sleep(5 * time.Millisecond)
		return Event{Outcome: session.OK}, nil
	})
	l := Load{Clients: 3, WarmUp: 200 * time.Millisecond, Duration: 500 * time.Millisecond, Every: 100 * time.Millisecond, Tick: func(Point) { points.Add(1) }}
	r, err := Run(t.Context(), l, all(serve))
	if err != nil {
		t.Fatal(err)
	}
	most := 3 * (int64(r.Elapsed/(5*time.Millisecond)) + 2)
	if early.Load() == 0 || r.OK == 0 || r.OK > most || r.Elapsed < 500*time.Millisecond {
		t.Errorf("%d in the warm-up, %d counted in %v", early.Load(), r.OK, r.Elapsed)
	}
	if points.Load() == 0 || len(r.Series) == 0 {
		t.Errorf("no series")
	}
	if r.ScheduleLag != 0 {
		t.Errorf("a closed loop has no schedule, and lag %v", r.ScheduleLag)
	}
}

// TestClientsStay: an operation that fails is counted under its state, and its client continues.
func TestClientsStay(t *testing.T) {
	var n atomic.Int64
	serve := workerFunc(func(context.Context) (Event, error) {
		switch n.Add(1) % 4 {
		case 0:
			return Event{Outcome: session.Fail, State: "40001", Retried: []string{"40001", "40P01"}}, nil
		case 1:
			return Event{Outcome: session.Unknown, State: "eof"}, nil
		}
		return Event{Outcome: session.OK}, nil
	})
	r, err := Run(t.Context(), Load{Clients: 2, Iterations: 20}, all(serve))
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != 20 || r.Fail != 10 || r.Unknown != 10 || r.Errors["40001"] != 10 || r.Errors["eof"] != 10 || r.Retries["40P01"] != 10 {
		t.Errorf("%+v", r)
	}
}

func TestRunEnds(t *testing.T) {
	broken := errors.New("wrong password")
	if _, err := Run(t.Context(), Load{Clients: 4, Duration: time.Hour}, all(func(context.Context) (Event, error) { return Event{}, broken })); !errors.Is(err, broken) {
		t.Errorf("a hopeless worker: %v", err)
	}
	if _, err := Run(t.Context(), Load{}, all(nil)); !errors.Is(err, ErrLoad) {
		t.Errorf("no end: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	slow := workerFunc(func(context.Context) (Event, error) { time.Sleep(time.Millisecond); return Event{}, nil })
	if _, err := Run(ctx, Load{Duration: time.Hour}, all(slow)); err != nil {
		t.Errorf("the end of the context is not an error: %v", err)
	}
	if _, err := Run(t.Context(), Load{Duration: time.Hour}, func(int) (Worker, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("no worker: %v", err)
	}
}

func TestClientBound(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{ClientCPU: 0.69, ScheduleLag: 0.05}, ""},
		{Result{ClientCPU: 0.71}, "processors"},
		{Result{ScheduleLag: 0.06}, "began late"},
	} {
		if got := c.r.ClientBound(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c.r, got)
		}
	}
	burn := workerFunc(func(context.Context) (Event, error) {
		for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
			continue
		}
		return Event{}, nil
	})
	r, err := Run(t.Context(), Load{Duration: 300 * time.Millisecond}, all(burn))
	if err != nil || r.ClientCPU <= 0 {
		t.Errorf("a client that computes used %v of its machine, %v", r.ClientCPU, err)
	}
}

func TestMustBeCapped(t *testing.T) {
	if MustBeCapped("routing", true) != nil {
		t.Error("refused with caps")
	}
	if err := MustBeCapped("routing", false); err == nil || !strings.Contains(err.Error(), "routing") {
		t.Errorf("without: %v", err)
	}
}

func TestHistogramEnds(t *testing.T) {
	h := NewHistogram()
	Observe(h, 0)
	Observe(h, 2*time.Hour)
	if h.TotalCount() != 2 || Quantile(h, 1) != time.Microsecond || Quantile(h, 100) < 59*time.Minute {
		t.Errorf("%d values from %v to %v", h.TotalCount(), Quantile(h, 1), Quantile(h, 100))
	}
}

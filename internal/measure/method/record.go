package method

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Limits beyond which the client, not the servers, may have been what was measured.
const (
	MaxClientCPU   = 0.70 // of all processors of its machine
	MaxScheduleLag = 0.05 // of the time of service
)

// NewHistogram holds 1 µs to 1 h with three digits.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, time.Hour.Microseconds(), 3) }

// Observe records d. A value beyond the histogram's ends counts as the end.
func Observe(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 1), time.Hour.Microseconds())) // within the ends it cannot fail
}

// Quantile reads a histogram; q is in percent.
func Quantile(h *hdrhistogram.Histogram, q float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond
}

// Point is one interval of a run.
type Point struct {
	At       time.Duration `json:"at_ns"` // the interval's end, since counting began
	Length   time.Duration `json:"length_ns"`
	OK       int64         `json:"ok"`
	Errors   int64         `json:"errors"`
	P50, P99 time.Duration
}

// Rate is the answered operations per second.
func (p Point) Rate() float64 { return float64(p.OK) / p.Length.Seconds() }

// Result is what was counted.
type Result struct {
	Elapsed           time.Duration
	OK, Fail, Unknown int64
	Retries           map[string]int64 // tries that were followed by another, by SQLSTATE
	Rows, Bytes       int64
	Latency           *hdrhistogram.Histogram // of answered operations, from their intended start
	Service           *hdrhistogram.Histogram // the same, from their true start
	Errors            map[string]int64        // by SQLSTATE, or the session's word
	Servers           map[string]int64        // answered operations by server
	Routed            int64                   // answered by a secondary
	Series            []Point
	ClientCPU         float64 // of all processors of this machine, by this process
	ScheduleLag       float64 // how late an idle client began, as a share of the time of service; open loop only
}

// Rate is the answered operations per second.
func (r Result) Rate() float64 { return float64(r.OK) / max(r.Elapsed.Seconds(), 1e-9) }

// RoutedPct is the share of answered operations that secondaries answered, in percent.
func (r Result) RoutedPct() float64 { return 100 * float64(r.Routed) / float64(max(r.OK, 1)) }

// clientBound begins the reason of every row whose client may have been the limit.
const clientBound = "client-bound: "

// ClientBound returns why the client may have been the limit; empty: it was not.
func (r Result) ClientBound() string {
	switch {
	case r.ClientCPU > MaxClientCPU:
		return fmt.Sprintf(clientBound+"the client used %.0f %% of its machine's processors (limit %.0f %%)", 100*r.ClientCPU, 100*MaxClientCPU)
	case r.ScheduleLag > MaxScheduleLag:
		return fmt.Sprintf(clientBound+"idle clients began late by %.0f %% of the time of service (limit %.0f %%)", 100*r.ScheduleLag, 100*MaxScheduleLag)
	}
	return ""
}

// measured is an Event and its times.
type measured struct {
	Event
	latency, service, late time.Duration
}

// recorder takes the operations of all clients. One lock is enough: it is held for about a microsecond for each.
type recorder struct {
	mu        sync.Mutex
	counting  bool
	start     time.Time
	meter     Meter
	total     Result
	lateSum   time.Duration
	serveSum  time.Duration
	now       *hdrhistogram.Histogram
	nowOK     int64
	nowErrors int64
	since     time.Time
}

func newRecorder() *recorder {
	return &recorder{now: NewHistogram(), total: Result{
		Latency: NewHistogram(), Service: NewHistogram(), Errors: map[string]int64{}, Retries: map[string]int64{}, Servers: map[string]int64{},
	}}
}

func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counting, r.start, r.meter = true, time.Now(), StartMeter()
	r.since = r.start
}

func (r *recorder) add(m measured) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lateSum += m.late
	r.serveSum += m.service
	t := &r.total
	for _, state := range m.Retried {
		t.Retries[state]++
	}
	if m.Outcome != session.OK {
		t.Errors[m.State]++
		r.nowErrors++
		if m.Outcome == session.Fail {
			t.Fail++
		} else {
			t.Unknown++
		}
		return
	}
	t.OK++
	t.Rows += m.Rows
	t.Bytes += m.Bytes
	if m.Server != "" {
		t.Servers[m.Server]++
	}
	if m.Routed {
		t.Routed++
	}
	Observe(t.Latency, m.latency)
	Observe(t.Service, m.service)
	Observe(r.now, m.latency)
	r.nowOK++
}

// point ends an interval.
func (r *recorder) point() (Point, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.counting {
		return Point{}, false
	}
	now := time.Now()
	p := Point{
		At: now.Sub(r.start), Length: now.Sub(r.since), OK: r.nowOK, Errors: r.nowErrors, P50: Quantile(r.now, 50), P99: Quantile(r.now, 99),
	}
	r.since, r.nowOK, r.nowErrors = now, 0, 0
	r.now.Reset()
	r.total.Series = append(r.total.Series, p)
	return p, true
}

// every makes a point each period until the function it returns is called.
func (r *recorder) every(period time.Duration, tick func(Point)) (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(period)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if p, ok := r.point(); ok && tick != nil {
					tick(p)
				}
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// end closes the account at the end of the last operation.
func (r *recorder) end() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.total
	t.Errors, t.Retries, t.Servers = maps.Clone(t.Errors), maps.Clone(t.Retries), maps.Clone(t.Servers)
	if !r.counting {
		return t
	}
	t.Elapsed = time.Since(r.start)
	t.ClientCPU = r.meter.Share()
	if r.serveSum > 0 {
		t.ScheduleLag = float64(r.lateSum) / float64(r.serveSum)
	}
	return t
}

// Meter measures what this process takes of its machine.
type Meter struct {
	start time.Time
	cpu   time.Duration
}

// StartMeter begins now.
func StartMeter() Meter { return Meter{time.Now(), processCPU()} }

// Share of all processors since the meter began, from 0 to 1.
func (m Meter) Share() float64 {
	return float64(processCPU()-m.cpu) / float64(max(time.Since(m.start), 1)) / float64(runtime.NumCPU())
}

// processCPU is the processor time of this process.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

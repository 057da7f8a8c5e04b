package tpcc

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// event is one transaction that ended.
type event struct {
	kind    kind
	outcome session.Outcome
	state   string   // SQLSTATE or the session's word
	retried []string // SQLSTATE of each try before the last
	took    time.Duration
	server  string // that answered a read
	skipped int    // districts without a new order
}

// window is what happened between two ticks. Latency is that of answered transactions.
type window struct {
	latency *hdrhistogram.Histogram
	ok      int64
	unknown int64
	errors  map[string]int64
	retries map[string]int64
	reads   map[string]int64
}

func newWindow() *window {
	return &window{latency: method.NewHistogram(), errors: map[string]int64{}, retries: map[string]int64{}, reads: map[string]int64{}}
}

// recorder takes the events of all terminals. One lock is enough: it is held for about a microsecond per transaction.
type recorder struct {
	counting atomic.Bool // the warm-up is over

	mu      sync.Mutex
	start   time.Time
	now     *window
	since   time.Time
	total   *window
	types   [kinds]typeTotal
	skipped int64
}

type typeTotal struct {
	latency                       *hdrhistogram.Histogram
	ok, fail, unknown, rolledBack int64
}

func newRecorder() *recorder {
	r := &recorder{now: newWindow(), total: newWindow()}
	for k := range r.types {
		r.types[k].latency = method.NewHistogram()
	}
	return r
}

// begin starts to count. A transaction that began before is not added.
func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = time.Now()
	r.since = r.start
	r.counting.Store(true)
}

func (r *recorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.types[e.kind]
	switch {
	case e.outcome == session.OK:
		t.ok++
		method.Observe(t.latency, e.took)
	case e.state == invalidItem:
		t.rolledBack++
	case e.outcome == session.Fail:
		t.fail++
	default:
		t.unknown++
	}
	r.skipped += int64(e.skipped)
	for _, w := range []*window{r.now, r.total} {
		w.add(e)
	}
}

func (w *window) add(e event) {
	for _, state := range e.retried {
		w.retries[state]++
	}
	if e.outcome == session.OK {
		w.ok++
		method.Observe(w.latency, e.took)
		if e.server != "" {
			w.reads[e.server]++
		}
		return
	}
	if e.state == invalidItem {
		return
	}
	w.errors[e.state]++
	if e.outcome == session.Unknown {
		w.unknown++
	}
}

// tick ends the current window and describes it, if anything is counted yet.
func (r *recorder) tick() (i Interval, ok bool) {
	if !r.counting.Load() {
		return i, false
	}
	next := newWindow()
	r.mu.Lock()
	w, since := r.now, r.since
	r.now, r.since = next, time.Now()
	end := r.since
	r.mu.Unlock()
	length := end.Sub(since)
	return Interval{
		At: end.Sub(r.start), Length: length, TPS: float64(w.ok) / length.Seconds(),
		P50: method.Quantile(w.latency, 50), P99: method.Quantile(w.latency, 99),
		Errors: w.errors, Unknown: w.unknown, Reads: w.reads,
	}, true
}

func (r *recorder) result() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := Result{
		Errors: maps.Clone(r.total.errors), Retries: maps.Clone(r.total.retries), Reads: maps.Clone(r.total.reads),
		SkippedDeliveries: r.skipped,
	}
	for k, t := range r.types {
		res.Types = append(res.Types, TypeResult{
			Name: kindNames[k], OK: t.ok, Fail: t.fail, Unknown: t.unknown, RolledBack: t.rolledBack,
			P50: method.Quantile(t.latency, 50), P95: method.Quantile(t.latency, 95), P99: method.Quantile(t.latency, 99),
			Max: time.Duration(t.latency.Max()) * time.Microsecond,
		})
		res.OK += t.ok
		res.Fail += t.fail
		res.Unknown += t.unknown
		res.RolledBack += t.rolledBack
	}
	if !r.counting.Load() {
		return res
	}
	res.Elapsed = time.Since(r.start)
	res.TPS = float64(res.OK) / res.Elapsed.Seconds()
	res.NOPM = float64(r.types[newOrder].ok) / res.Elapsed.Minutes()
	return res
}

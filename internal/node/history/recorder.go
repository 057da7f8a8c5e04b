package history

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/samples"
	"github.com/coteriedb/coterie/internal/node/metrics"
)

// Recorder keeps the history of one node. Make it with New.
type Recorder struct {
	self  ag.ReplicaID
	facts func() metrics.Facts
	log   *slog.Logger

	mu    sync.Mutex // guards what follows
	rings samples.Rings
	last  look
	at    time.Duration // of last
}

// New returns a recorder of what facts returns, which answers from memory.
func New(self ag.ReplicaID, facts func() metrics.Facts, log *slog.Logger) *Recorder {
	return &Recorder{self: self, facts: facts, log: log}
}

// Run takes a sample in each slot until ctx is done, in the middle of it: a late one is still in its own.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		step := samples.Hour.Step
		if now := boottime.Now(); retry.Sleep(ctx, now.Truncate(step)+3*step/2-now) != nil {
			return nil
		}
		r.sample(boottime.Now())
	}
}

// sample takes a sample. A panic ends only that: the agent is in this process.
func (r *Recorder) sample(at time.Duration) {
	defer func() {
		if x := recover(); x != nil {
			r.log.Error("background work panicked", "in", "recording the history", "panic", x, "stack", string(debug.Stack()))
		}
	}()
	r.take(at, r.facts())
}

// take takes the facts of a moment.
func (r *Recorder) take(at time.Duration, f metrics.Facts) {
	now := look{}
	metrics.Values(f, func(name string, v float64, labels []string) {
		if kept[name] && len(labels) < 2 {
			key := samples.Key{Name: name}
			if len(labels) == 1 {
				key.Of = labels[0]
			}
			now[key] = v
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rings.Take(at, now.values(r.last, (at-r.at).Seconds(), r.self))
	r.last, r.at = now, at
}

// kept are the metrics of which series are made.
var kept = func() map[string]bool {
	out := map[string]bool{replay: true}
	for _, s := range sources {
		out[s.metric] = true
		if s.how == each {
			out[s.metric+"_sum"], out[s.metric+"_count"] = true, true
		}
	}
	return out
}()

// Read returns the history of a span.
func (r *Recorder) Read(s samples.Span) web.History {
	r.mu.Lock()
	list, slots, end := r.rings.Read(s)
	r.mu.Unlock()
	h := web.History{Node: string(r.self), StepSeconds: s.Step.Seconds(), Points: slots, Series: []web.Series{}}
	h.End = time.Now().Add(end - boottime.Now()).UTC().Truncate(time.Millisecond)
	for _, x := range list {
		metric, unit := about(x.Name)
		h.Series = append(h.Series, web.Series{Name: x.Name, Replica: x.Of, Metric: metric, Unit: unit, Mean: x.Mean, Highest: x.Highest})
	}
	return h
}

package status

import (
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/metrics"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// TestMeasuredPrimary holds what a primary measures of itself and of the members that stream from it.
func TestMeasuredPrimary(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.failovers = decisions.Failovers{Count: map[decisions.FailoverKey]uint64{{Kind: decisions.Planned, Cause: ag.CausePlanned}: 2}, Outage: time.Second}
	b.status("a", func(s *agent.Status) { s.Space = []agent.Space{{Place: "data", Free: 5, Total: 9}} })
	b.listener.stats = listener.Stats{Accepted: 5, Refused: map[string]uint64{"53300": 2}}
	b.listener.sessions = []listener.SessionInfo{
		{Intent: ag.ReadOnly, Path: listener.PathLoop, State: "idle"}, {Intent: ag.ReadOnly, Path: listener.PathLoop, State: "idle"}, {Relayed: true},
	}
	b.observed.seen, b.params.pending = true, 0
	b.observed.last = postgres.Observation{Flush: 1000, SyncRepWaiters: 3, Slots: []postgres.Slot{{Name: "b", Active: true, Restart: 700}, {Name: "unused"}}}
	b.down.streams = []replication.Stream{
		{Member: "b", Streaming: true, Sent: 980, Flush: 960, Apply: 900}, {Member: "b", Streaming: true}, {Member: "c"},
	}
	f := b.Measured()
	if !f.Known || f.Uptime != time.Minute || f.Transitions[ag.RuleLead] != 3 || f.Status.Epoch != 7 || f.Lease == nil || *f.Lease < time.Minute ||
		len(f.Failovers.Count) != 1 || len(f.Space) != 1 || !f.Expiry["node"].Equal(time.Unix(99, 0)) || f.Console.Sessions != 1 || f.Endpoint.Relayed.Bytes != 3 ||
		f.Build.PostgreSQL != "15.9" || f.Build.Version == "" {
		t.Errorf("%+v", f)
	}
	if c := f.Clients; c == nil || c.Accepted != 5 || c.Others != 1 || c.Sessions[metrics.Sessions{Intent: ag.ReadOnly, Path: listener.PathLoop, State: "idle"}] != 2 {
		t.Errorf("clients: %+v", f.Clients)
	}
	x := f.Server
	if x == nil || !x.Answers || x.Waiting != 3 || x.Flushed != 1000 || x.Replayed != 0 || x.Commits.Blocks != 4 || len(x.Seedings) != 1 || x.Pending == nil || *x.Pending != 0 ||
		x.Fences != 1 || x.Ends != 2 || !x.LastFence.Equal(time.Unix(7, 0)) || x.Log != nil {
		t.Fatalf("server: %+v", x)
	}
	if len(x.Slots) != 1 || x.Slots[0] != (metrics.Slot{Name: "b", Active: true, Retained: 300}) {
		t.Errorf("slots: %+v", x.Slots)
	}
	want := metrics.Stream{Member: "b", SendQueue: 20, Lag: 40, Redo: 60, Behind: 40 * time.Second, ReplayedBehind: 100 * time.Second}
	if len(x.Streams) != 1 || x.Streams[0] != want {
		t.Errorf("streams: %+v", x.Streams)
	}
}

// TestMeasuredElsewhere holds what a secondary measures, and a node that knows little.
func TestMeasuredElsewhere(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.view.Record.Epoch.Leader, b.agent.view.Local.Server = "b", ag.ServerRecovery
	b.observed.seen, b.observed.last = true, postgres.Observation{InRecovery: true, Flush: 1000, Replay: 900}
	f := b.Measured()
	if f.Lease != nil || f.Server.Replayed != 900 || f.Server.Replay != 5 || len(f.Server.Streams) > 0 || f.Server.Pending != nil {
		t.Errorf("a secondary: %+v, %+v", f, f.Server)
	}
	b.observed.seen, b.keeper.err = false, errTest
	if x := b.Measured().Server; x.Answers || x.Flushed != 0 || x.Ends != 0 || !x.LastFence.IsZero() {
		t.Errorf("a server that does not answer, and a keeper that does not: %+v", x)
	}
	b.witness()
	if f := b.Measured(); f.Server != nil || f.Clients != nil || !f.Known || f.Lease != nil {
		t.Errorf("a witness: %+v", f)
	}
	b.agent.view, b.agent.snap = nil, nil
	if f := b.Measured(); f.Known || f.Status.Group != "DemoAG" {
		t.Errorf("before the first turn: %+v", f)
	}
}

// BenchmarkMetrics measures an answer of /metrics of a primary with 1,000 sessions, facts included. The goal is 5 ms of
// a processor: cpu-ns/op, which other work on the machine does not change.
func BenchmarkMetrics(b *testing.B) {
	bed := newBed(b)
	for i := range 1000 {
		bed.listener.sessions = append(bed.listener.sessions, listener.SessionInfo{
			Intent: []ag.Intent{ag.ReadWrite, ag.ReadOnly}[i%2], Path: listener.PathLoop, State: []string{"idle", "active"}[i/2%2],
		})
	}
	r := prometheus.NewRegistry() // not metrics.Handler: it shows the same facts for a while
	r.MustRegister(metrics.NewCollector(bed.Measured))
	h := promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
	for _, accept := range []string{"text/plain", "application/openmetrics-text"} {
		b.Run(accept, func(b *testing.B) {
			began := processorTime(b)
			for b.Loop() {
				req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				req.Header.Set("Accept", accept)
				rec := httptest.NewRecorder()
				if h.ServeHTTP(rec, req); rec.Code != http.StatusOK {
					b.Fatal(rec.Code)
				}
			}
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime returns what this process has used of processors.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

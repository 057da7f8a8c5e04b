package history

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/samples"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/metrics"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// primary returns the facts of the primary n1 after so many seconds: it writes 10 MB a second, of which n2 has all but
// 2 MB, and has 40 MB to replay, at 8 MB a second.
func primary(second int) metrics.Facts {
	head := int64(second) * 10e6
	return metrics.Facts{
		Known: true,
		Status: api.Status{Node: "n1", Replicas: []api.Replica{
			{Name: "n1", Role: ag.RolePrimary, Mode: ag.SynchronousCommit}, {Name: "n2", Role: ag.RoleSecondary, Mode: ag.SynchronousCommit},
		}},
		Server: &metrics.Server{
			Answers: true, Flushed: ag.LSN(head), Waiting: 3,
			Commits: replication.PenaltyTotals{Blocks: uint64(second) * 100, Waited: time.Duration(second) * 200 * time.Millisecond, P99: 9 * time.Millisecond},
			Streams: []metrics.Stream{{Member: "n2", SendQueue: 1e6, Lag: 2e6, Redo: head - 2e6 - int64(second)*8e6, Behind: 200 * time.Millisecond}},
		},
		Clients: &metrics.Clients{Stats: listener.Stats{Open: 7, Gated: uint64(second) * 2}},
	}
}

// last returns the newest value of each series, by its name and replica.
func last(h web.History) map[string]float64 {
	out := map[string]float64{}
	for _, s := range h.Series {
		out[s.Name+" "+s.Replica] = math.Round(float64(s.Mean[len(s.Mean)-1])*1e4) / 1e4
	}
	return out
}

// TestSeries holds how each series is made of metrics, on a primary and on a secondary.
func TestSeries(t *testing.T) {
	t.Parallel()
	r := New("n1", nil, slog.New(slog.DiscardHandler))
	for _, second := range []int{20, 25, 30} {
		r.take(time.Duration(second)*time.Second, primary(second))
	}
	h := r.Read(samples.Hour)
	want := map[string]float64{
		"write_bytes_per_second ": 10e6, "commit_wait_seconds ": 0.002, "commit_wait_p99_seconds ": 0.009, "commits_waiting ": 3, "answers_held_per_second ": 2, "sessions ": 7, "logins_per_second ": 0,
		"lag_bytes n2": 2e6, "send_queue_bytes n2": 1e6, "redo_queue_bytes n2": 58e6, "data_loss_seconds n2": 0.2, "recovery_seconds n2": 7.25,
	}
	got := last(h)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
	if len(got) != len(want) || h.Points != 3 || h.StepSeconds != 5 || h.Node != "n1" {
		t.Errorf("%d points of %d series: %v", h.Points, len(got), got)
	}
	for _, s := range h.Series {
		if metric, _ := about(s.Name); metric != s.Metric || metric == "" {
			t.Errorf("%s is of %q", s.Name, s.Metric)
		}
	}
	own := metrics.Facts{Known: true, Status: api.Status{Node: "n2", Replicas: []api.Replica{{Name: "n2", Role: ag.RoleSecondary}}}, Server: &metrics.Server{Answers: true, Flushed: 50e6, Replayed: 20e6, Replay: 10e6}}
	r = New("n2", nil, slog.New(slog.DiscardHandler))
	r.take(time.Minute, own)
	if got := last(r.Read(samples.Day)); got["recovery_seconds n2"] != 3 || got["redo_queue_bytes n2"] != 30e6 {
		t.Errorf("on a secondary: %v", got)
	}
}

// TestUnknownIsAbsent holds that nothing is made up where a counter began anew, a replica is idle, or nothing is known.
func TestUnknownIsAbsent(t *testing.T) {
	t.Parallel()
	r := New("n1", nil, slog.New(slog.DiscardHandler))
	r.take(5*time.Second, primary(100))
	r.take(10*time.Second, primary(10))
	for _, name := range []string{"write_bytes_per_second ", "commit_wait_seconds ", "answers_held_per_second ", "recovery_seconds n2"} {
		if v, ok := last(r.Read(samples.Hour))[name]; ok {
			t.Errorf("%s is %v after its counter began anew", name, v)
		}
	}
	r.take(15*time.Second, metrics.Facts{})
	if h := r.Read(samples.Hour); h.Points != 3 || !math.IsNaN(float64(h.Series[0].Mean[2])) {
		t.Errorf("a node that knows nothing has %+v", h.Series[0])
	}
	idle := primary(1)
	idle.Server.Streams[0].Redo = 100
	r = New("n1", nil, slog.New(slog.DiscardHandler))
	r.take(5*time.Second, idle)
	r.take(10*time.Second, idle)
	if v := last(r.Read(samples.Hour))["recovery_seconds n2"]; v != 0 {
		t.Errorf("an idle replica needs %v s", v)
	}
	stuck := primary(5)
	r.take(15*time.Second, stuck)
	r.take(20*time.Second, stuck)
	if v := last(r.Read(samples.Hour))["recovery_seconds n2"]; !math.IsNaN(v) {
		t.Errorf("a replica that replays nothing needs %v s", v)
	}
}

// TestASamplePerSlot holds that each slot gets one sample, that a panic ends no agent, and that the recorder ends with
// its context.
func TestASamplePerSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		defer boottime.SetForTest(func() time.Duration { return time.Hour + time.Since(began) })()
		looks := 0
		r := New("n1", func() metrics.Facts {
			if looks++; looks == 3 {
				panic("a mistake")
			}
			time.Sleep(time.Duration(looks%5) * 400 * time.Millisecond)
			return primary(looks)
		}, slog.New(slog.DiscardHandler))
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		time.Sleep(10*time.Minute + time.Second)
		end()
		running.Wait()
		h := r.Read(samples.Hour)
		missing := 0
		for _, s := range h.Series {
			if s.Name == "sessions" {
				for _, v := range s.Mean {
					if math.IsNaN(float64(v)) {
						missing++
					}
				}
			}
		}
		if h.Points != 119 || missing != 1 || looks != 119 {
			t.Errorf("%d looks gave %d points, of which %d are missing", looks, h.Points, missing)
		}
	})
}

// TestManyReplicas holds that a history of the largest group fits into its places.
func TestManyReplicas(t *testing.T) {
	t.Parallel()
	if n := len(sources) + 1; n*ag.MaxMembers > samples.MaxSeries {
		t.Errorf("%d series of %d replicas do not fit", n, ag.MaxMembers)
	}
}

// BenchmarkSample measures a look at the metrics of a primary with sixteen replicas, with what is kept of it.
func BenchmarkSample(b *testing.B) {
	f := primary(10)
	for range 15 {
		f.Status.Replicas = append(f.Status.Replicas, api.Replica{Name: ag.ReplicaID(rune('a' + len(f.Status.Replicas))), Role: ag.RoleSecondary, Mode: ag.SynchronousCommit})
		f.Server.Streams = append(f.Server.Streams, metrics.Stream{Member: f.Status.Replicas[len(f.Status.Replicas)-1].Name, Lag: 1, Redo: 5})
	}
	r := New("n1", func() metrics.Facts { return f }, slog.New(slog.DiscardHandler))
	at := time.Hour
	for b.Loop() {
		r.sample(at)
		at += samples.Hour.Step
	}
}

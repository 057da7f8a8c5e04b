package listenerbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// ListenerOptions are the flags of coterie bench listener.
type ListenerOptions struct {
	Rounds   int      // how often each run is repeated
	Seconds  int      // length of each run of pgbench
	Sessions int      // number of idle sessions
	Port     int      // first of six ports on this host
	Only     []string // names of ListenerParts; none: all
	Both     bool     // measure a listener without event loops, too
}

// ListenerParts are the parts of the measurement, in the order in which they run.
var ListenerParts = []string{"data", "tls", "connect", "login", "idle"}

// Samples are the raw measurements of a run.
type Samples struct {
	Version  string               `json:"version"`
	Date     time.Time            `json:"date"`
	Kernel   string               `json:"kernel"`
	Cores    int                  `json:"cores"`
	Programs map[string]string    `json:"programs"` // versions
	Settings map[string]string    `json:"settings"` // of the peers
	Missing  map[string]string    `json:"missing,omitempty"`
	Failed   map[string]string    `json:"failed,omitempty"` // parts, and why
	Runs     []listenerRun        `json:"runs"`
	LoginMS  map[string][]float64 `json:"login_ms,omitempty"` // by way
	IdleMB   map[string]idle      `json:"idle,omitempty"`     // by plain and tls
	LateMS   *late                `json:"late_ms,omitempty"`
	Figures  []goals.Figure       `json:"figures"`
}

// listenerRun is one run of pgbench.
type listenerRun struct {
	Round    int     `json:"round"`
	Work     string  `json:"work"`
	Arm      string  `json:"arm"`
	TPS      float64 `json:"tps"`
	CPU      float64 `json:"proxy_cpu_s"`   // processor time of the proxy, in seconds per 100,000 transactions
	Workers  float64 `json:"workers_cpu_s"` // of the kernel's worker threads, which write what the kernel passes on
	Warnings string  `json:"warnings,omitempty"`
}

type idle struct {
	Sessions int     `json:"sessions"`
	MB       float64 `json:"anonymous_mb"`    // of the listener's process
	Empty    float64 `json:"empty_mb"`        // before the first
	Limit    string  `json:"limit,omitempty"` // why there were fewer sessions than asked for
}

// late is how late the listener's process ran a goroutine that wakes every 10 ms, as the renewer of the lease does.
type late struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50"`
	P999    float64 `json:"p999"`
	Max     float64 `json:"max"`
}

// Arms: ways from pgbench to the server.
const (
	wayDirect    = "direct"
	wayHAProxy   = "haproxy"
	wayPgBouncer = "pgbouncer"
	wayListener  = "coterie"
	wayPlain     = "goroutines" // the listener without event loops
	wayReuse     = "reuse"      // the listener with BACKEND_REUSE = ON
)

// listenerWork is what pgbench does in a run.
type listenerWork struct {
	name string
	args []string
	ways []string
	env  []string
	pgx  int // so many clients of pgx connect for each transaction, instead of pgbench
}

var proxied = []string{wayDirect, wayHAProxy, wayPgBouncer, wayListener, wayPlain}

// dataWorks are those of the part data; the others belong to the part of their name.
var (
	dataWorks = []listenerWork{
		{name: "select-8", args: []string{"-S", "-c", "8", "-j", "2"}, ways: proxied},
		{name: "prepared-8", args: []string{"-S", "-M", "prepared", "-c", "8", "-j", "2"}, ways: proxied},
		{name: "tpcb-8", args: []string{"-c", "8", "-j", "2"}, ways: proxied},
		{name: "select-32", args: []string{"-S", "-c", "32", "-j", "2"}, ways: proxied},
	}
	tlsWorks = []listenerWork{
		{name: "tls-prepared-8", args: []string{"-S", "-M", "prepared", "-c", "8", "-j", "2"}, ways: []string{wayDirect, wayPgBouncer, wayListener}, env: []string{"PGSSLMODE=require"}},
	}
	connectWorks = []listenerWork{
		{name: "connect-scram", args: []string{"-S", "-C", "-c", "8", "-j", "2", "-U", "secret"}, ways: []string{wayDirect, wayListener, wayReuse}, env: []string{"PGPASSWORD=secret"}},
		{name: "connect-scram-go", pgx: 8, ways: []string{wayDirect, wayListener, wayReuse}},
		{name: "connect-trust", args: []string{"-S", "-C", "-c", "8", "-j", "2"}, ways: []string{wayDirect, wayPgBouncer, wayListener, wayReuse}},
	}
)

// Print writes the programs, the transactions per second of each work by way, and the figures with their goals.
func (s *Samples) Print(w io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(s.Programs)) {
		if _, err := fmt.Fprintf(w, "%s: %s\n", name, s.Programs[name]); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(w, "%-16s %-10s %10s %8s %12s %12s\n", "work", "way", "tps", "ratio", "CPU s/100k", "of workers"); err != nil {
		return err
	}
	for _, work := range slices.Concat(dataWorks, tlsWorks, connectWorks) {
		for _, way := range work.ways {
			tps := s.tps(work.name, way)
			if len(tps) == 0 {
				continue
			}
			_, err := fmt.Fprintf(w, "%-16s %-10s %10.0f %8.2f %12.2f %12.2f\n", work.name, way, method.Median(tps),
				method.Median(s.ratios(work.name, way, wayDirect)), s.median(work.name, way, cpu), s.median(work.name, way, workers))
			if err != nil {
				return err
			}
		}
	}
	for _, way := range slices.Sorted(maps.Keys(s.LoginMS)) {
		ms := s.LoginMS[way]
		if _, err := fmt.Fprintf(w, "logins with a password, %s: %d, p50 %.2f ms, p99 %.2f ms\n", way, len(ms), method.Nearest(ms, 50), method.Nearest(ms, 99)); err != nil {
			return err
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(s.IdleMB)) {
		if why := s.IdleMB[kind].Limit; why != "" {
			if _, err := fmt.Fprintf(w, "idle, %s: %s\n", kind, why); err != nil {
				return err
			}
		}
	}
	_, err := goals.Report(w, "listener", s.Figures)
	return err
}

func (s *Samples) of(work, way string, value func(listenerRun) float64) map[int]float64 {
	out := map[int]float64{}
	for _, r := range s.Runs {
		if r.Work == work && r.Arm == way {
			out[r.Round] = value(r)
		}
	}
	return out
}

func (s *Samples) tps(work, way string) []float64 {
	return slices.Collect(maps.Values(s.of(work, way, func(r listenerRun) float64 { return r.TPS })))
}

func cpu(r listenerRun) float64 { return r.CPU }

func workers(r listenerRun) float64 { return r.Workers }

// median is that of a value of the runs of a work in a way.
func (s *Samples) median(work, way string, value func(listenerRun) float64) float64 {
	return method.Median(slices.Collect(maps.Values(s.of(work, way, value))))
}

// ratios are of runs of the same round.
func (s *Samples) ratios(work, way, to string) []float64 {
	return over(s.of(work, way, func(r listenerRun) float64 { return r.TPS }), s.of(work, to, func(r listenerRun) float64 { return r.TPS }))
}

func over(a, b map[int]float64) (out []float64) {
	for round, v := range a {
		if d := b[round]; d > 0 {
			out = append(out, v/d)
		}
	}
	return out
}

func (s *Samples) figure(name string, values []float64, missing string) {
	f := goals.Figure{Name: name}
	if len(values) == 0 {
		if f.NotRun = missing; missing == "" {
			f.NotRun = "not asked for"
		}
		s.Figures = append(s.Figures, f)
		return
	}
	f.Measured, f.Low, f.High, f.HasInterval = method.Median(values), slices.Min(values), slices.Max(values), len(values) > 1
	s.Figures = append(s.Figures, f)
}

// judge makes the figures of the samples.
func (s *Samples) judge() {
	for _, w := range dataWorks {
		s.figure("listener-"+w.name, s.ratios(w.name, wayListener, wayDirect), s.Failed["data"])
	}
	for _, w := range dataWorks {
		s.figure("listener-"+w.name+"-to-peers", s.toPeers(w.name), s.reason("data", wayHAProxy, wayPgBouncer))
	}
	s.figure("listener-tls-to-pgbouncer", s.ratios("tls-prepared-8", wayListener, wayPgBouncer), s.reason("tls", wayPgBouncer))
	var worst []float64
	for _, w := range dataWorks {
		all := func(r listenerRun) float64 { return r.CPU + r.Workers }
		if v := over(s.of(w.name, wayListener, all), s.of(w.name, wayPgBouncer, all)); len(v) > 0 && (worst == nil || method.Median(v) > method.Median(worst)) {
			worst = v
		}
	}
	s.figure("listener-cpu-to-pgbouncer", worst, s.reason("data", wayPgBouncer))
	s.figure("listener-connect-scram", s.ratios("connect-scram", wayReuse, wayDirect), s.Failed["connect"])
	s.figure("listener-connect-scram-go", s.ratios("connect-scram-go", wayReuse, wayDirect), s.Failed["connect"])
	s.figure("listener-connect-reuse", s.ratios("connect-trust", wayReuse, wayDirect), s.Failed["connect"])
	var p99 []float64
	if ms := s.LoginMS[wayListener]; len(ms) > 0 {
		p99 = []float64{method.Nearest(ms, 99)}
	}
	s.figure("listener-login-p99", p99, s.Failed["login"])
	for _, kind := range []string{"plain", "tls"} {
		var mb []float64
		if v, ok := s.IdleMB[kind]; ok {
			mb = []float64{v.MB}
		}
		s.figure("listener-idle-"+kind, mb, s.Failed["idle"])
	}
	var renewal []float64
	if s.LateMS != nil {
		renewal = []float64{s.LateMS.P999}
	}
	s.figure("listener-late-p999", renewal, s.Failed["data"])
}

// reason is why a comparison was not made.
func (s *Samples) reason(part string, peers ...string) string {
	if why := s.Failed[part]; why != "" {
		return why
	}
	for _, p := range peers {
		if why := s.Missing[p]; why != "" {
			return why
		}
	}
	return ""
}

// toPeers returns our rate over that of the faster peer, round by round.
func (s *Samples) toPeers(work string) []float64 {
	tps := func(r listenerRun) float64 { return r.TPS }
	best := s.of(work, wayHAProxy, tps)
	for round, v := range s.of(work, wayPgBouncer, tps) {
		best[round] = max(best[round], v)
	}
	return over(s.of(work, wayListener, tps), best)
}

// ListenerBench measures the listener beside a direct connection, HAProxy and PgBouncer.
type ListenerBench struct {
	Samples
	O        ListenerOptions
	Progress io.Writer
}

func (b *ListenerBench) say(format string, a ...any) {
	_, _ = fmt.Fprintf(b.Progress, format+"\n", a...)
}

// Run measures the chosen parts. The samples have the reason of each part that failed, so Run returns no error.
func (b *ListenerBench) Run(ctx context.Context) *Samples {
	b.Version, b.Date, b.Cores = buildinfo.Describe(), time.Now().UTC(), runtime.NumCPU()
	b.Kernel = report.KernelText("kernel/osrelease")
	b.Programs, b.Settings, b.Missing, b.Failed = map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	b.IdleMB = map[string]idle{}
	bed, err := newListenerBed(ctx, b)
	if err != nil {
		for _, p := range ListenerParts {
			b.Failed[p] = err.Error()
		}
		b.judge()
		return &b.Samples
	}
	defer bed.close()
	for _, p := range ListenerParts {
		if len(b.O.Only) > 0 && !slices.Contains(b.O.Only, p) {
			continue
		}
		var err error
		switch p {
		case "data":
			err = b.data(ctx, bed)
		case "tls":
			err = b.works(ctx, bed, tlsWorks)
		case "connect":
			err = b.works(ctx, bed, connectWorks)
		case "login":
			b.LoginMS, err = bed.logins(ctx, 400, 50*time.Millisecond)
		case "idle":
			err = errors.Join(b.idle(ctx, bed, "plain"), b.idle(ctx, bed, "tls"))
		}
		if err != nil {
			b.Failed[p] = err.Error()
			b.say("%s: %v", p, err)
		}
	}
	b.judge()
	return &b.Samples
}

// data runs the works of the data path, and measures how late the listener's process ran a timer during them.
func (b *ListenerBench) data(ctx context.Context, bed *listenerBed) error {
	if _, err := bed.listener.late(); err != nil {
		return err
	}
	if err := b.works(ctx, bed, dataWorks); err != nil {
		return err
	}
	var err error
	b.LateMS, err = bed.listener.late()
	return err
}

// works runs each work in each way, in turn. The order of the ways rotates by one with each round.
func (b *ListenerBench) works(ctx context.Context, bed *listenerBed, works []listenerWork) error {
	for round := range b.O.Rounds {
		for _, w := range works {
			var line []string
			for i := range w.ways {
				way := w.ways[(i+round)%len(w.ways)]
				if b.Missing[way] != "" {
					continue
				}
				r, err := bed.measure(ctx, w, way, b.O.Seconds)
				if err != nil {
					return fmt.Errorf("%s by way of %s: %w", w.name, way, err)
				}
				r.Round = round
				b.Runs = append(b.Runs, r)
				line = append(line, fmt.Sprintf("%s %.0f", way, r.TPS))
			}
			b.say("round %d %s: %s", round+1, w.name, strings.Join(line, ", "))
		}
	}
	return nil
}

package metrics

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxValues bounds the values of a label that is not of a fixed set. The smallest counters beyond it are added up under
// the value other.
const maxValues = 64

// Collector makes metrics of the facts of each moment in which it is asked. It implements prometheus.Collector.
type Collector struct {
	facts func() Facts
	known map[string]described
}

type described struct {
	Definition
	desc *prometheus.Desc
}

// NewCollector returns a collector of what facts returns. The function is called from many goroutines.
func NewCollector(facts func() Facts) *Collector {
	c := &Collector{facts: facts, known: map[string]described{}}
	for _, s := range Definitions() {
		for _, d := range s.Metrics {
			c.known[d.Name] = described{d, prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)}
		}
	}
	return c
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.known {
		ch <- d.desc
	}
}

// Collect sends the metrics of this moment.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	sink{known: c.known, ch: ch}.all(c.facts())
}

// Values calls keep with the values of these facts, as Collect sends them: by the name of the metric and the values of
// its labels. A summary has its quantiles, of which each is the value of a label, and the names that end in _sum and
// _count.
func Values(f Facts, keep func(name string, v float64, labels []string)) { sink{keep: keep}.all(f) }

// all sets the metrics of the facts.
func (s sink) all(f Facts) {
	s.node(f)
	s.group(f)
	s.members(f)
	s.backup(f.Backup)
	s.backupRuns(f.BackupRuns)
	if f.Server != nil {
		s.server(f, *f.Server)
	}
	if f.Clients != nil {
		s.clients(*f.Clients)
	}
	s.between(f)
}

// sink takes the values of the metrics, by their names: for keep, if there is one, and else for the channel.
type sink struct {
	known map[string]described
	ch    chan<- prometheus.Metric
	keep  func(name string, v float64, labels []string)
}

// set gives a gauge or a counter a value for the values of its labels.
func (s sink) set(name string, v float64, values ...string) {
	if s.keep != nil {
		s.keep(name, v, values)
		return
	}
	d, ok := s.known[name]
	if !ok {
		s.ch <- prometheus.NewInvalidMetric(prometheus.NewDesc("coterie_unknown", "A metric without a definition.", nil, nil), fmt.Errorf("%s has no definition", name))
		return
	}
	kind := prometheus.GaugeValue
	if d.Kind == Counter {
		kind = prometheus.CounterValue
	}
	for i := range values {
		values[i] = strings.ToValidUTF8(values[i], "?")
	}
	m, err := prometheus.NewConstMetric(d.desc, kind, v, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d.desc, err)
	}
	s.ch <- m
}

func (s sink) flag(name string, yes bool, values ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	s.set(name, v, values...)
}

func (s sink) count(name string, n uint64, values ...string) { s.set(name, float64(n), values...) }

func (s sink) time(name string, d time.Duration, values ...string) {
	s.set(name, d.Seconds(), values...)
}

func (s sink) at(name string, t time.Time, values ...string) {
	s.set(name, float64(t.UnixMilli())/1000, values...)
}

// one sets the value of a label that applies, of a fixed set. One outside the set is set as well.
func (s sink) one(name, is, of string, set []string) {
	if !slices.Contains(set, is) {
		set = append(slices.Clone(set), is)
	}
	for _, value := range set {
		s.flag(name, value == is, of, value)
	}
}

// counts sets a counter with one label for each value of it.
func (s sink) counts(name string, of map[string]uint64) {
	for value, n := range bounded(of) {
		s.count(name, n, value)
	}
}

// bounded returns the counters, the smallest of too many as one.
func bounded(of map[string]uint64) map[string]uint64 {
	if len(of) <= maxValues {
		return of
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	out := map[string]uint64{}
	for i, name := range names {
		if i >= maxValues-1 {
			out[other] += of[name]
			continue
		}
		out[name] += of[name]
	}
	return out
}

// other is the value of a label for everything that has no value of its own.
const other = "other"

// factsFor is how long facts are shown again: strangers may ask as often as they like.
const factsFor = 100 * time.Millisecond

// Handler serves the metrics: in Prometheus's text format, or as OpenMetrics to those who ask for it. However many ask
// at once, facts is called once in 100 ms.
func Handler(facts func() Facts, log *slog.Logger) http.Handler {
	var mu sync.Mutex // guards what follows
	var last Facts
	var at time.Time
	spared := func() Facts {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) >= factsFor {
			last, at = facts(), time.Now()
		}
		return last
	}
	r := prometheus.NewRegistry()
	r.MustRegister(NewCollector(spared))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})
}

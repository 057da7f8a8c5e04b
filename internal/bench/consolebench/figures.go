package consolebench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// Samples are the raw measurements of a run.
type Samples struct {
	Version  string            `json:"version"`
	Date     time.Time         `json:"date"`
	Server   string            `json:"server"`
	Machine  report.Machine    `json:"machine"`
	Consoles int               `json:"consoles"`
	First    []First           `json:"first"`
	Shown    []float64         `json:"shown_ms,omitempty"` // the first screen in a browser, from the navigation
	Rounds   []Round           `json:"rounds"`
	Changes  []Change          `json:"changes"`
	Ends     int               `json:"stream_ends"`     // streams that ended while they were open
	Failed   int               `json:"failed_requests"` // of open consoles
	Last     string            `json:"last_error,omitempty"`
	Missing  map[string]string `json:"missing,omitempty"` // what was not measured, and why
	Figures  []goals.Figure    `json:"figures"`
}

// Round is the agent without a console and with all of them.
type Round struct {
	Without Usage `json:"without"`
	With    Usage `json:"with"`
}

// Usage is what the agent used in a span of time.
type Usage struct {
	CPU float64 `json:"cpu"` // % of a core
	MB  float64 `json:"mb"`  // anonymous memory at the end
}

// Change is a change of the group while the consoles are open.
type Change struct {
	Kind     string    `json:"kind"` // suspend, which includes the resumption; or failover
	To       string    `json:"to"`
	Events   []Event   `json:"events"`
	StatusMS []float64 `json:"status_ms,omitempty"` // for each console, from the first event of leadership to the status with the new primary
}

// Event is one event, as the open consoles were told of it. Times are from the moment at which its node remembers it.
type Event struct {
	Kind     string    `json:"kind"`
	What     string    `json:"what"`
	At       time.Time `json:"at"`
	Consoles int       `json:"consoles"` // that were told
	MedianMS float64   `json:"median_ms"`
	LastMS   float64   `json:"last_ms"`            // until the last console was told
	ShownMS  float64   `json:"shown_ms,omitempty"` // until a browser showed it
}

// String returns the number of events and their times in words.
func (c Change) String() string {
	if len(c.Events) == 0 {
		return c.To + ": no event reached a console"
	}
	var last, shown []float64
	for _, e := range c.Events {
		last = append(last, e.LastMS)
		if e.ShownMS > 0 {
			shown = append(shown, e.ShownMS)
		}
	}
	text := fmt.Sprintf("%s, %d events, each at every console after %.0f to %.0f ms", c.To, len(last), slices.Min(last), slices.Max(last))
	if len(shown) > 0 {
		text += fmt.Sprintf("; %d shown by a browser after %.0f to %.0f ms", len(shown), slices.Min(shown), slices.Max(shown))
	}
	return text
}

// figure returns the figure made of some values by f; why is the reason if there are none.
func figure(name, why string, values []float64, f func([]float64) float64) goals.Figure {
	if len(values) == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	return goals.Figure{Name: name, Measured: f(values)}
}

func p95(v []float64) float64 { return method.Nearest(slices.Clone(v), 95) }

// judge makes the figures of the samples. why is the reason for missing ones.
func (s *Samples) judge(why string) {
	var kib, wire, took, last, median, shown, status, cpu, mb, idle []float64
	for _, f := range s.First {
		kib, wire, took = append(kib, float64(f.Bytes)/1024), append(wire, float64(f.Wire)/1024), append(took, f.MS)
	}
	untold := 0
	for _, c := range s.Changes {
		status = append(status, c.StatusMS...)
		for _, e := range c.Events {
			last, median = append(last, e.LastMS), append(median, e.MedianMS)
			if e.ShownMS > 0 {
				shown = append(shown, e.ShownMS)
			}
			untold += s.Consoles - e.Consoles
		}
	}
	for _, r := range s.Rounds {
		cpu, mb, idle = append(cpu, r.With.CPU-r.Without.CPU), append(mb, r.With.MB-s.leastMB()), append(idle, r.Without.CPU)
	}
	browser := cmp.Or(s.Missing["browser"], why)
	s.Figures = []goals.Figure{
		figure("console-first-size", why, kib, slices.Max), figure("console-first-wire", why, wire, slices.Max),
		figure("console-first-time", why, took, method.Median), figure("console-first-shown", browser, s.Shown, method.Median),
		figure("console-event-p50", why, median, method.Median), figure("console-event-p95", why, last, p95),
		figure("console-event-shown-p95", browser, shown, p95), figure("console-status-p95", why, status, p95),
		{Name: "console-event-untold", Measured: float64(untold)},
		figure("console-open-cpu", why, cpu, method.Median), figure("console-open-memory", why, mb, slices.Max),
		figure("console-none-cpu", why, idle, method.Median),
	}
	if len(last) == 0 {
		s.Figures[8] = goals.Figure{Name: "console-event-untold", NotRun: why}
	}
}

// leastMB returns the agent's memory without a console, before the first was open: Go gives memory back late.
func (s *Samples) leastMB() float64 {
	least := s.Rounds[0].Without.MB
	for _, r := range s.Rounds {
		least = min(least, r.Without.MB)
	}
	return least
}

// Print writes what was seen, and the figures with their goals.
func (s *Samples) Print(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "server: %s; %d cores, Linux %s, load %s; %d consoles\n", s.Server, s.Machine.Cores, s.Machine.Kernel, s.Machine.Load, s.Consoles)
	for _, c := range s.Changes {
		fmt.Fprintf(&out, "%s: %s\n", c.Kind, c)
	}
	if s.Ends+s.Failed > 0 {
		fmt.Fprintf(&out, "of the open consoles %d streams ended and %d requests failed, the last by: %s\n", s.Ends, s.Failed, s.Last)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Missing)) {
		fmt.Fprintf(&out, "not measured: %s: %s\n", k, s.Missing[k])
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return err
	}
	_, err := goals.Report(w, "console", s.Figures)
	return err
}

package check

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Level is the severity of a finding.
type Level string

// The levels, the worst last. Failed means that the probe gave no result.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Failed  Level = "failed"
	Problem Level = "problem"
)

var rank = map[Level]int{OK: 0, Warning: 1, Failed: 2, Problem: 3}

// Worse reports whether l is worse than m.
func (l Level) Worse(m Level) bool { return rank[l] > rank[m] }

// Finding is the result of one check.
type Finding struct {
	Area  string `json:"area"`
	Level Level  `json:"level"`
	What  string `json:"what"`          // the finding, with its figures
	Why   string `json:"why,omitempty"` // why it matters
	Run   string `json:"run,omitempty"` // the command to run, or the change to make
}

// Probe makes one check. Findings without an Area get the area of the probe. An error becomes a finding, and so does a
// panic.
type Probe func(ctx context.Context) ([]Finding, error)

// Limit is how long a probe may take, unless Add is given another limit.
const Limit = 30 * time.Second

type entry struct {
	area  string
	limit time.Duration
	probe Probe
}

// Registry holds the probes of all areas. Add probes before Run; a Registry is not safe for concurrent use.
type Registry struct{ entries []entry }

// Add adds a probe to an area; limit 0 means Limit. A probe that does not return in time is reported as a finding.
func (r *Registry) Add(area string, limit time.Duration, p Probe) {
	if limit <= 0 {
		limit = Limit
	}
	r.entries = append(r.entries, entry{area, limit, p})
}

// Areas returns the areas in order.
func (r *Registry) Areas() []string {
	var out []string
	for _, e := range r.entries {
		if !slices.Contains(out, e.area) {
			out = append(out, e.area)
		}
	}
	slices.Sort(out)
	return out
}

// Run runs the probes of those areas concurrently, or all if no area is given. It returns the findings by area, the
// worst first.
func (r *Registry) Run(ctx context.Context, areas ...string) []Finding {
	var mu sync.Mutex // guards out
	var out []Finding
	var wg sync.WaitGroup
	for _, e := range r.entries {
		if len(areas) > 0 && !slices.Contains(areas, e.area) {
			continue
		}
		wg.Go(func() {
			found := e.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, found...)
		})
	}
	wg.Wait()
	slices.SortStableFunc(out, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Area, y.Area), cmp.Compare(rank[y.Level], rank[x.Level]), cmp.Compare(x.What, y.What))
	})
	return out
}

func (e entry) run(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, e.limit, fmt.Errorf("no answer within %v", e.limit))
	defer cancel()
	type answer struct {
		found []Finding
		err   error
	}
	done := make(chan answer, 1) // a probe that ignores its context keeps running until the process ends
	go func() {
		found, err := e.recovered(ctx)
		done <- answer{found, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		a.err = context.Cause(ctx)
	}
	if a.err != nil {
		a.found = append(a.found, Finding{Level: Failed, What: "not checked: " + a.err.Error()})
	}
	for i := range a.found {
		if a.found[i].Area == "" {
			a.found[i].Area = e.area
		}
	}
	return a.found
}

// recovered runs the probe. A panic of it becomes a finding of the level Problem, which names the probe by its area and
// has the stack, so that the other probes still report.
func (e entry) recovered(ctx context.Context) (found []Finding, err error) {
	defer func() {
		if p := recover(); p != nil {
			found, err = []Finding{{
				Level: Problem, What: fmt.Sprintf("not checked: the probe of %s panicked: %v", e.area, p),
				Why: "that is a mistake in coterie: " + string(debug.Stack()), Run: "report it with this text",
			}}, nil
		}
	}()
	return e.probe(ctx)
}

// Worst returns the worst level of the findings; OK if there are none.
func Worst(found []Finding) Level {
	worst := OK
	for _, f := range found {
		if f.Level.Worse(worst) {
			worst = f.Level
		}
	}
	return worst
}

package suite

import (
	"math"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// ExperimentFigures returns the figures of a report that have goals.
func ExperimentFigures(r *benchreport.Report) []goals.Figure {
	f := figures{r: r}
	f.ratio("routing-12-threads", "routing", "12 threads", false)
	f.ratio("routing-1-thread", "routing", "1 thread", false)
	f.ratio("routing-4-threads", "routing", "4 threads", false)
	f.ratio("tprocc-1-user", "tprocc", "1 user", false)
	f.ratio("tprocc-4-users", "tprocc", "4 users", false)
	f.ratio("tprocc-12-users", "tprocc", "12 users", false)
	f.worst("commit-penalty-to-floor", "commit", "penalty to floor/ratio", false)
	f.worst("commit-penalty-to-floor-plain", "commit", "penalty to floor/ratio", true)
	f.bulk()
	f.ratio("compression-gain", "tunnel", "constant rows", true)
	return f.all
}

type figures struct {
	r   *benchreport.Report
	all []goals.Figure
}

// experiment returns the experiment of that name, or adds the figure with the reason why it was not measured.
func (f *figures) experiment(figure, name string) (*benchreport.Experiment, bool) {
	why := "the experiment " + name + " was not part of this run"
	for i := range f.r.Experiments {
		if e := &f.r.Experiments[i]; e.Name == name {
			if e.NotRun == "" {
				return e, true
			}
			why = strings.ReplaceAll(e.NotRun, "\n", "; ")
		}
	}
	f.all = append(f.all, goals.Figure{Name: figure, NotRun: why})
	return nil, false
}

// ratio adds the ratio of a comparison, or its inverse.
func (f *figures) ratio(figure, name, comparison string, inverse bool) {
	e, ok := f.experiment(figure, name)
	if !ok {
		return
	}
	for _, c := range e.Comparisons {
		if c.Name != comparison {
			continue
		}
		one := goals.Figure{Name: figure, Measured: c.Ratio, Low: c.Low, High: c.High, HasInterval: true}
		if inverse {
			one.Measured, one.Low, one.High = 1/c.Ratio, 1/c.High, 1/c.Low
		}
		if c.Verdict == method.Withheld {
			one = goals.Figure{Name: figure, NotRun: "the verdict was withheld: " + c.Why}
		}
		f.all = append(f.all, one)
		return
	}
	f.all = append(f.all, goals.Figure{Name: figure, NotRun: "this run had no " + comparison})
}

// worst adds the highest of the metrics whose names have that end: of the group, or of plain PostgreSQL beside it.
func (f *figures) worst(figure, name, end string, plain bool) {
	e, ok := f.experiment(figure, name)
	if !ok {
		return
	}
	found := goals.Figure{Name: figure, NotRun: "it could not be measured here: " + end}
	for _, m := range e.Metrics {
		if strings.HasSuffix(m.Name, end) && strings.HasPrefix(m.Name, "plain PostgreSQL/") == plain && (found.NotRun != "" || m.Value > found.Measured) {
			found = goals.Figure{Name: figure, Measured: m.Value, Low: m.Low, High: m.High, HasInterval: m.Low < m.High}
		}
	}
	f.all = append(f.all, found)
}

// bulk adds the largest penalty of the three published bulk cells, with compression. Smaller cells measure something
// else: the server sends a transaction's log when it writes it, so a transaction of a few milliseconds waits for the
// whole transfer.
func (f *figures) bulk() {
	const figure = "commit-bulk-penalty"
	e, ok := f.experiment(figure, "commit")
	if !ok {
		return
	}
	worst := goals.Figure{Name: figure, Measured: math.Inf(-1), HasInterval: true}
	for _, c := range e.Comparisons {
		kind, cell, _ := strings.Cut(c.Name, " ")
		if kind == "OFF" || kind == "plain" || !slices.ContainsFunc(experiment.PublishedCells[:3], func(p experiment.Cell) bool { return p.String() == cell }) {
			continue
		}
		if p := 100 * (c.Ratio - 1); p > worst.Measured {
			worst.Measured, worst.Low, worst.High = p, 100*(c.Low-1), 100*(c.High-1)
		}
	}
	if math.IsInf(worst.Measured, -1) {
		worst = goals.Figure{Name: figure, NotRun: "this run had none of the cells 1 × 1000000, 10 × 100000 and 100 × 10000 with compression"}
	}
	f.all = append(f.all, worst)
}

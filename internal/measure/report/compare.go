package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// Change is one metric in two results.
type Change struct {
	Experiment string        `json:"experiment"`
	Name       string        `json:"name"`
	Unit       string        `json:"unit"`
	Better     method.Better `json:"better"`
	Old        float64       `json:"old"`
	New        float64       `json:"new"`
	Percent    float64       `json:"percent"` // New beside Old; infinite beside nothing, null as JSON
	Noise      bool          `json:"within_intervals"`
}

// MarshalJSON writes null for a change that is NaN or infinite.
func (c Change) MarshalJSON() ([]byte, error) {
	type plain Change
	out := struct {
		plain
		Percent *float64 `json:"percent"`
	}{plain: plain(c)}
	if !math.IsInf(c.Percent, 0) {
		out.Percent = &c.Percent
	}
	return json.Marshal(out)
}

// percent is how much the new is more than the old, which may be negative, or nothing.
func percent(was, is float64) float64 {
	switch {
	case was == is:
		return 0
	case was == 0:
		return math.Inf(int(math.Copysign(1, is)))
	}
	return 100 * (is - was) / math.Abs(was)
}

// Diff compares what is in both results, in the order of the newer. A change whose intervals overlap is noise.
func Diff(before, after *Report) []Change {
	type key struct{ experiment, name, unit string }
	old := map[key]Metric{}
	for _, e := range before.Experiments {
		for _, m := range e.Metrics {
			old[key{e.Name, m.Name, m.Unit}] = m
		}
	}
	var out []Change
	for _, e := range after.Experiments {
		for _, m := range e.Metrics {
			o, ok := old[key{e.Name, m.Name, m.Unit}]
			if !ok {
				continue
			}
			c := Change{Experiment: e.Name, Name: m.Name, Unit: m.Unit, Better: m.Better, Old: o.Value, New: m.Value, Percent: percent(o.Value, m.Value)}
			c.Noise = m.Low <= o.High && o.Low <= m.High && (m.Low < m.High || o.Low < o.High)
			out = append(out, c)
		}
	}
	return out
}

// change is the percent in words.
func (c Change) change() string {
	if math.IsInf(c.Percent, 0) {
		return "from none"
	}
	return fmt.Sprintf("%+.1f %%", c.Percent)
}

// String is the change for a message.
func (c Change) String() string {
	return fmt.Sprintf("%s/%s went from %s to %s %s (%s)", c.Experiment, c.Name, Number(c.Old), Number(c.New), c.Unit, c.change())
}

// PrintDiff writes the changes as a table.
func PrintDiff(w io.Writer, changes []Change) error {
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "EXPERIMENT\tMETRIC\tA\tB\tCHANGE\t") // an error shows at Flush
	for _, c := range changes {
		word := "better"
		if (c.Percent > 0) == (c.Better == method.LowerIsBetter) {
			word = "worse"
		}
		if c.Noise || c.Old == c.New {
			word = "no difference shown"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s %s\t%s %s\t%s\t%s\n", c.Experiment, c.Name, Number(c.Old), c.Unit, Number(c.New), c.Unit, c.change(), word)
	}
	return t.Flush()
}

// Limit is a change that the caller does not accept: p99>+10%.
type Limit struct {
	metric  string // the last part of a metric's name, or more of it
	above   bool
	percent float64
}

var limitForm = regexp.MustCompile(`^\s*([\w./ -]+?)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*$`)

// ParseLimit reads a limit: a metric's name or the end of it, > or <, and percent.
func ParseLimit(s string) (Limit, error) {
	m := limitForm.FindStringSubmatch(s)
	if m == nil {
		return Limit{}, fmt.Errorf("%q is no limit: write a metric, > or <, and a change in percent, such as 'p99>+10%%' or 'rate<-5%%'", s)
	}
	l := Limit{metric: m[1], above: m[2] == ">"}
	var err error
	if l.percent, err = strconv.ParseFloat(m[3], 64); err != nil {
		return l, err
	}
	if l.above && l.percent < 0 || !l.above && l.percent >= 0 { // a caller who writes the allowed change
		return l, fmt.Errorf("%q forbids that nothing changes: a limit says what is too much, such as 'p99>+10%%' or 'rate<-5%%'", s)
	}
	return l, nil
}

// Broken returns the changes that the limit forbids. Changes within the intervals of both results are left out. known
// is false if the limit names no metric at all.
func (l Limit) Broken(changes []Change) (broken []Change, known bool) {
	for _, c := range changes {
		full := c.Experiment + "/" + c.Name
		if full != l.metric && !strings.HasSuffix(full, "/"+l.metric) {
			continue
		}
		known = true
		if !c.Noise && (l.above && c.Percent > l.percent || !l.above && c.Percent < l.percent) {
			broken = append(broken, c)
		}
	}
	return slices.Clip(broken), known
}

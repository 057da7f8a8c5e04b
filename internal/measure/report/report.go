package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// Schema names the version of result.json. Any change that a reader could notice makes another.
const Schema = "coterie-bench/3"

// Report is one run of a command.
type Report struct {
	Schema      string            `json:"schema"`
	Title       string            `json:"title"`
	Scaled      bool              `json:"scaled"`  // the conditions were not the published ones
	Command     string            `json:"command"` // without secrets
	Version     string            `json:"version"`
	Started     time.Time         `json:"started"`
	Ended       time.Time         `json:"ended"`
	Seed        uint64            `json:"seed"`
	Machine     Machine           `json:"machine"`
	Settings    map[string]string `json:"settings"`
	Experiments []Experiment      `json:"experiments"`
}

// Experiment is one question and what was measured to answer it.
type Experiment struct {
	Name        string           `json:"name"`
	Title       string           `json:"title"`
	Question    string           `json:"question"`
	Answer      string           `json:"answer"`           // a sentence, with its numbers
	Beside      string           `json:"published_answer"` // the published answer to the same question, in a sentence; empty: none
	NotRun      string           `json:"not_run"`          // why; empty: it ran
	Scaled      bool             `json:"scaled"`
	Conditions  []string         `json:"conditions"`
	Published   []Source         `json:"published"` // of the published columns
	Tables      []Table          `json:"tables"`
	Comparisons []Comparison     `json:"comparisons"`
	Percentiles []Percentiles    `json:"percentiles"`
	Series      []Series         `json:"series"`
	Events      []Event          `json:"events"` // on the time axis of Series
	Bars        []Bars           `json:"bars"`
	Errors      map[string]int64 `json:"errors"`  // operations that were not answered, by SQLSTATE or a word
	Retries     map[string]int64 `json:"retries"` // operations that were asked again, by the SQLSTATE that they failed with
	Metrics     []Metric         `json:"metrics"`
	Notes       []string         `json:"notes"`
}

// Table is what was measured, with the published columns first.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"` // string, float64 or nil: not known
}

// Column heads a table.
type Column struct {
	Name      string `json:"name"`
	Unit      string `json:"unit"`
	Published bool   `json:"published"` // from Source, not measured here
}

// Comparison is two arms of an experiment.
type Comparison struct {
	Name      string   `json:"name"`
	Metric    string   `json:"metric"`
	Unit      string   `json:"unit"`
	A         string   `json:"a_name"`
	B         string   `json:"b_name"`
	Published *float64 `json:"published_ratio"` // B over A as published; only beside the published conditions
	method.Comparison
}

// Percentiles is one latency distribution.
type Percentiles struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"` // percent and milliseconds
}

// Series is a rate over time.
type Series struct {
	Name   string       `json:"name"`
	Unit   string       `json:"unit"`
	Points [][2]float64 `json:"points"` // seconds and value
}

// Event is a change to the system that was measured.
type Event struct {
	At    float64 `json:"at_s"`
	Label string  `json:"label"`
}

// Bars is a value for each of several things, such as the outage of each client.
type Bars struct {
	Title string `json:"title"`
	Each  string `json:"each"` // the subject of each bar
	Unit  string `json:"unit"`
	Bars  []Bar  `json:"bars"`
}

// Bar is one of Bars.
type Bar struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Metric is a figure that two results can be compared by.
type Metric struct {
	Name   string        `json:"name"` // parts with / between; the last names the kind: p99, rate
	Unit   string        `json:"unit"`
	Better method.Better `json:"better"`
	Value  float64       `json:"value"`
	Low    float64       `json:"low"` // both ends of its interval; equal to Value where there is none
	High   float64       `json:"high"`
}

// quantiles of a printed distribution, in percent.
var quantiles = []float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999}

// Distribution is a histogram as Percentiles. It ends at what its number of values supports.
func Distribution(name string, h *hdrhistogram.Histogram) Percentiles {
	p := Percentiles{Name: name, Points: [][2]float64{}}
	for _, q := range quantiles {
		if float64(h.TotalCount())*(100-q)/100 < 1 {
			break
		}
		p.Points = append(p.Points, [2]float64{q, float64(h.ValueAtQuantile(q)) / 1000})
	}
	return p
}

// Save writes the four files of a report into dir, which is made if it is not there; files of an earlier report are
// replaced.
func (r *Report) Save(dir string) error {
	r.complete()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a report is for reading
		return fmt.Errorf("save the report: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("save the report: %w", err)
	}
	page, err := r.HTML()
	if err != nil {
		return fmt.Errorf("save the report: %w", err)
	}
	summary, err := r.summaryCSV()
	if err != nil {
		return fmt.Errorf("save the report: %w", err)
	}
	series, err := r.seriesCSV()
	if err != nil {
		return fmt.Errorf("save the report: %w", err)
	}
	for name, content := range map[string][]byte{"result.json": append(text, '\n'), "summary.csv": summary, "series.csv": series, "report.html": page} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil { //nolint:gosec // the same
			return fmt.Errorf("save the report: %w", err)
		}
	}
	return nil
}

// complete fills what the schema wants there: lists are lists even if nothing is in them.
func (r *Report) complete() {
	r.Schema = Schema
	if r.Settings == nil {
		r.Settings = map[string]string{}
	}
	r.Experiments = list(r.Experiments)
	for i := range r.Experiments {
		e := &r.Experiments[i]
		e.Conditions, e.Published, e.Tables, e.Comparisons = list(e.Conditions), list(e.Published), list(e.Tables), list(e.Comparisons)
		e.Percentiles, e.Series, e.Events, e.Bars = list(e.Percentiles), list(e.Series), list(e.Events), list(e.Bars)
		e.Metrics, e.Notes = list(e.Metrics), list(e.Notes)
		if e.Errors == nil {
			e.Errors = map[string]int64{}
		}
		if e.Retries == nil {
			e.Retries = map[string]int64{}
		}
		for j := range e.Tables {
			e.Tables[j].Rows = list(e.Tables[j].Rows)
		}
		r.Scaled = r.Scaled || e.Scaled
	}
}

func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// ErrNotOurs means that a file is no result of this version.
var ErrNotOurs = errors.New("not a result.json of this version (" + Schema + ")")

// Load reads the result in dir, or the file itself.
func Load(path string) (*Report, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, "result.json")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w (%w)", path, ErrNotOurs, err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("%s: %w: it says %q", path, ErrNotOurs, r.Schema)
	}
	return &r, nil
}

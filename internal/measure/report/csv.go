package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// summaryCSV is one line per metric and per comparison.
func (r *Report) summaryCSV() ([]byte, error) {
	rows := [][]string{{"experiment", "kind", "name", "unit", "value", "low", "high", "verdict"}}
	for _, e := range r.Experiments {
		for _, m := range e.Metrics {
			rows = append(rows, []string{e.Name, "metric", m.Name, m.Unit, decimal(m.Value), decimal(m.Low), decimal(m.High), ""})
		}
		for _, c := range e.Comparisons {
			rows = append(rows, []string{e.Name, "ratio", c.Name + "/" + c.B + " over " + c.A + "/" + c.Metric, "x", decimal(c.Ratio), decimal(c.Low), decimal(c.High), string(c.Verdict)})
		}
		for _, t := range e.Tables {
			for _, row := range t.Rows {
				for i := 1; i < len(row); i++ {
					kind := "measured"
					if t.Columns[i].Published {
						kind = "published"
					}
					rows = append(rows, []string{e.Name, kind, t.Title + "/" + Cell(row[0]) + "/" + t.Columns[i].Name, t.Columns[i].Unit, plain(row[i]), "", "", ""})
				}
			}
		}
	}
	return csvText(rows)
}

// seriesCSV is every point of every series.
func (r *Report) seriesCSV() ([]byte, error) {
	rows := [][]string{{"experiment", "series", "unit", "seconds", "value"}}
	for _, e := range r.Experiments {
		for _, s := range e.Series {
			for _, p := range s.Points {
				rows = append(rows, []string{e.Name, s.Name, s.Unit, decimal(p[0]), decimal(p[1])})
			}
		}
		for _, ev := range e.Events {
			rows = append(rows, []string{e.Name, "event: " + ev.Label, "", decimal(ev.At), ""})
		}
	}
	return csvText(rows)
}

func csvText(rows [][]string) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	err := w.WriteAll(rows)
	return b.Bytes(), err
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

func plain(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		return decimal(v)
	}
	return fmt.Sprint(v)
}

// Cell prints a cell of a table for people: three significant digits, whole numbers whole, nothing for nothing.
func Cell(v any) string {
	f, ok := v.(float64)
	if !ok {
		return plain(v)
	}
	return Number(f)
}

// Number prints three significant digits; whole numbers, and those from 100 on, whole.
func Number(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 100 || v <= -100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v > -1e-4 && v < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if strings.Contains(s, "e") {
		return strconv.FormatFloat(v, 'f', 5, 64)
	}
	return s
}

// Print writes the report's tables and answers for a terminal.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	for _, e := range r.Experiments {
		fmt.Fprintf(&b, "\n%s\n", e.heading())
		if e.NotRun != "" {
			fmt.Fprintf(&b, "  not run: %s\n", e.NotRun)
			continue
		}
		for _, t := range e.Tables {
			t.print(&b)
		}
		for _, c := range e.Comparisons {
			fmt.Fprintf(&b, "  %s: %s of %s beside %s: %s\n", c.Name, c.Metric, c.B, c.A, c.String())
		}
		if len(e.Errors) > 0 {
			fmt.Fprintf(&b, "  not answered, by SQLSTATE: %s\n", counts(e.Errors))
		}
		if len(e.Retries) > 0 {
			fmt.Fprintf(&b, "  asked again after it failed, by SQLSTATE: %s\n", counts(e.Retries))
		}
		for _, n := range e.Notes {
			fmt.Fprintf(&b, "  note: %s\n", n)
		}
		if e.Answer != "" {
			fmt.Fprintf(&b, "  %s\n  → %s\n", e.Question, e.Answer)
		}
		if e.Beside != "" {
			fmt.Fprintf(&b, "    published, not measured: %s\n", e.Beside)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// heading is the title, which names every deviation from the published setup.
func (e Experiment) heading() string {
	if e.Scaled {
		return e.Title + " (scaled)"
	}
	return e.Title
}

// print leaves out published columns that hold nothing.
func (t Table) print(b *strings.Builder) {
	fmt.Fprintf(b, "  %s\n", t.Title)
	w := tabwriter.NewWriter(b, 2, 8, 2, ' ', tabwriter.AlignRight)
	shown := t.measuredColumns()
	line := func(cell func(i int) string) {
		for _, i := range shown {
			_, _ = fmt.Fprintf(w, "%s\t", cell(i)) // to memory
		}
		_, _ = fmt.Fprintln(w)
	}
	line(func(i int) string {
		if t.Columns[i].Published {
			return "published " + t.Columns[i].Name
		}
		return t.Columns[i].Name
	})
	line(func(i int) string { return t.Columns[i].Unit })
	for _, row := range t.Rows {
		line(func(i int) string {
			if text := Cell(row[i]); text != "" {
				return text
			}
			return "-"
		})
	}
	_ = w.Flush()
}

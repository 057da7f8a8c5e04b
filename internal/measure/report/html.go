package report

import (
	"bytes"
	_ "embed" // the page
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"cell": func(v any) string {
		if s := Cell(v); s != "" {
			return s
		}
		return "–"
	},
	"heading": Experiment.heading, "overTime": overTime, "percentiles": percentileChart, "intervals": intervalChart, "bars": barChart,
	"number": Number, "when": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
	"took":   func(r *Report) string { return r.Ended.Sub(r.Started).Round(time.Second).String() },
	"counts": counts, "settings": settingList, "measured": Table.measuredColumns, "publishedRatios": publishedRatios, "asPublished": asPublished, "words": func(name string) string { return strings.ReplaceAll(name, "_", " ") },
}).Parse(pageText))

// HTML is the report as one page that asks nothing of any network.
func (r *Report) HTML() ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, r); err != nil {
		return nil, fmt.Errorf("write report.html: %w", err)
	}
	return b.Bytes(), nil
}

// counts lists what was counted by SQLSTATE.
func counts(by map[string]int64) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s: %d", state, by[state]))
	}
	return strings.Join(parts, ", ")
}

// measuredColumns are the columns that are shown: published ones in which nothing stands are left out.
func (t Table) measuredColumns() (shown []int) {
	for i, c := range t.Columns {
		if !c.Published || slices.ContainsFunc(t.Rows, func(row []any) bool { return row[i] != nil }) {
			shown = append(shown, i)
		}
	}
	return shown
}

// publishedRatios reports whether a published ratio stands beside any of the comparisons.
func publishedRatios(list []Comparison) bool {
	return slices.ContainsFunc(list, func(c Comparison) bool { return c.Published != nil })
}

// asPublished are the published tables of an experiment whose own tables do not hold them.
func asPublished(e Experiment) ([]Figures, error) {
	for _, t := range e.Tables {
		for i, c := range t.Columns {
			if c.Published && slices.ContainsFunc(t.Rows, func(row []any) bool { return row[i] != nil }) {
				return nil, nil
			}
		}
	}
	var all []Figures
	for _, s := range e.Published {
		f, err := Published(s.File)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func settingList(m map[string]string) [][2]string {
	var out [][2]string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, [2]string{k, m[k]})
	}
	return out
}

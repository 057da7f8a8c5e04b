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
	"errors": errorText, "settings": settingList,
}).Parse(pageText))

// HTML is the report as one page that asks nothing of any network.
func (r *Report) HTML() ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, r); err != nil {
		return nil, fmt.Errorf("write report.html: %w", err)
	}
	return b.Bytes(), nil
}

// errorText lists errors by SQLSTATE.
func errorText(errors map[string]int64) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(errors)) {
		parts = append(parts, fmt.Sprintf("%s: %d", state, errors[state]))
	}
	return strings.Join(parts, ", ")
}

func settingList(m map[string]string) [][2]string {
	var out [][2]string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, [2]string{k, m[k]})
	}
	return out
}

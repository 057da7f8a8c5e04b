package metrics

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	dto "github.com/prometheus/client_model/go"
)

const packaging = "../../../packaging"

// rulesFile is what these tests read of a file of rules.
type rulesFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

// queries returns the expressions of the rules and of the dashboard, each with where it is, and the names that rules
// record.
func queries(t *testing.T) (list [][2]string, recorded []string) {
	t.Helper()
	var rules rulesFile
	text, err := os.ReadFile(filepath.Join(packaging, "prometheus", "coterie.rules.yml"))
	if err == nil {
		err = yaml.UnmarshalWithOptions(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	alerts := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			list = append(list, [2]string{g.Name + " " + r.Alert + r.Record, r.Expr})
			if r.Record != "" {
				recorded = append(recorded, r.Record)
				continue
			}
			if alerts[r.Alert] || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("the alert %q exists twice, or does not say how bad it is and what to do: %v", r.Alert, r)
			}
			alerts[r.Alert] = true
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	text, err = os.ReadFile(filepath.Join(packaging, "grafana", "coterie.json"))
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("the panel %q asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			list = append(list, [2]string{"panel " + p.Title, q.Expr})
		}
	}
	for _, v := range dashboard.Templating.List {
		if q, ok := v.Query.(map[string]any); ok {
			text, _ := q["query"].(string)
			list = append(list, [2]string{"a variable", text})
		}
	}
	if len(list) < 40 || len(recorded) < 5 {
		t.Fatalf("only %d queries and %d recorded names found", len(list), len(recorded))
	}
	return list, recorded
}

var (
	selector = regexp.MustCompile(`\b(coterie_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without)\s*\(([^)]*)\)`)
	record   = regexp.MustCompile(`\bcoterie:[a-z0-9_:]+`)
)

// TestQueriesAskForWhatExists holds that every query of the rules and the dashboard names metrics that the collector
// sets, labels that they have, and values that those labels have.
func TestQueriesAskForWhatExists(t *testing.T) {
	t.Parallel()
	set := map[string]*dto.MetricFamily{}
	for _, f := range gather(t, everything()) {
		set[f.GetName()] = f
		if f.GetType() == dto.MetricType_SUMMARY {
			set[f.GetName()+"_sum"], set[f.GetName()+"_count"] = f, f
		}
	}
	target := []string{"job", "group", "instance"} // the scrape's own
	list, recorded := queries(t)
	for _, q := range list {
		where, expr := q[0], q[1]
		known := slices.Clone(target)
		for _, m := range selector.FindAllStringSubmatch(expr, -1) {
			f := set[m[1]]
			if f == nil {
				t.Errorf("%s: there is no %s", where, m[1])
				continue
			}
			own := labelsOf(f)
			for label := range own {
				known = append(known, label)
			}
			for _, x := range matcher.FindAllStringSubmatch(m[2], -1) {
				label, op, value := x[1], x[2], x[3]
				switch {
				case slices.Contains(target, label):
				case own[label] == nil:
					t.Errorf("%s: %s has no label %s", where, m[1], label)
				case op == "=" && !slices.Contains(own[label], value):
					t.Errorf("%s: the label %s of %s is never %q", where, label, m[1], value)
				}
			}
		}
		for _, name := range record.FindAllString(expr, -1) {
			if !slices.Contains(recorded, name) {
				t.Errorf("%s: no rule records %s", where, name)
			}
		}
		for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
			for label := range strings.SplitSeq(m[1], ",") {
				if !slices.Contains(known, strings.TrimSpace(label)) {
					t.Errorf("%s: no metric of it has the label %s: %s", where, label, expr)
				}
			}
		}
		if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.TrimSpace(expr) == "" {
			t.Errorf("%s: %q", where, expr)
		}
	}
}

// labelsOf returns the labels of a metric, with the values that each has.
func labelsOf(f *dto.MetricFamily) map[string][]string {
	out := map[string][]string{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			out[l.GetName()] = append(out[l.GetName()], l.GetValue())
		}
		if m.GetSummary() != nil {
			out["quantile"] = []string{"0.5", "0.95", "0.99"}
		}
	}
	return out
}

// TestRulesFire has promtool check the rules, and run them on made-up series.
func TestRulesFire(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: the alerts are not run on made-up series; it is in the package prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "coterie.rules.yml"}, {"test", "rules", "coterie.rules.test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join(packaging, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

package report

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/coteriedb/coterie/internal/measure/method"
)

//go:embed schema.json
var schemaJSON []byte // the JSON Schema of result.json

// sample is a report with one of everything.
func sample() *Report {
	h := method.NewHistogram()
	for i := range 20000 {
		method.Observe(h, time.Duration(100+i%900+i/19990*50000)*time.Microsecond)
	}
	ratio := 1.64
	a, b := []float64{10, 11, 10, 12, 10, 11, 10, 11}, []float64{25, 27, 26, 30, 25, 27, 26, 28}
	points := [][2]float64{}
	for i := range 100 {
		v := 500.0
		if i > 40 && i < 48 {
			v = 0
		}
		points = append(points, [2]float64{float64(i) / 10, v + float64(i%7)})
	}
	f, err := Published("read_only_routing_2016.csv")
	if err != nil {
		panic(err)
	}
	return &Report{
		Title: "A report & its <parts>", Command: CommandLine([]string{"coterie", "bench", "routing", "--target-a", "postgresql://u:secret@h/db"}), Version: "v1",
		Started: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC), Ended: time.Date(2026, 11, 22, 3, 9, 0, 0, time.UTC), Seed: 7,
		Machine: Describe(os.TempDir()), Settings: map[string]string{"postgresql": "15.18"},
		Experiments: []Experiment{{
			Name: "routing", Title: "Read-only routing", Question: "Does read-only routing pay?", Answer: "Yes: 2.6 x at 12 threads.", Scaled: true,
			Conditions: []string{"half a core for each node"}, Published: []Source{f.Source},
			Tables: []Table{{Title: "By threads", Columns: []Column{{"threads", "", false}, {"primary_s", "s", true}, {"rate", "1/s", false}}, Rows: [][]any{
				{"1", f.Value("1", "primary_s"), 12.5}, {"12", nil, 1234.5},
			}}},
			Comparisons: []Comparison{
				{Name: "12 threads", Metric: "rate", Unit: "1/s", A: "primary", B: "routed", Published: &ratio, Comparison: method.Compare(a, b, method.HigherIsBetter)},
				{Name: "1 thread", Metric: "rate", Unit: "1/s", A: "primary", B: "routed", Comparison: method.Compare(a, a, method.HigherIsBetter).Withhold("client-bound: by hand")},
			},
			Percentiles: []Percentiles{Distribution("primary", h)}, Series: []Series{{"all clients", "1/s", points}, {"one <client>", "1/s", points[:50]}},
			Events: []Event{{4.1, "n1 killed"}}, Bars: []Bars{{"Outage of each client", "client", "ms", []Bar{{"1", 610}, {"2", 640}}}},
			Errors: map[string]int64{"08007": 3}, Retries: map[string]int64{"40001": 1}, Beside: "1.64 times at 12 threads.", Notes: []string{"a note"},
			Metrics: []Metric{{"12 threads/routed/rate", "1/s", method.HigherIsBetter, 26, 25, 27}, {"12 threads/routed/p99", "ms", method.LowerIsBetter, 10, 10, 10}},
		}, {Name: "commit", Title: "Commit", Question: "What does a synchronous commit cost?", NotRun: "no network namespaces here"}},
	}
}

// TestSchema: saved results match the schema, and the schema refuses other documents.
func TestSchema(t *testing.T) {
	dir := t.TempDir()
	if err := sample().Save(dir); err != nil {
		t.Fatal(err)
	}
	var doc any
	text, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("secret")) {
		t.Error("the result holds the password")
	}
	parse := func(b []byte) any {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", parse(schemaJSON)); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc = parse(text)
	if err := schema.Validate(doc); err != nil {
		t.Errorf("%v", err)
	}
	var bare bytes.Buffer
	empty := &Report{Title: "nothing"}
	empty.complete()
	if err := json.NewEncoder(&bare).Encode(empty); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(parse(bytes.Replace(bare.Bytes(), []byte(`"cores":0`), []byte(`"cores":1`), 1))); err != nil {
		t.Errorf("an empty report: %v", err)
	}
	for _, wrong := range []struct{ old, changed string }{
		{`"schema": "coterie-bench/3"`, `"schema": "coterie-bench/1"`},
		{`"verdict": "withheld",`, `"verdict": "splendid",`},
		{`"why": "client-bound: by hand"`, `"when": "ever"`},
		{`"scaled": true`, `"scaled": "yes"`},
		{`"seed": 7,`, ``},
	} {
		broken := strings.Replace(string(text), wrong.old, wrong.changed, 1)
		if broken == string(text) {
			t.Fatalf("the result has no %s", wrong.old)
		}
		if schema.Validate(parse([]byte(broken))) == nil {
			t.Errorf("%s is allowed", wrong.changed)
		}
	}
}

func TestLoadGivesWhatWasSaved(t *testing.T) {
	dir := t.TempDir()
	want := sample()
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Experiments[0].Comparisons[0].Ratio != want.Experiments[0].Comparisons[0].Ratio || !got.Scaled {
		t.Errorf("%+v", got)
	}
	other := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(other, []byte(`{"schema": "something else"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(other); !errors.Is(err, ErrNotOurs) {
		t.Errorf("another file: %v", err)
	}
}

func TestCSV(t *testing.T) {
	dir := t.TempDir()
	if err := sample().Save(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"summary.csv": {"12 threads/routed/rate", "12 threads/routed over primary/rate", "faster", "published"},
		"series.csv":  {"all clients", "event: n1 killed"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil || len(rows) < 4 {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
		for _, w := range want {
			if !slices.ContainsFunc(rows, func(r []string) bool { return slices.Contains(r, w) }) {
				t.Errorf("%s has no %q", name, w)
			}
		}
	}
}

func TestPublishedTables(t *testing.T) {
	entries, err := publishedFiles.ReadDir("published")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "source.csv" {
			continue
		}
		f, err := Published(e.Name())
		if err != nil {
			t.Errorf("%s: %v", e.Name(), err)
			continue
		}
		if f.Origin == "" || strings.HasPrefix(f.Origin, "same") || f.Trust == "" || len(f.Rows) == 0 {
			t.Errorf("%s: origin %q, trust %q, %d rows", e.Name(), f.Origin, f.Trust, len(f.Rows))
		}
	}
	f, err := Published("read_only_routing_2016.csv")
	if err != nil || f.Value("12", "routed_mb_s") != 848.0 || f.Value("3", "routed_mb_s") != nil {
		t.Errorf("%v, %v", f.Value("12", "routed_mb_s"), err)
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"postgresql://lab:geheim@127.0.0.1:6432,127.0.0.1:6442/db?connect_timeout=5": "postgresql://lab:***@127.0.0.1:6432,127.0.0.1:6442/db?connect_timeout=5",
		"postgres://lab@h/db?password=geheim&sslmode=require":                        "postgres://lab@h/db?password=***&sslmode=require",
		"host=h user=u password='ge heim' dbname=d":                                  "host=h user=u password=*** dbname=d",
		"host=h password = geheim":                                                   "host=h password = ***",
		"PGPASSWORD=geheim coterie":                                                  "PGPASSWORD=*** coterie",
		"host=h user=u":                                                              "host=h user=u",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	if got := CommandLine([]string{"coterie", "bench", "--fail-if", "p99>+10%", "it's"}); got != `coterie bench --fail-if 'p99>+10%' 'it'\''s'` {
		t.Error(got)
	}
}

func TestDiffAndLimits(t *testing.T) {
	before, after := sample(), sample()
	m := after.Experiments[0].Metrics
	m[0].Value, m[0].Low, m[0].High = 24, 23, 26 // overlaps [25, 27]
	m[1].Value, m[1].Low, m[1].High = 12, 12, 12
	changes := Diff(before, after)
	if len(changes) != 2 || !changes[0].Noise || changes[1].Noise || changes[1].Percent != 20 {
		t.Fatalf("%+v", changes)
	}
	for limit, want := range map[string]int{"p99>+10%": 1, "p99>25%": 0, "routed/p99 > +10 %": 1, "rate<-5%": 0, "routing/12 threads/routed/p99>0%": 1} {
		l, err := ParseLimit(limit)
		if err != nil {
			t.Errorf("%s: %v", limit, err)
			continue
		}
		if broken, known := l.Broken(changes); !known || len(broken) != want {
			t.Errorf("%s: %d broken, known %v", limit, len(broken), known)
		}
	}
	l, err := ParseLimit("nonsense>1%")
	if err != nil {
		t.Fatal(err)
	}
	if _, known := l.Broken(changes); known {
		t.Error("a metric that is not there is known")
	}
	for _, bad := range []string{"p99", "p99>", ">1%", "p99>10", "p99=1%", "p99<+10%", "rate>-5%", "p99<10%"} {
		if _, err := ParseLimit(bad); err == nil {
			t.Errorf("%q is a limit", bad)
		}
	}
	var out bytes.Buffer
	if err := PrintDiff(&out, changes); err != nil || !strings.Contains(out.String(), "worse") || !strings.Contains(out.String(), "no difference shown") {
		t.Errorf("%s%v", out.String(), err)
	}
}

// TestChangeFromNothing: lost rows are worse than none, by more than any percent; and a penalty may be less than
// nothing.
func TestChangeFromNothing(t *testing.T) {
	result := func(lost, penalty float64) *Report {
		return &Report{Experiments: []Experiment{{Name: "failover", Metrics: []Metric{
			{Name: "lost", Unit: "rows", Better: method.LowerIsBetter, Value: lost, Low: lost, High: lost},
			{Name: "penalty/ms", Unit: "ms", Better: method.LowerIsBetter, Value: penalty, Low: penalty, High: penalty},
		}}}}
	}
	changes := Diff(result(0, -2), result(5, -1))
	for _, limit := range []string{"lost>+0%", "lost>+1000%", "ms>+10%"} {
		l, err := ParseLimit(limit)
		if err != nil {
			t.Fatal(err)
		}
		if broken, known := l.Broken(changes); !known || len(broken) != 1 {
			t.Errorf("%s: %d broken of %+v", limit, len(broken), changes)
		}
	}
	var out bytes.Buffer
	if err := PrintDiff(&out, changes); err != nil || strings.Contains(out.String(), "better") || strings.Count(out.String(), "worse") != 2 {
		t.Errorf("%s%v", out.String(), err)
	}
	if text, err := json.Marshal(changes); err != nil || !strings.Contains(string(text), `"percent":null`) || !strings.Contains(string(text), `"percent":50`) {
		t.Errorf("%s, %v", text, err)
	}
	if changes := Diff(result(0, 0), result(0, 0)); changes[0].Percent != 0 {
		t.Errorf("%+v", changes)
	}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	r := sample()
	r.complete()
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"(scaled)", "published primary_s", "Yes: 2.6 x", "not run: no network", "withheld", "not answered, by SQLSTATE: 08007: 3", "SQLSTATE: 40001: 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestProgressWithin: while the first step runs, the remaining time follows from how much of it is done.
func TestProgressWithin(t *testing.T) {
	p := NewProgress(io.Discard, false)
	p.Plan(4 * time.Second) // but each step takes an hour
	p.Step(2*time.Second, "the first")
	p.first, p.at = p.first.Add(-time.Hour/2), p.at.Add(-time.Hour/2)
	p.Within(0.5)
	if left := p.left(); left != "(about 1h30m0s left)" {
		t.Errorf("half of the first of two hours is over: %s", left)
	}
}

// TestLoading: a continued load is announced as such, and prints at every tenth how long the rest will take.
func TestLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tell := NewProgress(&out, false).Loading("loading")
		for done := range int64(61) {
			tell(40+done, 100)
			time.Sleep(time.Second)
		}
		for _, want := range []string{"going on where an earlier load was interrupted, at 40 %", "loading: 50 %, about 50s left", "loading: 90 %, about 10s left"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s says not %q", out.String(), want)
			}
		}
		if n := strings.Count(out.String(), "\n"); n != 6 {
			t.Errorf("%d lines: %s", n, out.String())
		}
	})
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, false)
	p.Plan(4 * time.Second)
	p.Step(2*time.Second, "the first")
	p.Live("nobody sees this")
	p.Step(2*time.Second, "the second")
	p.Say("done")
	if s := out.String(); !strings.Contains(s, "left)  the second") || strings.Contains(s, "nobody") || strings.Count(s, "\n") != 3 {
		t.Error(s)
	}
	var none *Progress
	none.Within(0.5)
	none.Loading("nothing")(1, 2)
	none.Plan(1)
	none.Step(1, "nothing")
	none.Say("nothing")
}

package docs

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/measure/goals"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

var update = flag.Bool("update", false, "write the generated parts of the documentation anew")

// figure is one line of a file in docs/results, with the run that it belongs to.
type figure struct {
	value   string // with its unit
	between string // the interval; empty if the run has none
	goal    string
	met     bool
	at      time.Time
	date    string
	commit  string
	command string
	machine string // up to its first semicolon
	file    string
}

var (
	figureLine = regexp.MustCompile(`^([a-z0-9-]+) +(\S+) ([^\[≤≥]*?) *(\[[^\]]*\])? +([≤≥] \S+) [^→]*→ (met|short of goal)`)
	headLine   = regexp.MustCompile(`^(date|commit|command|machine): +(.*)$`)
)

// figures reads the results, and returns for each goal the figure of the latest run.
func figures(t *testing.T) map[string]figure {
	t.Helper()
	texts := reports(t)
	paths, err := filepath.Glob(filepath.Join(root, "docs/results/*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatal(err, len(paths))
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(path)] = string(text)
	}
	found := map[string]figure{}
	for file, text := range texts {
		var run figure
		for line := range strings.Lines(text) {
			if m := headLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				run.read(t, m[1], m[2])
				continue
			}
			m := figureLine.FindStringSubmatch(line)
			if m == nil || run.command == "" {
				continue
			}
			f := run
			f.file = file
			f.value, f.between, f.goal, f.met = m[2]+" "+strings.TrimSpace(m[3]), m[4], m[5], m[6] == "met"
			if known, ok := found[m[1]]; !ok || !f.at.Before(known.at) {
				found[m[1]] = f
			}
		}
	}
	return found
}

// reports returns the figures of the reports that are kept as a report, as the command prints them below a head.
func reports(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs/results/*/result.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal(err, len(paths))
	}
	found := map[string]string{}
	for _, path := range paths {
		r, err := benchreport.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		commit, _, _ := strings.Cut(r.Version, "-")
		fmt.Fprintf(&out, "date: %s\ncommit: %s\ncommand: %s\n", r.Ended.Format("2006-01-02 15:04"), commit, strings.TrimPrefix(r.Command, "bin/"))
		if _, err := goals.Report(&out, "experiments", suite.ExperimentFigures(r)); err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(filepath.Dir(path))] = out.String()
	}
	return found
}

// read takes a line of a run's head. A date begins another run.
func (f *figure) read(t *testing.T, name, value string) {
	t.Helper()
	switch name {
	case "date":
		at, err := time.Parse("2006-01-02 15:04", value[:min(len(value), 16)])
		if err != nil {
			at, err = time.Parse(time.DateOnly, value[:min(len(value), 10)])
		}
		if err != nil {
			t.Fatal(err)
		}
		*f = figure{at: at, date: value[:10]}
	case "commit":
		f.commit, _, _ = strings.Cut(value, " ")
		f.commit = strings.TrimSuffix(f.commit, ",")
	case "command":
		f.command = value
	case "machine":
		f.machine, _, _ = strings.Cut(strings.TrimPrefix(value, "as above, "), ";")
	}
}

// shared reports whether the run had other work beside it, as its head says.
func (f figure) shared() bool {
	return f.machine != "" && f.machine != "as above" && !strings.Contains(f.machine, "otherwise") && !strings.HasPrefix(f.machine, "the same")
}

// areas are the parts of the page, by the benchmark of their goals.
var areas = []struct{ bench, title string }{
	{"failover", "Failover and the cost of a commit"},
	{"continuity", "Sessions in a failover"},
	{"listener", "The listener"},
	{"console", "The console in the browser"},
	{"seeding", "The first copy of a replica"},
	{"endpoint", "Replication between nodes"},
	{"footprint", "A node that has nothing to do"},
	{"experiments", "Read-only routing, commits and compression, as published experiments measure them"},
	{"linkem", "The links of the lab"},
}

func performance(t *testing.T) string {
	t.Helper()
	all, err := goals.Goals()
	if err != nil {
		t.Fatal(err)
	}
	have := figures(t)
	var out strings.Builder
	for _, a := range areas {
		var busy []string
		fmt.Fprintf(&out, "\n## %s\n\n| measure | value | interval | goal | met? | date, commit | command |\n|---|---|---|---|---|---|---|\n", a.title)
		for _, g := range all {
			f, ok := have[g.Name]
			if g.Bench != a.bench || g.Better == "stated" {
				continue
			}
			if !ok {
				sign := map[string]string{"lower": "≤", "higher": "≥"}[g.Better]
				fmt.Fprintf(&out, "| %s | not on record | | %s %v %s | | | `make %s` |\n", g.What, sign, g.Goal, g.Unit, target(g.Bench))
				continue
			}
			met := "yes"
			number, _, _ := strings.Cut(f.value, " ")
			switch v, err := strconv.ParseFloat(number, 64); {
			case !f.met:
				met = "**missed**"
			case err == nil && (g.Better == "lower" && v > g.Goal || g.Better == "higher" && v < g.Goal):
				met = "within its interval"
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s %s | %s | %s | `%s` |\n", g.What, f.value, strings.Replace(strings.Trim(f.between, "[]"), ",", " to", 1), f.goal, g.Unit, met,
				cmp.Or(strings.Trim(f.date+" "+f.commit, " "), "-"), f.command)
			if line := fmt.Sprintf("\n%s %s: %s.\n", f.date, f.commit, f.machine); f.shared() && !slices.Contains(busy, line) {
				busy = append(busy, line)
			}
		}
		out.WriteString(strings.Join(busy, ""))
	}
	return out.String()
}

// target returns the target of make that measures the goals of a benchmark.
func target(bench string) string {
	if bench == "experiments" {
		return "results"
	}
	return "bench-" + bench
}

// TestTargetsOfThePerformancePage holds that make has each target that the page names.
func TestTargetsOfThePerformancePage(t *testing.T) {
	for _, m := range regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(pages(t)["docs/performance.md"], -1) {
		if !strings.Contains(source(t, "Makefile"), "\n"+m[1]+":") {
			t.Errorf("make has no target %s", m[1])
		}
	}
}

// generated holds the part of a page between its marks against what the results say, and writes it with -update.
func generated(t *testing.T, page, want string) {
	t.Helper()
	const begin, end = "<!-- generated by a test -->\n", "<!-- end -->"
	text := pages(t)[page]
	head, rest, found := strings.Cut(text, begin)
	have, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no generated part", page)
	}
	if have == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the sources say: go test ./internal/test/docs -run %s -update", page, t.Name())
	}
	if err := os.WriteFile(filepath.Join(root, page), []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPerformancePage holds that docs/performance.md has every goal with its latest figure, the missed ones too.
func TestPerformancePage(t *testing.T) {
	generated(t, "docs/performance.md", performance(t))
}

// TestFiguresOfTheReadme holds that each figure of the README is the latest one on record.
func TestFiguresOfTheReadme(t *testing.T) {
	have, beside := figures(t), peers(t)
	patroni := fmt.Sprintf("Patroni %s at its defaults: %.0f s; at its shortest times: %.0f s ¹", versionOf(t, "bench-failover-peers.txt", "Patroni"),
		median(beside["patroni"]), median(beside["patroni-floor"]))
	lost := fmt.Sprintf("Patroni: %d rows ¹", peersLost(t))
	rows := []struct{ what, name, peer string }{
		{"primary node killed: time without writes (p50)", "node-death-outage-p50", patroni},
		{"acknowledged rows lost in these runs", "node-death-rows-lost", lost},
		{"`pgbench -S` of 8 clients through the listener, to direct connections", "listener-select-8", "%s"},
		{"first copy of 2 GB at 1 Gbit/s, to `pg_basebackup` at its best", "metro-pgbench-to-best", copiesBeside(t, have["metro-pgbench-to-best"])},
		{
			"10,000 rows to a replica 30 ms away (100 Mbit/s, 0.1 % loss): time saved to plain TCP", "wan-good-less-than-cubic",
			have["wan-good-less-than-bbr"].value + " to plain TCP with BBR, same run",
		},
	}
	var out strings.Builder
	out.WriteString("| | Coterie | for comparison |\n|---|---|---|\n")
	for _, r := range rows {
		f, ok := have[r.name]
		if !ok {
			t.Fatalf("no figure %s is on record", r.name)
		}
		peer := r.peer
		if peer == "%s" {
			peer = fmt.Sprintf("%s the better of HAProxy %s and PgBouncer %s, same run", have["listener-select-8-to-peers"].value,
				versionOf(t, "bench-listener.txt", "HAProxy version"), versionOf(t, "bench-listener.txt", "PgBouncer"))
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", r.what, f.value, peer)
	}
	used := []string{have["node-death-outage-p50"].date, have["listener-select-8"].date, have["metro-pgbench-to-best"].date, have["wan-good-less-than-cubic"].date, have["planned-outage-p50"].date}
	slices.Sort(used)
	fmt.Fprintf(&out, "\nA planned failover takes %s (p50). Measured %s to %s on one machine with 2 cores, PostgreSQL 15. Intervals, missed goals, the command\n",
		have["planned-outage-p50"].value, used[0], used[len(used)-1])
	fmt.Fprintf(&out, "that repeats each: [performance](docs/performance.md). ¹ %s on a loaded machine, where Coterie took %.1f s in the same command. Patroni ran with\n", runs(len(beside["n"])), median(beside["n"]))
	out.WriteString("`synchronous_mode`; it waits out its lease by design.\n")
	generated(t, "README.md", out.String())
}

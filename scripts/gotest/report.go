package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // the package of build output
	Test       string
	Output     string
	Elapsed    float64
}

// test is a test or, with an empty name, a package.
type test struct {
	pkg, name string
}

// failure is a test that failed, with the beginning of what it said.
type failure struct {
	test
	said []string
}

// saidLines bounds how much of a failed test the summary repeats. A test says first why it fails, and then shows the
// logs of its servers, which fill the log.
const saidLines = 60

type running struct {
	since  time.Time
	waits  bool // for its turn among the parallel tests
	output []string
}

// report turns events into the log.
type report struct {
	out     io.Writer
	began   time.Time
	spoke   time.Time // when something was last printed
	prefix  string    // common to all packages, and left out
	open    map[test]*running
	passed  int
	failed  int
	said    []failure
	skipped map[string][]test // by reason
	took    map[string]float64
}

func newReport(out io.Writer, began time.Time) *report {
	return &report{
		out: out, began: began, spoke: began, prefix: "github.com/coteriedb/coterie/",
		open: map[test]*running{}, skipped: map[string][]test{}, took: map[string]float64{},
	}
}

func (r *report) print(s string) {
	r.spoke = time.Now()
	_, _ = io.WriteString(r.out, s) // if the log cannot be written, go test ends by its own closed pipe
}

// line processes one line of go test. A line that is not an event, such as a message of the go command, is printed.
func (r *report) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		r.print(string(line))
		return
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "start", "run":
		r.open[t] = &running{since: time.Now()}
	case "pause", "cont": // a parallel test waits for its turn
		if o, ok := r.open[t]; ok {
			o.waits, o.since = e.Action == "pause", time.Now()
		}
	case "build-output":
		r.print(e.Output)
	case "output":
		r.output(t, e.Output)
	case "pass", "fail", "skip":
		r.end(t, e)
	}
}

// dull are the lines of a package without a failure.
var dull = []string{"PASS\n", "[no test files]\n", "no tests to run\n", "[no tests to run]\n"}

// output keeps the output of a test until the test has passed or failed. A package's own lines are its result.
func (r *report) output(t test, text string) {
	if t.name == "" {
		if !slices.ContainsFunc(dull, func(end string) bool { return strings.HasSuffix(text, end) }) {
			r.print(text)
		}
		return
	}
	o, ok := r.open[t]
	if !ok {
		o = &running{since: time.Now()}
		r.open[t] = o
	}
	o.output = append(o.output, text)
}

func (r *report) end(t test, e event) {
	o := r.open[t]
	delete(r.open, t)
	if t.name == "" {
		r.took[t.pkg] += e.Elapsed
		if e.Action == "fail" {
			r.failed++ // a package also fails by not building, or by a panic between tests
			r.abandoned(t.pkg)
		}
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		why := reason(o)
		r.skipped[why] = append(r.skipped[why], t)
	case "fail":
		r.failed++
		r.print(fmt.Sprintf("--- in %s\n", r.short(t.pkg)))
		r.dump(o)
		r.keep(t, o)
	}
}

// keep keeps the beginning of what a failed test said, for the summary.
func (r *report) keep(t test, o *running) {
	f := failure{test: t}
	if o != nil {
		f.said = slices.Clone(o.output[:min(saidLines, len(o.output))])
	}
	r.said = append(r.said, f)
}

// abandoned prints the tests that a package left unfinished because of a panic or a timeout.
func (r *report) abandoned(pkg string) {
	for t, o := range r.open {
		if t.pkg == pkg {
			r.print(fmt.Sprintf("--- unfinished: %s %s\n", r.short(pkg), t.name))
			r.dump(o)
			r.keep(t, o)
			delete(r.open, t)
		}
	}
}

func (r *report) dump(o *running) {
	if o != nil {
		r.print(strings.Join(o.output, ""))
	}
}

// reason returns the message with which a test skipped itself: its last message with a place in the source, without
// that place. Lines without a place are other logs of the test or its cleanups, and go test's own lines.
func reason(o *running) string {
	if o == nil {
		return "no reason given"
	}
	var said []string
	more := false // further lines of the message may follow, indented deeper
	for _, l := range o.output {
		place, rest, ok := strings.Cut(strings.TrimSpace(l), ": ")
		switch {
		case ok && strings.Contains(place, ".go:"):
			said, more = []string{rest}, true
		case more && strings.HasPrefix(l, "        "):
			said = append(said, strings.TrimSpace(l))
		default:
			more = false
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// beat prints the running tests if nothing has been printed for a while.
func (r *report) beat(now time.Time, quiet time.Duration) {
	if now.Sub(r.spoke) < quiet {
		return
	}
	var tests []test
	for t := range r.open {
		if t.name != "" && !strings.Contains(t.name, "/") && !r.open[t].waits {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return r.open[a].since.Compare(r.open[b].since) })
	at := "building"
	if len(tests) > 0 {
		t := tests[0]
		at = fmt.Sprintf("%s %s for %s", r.short(t.pkg), t.name, now.Sub(r.open[t].since).Round(time.Second))
		if len(tests) > 1 {
			at += fmt.Sprintf(" and %d more", len(tests)-1)
		}
	}
	r.print(fmt.Sprintf("... %s: %s\n", now.Sub(r.began).Round(time.Second), at))
}

// complete reports whether every test that began has ended.
func (r *report) complete() bool { return len(r.open) == 0 }

func (r *report) short(pkg string) string { return strings.TrimPrefix(pkg, r.prefix) }

// summary writes the end of the log: the counts, why tests failed, the slowest packages, and all skipped tests.
func (r *report) summary(w io.Writer, took time.Duration) {
	skipped := 0
	for _, list := range r.skipped {
		skipped += len(list)
	}
	_, _ = fmt.Fprintf(w, "\ntests: %d passed, %d failed, %d skipped in %s\n", r.passed, r.failed, skipped, took.Round(time.Second))
	for _, f := range r.said {
		_, _ = fmt.Fprintf(w, "failed: %s %s\n", r.short(f.pkg), f.name)
		for _, line := range f.said {
			_, _ = fmt.Fprintf(w, "failed:   %s\n", strings.TrimRight(line, "\n"))
		}
	}
	slow := make([]string, 0, len(r.took))
	for pkg := range r.took {
		slow = append(slow, pkg)
	}
	slices.SortFunc(slow, func(a, b string) int { return cmp.Or(-cmp.Compare(r.took[a], r.took[b]), cmp.Compare(a, b)) })
	for _, pkg := range slow[:min(5, len(slow))] {
		_, _ = fmt.Fprintf(w, "slowest: %s %.1f s\n", r.short(pkg), r.took[pkg])
	}
	reasons := make([]string, 0, len(r.skipped))
	for why := range r.skipped {
		reasons = append(reasons, why)
	}
	slices.Sort(reasons)
	for _, why := range reasons {
		_, _ = fmt.Fprintf(w, "skipped: %s\n", why)
		slices.SortFunc(r.skipped[why], func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
		for _, t := range r.skipped[why] {
			_, _ = fmt.Fprintf(w, "skipped:   %s %s\n", r.short(t.pkg), t.name)
		}
	}
	if skipped == 0 {
		_, _ = fmt.Fprintln(w, "skipped: nothing")
	}
}

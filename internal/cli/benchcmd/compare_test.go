package benchcmd

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// saved writes a report with the metrics of an experiment and returns its directory.
func saved(t *testing.T, experiment string, metrics ...benchreport.Metric) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "report")
	r := &benchreport.Report{Title: "x", Experiments: []benchreport.Experiment{{Name: experiment, Metrics: metrics}}}
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func p99(value, low, high float64) benchreport.Metric {
	return benchreport.Metric{Name: "12 threads/routed/p99", Unit: "ms", Better: method.LowerIsBetter, Value: value, Low: low, High: high}
}

// TestCompare checks the exit codes: 1 for a broken limit, 2 for one that cannot be checked, 3 for results that have
// nothing in common. A script must not take any of them for "no worse".
func TestCompare(t *testing.T) {
	t.Parallel()
	before, after := saved(t, "routing", p99(10, 9, 11)), saved(t, "routing", p99(15, 14, 16))
	noisy, other := saved(t, "routing", p99(15, 10, 20)), saved(t, "commit", p99(10, 9, 11))
	for _, tt := range []struct {
		name string
		args []string
		code int
		says string
		out  string
	}{
		{"without a limit", []string{before, after}, 0, "", "+50.0 %"},
		{"broken", []string{before, after, "--fail-if", "p99>+10%"}, 1, "p99>+10%: routing/12 threads/routed/p99 went from 10 to 15 ms (+50.0 %)", "worse"},
		{"the other way", []string{after, before, "--fail-if", "p99>+10%"}, 0, "", "better"},
		{"within", []string{before, after, "--fail-if", "p99>+60%"}, 0, "", "worse"},
		{"explained by the intervals", []string{before, noisy, "--fail-if", "p99>+10%"}, 0, "", "no difference shown"},
		{"a metric of neither", []string{before, after, "--fail-if", "rate<-5%"}, 2, "no such metric in common", "worse"},
		{"one of two broken", []string{before, after, "--fail-if", "p99>+60%", "--fail-if", "routed/p99>+1%"}, 1, "routed/p99>+1%", "worse"},
		{"no limit", []string{before, after, "--fail-if", "p99"}, 2, "is no limit", ""},
		{"a limit that forbids no change", []string{before, after, "--fail-if", "p99>-10%"}, 2, "forbids that nothing changes", ""},
		{"other experiments", []string{before, other}, 3, "no figure in common", ""},
		{"one result", []string{before}, 2, "two report directories", ""},
		{"no such result", []string{before, after + "x"}, 1, after + "x", ""},
	} {
		r := clitest.Run(t, Bench(), "", append([]string{"compare"}, tt.args...)...)
		if r.Code != tt.code || tt.says != "" && !strings.Contains(r.Err.Error(), tt.says) || !strings.Contains(r.Out, tt.out) || (tt.out == "") != (r.Out == "") {
			t.Errorf("%s: exit code %d, %v; want %d, %q\n%s", tt.name, r.Code, r.Err, tt.code, tt.says, r.Out)
		}
	}
	r := clitest.Run(t, Bench(), "", "compare", before, after, "--json", "--fail-if", "p99>+10%")
	var changes []benchreport.Change
	if err := json.Unmarshal([]byte(r.Out), &changes); err != nil || r.Code != 1 || len(changes) != 1 || changes[0].Percent != 50 {
		t.Errorf("%v, exit code %d\n%s", err, r.Code, r.Out)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	r := clitest.Run(t, Bench(), "", "list", "--json")
	var all []struct {
		Command, Question string
		Presets           []string
		Published         *benchreport.Source
	}
	if err := json.Unmarshal([]byte(r.Out), &all); err != nil || len(all) != len(catalogue) {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	for i, e := range all {
		if e.Command != "coterie bench "+catalogue[i][0] || e.Presets == nil || (e.Published != nil) != (catalogue[i][2] != "") {
			t.Errorf("%+v", e)
		}
	}
	r = clitest.Run(t, Bench(), "", "list")
	if r.Err != nil || strings.Count(r.Out, "\n") != 2*len(catalogue) || !strings.Contains(r.Out, "nothing that is known, so there is no --preset") || !strings.Contains(r.Out, "always of that size") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
}

// TestSaveSamples checks that samples are on the disk before anything is printed of them, and that JSON stands alone.
func TestSaveSamples(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "samples.json")
	for asJSON, want := range map[bool]string{true: "{\n  \"a\": 1\n}\n", false: "a figure\nsamples: " + file + "\n"} {
		var out strings.Builder
		c := &cobra.Command{}
		c.SetOut(&out)
		figures := func(w io.Writer) error {
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			_, err := io.WriteString(w, "a figure\n")
			return err
		}
		if err := saveSamples(c, map[string]int{"a": 1}, sampleOutput{file, asJSON}, figures); err != nil || out.String() != want {
			t.Errorf("json %v: %v, %q", asJSON, err, out.String())
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != "{\n  \"a\": 1\n}\n" {
			t.Errorf("%q, %v", b, err)
		}
		broken := errors.New("standard output is closed")
		if err := saveSamples(c, 1, sampleOutput{file: file}, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		if err := saveSamples(c, 1, sampleOutput{file: file + "/x"}, figures); err == nil || !strings.Contains(err.Error(), "keep the samples") {
			t.Errorf("a place that is none: %v", err)
		}
	}
}

// TestBenchRefusals checks that a mistake in the flags ends a run before it has made anything.
func TestBenchRefusals(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"routing --threads 0":                             "--threads 0: choose numbers from 1 to 10000",
		"routing --threads 1,20000":                       "--threads 1 20000",
		"routing --format xml":                            "--format xml: choose binary, text or copy",
		"routing --rows 0":                                "--rows 0: choose 1 or more",
		"routing --preset huge":                           "--preset huge: choose scaled or published",
		"routing --target-a x":                            "give both, or neither",
		"routing --target-a x --target-b y --group z":     "choose a group (--group) or two targets",
		"routing --blocks 0":                              "--blocks 0: choose 1 or more",
		"routing --client-at n2 --group z":                "--client-at is a node of a lab",
		"routing --storage raid5":                         "--storage raid5: there is mirror",
		"routing --storage mirror --group z":              "--storage is of a lab",
		"tprocc --users 0":                                "--users 0",
		"tprocc --mode fast":                              "--mode fast: choose functions, sql or pipeline",
		"tprocc --warehouses -1":                          "--warehouses -1",
		"connect --clients 0":                             "--clients 0",
		"commit --compression lzma":                       "--compression lzma: choose AUTO, OFF, LZ4 or ZSTD",
		"commit --cells 5":                                "--cells 5: write inserts and rows",
		"all --group z":                                   "bench all makes labs of its own",
		"failover --runs -1":                              "--runs -1: choose 0 or more",
		"failover --only nap":                             "--only nap: the arms are",
		"failover --report x --workload chess":            "--workload chess: choose query or tprocc",
		"failover --report x --actions trip":              "--actions trip: they are",
		"failover --report x --clients 0":                 "--runs 50, --clients 0: choose 1 or more",
		"continuity --runs 0":                             "--runs 0: choose 1 or more",
		"continuity --only nap":                           "--only nap: the arms are",
		"listener --rounds 0":                             "--rounds and --seconds are at least 1",
		"listener --only disk":                            "--only disk: choose among data",
		"endpoint --rounds 0":                             "--rounds 0: choose 1 or more",
		"endpoint --only moon":                            "--only moon: choose among",
		"seeding --rounds 0":                              "--rounds 0: choose 1 or more",
		"seeding --size 0":                                "--size 0: choose 1 or more",
		"linkem now":                                      `does not know what to do with "now"`,
		"dance":                                           `unknown command "dance"`,
		"tunnel --rows 0":                                 "--rows 0",
		"connect --group z --node-cpu much --threads 1,2": "\"much\" of \"--node-cpu\" is not a number",
	} {
		clitest.Run(t, Bench(), "", strings.Fields(args)...).Refused(t, 2, says)
	}
}

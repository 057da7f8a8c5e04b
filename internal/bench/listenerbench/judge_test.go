package listenerbench

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/goals"
)

// measured returns the runs of a work: a rate for each round of a way.
func measured(work string, byWay map[string][]float64) (out []listenerRun) {
	for way, all := range byWay {
		for round, tps := range all {
			if tps > 0 { // 0: no run in this round
				out = append(out, listenerRun{Round: round, Work: work, Arm: way, TPS: tps, CPU: 1, Workers: 0.5})
			}
		}
	}
	return out
}

func figures(s *Samples) map[string]goals.Figure {
	s.Figures = nil
	s.judge()
	out := map[string]goals.Figure{}
	for _, f := range s.Figures {
		out[f.Name] = f
	}
	return out
}

// TestJudgePairsRounds checks that runs are compared with those of the same round only: the machine may have been busy
// in another one.
func TestJudgePairsRounds(t *testing.T) {
	t.Parallel()
	s := &Samples{Runs: measured("select-8", map[string][]float64{
		wayListener: {90, 45, 80, 70}, wayDirect: {100, 50, 0, 100}, wayHAProxy: {60, 30, 40, 0}, wayPgBouncer: {45, 45, 0, 35},
	})}
	f := figures(s)
	if got := f["listener-select-8"]; got.Measured != 0.9 || got.Low != 0.7 || got.High != 0.9 || !got.HasInterval {
		t.Errorf("beside the direct way: %+v", got)
	}
	// The faster peer of each round: 60, 45, 40 and 35.
	if got := f["listener-select-8-to-peers"]; got.Low != 1 || got.High != 2 || got.Measured != 1.75 {
		t.Errorf("beside the faster peer: %+v", got)
	}
	if got := f["listener-cpu-to-pgbouncer"]; got.Measured != 1 || got.NotRun != "" {
		t.Errorf("processor time: %+v", got)
	}
	if got := f["listener-prepared-8"]; got.NotRun != "not asked for" {
		t.Errorf("a work without runs: %+v", got)
	}
}

// TestJudgeSaysWhyNot checks the reason of each figure that is missing: the part failed, the peer is not installed, or
// nobody asked.
func TestJudgeSaysWhyNot(t *testing.T) {
	t.Parallel()
	s := &Samples{Failed: map[string]string{"connect": "no server"}, Missing: map[string]string{wayPgBouncer: "pgbouncer is not installed"}}
	f := figures(s)
	for name, want := range map[string]string{
		"listener-select-8": "not asked for", "listener-select-8-to-peers": "pgbouncer is not installed", "listener-tls-to-pgbouncer": "pgbouncer is not installed",
		"listener-cpu-to-pgbouncer": "pgbouncer is not installed", "listener-connect-scram": "no server", "listener-login-p99": "not asked for", "listener-idle-tls": "not asked for",
	} {
		if f[name].NotRun != want {
			t.Errorf("%s: %q, want %q", name, f[name].NotRun, want)
		}
	}
	s.Failed["data"] = "the disk is full" // which is why the peers were not compared
	if got := figures(s)["listener-select-8-to-peers"].NotRun; got != "the disk is full" {
		t.Error(got)
	}
}

// TestCPUIsOfTheWorstWork checks that the figure of processor time is not that of a work that suits the listener.
func TestCPUIsOfTheWorstWork(t *testing.T) {
	t.Parallel()
	run := func(work, way string, cpu, workers float64) listenerRun {
		return listenerRun{Work: work, Arm: way, TPS: 1, CPU: cpu, Workers: workers}
	}
	s := &Samples{Runs: []listenerRun{
		run("select-8", wayListener, 1, 0), run("select-8", wayPgBouncer, 2, 0), // half
		run("tpcb-8", wayListener, 1, 2), run("tpcb-8", wayPgBouncer, 2, 0), // with the kernel's workers one and a half
	}}
	if got := figures(s)["listener-cpu-to-pgbouncer"]; got.Measured != 1.5 || got.HasInterval {
		t.Errorf("%+v", got)
	}
}

// TestEveryFigureHasAGoal checks that the figures are those of the goals, and what a run prints.
func TestEveryFigureHasAGoal(t *testing.T) {
	t.Parallel()
	s := &Samples{
		Programs: map[string]string{"pgbouncer": "1.18", "haproxy": "2.6"}, LoginMS: map[string][]float64{wayListener: {1, 2, 3}},
		IdleMB: map[string]idle{"tls": {Sessions: 10, MB: 5, Limit: "only 10 files"}}, LateMS: &late{P999: 1.5},
		Runs: measured("tpcb-8", map[string][]float64{wayListener: {900}, wayDirect: {1000}}),
	}
	f := figures(s)
	if f["listener-idle-tls"].Measured != 5 || f["listener-late-p999"].Measured != 1.5 || f["listener-login-p99"].Measured != 3 {
		t.Errorf("%+v", f)
	}
	var out strings.Builder
	if err := s.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"haproxy: 2.6\npgbouncer: 1.18\n", "logins with a password, coterie: 3, p50 2.00 ms, p99 3.00 ms\n", "idle, tls: only 10 files\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, out.String())
		}
	}
	var line []string
	for l := range strings.Lines(out.String()) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "tpcb-8" && f[1] == wayListener {
			line = f
		}
	}
	if !slices.Equal(line, []string{"tpcb-8", "coterie", "900", "0.90", "1.00", "0.50"}) {
		t.Errorf("%q in\n%s", line, out.String())
	}
	if strings.Contains(out.String(), "no figure was recorded") {
		t.Errorf("a goal without a figure:\n%s", out.String())
	}
}

func TestOver(t *testing.T) {
	t.Parallel()
	for _, v := range over(map[int]float64{1: 4, 2: 4, 3: 4}, map[int]float64{1: 2, 2: 0}) {
		if v != 2 || math.IsInf(v, 0) {
			t.Errorf("%v: only round 1 has both", v)
		}
	}
}

// TestStatOf checks that a process whose name has spaces and brackets is read, and one that has ended is not.
func TestStatOf(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stat")
	for text, want := range map[string]time.Duration{
		"12 (kworker/0:1-ev (x) y) S 2 0 0 0 -1 69238880 0 0 0 0 150 50 0 0 20 0": 2 * time.Second,
		"12 (short) S 2 0": -1,
		"":                 -1,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		name, spent, ok := statOf(file)
		if ok != (want >= 0) || ok && spent != want || ok && !strings.HasPrefix(name, "kworker/0:1-ev") {
			t.Errorf("%q: %q, %v, %v", text, name, spent, ok)
		}
	}
	if _, _, ok := statOf(file + "x"); ok {
		t.Error("a process that has ended has a time")
	}
}

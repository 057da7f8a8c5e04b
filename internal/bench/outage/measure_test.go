package outage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

func TestFiguresAreThoseOfTheGoals(t *testing.T) {
	t.Parallel()
	s := Samples{UpSeconds: 8.4, Idle: []Idle{{Node: "n1", CPU: 1, RssAnonMB: 20}, {Node: "n2", CPU: 2.5, RssAnonMB: 10}}, Witness: &Idle{RssAnonMB: 21}}
	for _, ms := range []float64{9000, 7000, 8000} {
		s.Deaths = append(s.Deaths, Sample{OutageMS: ms, Verdict: ledger.Verdict{Lost: 1}})
		s.Planned = append(s.Planned, Sample{OutageMS: ms / 10})
	}
	failover, footprint := s.Figures("")
	byName := map[string]goals.Figure{}
	for _, f := range append(failover, footprint...) {
		byName[f.Name] = f
	}
	for name, want := range map[string]float64{
		"node-death-rows-lost": 3, "node-death-runs": 3, "node-death-outage-p50": 8, "planned-rows-lost": 0,
		"planned-outage-p50": 0.8, "lab-up-three-replicas": 8.4, "idle-agent-cpu": 2.5, "idle-agent-memory": 20, "witness-memory": 21,
	} {
		if f := byName[name]; f.Measured != want || f.NotRun != "" {
			t.Errorf("%s is %+v, want %v", name, f, want)
		}
	}
	var out strings.Builder
	for name, list := range map[string][]goals.Figure{"failover": failover, "footprint": footprint} {
		if _, err := goals.Report(&out, name, list); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	failover, footprint = Samples{}.Figures("an error")
	for _, f := range append(failover, footprint...) {
		if f.NotRun == "" {
			t.Errorf("%s was not measured and is %+v", f.Name, f)
		}
	}
}

func TestMedianHasAnInterval(t *testing.T) {
	t.Parallel()
	var v []float64
	for i := range 50 {
		v = append(v, float64(50-i))
	}
	f := median("m", v, "")
	if f.Measured != 25 || f.Low < 15 || f.Low >= 25 || f.High <= 25 || f.High > 35 {
		t.Errorf("%+v", f)
	}
}

func TestProcessFiguresAreRead(t *testing.T) {
	t.Parallel()
	var cpu time.Duration
	var err error
	for end := time.Now().Add(time.Minute); err == nil && cpu <= 0 && time.Now().Before(end); { // on a loaded machine it may use no tick for a while
		cpu, err = observe.CPUTime(os.Getpid())
	}
	if err != nil || cpu <= 0 || cpu > time.Hour {
		t.Errorf("%v, %v", cpu, err)
	}
	mb, err := observe.AnonymousMB(os.Getpid())
	if err != nil || mb < 0.5 || mb > 4000 {
		t.Errorf("%v MB, %v", mb, err)
	}
}

func TestSamplesAreSaved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.json")
	if err := (Samples{Version: "v1", Deaths: []Sample{{OutageMS: 7}}}).Save(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), `"outage_ms": 7`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestPeersBecomeRatios(t *testing.T) {
	t.Parallel()
	s := Samples{Deaths: []Sample{{OutageMS: 2000}, {OutageMS: 2000}, {OutageMS: 2200}}, Peers: []PeerSamples{
		{Name: "patroni", Deaths: []Sample{{OutageMS: 32000}, {OutageMS: 40000}, {OutageMS: 34000}}}, {Name: "patroni-floor"},
	}}
	failover, _ := s.Figures("an error ended it")
	seen := 0
	for _, f := range failover {
		switch f.Name {
		case "node-death-outage-to-patroni":
			seen++
			if f.NotRun != "" || f.Measured != 2.0/34 || f.Low != 2.0/40 || f.High != 2.2/32 {
				t.Errorf("%+v", f)
			}
		case "node-death-outage-to-patroni-floor":
			seen++
			if f.NotRun != "an error ended it" {
				t.Errorf("%+v", f)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d ratios", seen)
	}
}

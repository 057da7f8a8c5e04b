package goals

import (
	"strings"
	"testing"
)

func TestGoalsAreWellFormed(t *testing.T) {
	t.Parallel()
	goals, err := Goals()
	if err != nil {
		t.Fatal(err)
	}
	benches := map[string]bool{}
	for _, g := range goals {
		benches[g.Bench] = true
	}
	for bench := range benches {
		var out strings.Builder
		met, err := Report(&out, bench, nil)
		if err != nil || met {
			t.Errorf("report of %s without figures: met %t, %v", bench, met, err)
		}
	}
	for _, bad := range []string{
		`[{"bench": "b", "name": "n", "goal": 1, "better": "smaller", "unit": "s", "what": "w"}]`,
		`[{"bench": "b", "name": "n", "goal": 1, "better": "stated", "unit": "s", "what": "w"}]`,
		`[{"bench": "b", "name": "n n", "goal": 1, "better": "lower", "unit": "s", "what": "w"}]`,
		`[{"bench": "b", "name": "n", "gaol": 1, "better": "lower", "unit": "s", "what": "w"}]`,
		`[{"bench": "b", "name": "n", "goal": 1, "better": "lower", "unit": "s", "what": "w"},
		  {"bench": "b", "name": "n", "goal": 2, "better": "lower", "unit": "s", "what": "w"}]`,
	} {
		if _, err := parseGoals([]byte(bad)); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	goals := []Goal{
		{Bench: "b", Name: "outage", Goal: 8, Better: "lower", Unit: "s"},
		{Bench: "b", Name: "rate", Goal: 1000, Better: "higher", Unit: "tx/s"},
		{Bench: "b", Name: "ratio", Goal: 1, Better: "higher", Unit: "x", Ratio: true},
		{Bench: "other", Name: "elsewhere", Goal: 1, Better: "lower", Unit: "s"},
	}
	good := []Figure{
		{Name: "rate", Measured: 1234.5},
		{Name: "outage", Measured: 0.8712, Low: 0.81, High: 0.954, HasInterval: true},
		{Name: "ratio", Measured: 0.98, Low: 0.95, High: 1.01, HasInterval: true},
	}
	for _, c := range []struct {
		name    string
		figures []Figure
		met     bool
		want    string
	}{
		{"all met", good, true, `
outage                         0.871 s [0.81, 0.954]            ≤ 8 s → met
rate                           1234 tx/s                        ≥ 1000 tx/s → met
ratio                          0.98 x [0.95, 1.01]              ≥ 1 x → met
all 3 figures met
`},
		{"short and not run", []Figure{
			{Name: "outage", Measured: 8.01},
			{Name: "rate", NotRun: "no PostgreSQL 18 here"},
			{Name: "ratio", Measured: 0.9, Low: 0.85, High: 0.99, HasInterval: true},
		}, false, `
outage                         8.01 s                           ≤ 8 s → short of goal
rate                           -                                ≥ 1000 tx/s → not run: no PostgreSQL 18 here
ratio                          0.9 x [0.85, 0.99]               ≥ 1 x → short of goal
short of goal: outage, ratio; not run: rate
`},
		{"forgotten", good[:1], false, `
outage                         -                                ≤ 8 s → not run: no figure was recorded
rate                           1234 tx/s                        ≥ 1000 tx/s → met
ratio                          -                                ≥ 1 x → not run: no figure was recorded
not run: outage, ratio
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			met, err := report(&out, goals, "b", c.figures)
			if err != nil || met != c.met {
				t.Errorf("met %t, %v", met, err)
			}
			if got := "\n" + out.String(); got != c.want {
				t.Errorf("got:%s\nwant:%s", got, c.want)
			}
		})
	}
	var out strings.Builder
	aside := append(goals, Goal{Bench: "b", Name: "aside", Better: stated, Unit: "s"})
	if met, err := report(&out, aside, "b", append(good, Figure{Name: "aside", Measured: 7})); err != nil || !met || !strings.Contains(out.String(), `
aside                          7 s                              - → stated
all 3 figures met
`) {
		t.Errorf("a figure without a goal: met %t, %v:\n%s", met, err, out.String())
	}
	for name, figures := range map[string][]Figure{
		"no goal":         {{Name: "unheard-of"}},
		"of another":      {{Name: "elsewhere"}},
		"same name twice": {good[0], good[0]},
	} {
		if _, err := report(&strings.Builder{}, goals, "b", figures); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := report(&strings.Builder{}, goals, "c", nil); err == nil {
		t.Error("a bench without goals: accepted")
	}
}

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/workload"
)

// TestMinutes: every run has its line, as the published script writes it, and averages and the difference follow.
func TestMinutes(t *testing.T) {
	var out strings.Builder
	m := &minutes{w: &out, took: map[workload.Payload]map[string][]float64{}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, arm := range []string{"AUTO", "OFF", "OFF", "AUTO"} { // as blocks are drawn
		m.run(at.Add(time.Duration(i)*time.Second), map[string]time.Duration{"AUTO": time.Minute, "OFF": 2 * time.Minute}[arm], workload.PayloadConstant, arm)
	}
	if err := m.averages(); err != nil {
		t.Fatal(err)
	}
	want := `2026-01-02T03:04:05.000Z,1.000000000,AUTO,constant
2026-01-02T03:04:06.000Z,2.000000000,OFF,constant
2026-01-02T03:04:07.000Z,2.000000000,OFF,constant
2026-01-02T03:04:08.000Z,1.000000000,AUTO,constant
average,2.000000000,OFF,constant
average,1.000000000,AUTO,constant
difference_pct,50.000000000,AUTO,constant
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestPublishedSizes: with the published sizes no flag may say other ones, and shapes have to be published ones.
func TestPublishedSizes(t *testing.T) {
	for _, args := range [][]string{
		{"routing", "--rows", "10"},
		{"routing", "--iterations", "10"},
		{"routing", "--duration", "1s"},
		{"routing", "--rate", "5"},
		{"tprocc", "--transactions", "10"},
		{"tprocc", "--duration", "1s"},
		{"tprocc", "--key-and-think"},
		{"tprocc", "--warehouses", "2"},
		{"read", "--rows", "10"},
		{"commit", "--rows", "10"},
		{"commit", "--cells", "10x100"},
		{"tunnel", "--rows", "10"},
		{"tunnel", "--bytes", "10"},
		{"tunnel", "--commit-every", "1"},
		{"all", "--quick"},
		{"seeding", "--size", "2048"},
	} {
		c := benchCommand()
		args = append(args, "--preset", "published")
		if args[0] != "seeding" { // which has a server of its own
			args = append(args, "--target-a", "x", "--target-b", "x")
		}
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), args[1]) || !strings.Contains(err.Error(), "publ") {
			t.Errorf("bench %v: %v", args, err)
		}
	}
}

// TestEveryExperimentHasAPresetOrSaysWhyNot: those of published conditions take --preset; the others refuse it with the reason, and say in
// their help that there is none.
func TestEveryExperimentHasAPresetOrSaysWhyNot(t *testing.T) {
	for _, one := range catalogue {
		c := benchCommand()
		c.SilenceErrors, c.SilenceUsage = true, true
		this, _, err := c.Find([]string{one[0]})
		if err != nil {
			t.Fatal(err)
		}
		if len(presets(one[0])) > 0 {
			if one[2] == "" {
				t.Errorf("bench %s takes --preset, and nothing was published", one[0])
			}
			continue
		}
		for _, preset := range []string{presetScaled, presetPublished} {
			c.SetArgs([]string{one[0], "--preset", preset})
			if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "published") || !strings.Contains(err.Error(), "leave it out") {
				t.Errorf("bench %s --preset %s: %v", one[0], preset, err)
			}
		}
		if !strings.Contains(strings.Join(strings.Fields(this.Long), " "), "no --preset") {
			t.Errorf("the help of bench %s does not say that it has no --preset", one[0])
		}
	}
}

// TestSeedingOfAllIsPublishedOrScaled: where the disk has no room for the published size, a smaller copy is made, and called scaled.
func TestSeedingOfAllIsPublishedOrScaled(t *testing.T) {
	last := func(quick, published bool) piece {
		stages := allStages(quick, published)
		pieces := stages[len(stages)-1].pieces
		return pieces[len(pieces)-1]
	}
	for _, p := range []piece{last(false, true), last(false, false), last(true, false)} {
		if p.name != "seeding" {
			t.Fatalf("the last of all is %s", p.name)
		}
	}
	o := seedingOptions{sizeMB: 1 << 40, otherwiseMB: 64}
	if why := o.fit(); o.sizeMB != 64 || !strings.Contains(why, "caled") || !strings.Contains(why, "free") {
		t.Errorf("%d MB, %q", o.sizeMB, why)
	}
	o = seedingOptions{sizeMB: 1, otherwiseMB: 64}
	if why := o.fit(); o.sizeMB != 1 || why != "" {
		t.Errorf("%d MB, %q", o.sizeMB, why)
	}
	o = seedingOptions{sizeMB: 1 << 40}
	if why := o.fit(); o.sizeMB != 1<<40 || why != "" {
		t.Errorf("%d MB, %q", o.sizeMB, why)
	}
}

// TestTargetThatDoesNotAnswer: clients look for a server for as long as a run lasts, so a string that leads nowhere is refused before.
func TestTargetThatDoesNotAnswer(t *testing.T) {
	for _, args := range [][]string{{"--target-a", nowhere, "--target-b", nowhere}, {"--group", nowhere}} {
		c := benchCommand()
		c.SetArgs(append([]string{"read"}, args...))
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), args[len(args)-2]+": ") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// nowhere leads to a socket in a directory that is not there.
const nowhere = "postgresql://app:hush@/shop?host=/nonexistent"

// TestFailoverFlagsOfTheOther: bench failover is two things, and a flag of the one is not dropped by the other without a word.
func TestFailoverFlagsOfTheOther(t *testing.T) {
	for _, args := range [][]string{{"--actions", "kill"}, {"--workload", "tprocc"}, {"--clients", "2"}, {"--report", "x", "--only", "death"}, {"--report", "x", "--with-peers"}} {
		c := benchCommand()
		c.SetArgs(append([]string{"failover"}, args...))
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "the report") {
			t.Errorf("bench failover %v: %v", args, err)
		}
	}
}

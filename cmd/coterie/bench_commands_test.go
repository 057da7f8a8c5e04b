package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench"
)

// TestMinutes: every run has its line, as the published script writes it, and averages and the difference follow.
func TestMinutes(t *testing.T) {
	var out strings.Builder
	m := &minutes{w: &out, took: map[bench.Payload]map[string][]float64{}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, arm := range []string{"AUTO", "OFF", "OFF", "AUTO"} { // as blocks are drawn
		m.run(at.Add(time.Duration(i)*time.Second), map[string]time.Duration{"AUTO": time.Minute, "OFF": 2 * time.Minute}[arm], bench.Constant, arm)
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

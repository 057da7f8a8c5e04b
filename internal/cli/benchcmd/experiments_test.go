package benchcmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/bench/suite"
)

// TestPublishedSizes: with the published sizes, flags for other sizes are refused, and shapes must be published ones.
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
		c := Bench()
		args = append(args, "--preset", "published")
		if args[0] != "seeding" { // seeding has a server of its own
			args = append(args, "--target-a", "x", "--target-b", "x")
		}
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), args[1]) || !strings.Contains(err.Error(), "publ") {
			t.Errorf("bench %v: %v", args, err)
		}
	}
}

// TestEveryExperimentHasAPresetOrSaysWhyNot: experiments with published conditions take --preset. The others refuse it
// with the reason, and their help says that it does not exist.
func TestEveryExperimentHasAPresetOrSaysWhyNot(t *testing.T) {
	for _, one := range catalogue {
		c := Bench()
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
		for _, preset := range []string{suite.PresetScaled, suite.PresetPublished} {
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

// nowhere is a connection string to a socket in a directory that does not exist.
const nowhere = "postgresql://app:hush@/shop?host=/nonexistent"

// TestFailoverFlagsOfTheOther: bench failover has two modes, and refuses a flag of the other mode.
func TestFailoverFlagsOfTheOther(t *testing.T) {
	for _, args := range [][]string{{"--actions", "kill"}, {"--workload", "tprocc"}, {"--clients", "2"}, {"--report", "x", "--only", "death"}, {"--report", "x", "--with-peers"}} {
		c := Bench()
		c.SetArgs(append([]string{"failover"}, args...))
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "the report") {
			t.Errorf("bench failover %v: %v", args, err)
		}
	}
}

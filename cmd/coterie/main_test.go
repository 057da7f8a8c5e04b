package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelpersAreNoCommands holds that every process which this program starts of itself is a helper with a name of its
// own, and that no command is hidden but second spellings of those that are not.
func TestHelpersAreNoCommands(t *testing.T) {
	t.Parallel()
	var hidden []string
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden {
				hidden = append(hidden, sub.CommandPath())
			}
			look(sub)
		}
	}
	look(newRoot())
	want := []string{
		"coterie group add", "coterie group remove", "coterie member join", "coterie remove", "coterie resume", "coterie seed", "coterie set", "coterie token",
	}
	if slices.Sort(hidden); !slices.Equal(hidden, want) {
		t.Errorf("hidden are %q, want %q", hidden, want)
	}
	for _, name := range []string{
		"bench-copier", "bench-endpoint-node", "bench-listener-node", "bench-network", "bench-seeding-target",
		"lab-clocks", "lab-disk", "lab-network", "lab-reaper", "lab-role", "take-back",
	} {
		if helpers()[name] == nil {
			t.Errorf("no helper has the name %s", name)
		}
	}
	if n := len(helpers()); n != 11 {
		t.Errorf("%d helpers", n)
	}
}

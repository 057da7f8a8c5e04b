package main

import (
	"testing"

	"github.com/spf13/cobra"
)

// TestHelpersAreNoCommands holds that every process which this program starts of itself is a helper with a name of its
// own, and that none of the commands is hidden.
func TestHelpersAreNoCommands(t *testing.T) {
	t.Parallel()
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden {
				t.Errorf("%s is hidden", sub.CommandPath())
			}
			look(sub)
		}
	}
	look(newRoot())
	for _, name := range []string{
		"bench-copier", "bench-endpoint-node", "bench-listener-node", "bench-network", "bench-seeding-target",
		"lab-clocks", "lab-disk", "lab-network", "lab-reaper", "lab-role",
	} {
		if helpers()[name] == nil {
			t.Errorf("no helper has the name %s", name)
		}
	}
	if n := len(helpers()); n != 10 {
		t.Errorf("%d helpers", n)
	}
}

package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// DefaultNode is the node directory of a command that names none.
const DefaultNode = "/var/lib/coterie"

// MaxDrain is the longest --drain of a planned failover or restart.
const MaxDrain = time.Hour

// NeedCommand makes every group of commands below c refuse an unknown command with a usage error. A group without a
// command shows its help.
func NeedCommand(c *cobra.Command) {
	for _, sub := range c.Commands() {
		NeedCommand(sub)
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	c.Args = func(c *cobra.Command, a []string) error {
		if len(a) > 0 {
			return fail.Usagef("unknown command %q; see %s --help", a[0], c.CommandPath())
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// Args accepts exactly n arguments. Any other number is a usage error, which names them as what.
func Args(n int, what string) cobra.PositionalArgs { return ArgsBetween(n, n, what) }

// ArgsBetween accepts from least to most arguments. A negative most means no upper limit.
func ArgsBetween(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		switch {
		case most >= 0 && len(a) > most:
			return fail.Usagef("%s needs %s, and does not know what to do with %q; see %s --help", c.CommandPath(), what, strings.Join(a[most:], " "), c.CommandPath())
		case len(a) < least:
			return fail.Usagef("%s needs %s; see %s --help", c.CommandPath(), what, c.CommandPath())
		}
		return nil
	}
}

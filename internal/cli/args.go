package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// DefaultNode is the node directory of a command that names none.
const DefaultNode = "/var/lib/coterie"

const MaxDrain = time.Hour

// NeedCommand makes a usage error of a command that a group of commands does not have; without one the group shows its help.
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

// Args accepts exactly n arguments, which what names, and calls a wrong number a usage error.
func Args(n int, what string) cobra.PositionalArgs { return ArgsBetween(n, n, what) }

// ArgsBetween accepts from least to most arguments, any number from least where most is negative.
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

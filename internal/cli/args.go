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
			return unknownCommand(c, a[0])
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// FlagError returns the usage error for a flag that could not be understood, in words for people.
func FlagError(c *cobra.Command, err error) error {
	text := err.Error()
	if typed := c.Flags().Args(); c.HasSubCommands() && len(typed) > 0 { // the flags are those of a command that does not exist
		return unknownCommand(c, typed[0])
	}
	if value, ok := strings.CutPrefix(text, "invalid argument "); ok && strings.Contains(text, "time: ") {
		value, _, _ = strings.Cut(value, " flag: ")
		return fail.Usagef("%s is not a duration: write a number with its unit, as in 500ms, 30s or 2m; see %s --help", strings.Replace(value, " for ", " of ", 1), c.CommandPath())
	}
	if value, ok := strings.CutPrefix(text, "invalid argument "); ok && strings.Contains(text, "strconv.") {
		value, _, _ = strings.Cut(value, " flag: ")
		return fail.Usagef("%s is not a number that can be used here; see %s --help", strings.Replace(value, " for ", " of ", 1), c.CommandPath())
	}
	return fail.Usagef("%s; see %s --help", text, c.CommandPath())
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

// unknownCommand returns the usage error for a command that c does not have.
func unknownCommand(c *cobra.Command, typed string) error {
	if do := instead(c, typed); do != "" {
		return fail.Usagef("unknown command %q: %s; see %s --help", typed, do, c.CommandPath())
	}
	return fail.Usagef("unknown command %q; see %s --help", typed, c.CommandPath())
}

// elsewhere are commands by the names that administrators know from Patroni and other tools, with what does that here.
var elsewhere = map[string]string{
	"list": "coterie status shows the members", "topology": "coterie status shows the members", "ls": "coterie status shows the members",
	"switchover": "coterie failover --to NAME is a planned failover", "promote": "coterie failover --to NAME makes a replica the primary",
	"reinit": "coterie seed NAME --full makes a replica's copy anew", "reinitialize": "coterie seed NAME --full makes a replica's copy anew",
	"pause":         "coterie maintenance on switches automatic failover off",
	"unpause":       "coterie maintenance off switches automatic failover on again",
	"reload":        "coterie listener restart reads the rules of the listener anew, coterie restart the configuration of a node",
	"history":       "coterie explain --all tells the changes of leadership, and SELECT * FROM coterie.timelines the timelines",
	"show-config":   "coterie group show shows the options of the group, coterie settings the settings of PostgreSQL",
	"edit-config":   "coterie group set changes options of the group, coterie settings the settings of PostgreSQL",
	"suspend":       "ALTER DATABASE … SET HADR SUSPEND in coterie sql suspends; coterie resume NAME continues",
	"psql":          "psql with the address that coterie status shows under Connect",
	"dsn":           "coterie status shows the address under Connect",
	"version":       "coterie --version",
	"start":         "coterie agent starts a node, systemctl start coterie by its unit",
	"stop":          "systemctl stop coterie stops a node; its agent ends with its server",
	"query":         "coterie sql",
	"add":           "coterie token create on a member, then coterie join TOKEN on the new machine",
	"members":       "coterie status shows the members",
	"health":        "coterie check, and coterie status",
	"logs":          "log/agent.log, log/keeper.log and log/postgres.log in the node directory",
	"failback":      "coterie failover --to NAME is a planned failover",
	"flush":         "nothing is scheduled here: there is nothing to flush",
	"remove-member": "coterie remove NAME",
	"uninstall":     "coterie leave takes this node out of its group and keeps its data",
}

// instead returns what to run instead of a command that c does not have; "" if nothing is like it.
func instead(c *cobra.Command, typed string) string {
	if known := elsewhere[strings.ToLower(typed)]; known != "" && !c.HasParent() {
		return known
	}
	const alike = 2 // letters that may differ
	c.SuggestionsMinimumDistance = alike
	var paths []string
	for _, name := range c.SuggestionsFor(typed) {
		paths = append(paths, c.CommandPath()+" "+name)
	}
	if len(paths) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(paths, ", or ")
}

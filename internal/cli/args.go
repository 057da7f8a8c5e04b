package cli

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// DefaultNode is the node directory of a command that names none.
const DefaultNode = config.DefaultDir

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

// KnowHelp has the command help refuse what is no command.
func KnowHelp(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, a []string) error {
			found, rest, err := c.Root().Find(a)
			if err != nil || found == nil {
				return unknownCommand(c.Root(), strings.Join(a, " "))
			}
			if len(rest) > 0 {
				return unknownCommand(found, rest[0])
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	})
}

// Former makes a command one that help and references do not show: an earlier spelling of another one, or a second one.
func Former(c *cobra.Command) *cobra.Command {
	c.Hidden, c.GroupID = true, ""
	return c
}

// FlagError returns the usage error for a flag that could not be understood, in words for people.
func FlagError(c *cobra.Command, err error) error {
	text := err.Error()
	if typed := c.Flags().Args(); c.HasSubCommands() && len(typed) > 0 { // the flags are those of a command that does not exist
		return unknownCommand(c, typed[0])
	}
	if do := otherFlags[strings.TrimPrefix(c.CommandPath(), "coterie ")][strings.TrimPrefix(text, "unknown flag: ")]; do != "" {
		return fail.Usagef("%s: %s; see %s --help", text, do, c.CommandPath())
	}
	if errors.Is(err, errTwice) || strings.HasSuffix(text, errTwice.Error()) {
		_, flag, _ := strings.Cut(text, " for ")
		flag, _, _ = strings.Cut(flag, " flag: ")
		return fail.Usagef("%s %w; nothing was done: give it once", strings.Trim(flag, `"`), errTwice)
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

var errTwice = errors.New("is given twice")

// once is a flag that takes one value.
type once struct {
	pflag.Value
	set bool
}

func (o *once) Set(s string) error {
	if o.set {
		return errTwice
	}
	o.set = true
	return o.Value.Set(s)
}

// Once has every flag of a command and of those below it refuse a second value, as the first one would be lost without
// a word. Switches, lists and the flags that all commands inherit take several.
func Once(c *cobra.Command) {
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); !list && f.Value.Type() != "bool" && f.Value.Type() != "count" {
			f.Value = &once{Value: f.Value}
			if f.DefValue == "0s" { // pflag leaves this out of --help where it knows the type
				f.DefValue = "0"
			}
		}
	})
	for _, below := range c.Commands() {
		Once(below)
	}
}

// Args accepts exactly n arguments. Any other number is a usage error, which names them as what.
func Args(n int, what string) cobra.PositionalArgs { return ArgsBetween(n, n, what) }

// ArgsBetween accepts from least to most arguments. A negative most means no upper limit.
func ArgsBetween(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		switch {
		case most == 0 && len(a) > 0 && c.HasAvailableSubCommands():
			return fail.Usagef("%s has no command %q; it has %s, see %s --help", c.CommandPath(), a[0], strings.Join(below(c), ", "), c.CommandPath())
		case most >= 0 && len(a) > most:
			return fail.Usagef("%s needs %s, and does not know what to do with %q; see %s --help", c.CommandPath(), what, strings.Join(a[most:], " "), c.CommandPath())
		case len(a) < least:
			return fail.Usagef("%s needs %s; see %s --help", c.CommandPath(), what, c.CommandPath())
		}
		return nil
	}
}

// below returns the names of the commands below one.
func below(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// MemberName returns the name of a member that a person typed as the group spells it: its case does not count, nor does
// the domain of its host, as in statements.
func MemberName(typed string) string {
	host, _, _ := strings.Cut(strings.ToLower(typed), ".")
	return host
}

// OneReplica accepts one argument, the name of a member or replica.
func OneReplica(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if err := Args(1, what)(c, a); err != nil {
			return err
		}
		if a[0] == "" {
			return fail.Usagef("%s needs %s, and that is empty; nothing was done", c.CommandPath(), what)
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

// elsewhere are commands by the names that administrators know from Patroni and other tools, or would guess, with what
// does that here. Below a word they are known by their whole path.
var elsewhere = map[string]string{
	"list": "coterie status shows the group, coterie member list its members", "topology": "coterie status shows the members", "ls": "coterie status shows the members",
	"cluster": "coterie status shows the group", "show": "coterie status shows the group", "info": "coterie status shows the group", "state": "coterie status shows the group",
	"switchover": "coterie failover --to NAME is a planned failover", "promote": "coterie failover --to NAME makes a replica the primary",
	"failback": "coterie failover --to NAME is a planned failover", "switch": "coterie failover --to NAME is a planned failover", "demote": "coterie failover --to NAME makes another replica the primary",
	"takeover": "coterie failover --to NAME makes a replica the primary; --allow-data-loss forces it",
	"reinit":   "coterie replica seed NAME --full makes a replica's copy anew", "reinitialize": "coterie replica seed NAME --full makes a replica's copy anew",
	"rejoin": "a node that was down comes back by itself; coterie replica resume NAME continues a suspended one, coterie replica seed NAME --full makes its copy anew",
	"clone":  "coterie join TOKEN copies the data by itself; coterie replica seed NAME copies it again", "basebackup": "coterie join TOKEN copies the data by itself; coterie replica seed NAME copies it again",
	"pause":   "coterie maintenance on switches automatic failover off",
	"unpause": "coterie maintenance off switches automatic failover on again",
	"reload":  "coterie listener restart reads the rules of the listener anew, coterie restart the configuration of a node",
	"history": "coterie sql -c 'SELECT * FROM coterie.timelines' lists the changes of leadership, and coterie explain tells the last ones",
	"events":  "coterie explain --all, and SELECT * FROM coterie.events in coterie sql",
	"why":     "coterie explain", "monitor": "coterie status --watch, and docs/how-to/monitor.md", "watch": "coterie status --watch", "top": "coterie status --watch",
	"show-config": "coterie group show shows the options of the group, coterie settings the settings of PostgreSQL",
	"edit-config": "coterie group set changes options of the group, coterie settings the settings of PostgreSQL",
	"options":     "coterie group show", "suspend": "ALTER DATABASE … SET HADR SUSPEND in coterie sql suspends; coterie replica resume NAME continues",
	"psql": "psql with the address that coterie status shows under Connect", "connect": "psql with the address that coterie status shows under Connect",
	"dsn": "coterie status shows the address under Connect", "url": "coterie status shows the address under Connect",
	"version": "coterie --version",
	"start":   "coterie agent starts a node, systemctl start coterie by its unit",
	"stop":    "systemctl stop coterie stops a node; its agent ends with its server", "shutdown": "systemctl stop coterie stops a node; its agent ends with its server",
	"query": "coterie sql",
	"add":   "coterie member add-token on a member, then coterie join TOKEN on the new machine", "add-node": "coterie member add-token on a member, then coterie join TOKEN on the new machine",
	"members": "coterie member list", "nodes": "coterie member list", "node": "coterie member list shows the nodes, coterie check looks at this one", "quorum": "coterie member list shows the votes, coterie check quorum looks at them",
	"databases": "coterie database list", "replicas": "coterie replica list",
	"health": "coterie check, and coterie status", "doctor": "coterie check, and coterie status",
	"logs":          "log/agent.log, log/keeper.log and log/postgres.log in the node directory",
	"flush":         "nothing is scheduled here: there is nothing to flush",
	"remove-member": "coterie member remove NAME", "evict": "coterie member remove NAME", "drop": "coterie member remove NAME takes a member out, coterie destroy ends this node for good",
	"replace": "coterie member replace NAME puts a new node in the place of a lost one",
	"delete":  "coterie destroy ends this node for good, coterie member remove NAME takes another one out", "purge": "coterie destroy ends this node for good", "wipe": "coterie destroy ends this node for good",
	"uninstall": "coterie leave takes this node out of its group and keeps its data, coterie destroy removes it too",
	"create":    "coterie init founds a group", "bootstrap": "coterie init founds a group", "setup": "coterie init --interactive founds a group",
	"upgrade": "install the new program, then coterie restart on one node after the other: docs/how-to/upgrade.md", "rewind": "a diverged node is rewound by itself; coterie replica resume NAME continues a suspended one",

	"config show": "cat coterie.yaml in the node directory; coterie group show and coterie settings show what the group has", "config get": "cat coterie.yaml in the node directory",
	"settings reset": "coterie settings unset NAME", "settings show": "coterie settings list", "settings remove": "coterie settings unset NAME", "settings delete": "coterie settings unset NAME",
	"config set": "edit coterie.yaml in the node directory, then coterie config check and coterie restart", "config edit": "edit coterie.yaml in the node directory, then coterie config check and coterie restart",

	"member add": "coterie member add-token, then coterie join TOKEN on the new machine", "member leave": "coterie leave, on the member itself",
	"member status": "coterie status, or coterie member list", "member delete": "coterie member remove NAME", "member promote": "coterie failover --to NAME makes a replica the primary",
	"replica join": "coterie join TOKEN, on the new machine; of a node that has joined, ALTER AVAILABILITY GROUP … JOIN in coterie sql", "replica reinit": "coterie replica seed NAME --full",
	"replica promote": "coterie failover --to NAME", "replica suspend": "ALTER DATABASE … SET HADR SUSPEND in coterie sql suspends; coterie replica resume NAME continues",
	"group list": "coterie status shows the group of this node", "group status": "coterie status", "group failover": "coterie failover --to NAME", "group create": "coterie init founds a group",
	"group delete": "coterie destroy, on each node", "group destroy": "coterie destroy, on each node", "group join": "coterie join TOKEN, on the new machine", "group leave": "coterie leave",
	"database create": "coterie database add NAME registers one, and creates it where it is absent", "database drop": "coterie database remove NAME takes it off the register; DROP DATABASE in psql drops it",
}

// otherFlags are flags of commands that administrators know from Patroni, with what does that here.
var otherFlags = map[string]map[string]string{
	"failover": {
		"--force":     "a planned failover asks nothing; one that may lose commits is --to NAME --allow-data-loss",
		"--candidate": "the replica that is to lead is named with --to NAME",
		"--leader":    "the primary is known; the replica that is to lead is named with --to NAME",
		"--master":    "the primary is known; the replica that is to lead is named with --to NAME",
		"--scheduled": "it begins at once; run it by a timer",
	},
	"restart": {
		"--force": "it asks nothing; transactions that do not end are cut with --cut",
		"--role":  "coterie restart --postgres NAME restarts one replica, --all every one",
	},
	"status": {"--format": "--json prints JSON"},
}

// instead returns what to run instead of a command that c does not have; "" if nothing is like it.
func instead(c *cobra.Command, typed string) string {
	_, below, _ := strings.Cut(c.CommandPath()+" ", " ")
	if known := elsewhere[below+strings.ToLower(typed)]; known != "" {
		return known
	}
	const alike = 2 // letters that may differ
	c.SuggestionsMinimumDistance = alike
	var paths []string
	for _, name := range c.SuggestionsFor(typed) {
		paths = append(paths, c.CommandPath()+" "+name)
	}
	if len(paths) > 0 {
		return "did you mean " + strings.Join(paths, ", or ")
	}
	return mistyped(below, strings.ToLower(typed))
}

// mistyped returns what to run instead of a word that is nearly one of elsewhere; "" if it is near none. Cobra measures
// for it, as it does for real commands.
func mistyped(below, typed string) string {
	known := &cobra.Command{SuggestionsMinimumDistance: 1}
	for path := range elsewhere {
		if word, is := strings.CutPrefix(path, below); is && !strings.Contains(word, " ") && len(word) >= 5 { // short words are near too many
			known.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
		}
	}
	near := known.SuggestionsFor(typed)
	if len(near) != 1 || typed == "" {
		return ""
	}
	return elsewhere[below+near[0]]
}

package labcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

const endsHelp = `A and B are names of nodes, several with commas between them, or client (this host), nodes (every node) or all (every node and the
client). The links of a lab with --net netns can be changed at any time, and keep what they were given when the lab is started again.`

// shapeFlags are the properties of a link, in the order in which help shows them.
var shapeFlags = []struct{ name, help string }{
	{"rtt", "round trip, as in 60ms; each direction has half of it"},
	{"delay", "of one direction, as in 30ms"},
	{"jitter", "by how much the delay varies to either side, as in 5ms; packets stay in order"},
	{"loss", "share of the packets, as in 1%"},
	{"burst", "mean number of packets that are lost together, as in 5"},
	{"rate", "bits per second, as in 20mbit"},
	{"queue", "bytes that wait for the rate before more are dropped, as in 256kb (default 50 ms of the rate)"},
	{"reorder", "share of the packets that later ones overtake, as in 1%"},
	{"duplicate", "share of the packets that arrive twice, as in 1%"},
	{"corrupt", "share of the packets that arrive with one bit wrong, as in 0.1%"},
}

func labLink() *cobra.Command {
	var profile string
	var oneWay, asJSON bool
	values := map[string]*string{}
	c := &cobra.Command{
		Use: "link A B [PROFILE]", Short: "Make links slow, narrow or lossy",
		Long: `Makes the links between A and B as described, whatever they were before; what is not named is perfect. A cut is over, too.

` + endsHelp + `

Profiles: ` + profileHelp() + `.`,
		Example: `  coterie lab link n1 n2 --rtt 60ms --loss 1% --rate 20mbit
  coterie lab link n1 nodes wan-bad
  coterie lab link all all --profile metro
  coterie lab link n2 n1 --delay 200ms --one-way`,
		Args: cli.ArgsBetween(2, 3, "two names, and perhaps a profile"),
		RunE: func(c *cobra.Command, a []string) error {
			if len(a) == 3 && profile != "" {
				return fail.Usagef("a profile is given twice: %s and --profile %s", a[2], profile)
			}
			if len(a) == 3 {
				profile = a[2]
			}
			if c.Flags().Changed("rtt") && c.Flags().Changed("delay") {
				return fail.Usagef("--rtt and --delay say the same in two ways: a round trip, or one direction of it")
			}
			s, err := linkem.ParseShape(profile)
			if err != nil {
				return fail.Usagef("%w", err)
			}
			named := profile != ""
			for _, f := range shapeFlags {
				if !c.Flags().Changed(f.name) {
					continue
				}
				named = true
				if err := s.Set(f.name, *values[f.name]); err != nil {
					return fail.Usagef("--%w", err)
				}
			}
			if !named {
				return fail.Usagef("what is the link to be like? Name a profile or properties, see %s --help; coterie lab heal %s %s makes it as it was at first", c.CommandPath(), a[0], a[1])
			}
			l, err := openLab(c)
			if err != nil {
				return err
			}
			now, err := l.Link(c.Context(), a[0], a[1], s, oneWay)
			return printLinks(c, now, asJSON, err)
		},
	}
	for _, f := range shapeFlags {
		values[f.name] = c.Flags().String(f.name, "", f.help)
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&profile, "profile", "", linkem.ShapeHelp)
	c.Flags().BoolVar(&oneWay, "one-way", false, "only what A sends to B; the way back stays as it is")
	c.Flags().BoolVar(&asJSON, "json", false, "print the links and their counters as JSON")
	return c
}

func profileHelp() string {
	var b []string
	for _, name := range linkem.ProfileNames() {
		b = append(b, name+" ("+shapeWords(linkem.Profiles[name], true)+")")
	}
	return strings.Join(b, "; ")
}

func labCut() *cobra.Command {
	var oneWay, reject, forget, asJSON bool
	c := &cobra.Command{
		Use: "cut A B", Short: "Let nothing through between nodes",
		Long: `Cuts the links between A and B: what is sent vanishes, and the sender waits in vain, as with a pulled cable or a firewall that drops.
With --reject the sender is told at once, as by a machine that has no such service: connections are refused and reset.
With --forget only connections that began before are cut, without a word; new ones pass, as with a stateful firewall or NAT that lost its
table (conntrack -F, a failover of the firewall). Each repetition is one more loss of the table.

` + endsHelp + `
coterie lab heal ends it.`,
		Example: `  coterie lab cut n1 nodes              # n1 from the others, not from the client
  coterie lab cut n1 all --reject       # from everybody
  coterie lab cut n1 n2,n3 --one-way    # what n1 sends
  coterie lab cut n1 nodes --forget     # what is connected now; new connections pass`,
		Args: cli.Args(2, "two names"),
		RunE: func(c *cobra.Command, a []string) error {
			if forget && (reject || oneWay) {
				return fail.Usagef("--forget goes with neither --reject nor --one-way: such a firewall tells nobody, and sees both directions")
			}
			l, err := openLab(c)
			if err != nil {
				return err
			}
			if forget {
				now, err := l.Forget(c.Context(), a[0], a[1])
				return printLinks(c, now, asJSON, err)
			}
			now, err := l.Cut(c.Context(), a[0], a[1], reject, oneWay)
			return printLinks(c, now, asJSON, err)
		},
	}
	c.Flags().BoolVar(&oneWay, "one-way", false, "only what A sends to B")
	c.Flags().BoolVar(&reject, "reject", false, "tell the sender: a connection is refused or reset")
	c.Flags().BoolVar(&forget, "forget", false, "only what is connected now, as a firewall that lost its table; new connections pass")
	c.Flags().BoolVar(&asJSON, "json", false, "print the links and their counters as JSON")
	return c
}

func labHeal() *cobra.Command {
	var cuts, asJSON bool
	c := &cobra.Command{
		Use: "heal [A [B]]", Short: "Make links as they were at first, or only end cuts",
		Long: `Makes the links between A and B, of A, or all of them as they were when the lab was made: perfect, or as coterie lab up --links said. With
--cuts it ends cuts only: a link that was made slow or lossy is that again. It also starts the lab's network if that does not run.

` + endsHelp,
		Args: cli.ArgsBetween(0, 2, "two names at most"),
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			for len(a) < 2 {
				a = append(a, lab.AllEnds)
			}
			now, err := l.Heal(c.Context(), a[0], a[1], cuts)
			return printLinks(c, now, asJSON, err)
		},
	}
	c.Flags().BoolVar(&cuts, "cuts", false, "only end cuts")
	c.Flags().BoolVar(&asJSON, "json", false, "print the links and their counters as JSON")
	return c
}

func labExec() *cobra.Command {
	return &cobra.Command{
		Use: "exec NODE -- COMMAND...", Short: "Run a command in a node's network",
		Long: `Runs a command in the network namespace of a node, or of the client, which is this host. There it has the node's address and its links, and
the names of all nodes are addresses. It is otherwise an ordinary command of this machine, with this terminal, and its exit code is passed
on. A process that is left when the lab goes down is killed.`,
		Example: `  coterie lab exec n2 -- curl -s http://n1:8008/health
  coterie lab exec n2 -- ip addr
  coterie lab exec w -- sh`,
		Args: func(c *cobra.Command, a []string) error {
			if len(a) < 2 || c.ArgsLenAtDash() > 1 {
				return fail.Usagef("%s needs a node and a command, as in: coterie lab exec n1 -- ip addr", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			return l.Exec(a[0], a[1:])
		},
	}
}

// printLinks prints what is in force on links that were changed.
func printLinks(c *cobra.Command, now []linkem.Stats, asJSON bool, err error) error {
	if err != nil {
		return err
	}
	if asJSON {
		return cli.PrintJSON(c, map[string]any{"links": now})
	}
	if len(now) > 2 && !slices.ContainsFunc(now, func(s linkem.Stats) bool { return s.Shape != (linkem.Shape{}) }) {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%d links, all perfect\n", len(slices.Collect(linkLines(now))))
		return err
	}
	return printLines(c.OutOrStdout(), slices.Collect(linkLines(now)), false)
}

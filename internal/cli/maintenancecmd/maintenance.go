package maintenancecmd

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

const about = `Announces work, so that the group does not interfere. Without NAME no automatic failover begins: a primary that dies is waited for, and one
whose server ends is started again where it is. Planned failovers (coterie failover) and forced ones happen. With NAME that replica takes
no readers, its health checks for readers fail, and it is not a target of failovers; it keeps its vote, its copy and its part in commits.

Maintenance is kept in the configuration of the group: it survives failovers and restarts, and every node, coterie status, coterie explain, the
views and the metrics show it. With --for it ends by itself, by the clock of the primary's machine. No commit is lost because of it; while the
group is under maintenance, the death of the primary stops writes until it is back, or until maintenance ends.`

// longest is the longest maintenance that ends by itself.
const longest = 30 * 24 * time.Hour

// state is the maintenance of a group, as the command prints it with --json.
type state struct {
	Group    *ag.Maintenance                  `json:"group"` // null: automatic failover is on
	Replicas map[ag.ReplicaID]*ag.Maintenance `json:"replicas"`
}

// Maintenance returns the command maintenance.
func Maintenance() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "maintenance", GroupID: "group", Short: "Switch automatic failover off for a while, or take a replica out of routing", Long: about,
		Example: "  coterie maintenance on --for 2h --reason 'new switches'\n  coterie maintenance on n2 --for 30m\n  coterie maintenance\n  coterie maintenance off",
		Args:    cli.Args(0, "on, off or no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, _, err := ask(c)
			if err != nil {
				return err
			}
			return show(c, s, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(onCommand(), offCommand())
	return c
}

func ask(c *cobra.Command) (api.Status, *api.Client, error) {
	cl, err := cli.Client(c)
	if err != nil {
		return api.Status{}, nil, err
	}
	s, err := cl.Status(c.Context())
	if err == nil && s.Availability.Removed {
		return s, cl, fail.Unhealthyf("%s was removed from the group: it knows nothing of the group's maintenance; run the command on a member", s.Node)
	}
	return s, cl, cli.NoAgent(c, err)
}

// show prints what is under maintenance.
func show(c *cobra.Command, s api.Status, asJSON bool) error {
	now := state{s.Maintenance, map[ag.ReplicaID]*ag.Maintenance{}}
	for _, r := range s.Replicas {
		if r.Maintenance != nil {
			now.Replicas[r.Name] = r.Maintenance
		}
	}
	if asJSON {
		return cli.PrintJSON(c, now)
	}
	if s.Maintenance != nil {
		cli.Linef(cli.Out(c), "%s: automatic failover is off for maintenance %s\n", s.Group, s.Maintenance)
	}
	for _, r := range s.Replicas {
		if r.Maintenance != nil {
			cli.Linef(cli.Out(c), "%s: out of routing, and no target of failovers, %s\n", r.Name, r.Maintenance)
		}
	}
	if s.Maintenance == nil && len(now.Replicas) == 0 {
		cli.Linef(cli.Out(c), "%s: no maintenance is under way\n", s.Group)
	}
	return nil
}

func onCommand() *cobra.Command {
	var span time.Duration
	var reason string
	var asJSON bool
	c := &cobra.Command{
		Use: "on [NAME]", Short: "Begin maintenance of the group, or of one replica", Args: cli.ArgsBetween(0, 1, "[NAME]"), Long: about,
		Example: "  coterie maintenance on --for 2h --reason 'new switches'\n  coterie maintenance on n2",
		RunE: func(c *cobra.Command, a []string) error {
			if c.Flags().Changed("for") && span == 0 {
				return fail.Usagef("--for 0: leave --for away for maintenance that coterie maintenance off ends")
			}
			value, err := value(time.Now(), span, reason)
			if err != nil {
				return err
			}
			return change(c, a, value, asJSON)
		},
	}
	c.Flags().DurationVar(&span, "for", 0, "end it by itself after so long, as 30m or 2h (default: coterie maintenance off ends it)")
	c.Flags().StringVar(&reason, "reason", "", "why, for everybody who looks at the group")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func offCommand() *cobra.Command {
	var asJSON, all bool
	c := &cobra.Command{
		Use: "off [NAME]", Short: "End maintenance of the group, of one replica, or all of it", Args: cli.ArgsBetween(0, 1, "[NAME]"),
		Example: "  coterie maintenance off\n  coterie maintenance off n2\n  coterie maintenance off --all",
		RunE: func(c *cobra.Command, a []string) error {
			if !all {
				return end(c, a, asJSON)
			}
			if len(a) > 0 {
				return fail.Usagef("%s or --all: choose one", a[0])
			}
			s, _, err := ask(c)
			if err != nil {
				return err
			}
			for _, r := range s.Replicas {
				if r.Maintenance != nil {
					if err := alter(c, replicaClause(string(r.Name), "OFF")); err != nil {
						return err
					}
				}
			}
			return change(c, nil, "OFF", asJSON)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "of the group and of every replica")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// value returns the value of the option MAINTENANCE.
func value(now time.Time, span time.Duration, reason string) (string, error) {
	switch {
	case span < 0 || span > longest || span > 0 && span < time.Minute:
		return "", fail.Usagef("--for %v: choose between 1m and %v", span, longest)
	case strings.HasPrefix(reason, "until "), strings.ContainsAny(reason, "\n\r\t"), len(reason) > 200:
		return "", fail.Usagef("--reason: one line of at most 200 bytes that does not begin with until; --for says how long")
	case span == 0 && reason == "":
		return "ON", nil
	case span == 0:
		return ddl.Literal(reason), nil
	}
	return ddl.Literal(ag.Maintenance{Until: now.Add(span).Round(time.Second), Reason: reason}.String()), nil
}

func replicaClause(name, value string) string {
	return "MODIFY REPLICA ON " + ddl.Literal(name) + " WITH (MAINTENANCE = " + value + ")"
}

// change sets the option of the group, or of the replica that is named, and prints what is under maintenance then.
func change(c *cobra.Command, names []string, value string, asJSON bool) error {
	clause := "SET (MAINTENANCE = " + value + ")"
	if len(names) > 0 {
		clause = replicaClause(names[0], value)
	}
	if err := alter(c, clause); err != nil {
		return err
	}
	s, _, err := ask(c)
	if err != nil {
		return err
	}
	return show(c, s, asJSON)
}

// end ends the maintenance of the group, or of the replica that is named, and says so where there is none.
func end(c *cobra.Command, names []string, asJSON bool) error {
	was, _, err := ask(c)
	if err != nil {
		return err
	}
	under := was.Maintenance != nil
	what, others := "the group "+was.Group, []string{}
	for _, r := range was.Replicas {
		if r.Maintenance != nil {
			others = append(others, "coterie maintenance off "+string(r.Name))
		}
	}
	if len(names) > 0 {
		what, others = names[0], nil
		i := slices.IndexFunc(was.Replicas, func(r api.Replica) bool { return string(r.Name) == names[0] })
		under = i < 0 || was.Replicas[i].Maintenance != nil // a name that the group does not have is refused
		if was.Maintenance != nil {
			others = append(others, "coterie maintenance off")
		}
	}
	if err := change(c, names, "OFF", asJSON); err != nil || under {
		return err
	}
	said := what + " was not under maintenance: nothing was changed"
	if len(others) > 0 {
		said += "; what is above ends with: " + strings.Join(others, ", ")
	}
	cli.Say(c, "%s", said)
	return nil
}

// alter runs a clause of ALTER AVAILABILITY GROUP, and passes its notices on.
func alter(c *cobra.Command, clause string) error {
	s, cl, err := ask(c)
	if err != nil {
		return err
	}
	r, err := sqlrun.Ask(c, cl, "ALTER AVAILABILITY GROUP "+ddl.Brackets(s.Group)+" "+clause)
	for _, n := range r.Notices {
		cli.Say(c, "%s: %s", n.Severity, n.Message)
	}
	return err
}

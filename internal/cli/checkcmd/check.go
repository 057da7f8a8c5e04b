package checkcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/check/posture"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// checks returns the probes of coterie check for the node in dir. Every area adds its probes here.
func checks(dir string) *check.Registry {
	r := &check.Registry{}
	r.Add("certificates", 0, func(context.Context) ([]check.Finding, error) { return check.FindCertificates(dir, time.Now()) })
	r.Add("group", 0, func(ctx context.Context) ([]check.Finding, error) { return check.FindGroup(ctx, dir) })
	r.Add("settings", 0, func(ctx context.Context) ([]check.Finding, error) { return check.FindSettings(ctx, dir) })
	r.Add("quorum", 0, func(ctx context.Context) ([]check.Finding, error) { return check.FindQuorum(ctx, dir) })
	r.Add("security", time.Minute, func(ctx context.Context) ([]check.Finding, error) { return posture.Find(ctx, dir) })
	r.Add("backup", 3*time.Minute, func(ctx context.Context) ([]check.Finding, error) { return check.FindBackup(ctx, dir) })
	r.Add("storage", time.Minute, func(ctx context.Context) ([]check.Finding, error) {
		return check.FindStorage(ctx, dir, &storage.Reader{})
	})
	r.Add("fence", 3*time.Minute, func(ctx context.Context) ([]check.Finding, error) { return check.FindFence(ctx, dir) })
	return r
}

// Check returns the command check, with its subcommands.
func Check() *cobra.Command {
	var asJSON, before, answer bool
	var f nodecmd.NodeFlags
	c := &cobra.Command{
		Use: "check [AREA...]", GroupID: "node", Short: "Look for what is wrong with this node before it matters",
		Long: `Looks at this node and prints what it finds, each with why it matters and what to run. Without an area it looks at all of them.

fence    how long this host takes until nothing of a server is alive (200 processes that do not obey, three times), and which lease
         profiles allow for that; a witness has no server
quorum   whether the endpoints of an external etcd answer, how fast, and how many members it has
certificates
         how long this node's certificates hold
group    what the health policies find, which synchronous replicas can never take over by themselves, and URLs whose host has no address
security which ports are open to whom, which rules for clients trust, who can read the keys, what the processes may do, and which roles
         reach the node by its server: each with what to change
backup   the age of the last backup, how the primary archives, gaps in the archive, and from which point on it can be restored; which
         replicas could not archive if they took over
storage  what the node's directories stand on: mirrors of md, LVM, ZFS or btrfs, which side is missing or returned errors, and resyncs.
         As root it asks for more: lvs, and scrubs of btrfs
settings which settings, libraries and collation versions differ between the replicas' servers, and which wait for a restart

With --preflight, before there is a group, the arguments are the hosts that are to be its nodes: their names, the ports both ways, round
trip and loss, the clocks, which PostgreSQL, C library, locales and extensions' libraries are installed, how long a flush takes and
whether that is plausible, and space. On each of them coterie check --answer runs meanwhile.

Exit code 3 when there is a problem, or something could not be checked.`,
		Args: cobra.ArbitraryArgs, ValidArgs: checks("").Areas(),
		Example: "  coterie check\n  coterie check fence --json\n  coterie check --answer                   # on db2 and db3\n  coterie check --preflight db2 db3        # on db1",
		RunE: func(c *cobra.Command, areas []string) error {
			dir := cli.Node(c)
			switch {
			case before && answer:
				return fail.Usagef("choose one of --preflight and --answer")
			case before && len(areas) == 0:
				return fail.Usagef("--preflight needs the hosts that are to be nodes beside this one")
			case before:
				found, err := runPreflight(c.Context(), dir, &f, areas)
				if err != nil {
					return err
				}
				return report(c, found, asJSON)
			case answer:
				return answerPreflights(c, dir, &f)
			}
			r := checks(dir)
			for _, a := range areas {
				if !slices.Contains(r.Areas(), a) {
					return fail.Usagef("there is nothing called %s to check; choose from: %s", a, strings.Join(r.Areas(), ", "))
				}
			}
			if _, err := cli.PerhapsNode(c); err != nil {
				return err
			}
			return report(c, r.Run(c.Context(), areas...), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&before, "preflight", false, "look at this host and at others before a group exists; the arguments are their names")
	c.Flags().BoolVar(&answer, "answer", false, "answer preflights of other hosts, for ten minutes")
	c.Flags().StringVar(&f.Endpoint, "endpoint", ":5022", "port between nodes, for --preflight and --answer")
	c.Flags().StringVar(&f.ReadWrite, "read-write", ":5432", "port for clients that write, for --preflight and --answer")
	c.Flags().StringVar(&f.ReadOnly, "read-only", ":5433", "port for clients that only read, for --preflight and --answer")
	c.Flags().StringVar(&f.HTTP, "http", ":8008", "port for health checks and metrics, for --preflight and --answer")
	c.AddCommand(checkLink(), checkBackupCommand(), checkRoutingCommand(), checkContinuityCommand())
	return c
}

// report prints the findings. It returns cli.ErrUnhealthy if one is worse than a warning.
func report(c *cobra.Command, found []check.Finding, asJSON bool) error {
	if err := printFindings(c, found, asJSON); err != nil {
		return err
	}
	if check.Worst(found).Worse(check.Warning) {
		return cli.ErrUnhealthy
	}
	return nil
}

func printFindings(c *cobra.Command, found []check.Finding, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c, found)
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(cli.Out(c), "%-8s %s: %s\n", f.Level, f.Area, cli.Cell(f.What)); err != nil {
			return err
		}
		for _, more := range []string{f.Why, f.Run} {
			if more != "" {
				cli.Linef(cli.Out(c), "         %s\n", more)
			}
		}
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// checks lists what coterie check can look at on the node in dir. Each area adds its probes here.
func checks(dir string) *check.Registry {
	r := &check.Registry{}
	r.Add("certificates", 0, func(context.Context) ([]check.Finding, error) { return findCertificates(dir, time.Now()) })
	r.Add("group", 0, func(ctx context.Context) ([]check.Finding, error) { return findGroup(ctx, dir) })
	r.Add("settings", 0, func(ctx context.Context) ([]check.Finding, error) { return findSettings(ctx, dir) })
	r.Add("quorum", 0, func(ctx context.Context) ([]check.Finding, error) { return findQuorum(ctx, dir) })
	r.Add("fence", 3*time.Minute, func(ctx context.Context) ([]check.Finding, error) { return findFence(ctx, profileOf(dir)) })
	return r
}

func checkCommand() *cobra.Command {
	var asJSON, before, answer bool
	var f nodeFlags
	c := &cobra.Command{
		Use: "check [AREA...]", GroupID: "node", Short: "Look for what is wrong with this node before it matters",
		Long: `Looks at this node and prints what it finds, each with why it matters and what to run. Without an area it looks at all of them.

fence    how long this host takes until nothing of a server is alive (200 processes that do not obey, three times), and which lease
         profiles allow for that
quorum   whether the endpoints of an external etcd answer, how fast, and how many members it has
certificates
         how long this node's certificates hold
group    what the health policies find, which synchronous replicas can never take over by themselves, and URLs whose host has no address
settings which settings, libraries and collation versions differ between the replicas' servers, and which wait for a restart

With --preflight, before there is a group, the arguments are the hosts that are to be its nodes: their names, the ports both ways, round
trip and loss, the clocks, which PostgreSQL, C library, locales and extensions' libraries are installed, how long a flush takes and
whether that is plausible, and space. On each of them coterie check --answer runs meanwhile.

Exit code 3 when there is a problem, or something could not be checked.`,
		Args:    cobra.ArbitraryArgs,
		Example: "  coterie check\n  coterie check fence --json\n  coterie check --answer                   # on db2 and db3\n  coterie check --preflight db2 db3        # on db1",
		RunE: func(c *cobra.Command, areas []string) error {
			dir, _ := c.Flags().GetString("node")
			switch {
			case before && answer:
				return fail.Usagef("choose one of --preflight and --answer")
			case before && len(areas) == 0:
				return fail.Usagef("--preflight needs the hosts that are to be nodes beside this one")
			case before:
				return runPreflight(c, dir, &f, areas, asJSON)
			case answer:
				return answerPreflights(c, dir, &f)
			}
			r := checks(dir)
			for _, a := range areas {
				if !slices.Contains(r.Areas(), a) {
					return fail.Usagef("there is nothing called %s to check; choose from: %s", a, strings.Join(r.Areas(), ", "))
				}
			}
			found := r.Run(c.Context(), areas...)
			if err := printFindings(c, found, asJSON); err != nil {
				return err
			}
			if check.Worst(found).Worse(check.Warning) {
				return errUnhealthy
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&before, "preflight", false, "look at this host and at others before a group exists; the arguments are their names")
	c.Flags().BoolVar(&answer, "answer", false, "answer preflights of other hosts, for ten minutes")
	c.Flags().StringVar(&f.endpoint, "endpoint", ":5022", "port between nodes, for --preflight and --answer; as are the next three")
	c.Flags().StringVar(&f.readWrite, "read-write", ":5432", "port for clients that write")
	c.Flags().StringVar(&f.readOnly, "read-only", ":5433", "port for clients that only read")
	c.Flags().StringVar(&f.http, "http", ":8008", "port for health checks and metrics")
	c.AddCommand(checkLink(), checkBackupCommand(), checkRoutingCommand())
	return c
}

func printFindings(c *cobra.Command, found []check.Finding, asJSON bool) error {
	if asJSON {
		return printJSON(c, found)
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%-8s %s: %s\n", f.Level, f.Area, f.What); err != nil {
			return err
		}
		for _, more := range []string{f.Why, f.Run} {
			if more != "" {
				_, _ = fmt.Fprintf(c.OutOrStdout(), "         %s\n", more)
			}
		}
	}
	return nil
}

// profileOf is the lease profile of the group as the node in dir knows it; the default one where there is no node.
func profileOf(dir string) string {
	l, err := config.NewLayout(dir)
	if err != nil {
		return "default"
	}
	var g ag.Group
	b, err := os.ReadFile(l.GroupFile())
	if err != nil || json.Unmarshal(b, &g) != nil || g.Profile == "" {
		return "default"
	}
	return g.Profile
}

// fenceRounds is how often the time to fence is measured: the worst counts.
const fenceRounds = 3

// findFence measures the time to fence and holds every lease profile against it (safety specification 8).
func findFence(ctx context.Context, profile string) ([]check.Finding, error) {
	var all []time.Duration
	for range fenceRounds {
		d, err := keeper.MeasureFence(ctx, fencedProcesses)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	slices.Sort(all)
	worst := all[len(all)-1]
	out := []check.Finding{{
		Level: check.OK,
		What:  fmt.Sprintf("fencing %d processes took %v, at worst %v of %d", fencedProcesses, round(all[len(all)/2]), round(worst), fenceRounds),
	}}
	names := make([]string, 0, len(ag.Profiles))
	for name := range ag.Profiles {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out = append(out, judgeProfile(ag.Profiles[name], worst, name == profile))
	}
	return out, nil
}

// judgeProfile holds a profile against the measured worst time to fence, with the arithmetic shown.
func judgeProfile(p ag.Profile, worst time.Duration, inUse bool) check.Finding {
	f := check.Finding{Level: check.OK, What: fmt.Sprintf("profile %s allows %v for it", p.Name, p.Fence)}
	if inUse {
		f.What += "; it is the group's"
	}
	if worst <= p.Fence {
		return f
	}
	p.Fence = worst
	err := p.Validate()
	f.Level, f.Why = check.Warning, "it holds all the same: a slower fence uses up the reserve between the lease and the takeover"
	switch {
	case err != nil && inUse:
		f.Level, f.Why = check.Problem, err.Error()
		f.Run = "use a longer profile, or find what makes the host slow: a primary here may still act when another one takes over"
	case err != nil:
		f.Why = "not to be used on this host: " + err.Error()
	}
	return f
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

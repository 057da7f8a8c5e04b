package groupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// namedByFlag refuses arguments, and a target without a name, which a script may have by mistake: it would be any.
func namedByFlag(c *cobra.Command, a []string) error {
	if len(a) > 1 && a[0] == "to" {
		a = a[1:]
	}
	if len(a) > 0 {
		return fail.Usagef("%s needs no arguments; name the replica as in %s --to %s", c.CommandPath(), c.CommandPath(), a[0])
	}
	if to := c.Flags().Lookup("to"); to.Changed && to.Value.String() == "" {
		return fail.Usagef("--to has an empty name; nothing was changed: name the replica that is to lead, or leave --to out")
	}
	return nil
}

// Failover returns the command failover, which makes another replica the primary.
func Failover() *cobra.Command {
	var req api.FailoverRequest
	var to string
	var yes, asJSON, away bool
	c := &cobra.Command{
		Use: "failover", GroupID: "group", Short: "Make another replica the primary",
		Long: `Moves the leadership, without loss, to a SYNCHRONIZED secondary. The primary makes a checkpoint while it goes on serving; then new
transactions wait and running ones end, the target catches up, the primary stops, the target is promoted, and the old primary becomes a
secondary. Sessions move to the new primary with their state and keep their clients. Those that cannot be moved are closed: idle ones with
SQLSTATE 57P01, those whose transaction was not begun yet with 40001; either may connect again at once. A request waits 8 s at most.

Transactions that still run after --drain make it give up, with nothing changed, or are cut if --cut is given. Until the record
names the target, any failure ends with the old primary leading on, in the same epoch. If the target dies after that, the old primary or
another synchronized secondary takes over. The steps are shown as they happen.

--allow-data-loss promotes a replica that may lack acknowledged commits, when the primary is gone for good. The other copies are left
as they are, suspended, until coterie replica resume brings each back; what they had beyond the new primary is kept in their forked/ directory.
It is promoted at once and opens when the old primary can answer no client any more: within the answer lease if a majority of voters
answers, else after its silence, 6.5 s by default. With --now it opens at once, and clients of the old primary may read old data meanwhile.`,
		Example: "  coterie failover --to n2\n  coterie failover --to n2 --dry-run\n  coterie failover --to n2 --drain 1m --cut\n  coterie failover --to n3 --allow-data-loss",
		Args:    namedByFlag,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			req.To = ag.ReplicaID(cli.MemberName(to))
			if away {
				if again, err := goesAway(c, cl, req); !again {
					return err
				}
			}
			if err := checkFailover(c, cl, req, yes); err != nil {
				return err
			}
			if req.Now {
				cli.Say(c, "warning: %s opens at once: until the lease of the old primary ends, its clients may still read rows as they were, without what is written on %s", req.To, req.To)
			}
			stop := func() {}
			if !asJSON && !req.DryRun {
				stop = showSteps(c, cl)
			}
			r, err := cl.Failover(c.Context(), req)
			closed := ""
			if err == nil && !req.DryRun && !away {
				closed = awaitOpen(c, cl, r.To)
			}
			stop()
			if err != nil {
				return cli.NoAgent(c, err)
			}
			if asJSON {
				return cli.PrintJSON(c, r)
			}
			if err := told(c, r, closed); err != nil || !req.AllowDataLoss {
				return err
			}
			saySuspended(c, cl)
			return nil
		},
	}
	c.Flags().StringVar(&to, "to", "", "the replica that is to lead (default for a planned failover: the first synchronized one)")
	c.Flags().DurationVar(&req.Drain, "drain", 10*time.Second, "how long running transactions may take to end")
	c.Flags().BoolVar(&req.Cut, "cut", false, "cut transactions that still run then, instead of giving up")
	c.Flags().BoolVar(&away, "away", false, "only if this node is the primary; else do nothing (what the service unit does before a stop)")
	c.Flags().BoolVar(&req.AllowDataLoss, "allow-data-loss", false, "promote it even if it may lack acknowledged commits")
	c.Flags().BoolVar(&req.Now, "now", false, "with --allow-data-loss: open at once, even if the old primary may still answer clients with old data")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "change nothing; list the sessions that a planned failover would end or wait for now, and why")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// told prints how a failover ended; closed is why the new primary does not take writes yet, as far as that is known.
func told(c *cobra.Command, r api.FailoverResult, closed string) error {
	if r.DryRun {
		return showMoves(c, r)
	}
	cli.Say(c, "%s is the primary in epoch %d after %v (was %s)", r.To, r.Epoch, r.Took.Round(time.Millisecond), r.From)
	if closed != "" {
		cli.Say(c, "%s", closed)
	}
	return nil
}

// saySuspended names the replicas that a forced failover has suspended, as far as this node knows them, and what to do.
func saySuspended(c *cobra.Command, cl *api.Client) {
	s, err := cl.Status(c.Context())
	if err != nil {
		return // the failover is done, and coterie status says it later
	}
	var names []string
	for _, r := range s.Replicas {
		if r.Suspended {
			names = append(names, string(r.Name))
		}
	}
	if len(names) > 0 {
		cli.Say(c, "suspended until you look at what only their copies have: %s; coterie replica resume NAME keeps that in forked/ there, and has the replica follow", strings.Join(names, ", "))
	}
}

// openBudget is how long a new primary is waited for to take writes. Its commits may wait for the old one to follow.
const openBudget = 20 * time.Second

// awaitOpen waits until the new primary takes writes, as this node knows it, so that the next command sees it. If it
// does not, awaitOpen returns what is known.
func awaitOpen(c *cobra.Command, cl *api.Client, primary ag.ReplicaID) (closed string) {
	ctx, cancel := context.WithTimeout(c.Context(), openBudget)
	defer cancel()
	_ = retry.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		s, err := cl.Status(ctx)
		if err != nil && ctx.Err() != nil && closed != "" {
			return false, err // the time is over: what was seen before counts
		}
		closed = notOpen(s, err, primary)
		return closed == "", nil
	})
	return closed
}

// notOpen returns why a new primary does not take writes by the status of this node, or why that is not known here; "":
// it does.
func notOpen(s api.Status, err error, primary ag.ReplicaID) string {
	i := slices.IndexFunc(s.Replicas, func(r api.Replica) bool { return r.Name == primary })
	elsewhere := fmt.Sprintf("coterie status on %s says it", primary)
	switch {
	case err != nil:
		return fmt.Sprintf("whether it takes writes is not known, since the agent of this node does not answer: %v; %s", err, elsewhere)
	case s.Primary == primary && s.WriteOpen:
		return ""
	case i >= 0 && primary != s.Node && s.Replicas[i].Connected != "CONNECTED":
		return fmt.Sprintf("whether it takes writes is not known here, since this node does not see %s; %s", primary, elsewhere)
	case !s.Quorum:
		return "whether it takes writes is not known here, since no majority of the quorum answers this node; " + elsewhere
	case s.Primary != primary:
		return fmt.Sprintf("whether it takes writes is not known here, since this node does not know %s as the primary yet; %s", primary, elsewhere)
	}
	return "it does not take writes yet: coterie status says why"
}

// showMoves prints which sessions a planned failover would end.
func showMoves(c *cobra.Command, r api.FailoverResult) error {
	w := tabwriter.NewWriter(cli.Out(c), 2, 8, 2, ' ', 0)
	lost, busy := 0, 0
	for _, s := range r.Sessions {
		if s.Why == "" {
			continue
		}
		if lost+busy == 0 {
			_, _ = fmt.Fprintln(w, "REPLICA\tUSER\tDATABASE\tCLIENT\tSINCE\tWOULD")
		}
		would := "end: " + s.Why
		if s.Waits {
			busy++
			would = "be waited for; if it is cut: " + cmp.Or(s.Cut, "the node of its client decides")
		} else {
			lost++
		}
		cli.Linef(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Replica, s.User, s.Database, s.Client, s.Since.UTC().Format(time.RFC3339), would)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	cli.Say(c, "a failover from %s to %s would move %d of %d sessions, wait for %d that are busy, and end %d; nothing was changed",
		r.From, r.To, len(r.Sessions)-lost-busy, len(r.Sessions), busy, lost)
	if busy > 0 {
		cli.Say(c, "busy sessions have --drain to end their transactions: then the failover is given up or, with --cut, they are cut")
	}
	return nil
}

// goesAway reports whether this node has the leadership, so that it can be moved to another one.
func goesAway(c *cobra.Command, cl *api.Client, req api.FailoverRequest) (bool, error) {
	if req.To != "" || req.AllowDataLoss {
		return false, fail.Usagef("--away chooses a synchronized replica by itself: leave --to and --allow-data-loss away")
	}
	s, err := cl.Status(c.Context())
	switch {
	case errors.Is(err, api.ErrNoAgent):
		return false, nil
	case err != nil:
		return false, err
	case s.Primary != s.Node:
		cli.Say(c, "%s is not the primary; nothing to do", s.Node)
		return false, nil
	}
	return true, nil
}

func checkFailover(c *cobra.Command, cl *api.Client, req api.FailoverRequest, yes bool) error {
	switch {
	case req.Drain < time.Millisecond || req.Drain > cli.MaxDrain:
		return fail.Usagef("--drain %v: choose between 1ms and %v", req.Drain, cli.MaxDrain)
	case req.DryRun && req.AllowDataLoss:
		return fail.Usagef("--dry-run is for a planned failover: one with --allow-data-loss moves no session")
	case req.Now && !req.AllowDataLoss:
		return fail.Usagef("--now belongs to --allow-data-loss: a planned failover has stopped the old primary before the new one opens")
	case !req.AllowDataLoss:
		return nil
	case req.To == "":
		return fail.Usagef("--allow-data-loss needs --to NAME: choose the replica by its position in coterie status")
	case !yes:
		return confirmLoss(c, cl)
	}
	return nil
}

// showSteps prints the steps that the nodes report, until stop is called.
func showSteps(c *cobra.Command, cl *api.Client) (stop func()) {
	ctx, cancel := context.WithCancel(c.Context())
	start, said := time.Now(), map[ag.ReplicaID]string{}
	look := func() {
		ask, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		s, err := cl.Status(ask)
		if err != nil {
			return // the answer to the request has the error
		}
		for _, r := range s.Replicas {
			if r.Progress != "" && said[r.Name] != r.Progress {
				cli.Say(c, "%6.2f s  %s: %s", time.Since(start).Seconds(), r.Name, r.Progress)
			}
			said[r.Name] = r.Progress
		}
	}
	look() // an operation that is already running is not part of this failover, but explains delays
	var running sync.WaitGroup
	running.Go(func() {
		retry.Every(ctx, 20*time.Millisecond, look)
	})
	return func() {
		cancel()
		running.Wait()
		look()
	}
}

// confirmLoss asks the user to type the name of the group, as a confirmation that commits may be lost.
func confirmLoss(c *cobra.Command, cl *api.Client) error {
	d, err := look(c, cl)
	if err != nil {
		return err
	}
	if err := d.render(cli.Out(c)); err != nil {
		return err
	}
	var b strings.Builder
	d.problems(&b)
	if _, err := io.WriteString(cli.Out(c), b.String()); err != nil {
		return err
	}
	if !cli.Interactive(c) {
		return fail.Refusedf("a forced failover may lose acknowledged commits; nothing was changed: add --yes to do it from a script")
	}
	return cli.Confirm(c, d.Group, "\nCommits beyond the position of the chosen replica will be lost. Type the group's name (%s) to go on:", d.Group)
}

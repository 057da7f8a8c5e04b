package nodecmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Restart returns the command restart, which replaces the agent and keeps PostgreSQL running.
func Restart() *cobra.Command {
	var req api.RestartRequest
	c := &cobra.Command{
		Use: "restart", GroupID: "node", Short: "Restart this node's agent while its PostgreSQL goes on",
		Long: `Replaces the running agent by the program as it is installed now, for an upgrade or a changed coterie.yaml, without stopping PostgreSQL.

A secondary's server is not touched. On the primary new transactions wait and running ones end first, as in a planned failover; then its
sessions are closed and may connect again at once; the leadership stays where it is, in the same epoch. If the new agent has not taken
over within three seconds, the server is fenced and another replica takes over. Where a client must see nothing of it, make another
replica the primary first: coterie failover.`,
		Example: "  coterie restart\n  coterie restart --drain 30s --cut",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if req.Drain < time.Millisecond || req.Drain > cli.MaxDrain {
				return fail.Usagef("--drain %v: choose between 1ms and %v", req.Drain, cli.MaxDrain)
			}
			return restart(c, cl, req)
		},
	}
	c.Flags().DurationVar(&req.Drain, "drain", 10*time.Second, "how long running transactions may take to end, on the primary")
	c.Flags().BoolVar(&req.Cut, "cut", false, "end transactions that still run then, instead of giving up")
	return c
}

// successorBudget is the time in which the new agent must answer.
const successorBudget = 30 * time.Second

// restart asks the agent to restart and waits until the new agent answers. A moved leadership is an unhealthy error.
func restart(c *cobra.Command, cl *api.Client, req api.RestartRequest) error {
	was, err := cl.Status(c.Context())
	if err != nil {
		return cli.NoAgent(c, err)
	}
	if err := cl.Restart(c.Context(), req); err != nil {
		var answered fail.Error
		if errors.As(err, &answered) || errors.Is(err, api.ErrNoAgent) || c.Context().Err() != nil {
			return cli.NoAgent(c, err)
		}
		// The agent ended before its answer was read.
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.Context(), successorBudget)
	defer cancel()
	for {
		s, err := cl.Status(ctx)
		if err == nil && s.Restarted(time.Since(began)) && (s.WriteOpen || !was.WriteOpen) {
			if was.Primary == was.Node && (s.Primary != s.Node || s.Epoch != was.Epoch) {
				return fail.Unhealthyf("the agent restarted, but the leadership moved: %s leads epoch %d; see coterie explain", s.Primary, s.Epoch)
			}
			cli.Say(c, "the agent of %s was restarted in %v; PostgreSQL went on", s.Node, time.Since(began).Round(time.Millisecond))
			return nil
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return fail.Unhealthyf("the new agent has not answered within %v; see its log, and coterie status", successorBudget)
		}
	}
}

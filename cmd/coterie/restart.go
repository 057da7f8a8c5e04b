package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/agent"
)

// partsBudget is how long what this agent serves may take to say goodbye before it gives way to its successor: a primary's keeper
// waits for that one already.
const partsBudget = 300 * time.Millisecond

func awaitBriefly(running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }() // ends with the process, which is about to be replaced
	select {
	case <-done:
	case <-time.After(partsBudget):
	}
}

// succeed replaces this process by a new one of the program as it is on disk now: the same process id, so that whoever started it
// notices nothing, and nothing inherited but the standard streams. The quorum member is not stopped in order, which its log is made
// for. It returns only if that fails.
func (n *node) succeed() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	n.log.Info("agent restarts in place", "program", exe)
	return fmt.Errorf("run %s again: %w", exe, syscall.Exec(exe, os.Args, os.Environ()))
}

// Restart has the agent replace itself.
func (m *admin) Restart(ctx context.Context, req api.RestartRequest) error {
	if m.n.pg == nil {
		return api.Refused("a witness has no server to keep running; restart it with its service unit")
	}
	if err := m.n.agent.Restart(ctx, agent.RestartOptions{Drain: req.Drain, Cut: req.Cut}); err != nil {
		return api.Unhealthy("not restarted, everything goes on as before: " + err.Error())
	}
	return nil
}

func restartCommand() *cobra.Command {
	var req api.RestartRequest
	c := &cobra.Command{
		Use: "restart", GroupID: "node", Short: "Restart this node's agent while its PostgreSQL goes on",
		Long: `Replaces the running agent by the program as it is installed now, for an upgrade or a changed coterie.yaml, without stopping PostgreSQL.

A secondary's server is not touched. On the primary new transactions wait and running ones end first, as in a planned failover; then its
sessions are closed and may connect again at once; the leadership stays where it is, in the same epoch. If the new agent has not taken
over within three seconds, the server is fenced and another replica takes over. Where a client must see nothing of it, make another
replica the primary first: coterie failover.`,
		Example: "  coterie restart\n  coterie restart --drain 30s --cut",
		Args:    args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			if req.Drain < time.Millisecond || req.Drain > maxDrain {
				return fail.Usagef("--drain %v: choose between 1ms and %v", req.Drain, maxDrain)
			}
			return restart(c, cl, req)
		},
	}
	c.Flags().DurationVar(&req.Drain, "drain", 10*time.Second, "how long running transactions may take to end, on the primary")
	c.Flags().BoolVar(&req.Cut, "cut", false, "end transactions that still run then, instead of giving up")
	return c
}

// successorBudget is how long a new agent may take to answer.
const successorBudget = 30 * time.Second

func restart(c *cobra.Command, cl *api.Client, req api.RestartRequest) error {
	was, err := cl.Status(c.Context())
	if err != nil {
		return noAgent(c, err)
	}
	if err := cl.Restart(c.Context(), req); err != nil {
		var refused *api.Error
		if errors.As(err, &refused) || errors.Is(err, api.ErrNoAgent) || c.Context().Err() != nil {
			return noAgent(c, err)
		}
		// The agent was gone before its answer was read.
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
			say(c, "the agent of %s was restarted in %v; PostgreSQL went on", s.Node, time.Since(began).Round(time.Millisecond))
			return nil
		}
		select {
		case <-ctx.Done():
			return fail.Unhealthyf("the new agent has not answered within %v; see its log, and coterie status", successorBudget)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

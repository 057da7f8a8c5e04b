package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Client returns a client of the agent that runs the node directory.
func Client(c *cobra.Command) (*api.Client, error) {
	dir, _ := c.Flags().GetString("node")
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.Dir); err != nil {
		return nil, fail.Usagef("there is no node directory %s; name one with --node DIR, or make one with coterie init", l.Dir)
	}
	return api.NewClient(l.AgentSock(), l.Owner()), nil
}

// NoAgent replaces api.ErrNoAgent by an unhealthy error with the command that starts the agent. It returns other errors
// unchanged.
func NoAgent(c *cobra.Command, err error) error {
	if errors.Is(err, api.ErrNoAgent) {
		dir, _ := c.Flags().GetString("node")
		return fail.Unhealthyf("no agent runs %s; start it with: coterie agent --node %s", dir, dir)
	}
	return err
}

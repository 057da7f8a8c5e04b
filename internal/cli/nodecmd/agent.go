package nodecmd

import (
	"errors"
	"io/fs"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node"
	"github.com/coteriedb/coterie/internal/provision"
)

// Agent returns the command agent, which runs a node.
func Agent() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use:     "agent",
		GroupID: "node",
		Short:   "Run this node (what a service unit starts)",
		Long: `Runs the node of a node directory made by coterie init, join or witness: its part of the quorum, its PostgreSQL, its ports.
It logs to DIR/log/agent.log and, on a terminal, to the screen. SIGTERM or Ctrl-C stops the server in order, releases the leadership
and ends. Started as root it becomes user ` + daemon.ServerUserName + ` first.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			if _, err := config.Load(dir); err != nil { // before the directory gets another owner
				if errors.Is(err, fs.ErrPermission) {
					return cli.NoAgent(c, err)
				}
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			if err := daemon.BecomeServerUser(dir); err != nil {
				return err
			}
			if err := daemon.EnsureTimerSlack(); err != nil {
				return err
			}
			return runAgent(c, dir, verbose)
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log debug messages too")
	return c
}

// runAgent runs the node until the context ends or the node fails.
func runAgent(c *cobra.Command, dir string, verbose bool) error {
	if _, err := config.Load(dir); err != nil {
		return err
	}
	if l, err := config.NewLayout(dir); err == nil {
		if d, err := provision.ReadDeparture(l); err != nil || d != nil {
			if d == nil { // it cannot be read, and is there
				d = &provision.Departure{}
			}
			return fail.Refusedf("this node is leaving its group; nothing was started. %s goes on with it", d.Command(l))
		}
	}
	log, err := daemon.OpenLog(dir, verbose)
	if err != nil {
		return err
	}
	defer log.Close()
	// A quiet agent uses about 20 MB. Fourfold growth of the heap, within a limit, halves the time for garbage
	// collection.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(100 << 20)
	err = node.Run(c.Context(), dir, node.Logs{Agent: log.Logger, Journal: log.Journal})
	if err != nil {
		log.Error("agent ended", "err", err)
	} else {
		log.Info("agent ended")
	}
	return err
}

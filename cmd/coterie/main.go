// Command coterie runs and administers availability groups of PostgreSQL servers. The commands are in the packages
// below internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/endpointbench"
	"github.com/coteriedb/coterie/internal/bench/linkbench"
	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/bench/outage"
	"github.com/coteriedb/coterie/internal/bench/seedbench"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/backupcmd"
	"github.com/coteriedb/coterie/internal/cli/benchcmd"
	"github.com/coteriedb/coterie/internal/cli/checkcmd"
	"github.com/coteriedb/coterie/internal/cli/completion"
	"github.com/coteriedb/coterie/internal/cli/groupcmd"
	"github.com/coteriedb/coterie/internal/cli/hbacmd"
	"github.com/coteriedb/coterie/internal/cli/labcmd"
	"github.com/coteriedb/coterie/internal/cli/leavecmd"
	"github.com/coteriedb/coterie/internal/cli/maintenancecmd"
	"github.com/coteriedb/coterie/internal/cli/mancmd"
	"github.com/coteriedb/coterie/internal/cli/membercmd"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/cli/restartcmd"
	"github.com/coteriedb/coterie/internal/cli/settingscmd"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/cli/supportcmd"
	"github.com/coteriedb/coterie/internal/cli/upgradecmd"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/capabilities"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keeper" { // first, because the keeper needs none of the rest
		os.Exit(keeper.Main(os.Args[2:]))
	}
	if err := capabilities.Withhold(); err != nil {
		os.Exit(cli.Report(err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ran, err := helpers().Run(ctx, os.Args[1:], reexec.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if !ran {
		err = newRoot().ExecuteContext(ctx)
	}
	stop()
	os.Exit(cli.Report(err))
}

// helpers returns the functions that child processes of this program run.
func helpers() reexec.Helpers {
	h := lab.Helpers()
	for _, add := range []func() (string, reexec.Helper){daemon.TakeBackHelper, outage.ForwarderHelper, linkbench.Network, endpointbench.Node, listenerbench.Node, seedbench.Target} {
		name, run := add()
		h[name] = run
	}
	return h
}

// newRoot returns the command coterie with all commands below it.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "coterie",
		Short: "Availability groups for unmodified PostgreSQL",
		Long: `Coterie gives PostgreSQL a primary and up to eight secondaries, automatic failover without lost commits, one address with
read-only routing, and an authenticated replication link.

To see it work on this machine:      coterie demo
To form a group on three machines:   coterie init            (on the first; it prints the next command)
                                     coterie join TOKEN      (on each other)

Exit codes: 0 ok, 1 error, 2 usage, 3 unhealthy, 4 refused for safety; coterie status --check also 5 degraded.`,
		Version:       buildinfo.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.PersistentFlags().String("node", cli.NodeDirectory(), "the node directory; the variable COTERIE_NODE names another default")
	root.AddGroup(&cobra.Group{ID: "node", Title: "A node:"}, &cobra.Group{ID: "group", Title: "The group:"}, &cobra.Group{ID: "try", Title: "To try it:"})
	root.AddCommand(nodecmd.Init(), nodecmd.Join(false), nodecmd.Join(true), nodecmd.Agent(), nodecmd.Config(), nodecmd.Release(), leavecmd.Leave(), leavecmd.Destroy(),
		groupcmd.Status(), checkcmd.Check(), groupcmd.Failover(), groupcmd.Recover(), restartcmd.Restart(), upgradecmd.Upgrade(), membercmd.Member(), groupcmd.Explain(), sqlrun.SQL(), groupcmd.CA())
	root.AddCommand(groupcmd.Clauses()...)
	for _, c := range []*cobra.Command{membercmd.Token(), membercmd.Remove(), groupcmd.Resume(), groupcmd.Seed(), groupcmd.Set()} {
		root.AddCommand(cli.Former(c)) // what acts on a member or a replica is below that word
	}
	root.AddCommand(backupcmd.Backup(), backupcmd.Restore(), settingscmd.Settings(), hbacmd.HBA(), maintenancecmd.Maintenance(), mancmd.Man(), supportcmd.Bundle())
	root.AddCommand(labcmd.Lab()...)
	root.AddCommand(labcmd.Demo(), benchcmd.Bench())
	cli.KnowHelp(root)
	cli.NeedCommand(root)
	cli.Once(root)
	completion.Add(root)
	return root
}

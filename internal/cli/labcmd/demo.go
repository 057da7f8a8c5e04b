package labcmd

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/demo"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
)

// Demo returns the command demo.
func Demo() *cobra.Command {
	var o demo.Options
	var lo lab.Options
	var asJSON bool
	c := &cobra.Command{
		Use: "demo", GroupID: "try", Short: "Kill a primary under load, and see what was lost",
		Long: `Makes a group of three replicas on this machine, loads a TPC-C-derived database through its listener, and under the load of 8 clients
kills the primary with everything it runs. It shows what the others decide, has the dead node come back, moves the leadership as
planned, and then compares, on every replica, every row that was ever acknowledged, the twelve consistency conditions, and the
contents. It takes about a minute, and nothing of it is left afterwards but with --keep.

Exit code 1 if anything acknowledged was lost, if a condition is violated or if the replicas differ.

--broken shows that it can fail: just before the kill it stops the primary's walsenders and empties synchronous_standby_names behind
the agent's back. Commits that the primary acknowledges then are on no other node: the demo must find them lost.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if lo.Dir, err = lab.DemoDir(lo.Dir, "demo"); err != nil {
				return err
			}
			var f nodecmd.NodeFlags
			in, err := f.Install(c.Context())
			if err != nil {
				return err
			}
			o.Out = c.OutOrStdout()
			if asJSON {
				o.Out = c.ErrOrStderr()
			}
			o.Colour = cli.Colours(o.Out)
			o.Program, o.Terminal, o.Dir, o.Version, o.Server = os.Args[0], cli.IsTerminal(o.Out), lo.Dir, buildinfo.Describe(), in.Version+" in "+in.BinDir
			o.Up = func(ctx context.Context, progress func(string)) (observe.Lab, error) {
				return bed.UpLab(ctx, lo, progress)
			}
			r, err := demo.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = cli.PrintJSON(c, r)
			}
			if err == nil && !r.Sound {
				err = errors.New("the group did not keep what it promised")
			}
			return err
		},
	}
	c.Flags().BoolVar(&o.Keep, "keep", false, "leave the group running at the end")
	c.Flags().BoolVar(&o.Broken, "broken", false, "take the protection away before the kill: the demo must find rows lost")
	c.Flags().BoolVar(&asJSON, "json", false, "print the verdict as JSON, and the story to standard error")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Net, "net", "", "loopback (default), or netns: every node in a network namespace of its own (root)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-demo)")
	return c
}

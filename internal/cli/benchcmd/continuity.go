package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/continuitybench"
	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func benchContinuity() *cobra.Command {
	o := continuitybench.Options{}
	cost := listenerbench.CostOptions{}
	var lo lab.Options
	var out sampleOutput
	var only []string
	var quick bool
	c := &cobra.Command{
		Use: "continuity", Short: "Measure what sessions see in failovers: errors, held requests, kept connections, COMMITs in doubt",
		Long: `Makes a group of three replicas on this machine with CONTINUITY = REPLAY, and connects clients that run prepared TPC-B and sessions with
settings, channels and prepared statements: half of them by the listener of the primary's node, half by those of other nodes, and half of each
by TLS. Then it moves the leadership as planned, kills the primary's node, and kills the primary's PostgreSQL alone, each --runs times. After
each fault every session looks whether its state is what it was, and a ledger holds each answer to a COMMIT against the rows that are there:
committed means there exactly once, 40001 means not there, 08007 leaves it open. A wrong answer ends the command with an error.

Before a death the sessions have time to have their states read, as those of a pool have; the view coterie.continuity says when. At last it
measures what CONTINUITY costs while nothing fails, by prepared TPC-B through listeners that take turns, and what memory an idle session takes
for it. --with names a program of another commit that takes turns with this one.

Nobody published these conditions, so there is no --preset.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range only {
				if !slices.Contains(continuitybench.Arms, continuitybench.Arm(name)) {
					return fail.Usagef("--only %s: the arms are %v", name, continuitybench.Arms)
				}
				o.Only = append(o.Only, continuitybench.Arm(name))
			}
			if quick {
				for flag, to := range map[string]*int{"runs": &o.Runs, "rounds": &cost.Rounds, "seconds": &cost.Seconds, "idle": &cost.Sessions} {
					if !c.Flags().Changed(flag) {
						*to = map[string]int{"runs": 2, "rounds": 1, "seconds": 1, "idle": 20}[flag]
					}
				}
			}
			if err := atLeastOne(c, "runs", "clients", "sessions", "rounds", "seconds", "idle"); err != nil {
				return err
			}
			s, err := measureContinuity(c, o, cost, lo)
			if err == nil && s.Wrong() > 0 {
				err = fmt.Errorf("%d answers were wrong", s.Wrong())
			}
			return errors.Join(saveSamples(c, s, out, s.Print), err)
		},
	}
	withoutPreset(c, "nobody published these conditions")
	c.Flags().IntVar(&o.Runs, "runs", 20, "faults of each kind")
	c.Flags().IntVar(&o.Clients, "clients", 32, "clients that run prepared TPC-B")
	c.Flags().IntVar(&o.Sessions, "sessions", 32, "sessions with settings, channels and prepared statements")
	c.Flags().DurationVar(&o.Pace, "pace", 0, "mean pause of a client between two transactions")
	c.Flags().StringSliceVar(&only, "only", nil, fmt.Sprintf("arms to run: %v (default all)", continuitybench.Arms))
	c.Flags().BoolVar(&quick, "quick", false, "2 faults of each kind, one short round of the cost")
	c.Flags().IntVar(&cost.Rounds, "rounds", 20, "rounds of the cost")
	c.Flags().IntVar(&cost.Seconds, "seconds", 3, "how long each run of pgbench is, for the cost")
	c.Flags().IntVar(&cost.Sessions, "idle", 200, "idle sessions whose memory is measured")
	c.Flags().StringVar(&cost.With, "with", "", "a program of another commit, whose listener takes turns with this one's")
	c.Flags().IntVar(&cost.Port, "cost-port", 28300, "first of eight ports on this host, for the cost")
	c.Flags().BoolVar(&out.asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out.file, "out", "bench-continuity.json", "file for the samples")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
	return c
}

func measureContinuity(c *cobra.Command, o continuitybench.Options, cost listenerbench.CostOptions, lo lab.Options) (s *continuitybench.Samples, err error) {
	var f nodecmd.NodeFlags
	in, err := f.Install(c.Context())
	if err != nil {
		return &continuitybench.Samples{}, err
	}
	if lo.Dir, err = lab.DemoDir(lo.Dir, "bench"); err != nil {
		return &continuitybench.Samples{}, err
	}
	if o.Dir, err = os.MkdirTemp("/var/tmp", "coterie-bench-"); err != nil {
		return &continuitybench.Samples{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	o.Version, o.Server = buildinfo.Describe(), in.Version
	o.Screen = observe.NewScreen(c.ErrOrStderr(), cli.IsTerminal(c.ErrOrStderr()))
	defer o.Screen.Close()
	o.Up = func(ctx context.Context) (continuitybench.Lab, error) { return upLab[continuitybench.Lab](ctx, lo) }
	o.Group = func(ctx context.Context, dsn string) (continuitybench.Group, error) { return bed.OpenGroup(ctx, dsn) }
	o.Cost = func(ctx context.Context, say func(string, ...any)) (*listenerbench.Cost, error) {
		return listenerbench.MeasureCost(ctx, cost, say)
	}
	return continuitybench.Measure(c.Context(), o)
}

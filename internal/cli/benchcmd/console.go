package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/consolebench"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func benchConsole() *cobra.Command {
	var o consolebench.Options
	var lo lab.Options
	var out sampleOutput
	var quick bool
	var seconds int
	c := &cobra.Command{
		Use: "console", Short: "Measure the console in the browser: its first screen, how soon events are shown, what open ones cost",
		Long: `Makes a group of three replicas on this machine and logs clients in to the console of the primary's node. It measures the bytes and the time of
the first screen, for a client and for a headless Chromium where one is installed; then what open consoles cost the agent in processor time and
memory beside none, in turns; then the time from each event of a suspended replica and of a planned failover until every open console was told,
and until Chromium shows it. An open console asks for what the page asks for. Clients, servers and agents share this machine.

Nobody published these conditions, so there is no --preset.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if quick {
				for flag, to := range map[string]*int{"runs": &o.Runs, "consoles": &o.Consoles, "rounds": &o.Rounds, "changes": &o.Changes, "seconds": &seconds} {
					if !c.Flags().Changed(flag) {
						*to = map[string]int{"runs": 2, "consoles": 10, "rounds": 1, "changes": 1, "seconds": 3}[flag]
					}
				}
			}
			if err := atLeastOne(c, "runs", "consoles", "rounds", "changes", "seconds"); err != nil {
				return err
			}
			if o.Consoles > consolebench.MaxConsoles {
				return fail.Usagef("--consoles is at most %d: a node lets no more open", consolebench.MaxConsoles)
			}
			o.For = time.Duration(seconds) * time.Second
			s, err := measureConsole(c, o, lo)
			return errors.Join(saveSamples(c, s, out, s.Print), err)
		},
	}
	withoutPreset(c, "nobody published these conditions")
	c.Flags().IntVar(&o.Runs, "runs", 20, "first screens")
	c.Flags().IntVar(&o.Consoles, "consoles", 50, fmt.Sprintf("consoles that are open at once, at most %d", consolebench.MaxConsoles))
	c.Flags().IntVar(&o.Rounds, "rounds", 6, "rounds of the cost, each without and with the consoles")
	c.Flags().IntVar(&seconds, "seconds", 20, "how long each part of a round is")
	c.Flags().IntVar(&o.Changes, "changes", 5, "suspended replicas, and as many planned failovers")
	c.Flags().BoolVar(&quick, "quick", false, "10 consoles, 2 first screens, one short round of the cost, one change of each kind")
	c.Flags().BoolVar(&out.asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out.file, "out", "bench-console.json", "file for the samples")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
	return c
}

func measureConsole(c *cobra.Command, o consolebench.Options, lo lab.Options) (*consolebench.Samples, error) {
	var f nodecmd.NodeFlags
	in, err := f.Install(c.Context())
	if err != nil {
		return &consolebench.Samples{}, err
	}
	if lo.Dir, err = lab.DemoDir(lo.Dir, "bench"); err != nil {
		return &consolebench.Samples{}, err
	}
	o.Version, o.Server = buildinfo.Describe(), in.Version
	o.Screen = observe.NewScreen(c.ErrOrStderr(), cli.IsTerminal(c.ErrOrStderr()))
	defer o.Screen.Close()
	o.Up = func(ctx context.Context) (consolebench.Lab, error) { return upLab[consolebench.Lab](ctx, lo) }
	o.Group = func(ctx context.Context, dsn string) (consolebench.Group, error) { return bed.OpenGroup(ctx, dsn) }
	return consolebench.Measure(c.Context(), o)
}

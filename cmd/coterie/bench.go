package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench"
	"github.com/coteriedb/coterie/internal/demo"
	"github.com/coteriedb/coterie/internal/lab"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", GroupID: "try", Short: "Measure, and compare with the goals"}
	c.AddCommand(benchFailover(), benchLinkemCommand())
	return c
}

func benchFailover() *cobra.Command {
	var o demo.MeasureOptions
	var lo lab.Options
	var out string
	var asJSON, peers bool
	c := &cobra.Command{
		Use: "failover", Short: "Outage and losses of unplanned and planned failover, and what an idle agent needs",
		Long: `Makes a group of three replicas on this machine and repeats: under one writer that sends a row every 5 ms, kill the primary's node, have it
come back, and move the leadership as planned. It prints a line per figure with its goal, and keeps every sample in a JSON file.
A repetition takes about half a minute.`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Runs < 0 {
				return usage("--runs %d: choose 0 or more", o.Runs)
			}
			var err error
			if lo.Dir, err = demoDir(lo.Dir, "bench"); err != nil {
				return err
			}
			s, measureErr := measure(c, o, lo)
			if err := s.Save(out); err != nil {
				return errors.Join(measureErr, err)
			}
			if asJSON {
				return errors.Join(measureErr, printJSON(c, s))
			}
			return errors.Join(measureErr, reportFigures(c, s, peers, measureErr, out))
		},
	}
	c.Flags().IntVar(&o.Runs, "runs", 50, "how often")
	c.Flags().BoolVar(&asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().BoolVar(&peers, "with-peers", false, "measure Patroni with HAProxy too, where installed")
	c.Flags().StringVar(&out, "out", "bench-failover.json", "file for the samples")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
	return c
}

func measure(c *cobra.Command, o demo.MeasureOptions, lo lab.Options) (s demo.Samples, err error) {
	var f nodeFlags
	in, err := f.install(c.Context())
	if err != nil {
		return s, err
	}
	ledgers, err := os.MkdirTemp("/var/tmp", "coterie-bench-") // on a disk: every acknowledgement is synced there
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(ledgers)) }()
	o.Dir, o.Version, o.Server = ledgers, version, in.Version
	o.Screen = demo.NewScreen(c.ErrOrStderr(), isTerminal(c.ErrOrStderr()))
	defer o.Screen.Close()
	o.Up = func(ctx context.Context, progress func(string)) (demo.Lab, error) { return upLab(ctx, lo, progress) }
	o.Witness = func(ctx context.Context, progress func(string)) (demo.Lab, error) {
		w := lo
		w.Replicas, w.Witness = 2, true
		return upLab(ctx, w, progress)
	}
	return demo.Measure(c.Context(), o)
}

// reportFigures prints both benches that these samples serve.
func reportFigures(c *cobra.Command, s demo.Samples, peers bool, failed error, out string) error {
	why := "--runs 0"
	if failed != nil {
		why = "an error ended the measurement"
	}
	failover, footprint := s.Figures(why)
	patroni := "--with-peers was not given"
	if peers {
		patroni = "this build does not run Patroni yet"
	}
	failover = append(failover, bench.Figure{Name: "node-death-outage-to-patroni", NotRun: patroni})
	w := c.OutOrStdout()
	if _, err := bench.Report(w, "failover", failover); err != nil {
		return err
	}
	if _, err := bench.Report(w, "footprint", footprint); err != nil {
		return err
	}
	if abs, err := filepath.Abs(out); err == nil {
		out = abs
	}
	_, err := fmt.Fprintf(w, "samples: %s\n", out)
	return err
}

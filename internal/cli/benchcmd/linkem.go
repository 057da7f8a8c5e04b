package benchcmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/linkbench"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

func benchLinkemCommand() *cobra.Command {
	var seed uint64
	var out sampleOutput
	c := &cobra.Command{
		Use: "linkem", Short: "How true the lab's links are: round trips, loss, TCP against theory, throughput",
		Long: `Makes a network of three nodes without servers in it, and compares what its links do with what they were told to: round trips, loss,
TCP under loss with Mathis' formula, and how much passes through one link. It takes about 40 seconds, and needs root. Nobody published such links,
so there is no --preset.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s := linkbench.MeasureLinks(c.Context(), seed, c.ErrOrStderr())
			return saveSamples(c, s, out, func(w io.Writer) error {
				_, err := goals.Report(w, "linkem", s.Figures)
				return err
			})
		},
	}
	withoutPreset(c, "nobody published such links")
	c.Flags().Uint64Var(&seed, "seed", 1, "of the links' randomness")
	c.Flags().BoolVar(&out.asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out.file, "out", "bench-linkem.json", "file for the samples")
	return c
}

package benchcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/seedbench"
	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

func benchSeeding() *cobra.Command {
	o := seedbench.SeedingOptions{SizeMB: seedbench.SeedMB, Rounds: 3, Out: "bench-seeding.json"}
	var preset string
	c := &cobra.Command{
		Use: "seeding", Aliases: []string{"seed"}, Short: "How fast a copy is made, resumed and mended, beside pg_basebackup over the same link",
		Long: `Makes a database server here and copies it over an emulated link: by pg_basebackup (uncompressed, lz4, zstd) and by Coterie's own
transfer, in turns; then kills a seeding half way and runs it again, damages 1 % of a copy's pages and mends it, and looks what a throttled
seeding takes from the server's own work; at last it copies databases of text and of noise over the fast link. The published copy is
of 32 GB, which --preset published takes, too; a smaller one is a scaled run and says so. Needs root.`,
		Example: "  coterie bench seeding --size 256 --rounds 3",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := atLeastOne(c, "rounds", "size"); err != nil {
				return err
			}
			f := experimentFlags{suite.Options{Preset: preset, Blocks: o.Rounds}}
			if err := errors.Join(f.Check(), f.sizes(c, "size"), checkSeedingParts(o)); err != nil {
				return err
			}
			if preset == suite.PresetPublished {
				o.SizeMB = seedbench.PublishedSeedMB
			}
			s, figures, err := seedbench.MeasureSeeding(c.Context(), o, func(format string, a ...any) {
				_, _ = fmt.Fprintf(c.ErrOrStderr(), time.Now().Format("15:04:05 ")+format+"\n", a...)
			})
			if err != nil {
				return err
			}
			text, err := json.MarshalIndent(s, "", "  ")
			if err != nil {
				return err
			}
			if err := os.WriteFile(o.Out, append(text, '\n'), 0o600); err != nil {
				return err
			}
			if o.Report != "" {
				r, err := seedbench.SeedingReport(s)
				if err != nil {
					return err
				}
				if err := r.Save(o.Report); err != nil {
					return err
				}
			}
			if o.JSON {
				return cli.PrintJSON(c, s)
			}
			s.Print(c.OutOrStdout())
			_, err = goals.Report(c.OutOrStdout(), "seeding", figures)
			return err
		},
	}
	c.Flags().StringVar(&preset, "preset", suite.PresetScaled, "size: scaled, which takes minutes, or published, 32 GB, which takes hours")
	c.Flags().IntVar(&o.SizeMB, "size", o.SizeMB, "MB of the pgbench database")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "rounds in which every arm runs once")
	c.Flags().StringVar(&o.Dir, "dir", "", "where the copies are made (default: a new directory in /var/tmp)")
	c.Flags().StringVar(&o.Out, "out", o.Out, "file for the samples")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "parts to run: metro, wan, mend, tpcb, others (default: all)")
	c.Flags().StringVar(&o.Report, "report", "", "directory for the report: the published table beside ours, processor and network over time")
	c.Flags().StringVar(&o.Prof, "profile", "", "files that begin so, for processor profiles of both sides of our own copies over metro and of mends, for go tool pprof")
	c.Flags().BoolVar(&o.JSON, "json", false, "print the samples instead of the figures")
	return c
}

// checkSeedingParts refuses parts of the measurement that do not exist.
func checkSeedingParts(o seedbench.SeedingOptions) error {
	var names []string
	for _, p := range seedbench.SeedingParts {
		names = append(names, p.Name)
	}
	return checkOnly(o.Only, names)
}

package benchcmd

import (
	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func benchAll() *cobra.Command {
	var f experimentFlags
	var quick bool
	c := &cobra.Command{
		Use: "all", Short: "Every question in one report: routing, commit, compression, outage", Args: cli.Args(0, "no arguments"),
		Long: `Makes a lab whose nodes may use half a processor each, and asks whether read-only routing pays; then a lab with a network of its own, and asks what
a synchronous commit costs, what compression gives and how long an outage is. --quick takes less than ten minutes on two processors. Without
root, what needs limits or links is not run and the report says so.`,
		Example: "  coterie bench all --quick --report out && xdg-open out/report.html",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.sizes(c, "quick"); err != nil {
				return err
			}
			if f.TargetA != "" || f.Group != "" {
				return fail.Usagef("bench all makes labs of its own; for a target, run the experiments one by one: see coterie bench list")
			}
			f.Figures = true
			return measureAll(c, &f.Options, "An availability group of PostgreSQL, measured", suite.AllBedRuns(quick, f.Preset == suite.PresetPublished))
		},
	}
	f.add(c)
	c.Flags().BoolVar(&quick, "quick", false, "small sizes: less than ten minutes")
	return c
}

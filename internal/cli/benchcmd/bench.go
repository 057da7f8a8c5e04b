package benchcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// Bench returns the command bench with all its experiments.
func Bench() *cobra.Command {
	c := &cobra.Command{Use: "bench", GroupID: "try", Short: "Measure, and compare with the goals"}
	c.AddCommand(benchFailover(), benchLinkemCommand(), benchSeeding(), benchEndpointCommand(), benchListenerCommand(), benchContinuity(), benchConsole())
	c.AddCommand(experimentCommands()...)
	return c
}

// benchAll returns the command that asks every question in one report.
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

func benchList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "The experiments, what each asks, and the published figures beside it", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			type entry struct {
				Command   string              `json:"command"`
				Question  string              `json:"question"`
				Needs     string              `json:"needs"`
				Presets   []string            `json:"presets"` // values of --preset; empty: the experiment does not have the flag
				Published *benchreport.Source `json:"published,omitempty"`
			}
			var all []entry
			for _, one := range catalogue {
				e := entry{Command: "coterie bench " + one[0], Question: one[1], Needs: one[3], Presets: append([]string{}, presets(one[0])...)}
				if one[2] != "" {
					f, err := benchreport.Published(one[2])
					if err != nil {
						return err
					}
					e.Published = &f.Source
				}
				all = append(all, e)
			}
			if asJSON {
				return cli.PrintJSON(c, all)
			}
			t := tabwriter.NewWriter(c.OutOrStdout(), 2, 8, 3, ' ', 0)
			for _, e := range all {
				_, _ = fmt.Fprintf(t, "%s\t%s\tneeds %s\n", e.Command, e.Question, e.Needs)
				switch {
				case e.Published == nil:
					_, _ = fmt.Fprint(t, "\tpublished: nothing that is known, so there is no --preset\t\n")
				case len(e.Presets) == 0:
					_, _ = fmt.Fprintf(t, "\tpublished: %s\t%s; always of that size, without --preset\n", e.Published.What, e.Published.Trust)
				default:
					_, _ = fmt.Fprintf(t, "\tpublished: %s\t%s\n", e.Published.What, e.Published.Trust)
				}
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchCompare() *cobra.Command {
	var limits []string
	var asJSON bool
	c := &cobra.Command{
		Use: "compare A B", Short: "Compare two results, and fail where one got worse than it may", Args: cli.Args(2, "two report directories, or their result.json"),
		Long: `Compares every figure that two results share. A change that the intervals of both explain is called no difference, and breaks no limit. A limit
names a metric, or the end of its name, and a change in percent that is too much. The exit code is 1 if one is broken, and 2 if it is none, or names
a metric that is not there.`,
		Example: "  coterie bench compare before after --fail-if 'p99>+10%' --fail-if '12 threads/routed/rate<-5%'",
		RunE: func(c *cobra.Command, a []string) error {
			var parsed []benchreport.Limit
			for _, l := range limits {
				one, err := benchreport.ParseLimit(l)
				if err != nil {
					return fail.Usagef("--fail-if: %w", err)
				}
				parsed = append(parsed, one)
			}
			before, err := benchreport.Load(a[0])
			if err != nil {
				return err
			}
			after, err := benchreport.Load(a[1])
			if err != nil {
				return err
			}
			changes := benchreport.Diff(before, after)
			if len(changes) == 0 {
				return fail.Unhealthyf("the two results have no figure in common: they are of different experiments")
			}
			if asJSON {
				err = cli.PrintJSON(c, changes)
			} else {
				err = benchreport.PrintDiff(c.OutOrStdout(), changes)
			}
			return errors.Join(err, judge(limits, parsed, changes))
		},
	}
	c.Flags().StringArrayVar(&limits, "fail-if", nil, "a change that is too much, as 'p99>+10%' or 'rate<-5%'; may be given again")
	c.Flags().BoolVar(&asJSON, "json", false, "print the changes as JSON")
	return c
}

// judge returns an error for each broken limit, and a usage error for a limit whose metric the results do not share.
func judge(limits []string, parsed []benchreport.Limit, changes []benchreport.Change) error {
	var errs []error
	for i, l := range parsed {
		broken, known := l.Broken(changes)
		if !known {
			return fail.Usagef("--fail-if %s: the two results have no such metric in common; the table above has the names", limits[i])
		}
		for _, one := range broken {
			errs = append(errs, fmt.Errorf("%s: %v", limits[i], one))
		}
	}
	return errors.Join(errs...)
}

// sampleOutput is the destination of the samples of a measurement.
type sampleOutput struct {
	file   string // for the samples as JSON
	asJSON bool   // print the samples instead of the figures
}

// saveSamples writes the samples to the file. Then it prints the samples as JSON, or calls printFigures and prints the
// name of the file.
func saveSamples(c *cobra.Command, samples any, o sampleOutput, printFigures func(io.Writer) error) error {
	text, err := json.MarshalIndent(samples, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep the samples: %w", err)
	}
	if o.asJSON {
		return cli.PrintJSON(c, samples)
	}
	if err := printFigures(c.OutOrStdout()); err != nil {
		return err
	}
	file := o.file
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "samples: %s\n", file)
	return err
}

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

func benchAll() *cobra.Command {
	var f experimentFlags
	var quick bool
	c := &cobra.Command{
		Use: "all", Short: "Every question in one report: routing, commit, compression, outage", Args: args(0, "no arguments"),
		Long: `Makes a lab whose nodes may use half a processor each, and asks whether read-only routing pays; then a lab with a network of its own, and asks what
a synchronous commit costs, what compression gives and how long an outage is. --quick takes less than ten minutes on two processors. Without
root, what needs limits or links is not run and the report says so.`,
		Example: "  coterie bench all --quick --report out && xdg-open out/report.html",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.sizes(c, "quick"); err != nil {
				return err
			}
			if f.targetA != "" || f.group != "" {
				return fail.Usagef("bench all makes labs of its own; for a target, run the experiments one by one: see coterie bench list")
			}
			f.figures = true
			return measureAll(c, &f.suiteOptions, "An availability group of PostgreSQL, measured", allStages(quick, f.preset == presetPublished))
		},
	}
	f.add(c)
	c.Flags().BoolVar(&quick, "quick", false, "small sizes: less than ten minutes")
	return c
}

func allStages(quick, published bool) []stageOf {
	routing := experiment.RoutingOptions{Threads: experiment.PublishedThreads, Duration: 3 * time.Second, WarmUp: 300 * time.Millisecond, Rows: 200_000}
	mix := experiment.TproccOptions{Users: []int{1, 4, 12}, Warehouses: 2, Duration: 5 * time.Second, WarmUp: 500 * time.Millisecond}
	commit := experiment.CommitOptions{Cells: matrixCells(100_000), Compression: []string{"OFF", "ZSTD"}}
	tunnel := experiment.TunnelOptions{Tunnel: workload.PublishedTunnel, Payloads: []workload.Payload{workload.PayloadConstant, workload.PayloadText, workload.PayloadRandom}}
	outage := experiment.FailoverOptions{Actions: experiment.Actions, Runs: 5, Clients: 8, Every: 10 * time.Millisecond, Before: 3 * time.Second, After: 3 * time.Second}
	tunnel.Tunnel.Pipelined = true
	limits, limitsOfMix := need{cpu: 0.5}, need{cpu: 0.5}
	if published {
		mix = experiment.TproccOptions{Users: experiment.PublishedThreads, Warehouses: publishedWarehouses, Transactions: publishedTransactions, WarmUp: mix.WarmUp}
		limitsOfMix.bytes = loaded(mix.Warehouses * 110 << 20)
		routing.Iterations, routing.Duration, routing.Rows, commit.Cells = 1000, 0, publishedRoutingRows, experiment.PublishedCells
		limits.memory, limits.bytes = publishedMemory, loaded(routing.Rows*workload.RowBytes)
	}
	if quick {
		routing.Threads, routing.Duration, routing.Rows = []int{1, 4, 12}, 2*time.Second, 100_000
		commit.Cells = []experiment.Cell{{Inserts: 1, Rows: 20_000}, {Inserts: 20, Rows: 1000}, {Inserts: 400, Rows: 1}}
		tunnel.Tunnel.Rows = 2000
		outage.Actions, outage.Runs = []experiment.Action{experiment.Kill, experiment.Planned}, 3
	}
	first := stageOf{limits, []piece{routingPiece(routing, "", "")}}
	if !quick && !published {
		first.pieces = append(first.pieces, tproccPiece(mix))
	}
	stages := []stageOf{first}
	if published { // memory was limited for what was read, and not said to be for the mix
		stages = append(stages, stageOf{limitsOfMix, []piece{tproccPiece(mix)}})
	}
	copied := seedingOptions{sizeMB: 1024, rounds: 1, only: []string{"metro", "wan"}}
	switch {
	case quick:
		copied.sizeMB, copied.only = 64, []string{"wan"}
	case published:
		copied.sizeMB, copied.otherwiseMB = publishedSeedMB, copied.sizeMB
	}
	linked := need{network: true, links: commitLink, bytes: loaded(2 * largest(commit.Cells) * workload.RowBytes)}
	return append(stages, stageOf{linked, []piece{commitPiece(commit, commitLink), tunnelPiece(tunnel, tunnelLink), outagePiece(outage, commitLink), seedingPiece(copied)}})
}

func benchList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "The experiments, what each asks, and the published figures beside it", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			type entry struct {
				Command   string              `json:"command"`
				Question  string              `json:"question"`
				Needs     string              `json:"needs"`
				Presets   []string            `json:"presets"` // of --preset; none: it has none
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
				return printJSON(c, all)
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
		Use: "compare A B", Short: "Compare two results, and fail where one got worse than it may", Args: args(2, "two report directories, or their result.json"),
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
				err = printJSON(c, changes)
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

// judge fails for a limit that nothing is known of, and for every one that is broken.
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

package suite

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/seedbench"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// RoutingExperiment returns the experiment of read-only routing. The parameters of its query come from the CSV file
// paramFile or from the rows of the query params; if both are empty, o has them.
func RoutingExperiment(o experiment.RoutingOptions, params, paramFile string) Experiment {
	return Experiment{"routing", "Read-only routing", "Does read-only routing pay?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		var err error
		switch {
		case paramFile != "":
			o.Params, err = workload.ParamFile(paramFile)
		case params != "" && b.Group != nil:
			o.Params, err = workload.ParamQuery(ctx, b.Group.ReadWrite(), params)
		case params != "":
			o.Params, err = workload.ParamQuery(ctx, b.A, params)
		}
		if err != nil {
			return benchreport.Experiment{}, err
		}
		if o.Iterations > 0 {
			o.Duration = 0
		}
		return b.Routing(ctx, o)
	}}
}

// TproccExperiment returns the experiment of TPC-C-derived transactions.
func TproccExperiment(o experiment.TproccOptions) Experiment {
	return Experiment{"tprocc", "TPC-C-derived transactions", "Is the mix faster with its read-only transactions routed?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		return b.Tprocc(ctx, o)
	}}
}

// Largest returns the largest number of rows that one of the cells inserts.
func Largest(cells []experiment.Cell) (rows int) {
	for _, c := range cells {
		rows = max(rows, c.Inserts*c.Rows)
	}
	return rows
}

// MatrixCells returns the cells of the insert matrix for a total number of rows: from all rows in one transaction down
// to one row each.
func MatrixCells(total int) []experiment.Cell {
	var out []experiment.Cell
	for _, rows := range []int{total, total / 10, 1000, 10, 1} {
		if rows >= 1 && rows <= total && !slices.ContainsFunc(out, func(c experiment.Cell) bool { return c.Rows == rows }) && total/rows <= 2000 {
			out = append(out, experiment.Cell{Inserts: total / rows, Rows: rows})
		}
	}
	if n := len(out); out[n-1].Rows > 1 {
		out = append(out, experiment.Cell{Inserts: min(total, 500), Rows: 1})
	}
	return out
}

// CommitExperiment returns the insert matrix on links of the shape link, with plain PostgreSQL beside it where the bed
// has links.
func CommitExperiment(o experiment.CommitOptions, link string) Experiment {
	return Experiment{"commit", "The insert matrix", "What does a synchronous commit cost?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		if b.Links != nil {
			if err := b.Links.Shape(ctx, link); err != nil {
				return benchreport.Experiment{}, err
			}
			o.Link = link
		}
		e, err := b.Commit(ctx, o)
		if err == nil && b.Links != nil {
			if err := plainCommit(ctx, b, &e, o); err != nil {
				e.Notes = append(e.Notes, "Plain PostgreSQL beside it: not run: "+err.Error())
			}
		}
		return e, err
	}}
}

// OutageExperiment returns the experiment that breaks the group, on links of the shape link; empty: as they are.
func OutageExperiment(o experiment.FailoverOptions, link string) Experiment {
	return Experiment{"failover", "The outage", "How long is an outage?", func(ctx context.Context, b *experiment.Bed) (e benchreport.Experiment, err error) {
		if b.Links != nil && link != "" {
			if err := b.Links.Shape(ctx, link); err != nil {
				return e, err
			}
		}
		if o.Dir, err = os.MkdirTemp("/var/tmp", "coterie-bench-"); err != nil { // on a disk: every acknowledgement is synced there
			return e, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
		return b.Failover(ctx, o)
	}}
}

// seedingExperiment returns the experiment of seeding. It copies a server of its own over a link of its own, and uses
// nothing of the lab.
func seedingExperiment(o seedbench.SeedingOptions) Experiment {
	return Experiment{"seeding", "Seeding", "How fast is a copy?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		why := o.Fit()
		if why != "" {
			b.Progress.Say("seeding: %s", why)
		}
		s, _, err := seedbench.MeasureSeeding(ctx, o, func(format string, a ...any) { b.Progress.Say("seeding: "+format, a...) })
		if err != nil {
			return benchreport.Experiment{}, err
		}
		e, err := seedbench.SeedingExperiment(s)
		if why != "" {
			e.Notes = append(e.Notes, why)
		}
		return e, err
	}}
}

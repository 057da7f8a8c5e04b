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

func RoutingPiece(o experiment.RoutingOptions, params, paramFile string) Piece {
	return Piece{"routing", "Read-only routing", "Does read-only routing pay?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
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

func TproccPiece(o experiment.TproccOptions) Piece {
	return Piece{"tprocc", "TPC-C-derived transactions", "Is the mix faster with its read-only transactions routed?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		return b.Tprocc(ctx, o)
	}}
}

// Largest is the most rows that a cell inserts.
func Largest(cells []experiment.Cell) (rows int) {
	for _, c := range cells {
		rows = max(rows, c.Inserts*c.Rows)
	}
	return rows
}

// MatrixCells are the shapes of the matrix for a number of rows: in one transaction, in hundreds, in tens, and one by one.
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

func CommitPiece(o experiment.CommitOptions, link string) Piece {
	return Piece{"commit", "The insert matrix", "What does a synchronous commit cost?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
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

// OutagePiece breaks the group, on links as they were made.
func OutagePiece(o experiment.FailoverOptions, link string) Piece {
	return Piece{"failover", "The outage", "How long is an outage?", func(ctx context.Context, b *experiment.Bed) (e benchreport.Experiment, err error) {
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

// seedingPiece copies a server of its own over a link of its own: nothing of the lab is in it.
func seedingPiece(o seedbench.SeedingOptions) Piece {
	return Piece{"seeding", "Seeding", "How fast is a copy?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
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

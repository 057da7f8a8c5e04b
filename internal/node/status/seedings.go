package status

import (
	"cmp"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// seedings returns the copies among operations as the views show them.
func seedings(ops []seeding.Operation) []catalog.Seeding {
	var out []catalog.Seeding
	for _, op := range ops {
		if op.Report != nil {
			continue // a verification copies nothing
		}
		p := op.Progress
		p.Waiting = cmp.Or(op.Absent, p.Waiting)
		s := catalog.Seeding{
			ID: op.ID, Source: op.Source, State: string(op.State), Started: op.Started, Ended: op.Ended, Attempts: op.Attempts, FailedAt: op.FailedAt,
			Text: seedjobs.Line(p), Done: p.Done, Total: p.Total, Wire: p.Wire, Rate: p.Rate, Disk: p.DiskWait, Net: p.NetWait, Packed: p.Packed,
		}
		if op.State == seeding.Seeding {
			s.Left = p.ETA()
		}
		if op.Failure != nil {
			s.Code, s.Word, s.Failure, s.Errno = op.Failure.Code, op.Failure.State, op.Failure.Text, op.Failure.Errno
		}
		out = append(out, s)
	}
	return out
}

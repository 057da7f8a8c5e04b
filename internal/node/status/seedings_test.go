package status

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// TestSeedings holds what the views show of operations: copies only, and why a copy is not the node's own word.
func TestSeedings(t *testing.T) {
	t.Parallel()
	p := progress.Progress{Phase: progress.PhaseCopy, Done: 3 << 20, Total: 9 << 20, Wire: 1 << 20, Waiting: "the source"}
	rows := seedings([]seeding.Operation{
		{ID: "a verification", State: seeding.Verifying, Report: &pagesum.Report{}},
		{ID: "1", State: seeding.Seeding, Source: "n1", Attempts: 2, Progress: p},
		{ID: "2", State: seeding.Retrying, Progress: p, Absent: "not seen", Failure: &seeding.Failure{Code: 207, State: "INTERRUPTED", Text: "cut"}, FailedAt: time.Unix(9, 0)},
	})
	if len(rows) != 2 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	if r := rows[0]; r.ID != "1" || r.State != "SEEDING" || r.Source != "n1" || r.Attempts != 2 || r.Text != "copying 3 of 9 MiB, 1 MiB on the wire; the source" {
		t.Errorf("the copy under way is %+v", r)
	}
	if r := rows[1]; r.Text != "copying 3 of 9 MiB, 1 MiB on the wire; not seen" || r.Left != 0 || r.Code != 207 || r.Word != "INTERRUPTED" || r.Failure != "cut" || !r.FailedAt.Equal(time.Unix(9, 0)) {
		t.Errorf("the copy to a replica that does not answer is %+v", r)
	}
}

package operations

import (
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// TestSeedResult holds that a statement names the operation, and that one that was refused does not.
func TestSeedResult(t *testing.T) {
	t.Parallel()
	s := ddl.Statement{Action: ddl.Seed{Server: "n3"}}
	op := seeding.Operation{ID: "7", Target: ag.ReplicaID("n3"), State: seeding.Pending}
	r, err := seedResult(s, op, nil)
	if err != nil || len(r.Notices) != 1 || r.Notices[0].Message != "n3: pending (operation 7); see sys.dm_hadr_physical_seeding_stats" {
		t.Errorf("%+v, %v", r, err)
	}
	refused := errors.New("refused")
	if r, err := seedResult(s, op, refused); !errors.Is(err, refused) || len(r.Notices) != 0 {
		t.Errorf("refused: %+v, %v", r, err)
	}
}

package ledger

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// TestTransactionsOfTheCaller holds that the verdict counts rows that transactions of the caller's own have inserted.
func TestTransactionsOfTheCaller(t *testing.T) {
	s, l := lend(t)
	for i, c := range []struct {
		insert, commit bool
		outcome        session.Outcome
	}{
		{true, true, session.OK},
		{true, false, session.Fail},
		{true, true, session.Unknown},
		{false, false, session.Unknown},
		{true, false, session.OK},  // a commit that was lost
		{true, true, session.Fail}, // and one that was said not to be
	} {
		row, err := l.Next(7)
		if err != nil || row.Seq != int64(i)+1 {
			t.Fatalf("row %d: %v", row.Seq, err)
		}
		if c.insert {
			transact(t, s, row, c.commit)
		}
		if err := l.Conclude(row, c.outcome, "40001"); err != nil {
			t.Fatal(err)
		}
		if err := l.Conclude(row, c.outcome, "40001"); err == nil {
			t.Error("a row was concluded twice")
		}
	}
	v, err := l.Verify(t.Context(), s.DSN())
	if err != nil || v.Acknowledged != 2 || v.Lost != 1 || v.Failed != 2 || v.FailedPresent != 1 || v.Unknown != 2 || v.UnknownPresent != 1 || v.Sound() {
		t.Errorf("%v, %v", v, err)
	}
}

// TestRowsWithOtherContents holds that a row does not pass for right because its contents are those of no row.
func TestRowsWithOtherContents(t *testing.T) {
	s, l := lend(t)
	for _, c := range []struct {
		outcome session.Outcome
		rows    int // of these the last has other contents
	}{{session.Fail, 1}, {session.Unknown, 1}, {session.OK, 2}} {
		row, err := l.Next(1)
		if err != nil {
			t.Fatal(err)
		}
		if c.rows == 2 {
			transact(t, s, row, true)
		}
		other := row
		other.Payload = []byte("of another row")
		transact(t, s, other, true)
		if err := l.Conclude(row, c.outcome, "40001"); err != nil {
			t.Fatal(err)
		}
	}
	v, err := l.Verify(t.Context(), s.DSN())
	if err != nil || v.FailedPresent != 1 || v.Unrecorded != 1 || v.Duplicates != 1 || v.Lost != 0 {
		t.Errorf("%v, %v", v, err)
	}
}

func transact(t *testing.T, s *pgtest.Server, row Row, commit bool) {
	t.Helper()
	conn, err := session.Open(t.Context(), s.DSN(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), Insert, row.Run, row.Client, row.Seq, row.Payload); err != nil {
		t.Fatal(err)
	}
	end := tx.Rollback
	if commit {
		end = tx.Commit
	}
	if err := end(t.Context()); err != nil {
		t.Fatal(err)
	}
}

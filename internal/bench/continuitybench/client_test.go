package continuitybench

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// TestClientsOfAServer runs both kinds of clients on one server. It holds that the ledger and the numbers of rows are
// those of the transactions, and that the check of a session's state is not one of its requests.
func TestClientsOfAServer(t *testing.T) {
	server, err := pgtest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Remove() })
	book, err := ledger.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = book.Close() })
	if err := book.Prepare(t.Context(), server.DSN()); err != nil {
		t.Fatal(err)
	}
	if err := loadTables(t.Context(), server.DSN()); err != nil {
		t.Fatal(err)
	}
	visit := func() *visitor {
		s, err := session.New(session.Options{DSN: server.DSN(), Timeout: patience, Name: appName})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return &visitor{load: &load{ledger: book, origin: time.Now()}, s: s}
	}
	c, state := &client{visit()}, &stateful{visitor: visit()}
	if err := c.connect(t.Context(), c.prepare); err != nil {
		t.Fatal(err)
	}
	if err := state.connect(t.Context(), state.setUp); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.transact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := state.look(t.Context()); err != nil || len(state.requests) > 0 || len(state.failures) > 0 {
		t.Errorf("%v; requests %v, failures %v", err, state.requests, state.failures)
	}
	judged := func() (r Run) {
		if r.Verdict, err = book.Verify(t.Context(), server.DSN()); err != nil {
			t.Fatal(err)
		}
		if err := r.readSums(t.Context(), server.DSN()); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := judged(); r.refuted() != 0 || r.Verdict.Acknowledged != 3 || r.Rows != [2]int64{3, 3} {
		t.Errorf("%v, sums %v, rows %v; %v", r.Verdict, r.Sums, r.Rows, c.failures)
	}
	for _, table := range []string{"branches", "tellers", "accounts"} { // what one transaction does twice
		if _, err := c.s.Conn().Exec(t.Context(), fmt.Sprintf("update coterie_continuity.%s set balance = balance + 5 where %cid = 1", table, table[0])); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.s.Conn().Exec(t.Context(), putHistory, 1, 1, 1, 5); err != nil {
		t.Fatal(err)
	}
	if r := judged(); r.refuted() != 1 || r.Verdict.Lost+r.Verdict.Duplicates != 0 || r.Sums[0] != r.Sums[1] {
		t.Errorf("statements executed twice: %v, sums %v, rows %v", r.Verdict, r.Sums, r.Rows)
	}
}

// TestAStateIsNotAwaitedForEver holds that a session that never comes back does not keep the measurement waiting.
func TestAStateIsNotAwaitedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		l := &load{states: []*stateful{{visitor: &visitor{}, checks: make(chan chan error)}}}
		began := time.Now()
		if wrong := l.check(ctx); len(wrong) != 1 || time.Since(began) > backWithin {
			t.Errorf("after %v: %q", time.Since(began), wrong)
		}
	})
}

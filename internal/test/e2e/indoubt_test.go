package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lab"
)

// told is what clients have heard of the keys that they have inserted.
type told struct {
	mu                      sync.Mutex
	committed, not, unknown []int // guarded by mu, as is the rest
	proved                  int   // of not: by the new primary, after the COMMIT had been sent
	next                    int
}

// key returns a new key.
func (l *told) key() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.next
}

// note notes how the transaction with that key ended, and reports whether the session goes on.
func (l *told) note(key int, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pg *pgconn.PgError
	is := errors.As(err, &pg)
	switch {
	case err == nil:
		l.committed = append(l.committed, key)
	case is && pg.Code == "40001":
		l.not = append(l.not, key)
		if strings.Contains(pg.Message, "was being committed") {
			l.proved++
		}
		return pg.Severity == "ERROR"
	default:
		l.unknown = append(l.unknown, key)
		return false
	}
	return true
}

// inserts inserts keys, each in a transaction of its own, until the context ends.
func (l *told) inserts(ctx context.Context, conn *pgx.Conn) {
	for ctx.Err() == nil {
		key := l.key()
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		var err error
		for _, text := range []string{"BEGIN", fmt.Sprintf("INSERT INTO ledger VALUES (%d)", key), "COMMIT"} {
			if _, err = conn.Exec(c, text, pgx.QueryExecModeSimpleProtocol); err != nil {
				break
			}
		}
		if !l.note(key, err) {
			cancel()
			return
		}
		if conn.PgConn().TxStatus() != 'I' {
			_, _ = conn.Exec(c, "ROLLBACK", pgx.QueryExecModeSimpleProtocol)
		}
		cancel()
	}
}

// TestEndToEndCommitsInDoubt kills primaries under clients of other nodes' listeners that commit all the time. The rows
// are those that the clients were told of, and a new primary has proved some.
func TestEndToEndCommitsInDoubt(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "CREATE TABLE ledger (key int PRIMARY KEY)")
	l := &told{}
	outcomes := map[string]float64{}
	for round := range 6 {
		was := g.ready(t)
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		var conns []*pgx.Conn
		for _, node := range secondaries(was) {
			for range 6 {
				c, err := pgx.Connect(t.Context(), g.DSN(node))
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			}
		}
		g.asked(t, *was.Primary, len(conns))
		before := g.doubts(t, was)
		for _, c := range conns {
			writers.Go(func() { l.inserts(ctx, c) })
		}
		time.Sleep(time.Second + rand.N(500*time.Millisecond)) // a moment like any other
		if err := g.Kill(*was.Primary, []string{lab.WhatNode, lab.WhatPostgres}[round%2]); err != nil {
			t.Fatal(err)
		}
		now := g.nextEpoch(t, was)
		time.Sleep(time.Second)
		cancel()
		writers.Wait()
		for outcome, n := range g.doubts(t, was) {
			outcomes[outcome] += n - before[outcome]
		}
		for _, c := range conns {
			_ = c.Close(context.Background())
		}
		t.Logf("round %d, epoch %d: %v; the clients heard of %d commits, %d others (%d proved), %d unknown", round, now.Epoch, outcomes, len(l.committed), len(l.not), l.proved, len(l.unknown))
		g.revive(t, *was.Primary)
	}
	l.holds(t, g)
	if outcomes["committed"]+outcomes["aborted"] == 0 || len(l.unknown) > len(l.committed)/4 {
		t.Errorf("nothing was proved, or too little: %v, %d unknown", outcomes, len(l.unknown))
	}
	g.judgeAndGoOn(t)
	g.down(t)
}

// doubts returns how many outcomes the nodes of the secondaries have counted.
func (g *group) doubts(t *testing.T, s lab.Status) map[string]float64 {
	t.Helper()
	sum := map[string]float64{}
	for _, r := range s.Replicas {
		if s.Primary != nil && r.Name == *s.Primary {
			continue
		}
		for _, o := range []string{"committed", "aborted", "unknown"} {
			n, _ := metricIfAny(t, r.HTTP, `coterie_commits_in_doubt_total{outcome="`+o+`"}`)
			sum[o] += n
		}
	}
	return sum
}

// holds compares what the clients were told with the table.
func (l *told) holds(t *testing.T, g *group) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(t.Context(), "SELECT key FROM ledger")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[int]bool, len(keys))
	for _, k := range keys {
		there[k] = true
	}
	for _, k := range l.committed {
		if !there[k] {
			t.Errorf("key %d was reported as committed and is not there", k)
		}
	}
	for _, k := range l.not {
		if there[k] {
			t.Errorf("key %d was reported as not committed and is there", k)
		}
	}
}

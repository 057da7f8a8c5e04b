package experiment

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/workload"
)

// byListener is a group of two that is reachable only by its listeners. They send readers to one replica after the
// other.
type byListener struct {
	Group
	readers []string
	n       int
}

func (g *byListener) Members(context.Context) ([]string, error) { return []string{"n1", "n2"}, nil }
func (g *byListener) Own(string) string                         { return "" }
func (g *byListener) ReadOnly() string                          { g.n++; return g.readers[g.n%len(g.readers)] }

// conditionsEverywhere: the twelve conditions are checked on every server that can be reached. For the others, the
// report does not claim that they held.
func conditionsEverywhere(t *testing.T, b *Bed) {
	for _, name := range []string{"schema.sql", "functions.sql"} { // empty tables keep every condition
		text, err := os.ReadFile(filepath.Join("..", "..", "measure", "tpcc", name))
		if err != nil {
			t.Fatal(err)
		}
		execute(t, b.A, string(text))
	}
	replayed(t, b)
	group := func(readers ...string) *Bed {
		return &Bed{Group: &byListener{readers: readers}}
	}
	for name, c := range map[string]struct {
		bed  *Bed
		want string
	}{
		"both of a pair":         {b, "every server (2)"},
		"a pair of one":          {&Bed{A: b.A, B: b.A}, "every server (1)"},
		"readers go to both":     {group(b.A, b.B), "every server (2)"},
		"readers go to one":      {group(b.B), "every server (2)"},
		"no reader goes further": {group(b.A), "1 of 2 replicas"},
	} {
		if held, err := c.bed.conditionsHold(t.Context(), b.A); err != nil || !strings.Contains(held, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, held, err, c.want)
		}
	}
	// The replica keeps a warehouse that the primary no longer has.
	execute(t, b.A, "insert into tpcc.warehouse values (1, 'w', 's', 's', 'c', 'st', 'zip', 0, 1)")
	replayed(t, b)
	execute(t, b.B, "select pg_wal_replay_pause()")
	if err := until(t.Context(), time.Minute, "replay to stop", func(ctx context.Context) (bool, error) {
		state, err := text(ctx, b.B, "select pg_get_wal_replay_pause_state()")
		return state == "paused", err
	}); err != nil {
		t.Fatal(err)
	}
	execute(t, b.A, "delete from tpcc.warehouse")
	for name, bed := range map[string]*Bed{"a pair": b, "a group": group(b.A, b.B)} {
		if _, err := bed.conditionsHold(t.Context(), b.A); err == nil || !strings.Contains(err.Error(), "condition 1 ") {
			t.Errorf("%s: a replica that breaks a condition: %v", name, err)
		}
	}
	execute(t, b.B, "select pg_wal_replay_resume()")
	execute(t, b.A, "drop schema tpcc cascade")
}

// replayed waits until the replica has replayed everything that the primary wrote.
func replayed(t *testing.T, b *Bed) {
	t.Helper()
	end, err := text(t.Context(), b.A, "select pg_current_wal_insert_lsn()::text")
	if err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), time.Minute, "the replica", func(ctx context.Context) (bool, error) {
		return ask[bool](ctx, b.B, "select pg_last_wal_replay_lsn() >= '"+end+"'::pg_lsn")
	}); err != nil {
		t.Fatal(err)
	}
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := workload.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

// The effects of a loss on a client that writes.
const (
	writes = "commits"      // a row is committed, by any leader
	waits  = "commits wait" // no row is committed before what was lost is back
)

// outcome is a cell of the table that is published for REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT: the loss, the
// behaviour of SQL Server's group, and the behaviour of this one, which is the same or better.
type outcome struct{ lost, published, here, want string }

// layout is a group of that table, with its outcomes by how many are required.
type layout struct {
	name string
	o    lab.Options
	rows map[int][]outcome
}

var layouts = []layout{
	{"three synchronous replicas", lab.Options{}, map[int][]outcome{
		0: {{"primary", "manual failover, maybe loss", "automatic, R/W, no loss", writes}, {"secondary", "R/W, no automatic failover later", "R/W, automatic failover later", writes}},
		1: {{"primary", "automatic, R/W", "automatic, R/W", writes}, {"secondary", "R/W, no automatic failover later", "R/W, automatic failover later; then commits wait", writes}},
		2: {{"primary", "automatic, not writable until it returns", "automatic, not open until it returns", waits}, {"secondary", "not available", "commits wait until it returns", waits}},
	}},
	{"two synchronous replicas", lab.Options{Replicas: 2}, map[int][]outcome{
		0: {{"primary", "manual failover, maybe loss", "waits for it; forced failover, maybe loss", waits}, {"secondary", "R/W, exposed", "R/W, exposed", writes}},
		1: {{"primary", "automatic, not writable until it returns", "waits for it; forced failover", waits}, {"secondary", "not available", "commits wait until it returns", waits}},
	}},
	{"two synchronous replicas and a witness", lab.Options{Replicas: 2, Witness: true}, map[int][]outcome{
		0: {
			{"primary", "automatic, R/W", "automatic, R/W", writes},
			{"secondary", "R/W, exposed", "R/W, exposed", writes},
			{"witness", "R/W, no automatic failover", "R/W, no automatic failover", writes},
			{"secondary and witness", "not available", "not available until one returns", waits},
		},
		1: {
			{"primary", "automatic, not writable until it returns", "automatic, not open until it returns", waits},
			{"secondary", "not available", "commits wait until it returns", waits},
			{"witness", "R/W, no automatic failover", "R/W, no automatic failover", writes},
			{"secondary and witness", "not available", "not available until both return", waits},
		},
	}},
}

// TestRequiredSecondaries goes through the published table, row by row.
func TestRequiredSecondaries(t *testing.T) {
	long(t)
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			g := raise(t, layout.o)
			sql(t, g.ReadWrite(), "create table if not exists marks (id int)")
			for _, required := range []int{0, 1, 2} {
				for _, c := range layout.rows[required] {
					if !t.Run(fmt.Sprintf("%d required, %s lost", required, c.lost), func(t *testing.T) { g.lose(t, required, c) }) {
						return
					}
				}
			}
			g.down(t)
		})
	}
}

// TestRequiredSecondariesInTheDocumentation holds the documentation's table against the one above.
func TestRequiredSecondariesInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/coming-from-sql-server.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| group | required | lost | SQL Server | Coterie |\n|---|---|---|---|---|\n")
	for _, layout := range layouts {
		for _, required := range []int{0, 1, 2} {
			for _, c := range layout.rows[required] {
				fmt.Fprintf(&want, "| %s | %d | %s | %s | %s |\n", layout.name, required, c.lost, c.published, c.here)
			}
		}
	}
	if !strings.Contains(string(page), want.String()) {
		t.Errorf("docs/coming-from-sql-server.md has another table than\n%s", want.String())
	}
}

// lose takes nodes away, checks the fate of a commit, and brings them back.
func (g *group) lose(t *testing.T, required int, c outcome) {
	t.Helper()
	g.says(t, "n1", fmt.Sprintf("ALTER AVAILABILITY GROUP lab SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = %d)", required))
	was := g.ready(t)
	if len(was.Replicas) == 2 && len(was.Witnesses) == 0 && *was.Primary != "n1" {
		// The one vote of such a group is n1's, wherever the primary is: without it no lease can be renewed. The table
		// is for a primary that has it (README, limits).
		g.says(t, "n1", "ALTER AVAILABILITY GROUP lab FAILOVER")
		was = g.ready(t)
	}
	lost := map[string][]string{
		"primary": {*was.Primary}, "secondary": {secondaries(was)[0]}, "witness": {"w"}, "secondary and witness": {secondaries(was)[0], "w"},
	}[c.lost]
	for _, n := range lost {
		if err := g.Kill(n, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	err := g.mark(t, map[string]time.Duration{writes: patience, waits: 15 * time.Second}[c.want])
	if got := map[bool]string{true: writes, false: waits}[err == nil]; got != c.want {
		t.Errorf("%s, want %s (%v); published: %s", got, c.want, err, c.published)
	}
	t.Logf("%s: %s after %v; published: %s", c.lost, c.want, time.Since(began).Round(100*time.Millisecond), c.published)
	for _, n := range lost {
		if err := g.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	g.ready(t)
	if err := g.mark(t, patience); err != nil {
		t.Errorf("all are back, and nothing is committed: %v", err)
	}
}

// mark tries to commit a row for so long, on a new connection each time.
func (g *group) mark(t *testing.T, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		if last = insertMark(ctx, g.ReadWrite()); last == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return last
}

func insertMark(ctx context.Context, uri string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return err
	}
	defer func() {
		c, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(c)
	}()
	_, err = conn.Exec(ctx, "insert into marks values (1)")
	return err
}

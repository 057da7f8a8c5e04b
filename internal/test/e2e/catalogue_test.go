package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// TestEndToEndCatalogue plays faults of docs/internals/faults.md that no other test has, each under its number.
func TestEndToEndCatalogue(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	for _, f := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"F02", backendDies},
		{"F22", clientsVanish},
		{"F27", temporaryTables},
		{"F28", firstCommits},
		{"F30", preparedTransaction},
	} {
		if !t.Run(f.name, func(t *testing.T) { f.test(t, g) }) {
			return
		}
	}
	g.down(t)
}

// title is the title of a process of a server.
func title(pid int) string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return string(b)
}

// backendDies kills one backend of a client: PostgreSQL restarts all, and every row that was acknowledged is there.
func backendDies(t *testing.T, g *group) {
	for range 3 {
		was := g.ready(t)
		p := *was.Primary
		c, err := pgx.Connect(t.Context(), g.DSN(p))
		if err != nil {
			t.Fatal(err)
		}
		var backend int
		if err := c.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
			t.Fatal(err)
		}
		signal(t, backend, syscall.SIGKILL)
		if _, err := c.Exec(t.Context(), "SELECT 1"); err == nil {
			t.Error("a session whose backend was killed goes on")
		}
		_ = c.Close(context.WithoutCancel(t.Context()))
		g.await(t, "the server has restarted", func(lab.Status) bool { return !strings.Contains(title(backend), "postgres") })
		g.acknowledged(t, 50)
		g.revive(t, p)
		g.judgeAndGoOn(t)
	}
}

// clientsVanish leaves sixty sessions whose commits wait for secondaries that do not answer, and whose clients are
// gone. The agent still works: a failover succeeds.
func clientsVanish(t *testing.T, g *group) {
	was := g.ready(t)
	if err := g.run(t, "CREATE TABLE IF NOT EXISTS vanished (n int)"); err != nil {
		t.Fatal(err)
	}
	senders := g.walsenders(*was.Primary)
	for _, s := range senders {
		signal(t, s, syscall.SIGSTOP)
	}
	for i := range 60 {
		c, err := pgx.Connect(t.Context(), g.DSN(*was.Primary))
		if err != nil {
			t.Logf("%d sessions: %v", i, err)
			break
		}
		c.PgConn().Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf("INSERT INTO vanished VALUES (%d)", i)})
		if err := c.PgConn().Frontend().Flush(); err != nil {
			t.Fatal(err)
		}
		_ = c.PgConn().Conn().Close() // without a word
	}
	for _, s := range senders {
		_ = syscall.Kill(s, syscall.SIGCONT) // it may have ended
	}
	g.ready(t)
	g.failover(t, secondaries(g.ready(t))[0])
	g.judgeAndGoOn(t)
}

// temporaryTables stops a primary whose sessions have temporary tables, which they drop at their end by a commit, while
// one secondary does not answer.
func temporaryTables(t *testing.T, g *group) {
	was := g.ready(t)
	for range 5 {
		c, err := pgx.Connect(t.Context(), g.DSN(*was.Primary))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		if _, err := c.Exec(t.Context(), "CREATE TEMPORARY TABLE gone AS SELECT generate_series(1, 1000)"); err != nil {
			t.Fatal(err)
		}
	}
	to, other := secondaries(was)[0], secondaries(was)[1]
	if err := g.Pause(other, lab.WhatPostgres); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	g.failover(t, to)
	t.Logf("failover after %v", time.Since(began).Round(time.Millisecond))
	if err := g.Resume(other); err != nil {
		t.Fatal(err)
	}
	if s := g.ready(t); s.Epoch != was.Epoch+1 {
		t.Logf("epoch %d after %d", s.Epoch, was.Epoch)
	}
	g.judgeAndGoOn(t)
}

// preparedTransaction prepares a transaction, kills the primary's node, and commits it on the next primary.
func preparedTransaction(t *testing.T, g *group) {
	was := g.ready(t)
	p := *was.Primary
	if err := g.run(t, "CREATE TABLE IF NOT EXISTS twice (n int)"); err != nil {
		t.Fatal(err)
	}
	if got := sql(t, g.ReadWrite(), "SHOW max_prepared_transactions"); got == "0" {
		must(t, "settings", "set", "max_prepared_transactions=10", "--node", g.node(p))
		for _, n := range append(secondaries(was), p) {
			if err := g.Kill(n, lab.WhatPostgres); err != nil { // the setting is read at the server's start
				t.Fatal(err)
			}
			g.revive(t, n)
		}
		was = g.await(t, "prepared transactions are possible", func(s lab.Status) bool {
			return s.Ready() && sql(t, g.ReadWrite(), "SHOW max_prepared_transactions") == "10"
		})
		p = *was.Primary
	}
	c, err := pgx.Connect(t.Context(), g.DSN(p))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"BEGIN", "INSERT INTO twice VALUES (7)", "PREPARE TRANSACTION 'f30'"} {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := g.Kill(p, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, was)
	if err := g.run(t, "COMMIT PREPARED 'f30'"); err != nil {
		t.Errorf("a transaction that was prepared cannot be committed after the failover: %v", err)
	}
	g.revive(t, p)
	if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM twice"); got != "1" {
		t.Errorf("%s rows of a prepared transaction", got)
	}
	g.judgeAndGoOn(t)
}

// firstCommits kills the primary, or its server, under clients that try to commit all the time, and kills the next
// primary's node as soon as it has acknowledged anything. The rows that it acknowledged must be on another node.
func firstCommits(t *testing.T, g *group) {
	for i := range 6 {
		was := g.ready(t)
		g.judge(t)
		g.hammer(t)
		if err := g.Kill(*was.Primary, []string{lab.WhatNode, lab.WhatPostgres}[i%2]); err != nil {
			t.Fatal(err)
		}
		before := g.ledger.Progress().Acknowledged
		next := g.leader(t, was)
		for end := time.Now().Add(patience); g.ledger.Progress().Acknowledged == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing is acknowledged")
			}
		}
		if err := g.Kill(next, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s after %s, killed after %d rows", next, *was.Primary, g.ledger.Progress().Acknowledged-before)
		g.revive(t, *was.Primary, next)
		g.judgeAndGoOn(t)
	}
}

// hammer starts a writer of many clients, which end asks to stop.
func (g *group) hammer(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- g.ledger.Write(ctx, ledger.WriterOptions{DSN: g.ReadWrite(), Clients: 16, Every: time.Millisecond})
		close(ended)
	}()
	g.end, g.ended = cancel, ended
	g.acknowledged(t, 50)
}

// leader returns the node that leads the first later epoch in the record.
func (g *group) leader(t *testing.T, was lab.Status) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		for _, r := range was.Replicas {
			s, err := g.status(t, r.Name)
			if err == nil && s.Phase == ag.PhaseLead && s.Epoch > was.Epoch && member(s, r.Name).Role == ag.RolePrimary {
				return r.Name
			}
		}
	}
	t.Fatal("nobody leads")
	return ""
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndSessionsOutlive holds that sessions of the listeners that live keep their connections when the primary
// dies, its whole node or its server alone: with their settings and prepared statements, and with an error of 40001 for
// what was under way in a transaction. coterie.continuity says so right before.
func TestEndToEndSessionsOutlive(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "CREATE TABLE counted (session text, n int, PRIMARY KEY (session, n))")
	for _, what := range []string{lab.WhatNode, lab.WhatPostgres} {
		t.Run(what, func(t *testing.T) { g.outlive(t, what) })
	}
	g.down(t)
}

// outlive kills that of the primary under sessions of the other nodes' listeners, and of its own node's if that lives.
func (g *group) outlive(t *testing.T, what string) {
	was := g.ready(t)
	var idle, busy []*survivor
	nodes, column := secondaries(was), "node_loss"
	if what == lab.WhatPostgres {
		nodes, column = append(nodes, *was.Primary), "server_loss"
	}
	for _, node := range nodes {
		for i := range 4 {
			x := g.survivor(t, node, fmt.Sprintf("%s-%s-%d", what, node, i))
			if _, err := x.conn.Prepare(t.Context(), "named", "SELECT lower($1)"); err != nil {
				t.Fatal(err)
			}
			if idle = append(idle, x); i == 0 {
				idle, busy = idle[:len(idle)-1], append(busy, x)
			}
		}
	}
	g.asked(t, *was.Primary, len(idle)+len(busy))
	ended := make(chan error, len(busy))
	for _, x := range busy {
		if _, err := x.conn.Exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := x.conn.Exec(t.Context(), "SELECT pg_sleep(600)", pgx.QueryExecModeSimpleProtocol)
			ended <- err
		}()
	}
	g.sleeping(t, *was.Primary, len(busy))
	g.await(t, "the view says that all are kept", func(lab.Status) bool {
		r, err := g.answered(t, nodes[0], fmt.Sprintf("SELECT sum(sessions) FROM coterie.continuity WHERE replica = '%s' AND %s = 'KEPT'", *was.Primary, column))
		return err == nil && fmt.Sprint(r.Rows[0][0]) == fmt.Sprint(len(idle)+len(busy))
	})
	if err := g.Kill(*was.Primary, what); err != nil {
		t.Fatal(err)
	}
	g.nextEpoch(t, was)
	for range busy {
		var pg *pgconn.PgError
		if err := <-ended; !errors.As(err, &pg) || pg.Code != "40001" || pg.Severity != "ERROR" {
			t.Errorf("a statement of a transaction: %v", err)
		}
	}
	for _, x := range append(idle, busy...) {
		x.wentOn(t)
	}
	g.revive(t, *was.Primary)
	g.judgeAndGoOn(t)
}

// TestEndToEndReplay holds that with CONTINUITY = REPLAY the transactions of the listeners that live go on when the
// primary's node dies, and are committed once.
func TestEndToEndReplay(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "CREATE TABLE counted (session text, n int, PRIMARY KEY (session, n))")
	sql(t, g.ReadWrite(), "CREATE TABLE accounts (name text PRIMARY KEY, cents int)")
	was := g.ready(t)
	g.says(t, secondaries(was)[0], fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] SET (CONTINUITY = REPLAY)", was.Group))
	var open []*survivor
	for _, node := range secondaries(was) {
		for i := range 4 {
			x := g.survivor(t, node, fmt.Sprintf("%s-%d", node, i))
			sql(t, g.ReadWrite(), "INSERT INTO accounts VALUES ('"+x.name+"', 100)")
			if _, err := x.conn.Prepare(t.Context(), "named", "SELECT lower($1)"); err != nil {
				t.Fatal(err)
			}
			open = append(open, x)
		}
	}
	g.asked(t, *was.Primary, len(open))
	for _, x := range open {
		x.exec(t, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT cents FROM accounts WHERE name = '"+x.name+"' FOR UPDATE",
			"UPDATE accounts SET cents = cents - 1 WHERE name = '"+x.name+"' RETURNING cents", "INSERT INTO counted VALUES ('"+x.name+"', 0)")
	}
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.nextEpoch(t, was)
	for _, x := range open {
		x.exec(t, "UPDATE accounts SET cents = cents - 1 WHERE name = '"+x.name+"'", "COMMIT")
		x.wentOn(t)
	}
	replayed := 0.0
	for _, r := range was.Replicas {
		if r.Name != *was.Primary {
			replayed += metric(t, r.HTTP, "coterie_transactions_replayed_total")
		}
	}
	if int(replayed) != len(open) {
		t.Errorf("%v of %d transactions are counted", replayed, len(open))
	}
	g.revive(t, *was.Primary)
	if got, want := sql(t, g.ReadWrite(), "SELECT count(*) || ' ' || sum(cents) || ' ' || (SELECT count(*) FROM counted) FROM accounts"), fmt.Sprintf("%d %d %d", len(open), 98*len(open), 2*len(open)); got != want {
		t.Errorf("accounts, cents and rows: %s, want %s", got, want)
	}
	g.judgeAndGoOn(t)
	g.down(t)
}

// exec executes statements, each as a text of its own. None may fail.
func (x *survivor) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := x.conn.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol)
		cancel()
		if err != nil {
			t.Errorf("%s: %s: %v", x.name, s, err)
			return
		}
	}
}

// wentOn asserts that the session is the same, and writes.
func (x *survivor) wentOn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if x.conn.PgConn().TxStatus() != 'I' {
		if _, err := x.conn.Exec(ctx, "ROLLBACK"); err != nil {
			t.Errorf("%s: %v", x.name, err)
			return
		}
	}
	var name, mem, lower string
	err := x.conn.QueryRow(ctx, "INSERT INTO counted VALUES ($1, 1) RETURNING current_setting('my.name'), current_setting('work_mem')", x.name).Scan(&name, &mem)
	if err == nil {
		err = x.conn.QueryRow(ctx, "named", "A").Scan(&lower)
	}
	if err != nil || name != x.name || mem != "5MB" || lower != "a" {
		t.Errorf("%s: %q, %q, %q, %v", x.name, name, mem, lower, err)
	}
}

// asked waits until that many sessions of the server have told their state.
func (g *group) asked(t *testing.T, primary string, n int) {
	t.Helper()
	g.activity(t, primary, "state = 'idle' AND query LIKE 'select ''setting'', s.name%'", n)
}

// sleeping waits until that many sessions of the server sleep.
func (g *group) sleeping(t *testing.T, primary string, n int) {
	t.Helper()
	g.activity(t, primary, "state = 'active' AND query LIKE 'SELECT pg_sleep%'", n)
}

// activity waits until that many sessions of the server match.
func (g *group) activity(t *testing.T, primary, condition string, n int) {
	t.Helper()
	g.await(t, fmt.Sprintf("%d sessions: %s", n, condition), func(lab.Status) bool {
		return sql(t, g.DSN(primary), "SELECT count(*) FROM pg_stat_activity WHERE "+condition) == fmt.Sprint(n)
	})
}

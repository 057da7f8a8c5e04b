package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndPlanned runs an administrator's operations on a healthy group, under a writer, with the faults that can
// interrupt them.
func TestEndToEndPlanned(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"the primary's agent restarts in place", restartPrimary},
		{"a secondary's agent restarts in place", restartSecondary},
		{"a long transaction, given up", longTransaction},
		{"a long transaction, cut", longTransactionCut},
		{"a session past the listener", outsider},
		{"two operators", twoOperators},
		{"the target dies while the primary drains", targetDiesInDrain},
		{"the target dies before it leads", targetDiesBeforeLead},
		{"the target dies once it leads", targetDiesAfterLead},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	g.down(t)
}

// same asserts that no other replica has led and that no server was started again.
func (g *group) same(t *testing.T, was lab.Status) {
	t.Helper()
	is := g.ready(t)
	if *is.Primary != *was.Primary || is.Epoch != was.Epoch {
		t.Errorf("%s leads epoch %d, after %s in %d", *is.Primary, is.Epoch, *was.Primary, was.Epoch)
	}
	for _, r := range was.Replicas {
		if p := pid(t, is, r.Name, lab.WhatPostgres); p != *r.PIDs.Postgres {
			t.Errorf("the server of %s is process %d, was %d", r.Name, p, *r.PIDs.Postgres)
		}
	}
}

func restartPrimary(t *testing.T, g *group) {
	was := g.ready(t)
	sql(t, g.ReadWrite(), "CREATE TABLE counted (session text, n int, PRIMARY KEY (session, n))")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var far []*survivor // by the listeners of the other nodes: no statement of theirs fails
	for _, node := range secondaries(was) {
		x := g.survivor(t, node, node)
		all.Go(func() { x.work(ctx, t) })
		far = append(far, x)
	}
	defer all.Wait()
	defer cancel()
	for range 3 {
		began := time.Now()
		t.Log(strings.TrimSpace(must(t, "restart", "--node", g.node(*was.Primary)).err))
		g.acknowledged(t, 20)
		for _, x := range far {
			x.advances(t)
		}
		t.Logf("longest gap %v", g.ledger.OutageBetween(began, time.Now()).Longest.Round(time.Millisecond))
		g.same(t, was)
	}
	g.judgeAndGoOn(t)
}

// restartSecondary restarts a secondary's agent. Its server goes on. The sessions of its own listener end, those of
// writers there too; readers by another node's listener go on at another secondary, and writers notice nothing.
func restartSecondary(t *testing.T, g *group) {
	was := g.ready(t)
	node, primary := secondaries(was)[0], *was.Primary
	sql(t, g.ReadWrite(), "CREATE TABLE IF NOT EXISTS counted (session text, n int, PRIMARY KEY (session, n))")
	own := []*survivor{g.survivor(t, node, "own writer"), g.survivingReader(t, node, "own reader")}
	far := []*survivor{g.survivor(t, primary, "far writer")}
	for n := range 4 { // some of them on that secondary
		far = append(far, g.survivingReader(t, primary, fmt.Sprintf("far reader %d", n)))
	}
	g.await(t, "the state of each of them to be known", func(lab.Status) bool {
		r, err := g.answered(t, primary, fmt.Sprintf("SELECT node_loss FROM coterie.continuity WHERE node = '%s' AND replica = '%s'", primary, node))
		return err == nil && len(r.Rows) > 0 && !slices.ContainsFunc(r.Rows, func(row []any) bool { return row[0] != "KEPT" })
	})
	began := time.Now()
	must(t, "restart", "--node", g.node(node))
	for _, x := range own {
		var answered *pgconn.PgError
		if _, err := x.conn.Exec(t.Context(), "SELECT 1"); !errors.As(err, &answered) || answered.Code != "57P01" {
			t.Errorf("%s, of the listener that ended: %v", x.name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, x := range far {
		all.Go(func() { x.work(ctx, t) })
	}
	defer all.Wait()
	defer cancel()
	for _, x := range far {
		x.advances(t)
	}
	g.acknowledged(t, 20)
	t.Logf("longest gap %v", g.ledger.OutageBetween(began, time.Now()).Longest.Round(time.Millisecond))
	g.same(t, was)
}

// open begins a transaction that stays open.
func (g *group) open(t *testing.T) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := g.ready(t)
	c, err := pgx.Connect(ctx, g.DSN(*s.Primary)) // by the listener of a node that lives on
	if err == nil {
		_, err = c.Exec(ctx, "CREATE TABLE IF NOT EXISTS held (id int); BEGIN; INSERT INTO held VALUES (1)")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func longTransaction(t *testing.T, g *group) {
	was, c := g.ready(t), g.open(t)
	to := secondaries(was)[0]
	a := coterie(t, "failover", "--to", to, "--drain", "1s", "--node", g.node(to))
	if a.code != 3 || !strings.Contains(a.err, "1 transactions still run after 1s") {
		t.Errorf("exit code %d: %s", a.code, a.err)
	}
	if _, err := c.Exec(t.Context(), "COMMIT"); err != nil {
		t.Errorf("the transaction did not survive: %v", err)
	}
	g.same(t, was)
	g.judgeAndGoOn(t)
}

func longTransactionCut(t *testing.T, g *group) {
	was, c := g.ready(t), g.open(t)
	to := secondaries(was)[0]
	must(t, "failover", "--to", to, "--drain", "1s", "--cut", "--node", g.node(to))
	if _, err := c.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("the transaction that was cut could be committed")
	}
	g.ready(t)
	if n := sql(t, g.ReadWrite(), "SELECT count(*) FROM held"); n != "1" {
		t.Errorf("%s rows, of two transactions one of which was cut", n)
	}
	g.judgeAndGoOn(t)
}

// outsider: a session past the listener is not drained, and writes until the end.
func outsider(t *testing.T, g *group) {
	was := g.ready(t)
	st, err := g.status(t, *was.Primary)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("psql", "-X", "-h", member(st, *was.Primary).Local.Sockets, "-d", "postgres", "-c",
		"BEGIN; CREATE TABLE outside (id int); SELECT pg_sleep(600)")
	cmd.Dir = "/"
	asOwner(t, cmd, g.node(*was.Primary))
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	g.await(t, "it runs", func(lab.Status) bool {
		return sql(t, g.ReadWrite(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%outside%' AND state = 'active' AND pid <> pg_backend_pid()") == "1"
	})
	to := secondaries(was)[0]
	must(t, "failover", "--to", to, "--node", g.node(to))
	if s := g.ready(t); *s.Primary != to {
		t.Errorf("%s leads", *s.Primary)
	}
	if err := <-ended; err == nil || !strings.Contains(g.log(*was.Primary, "agent.log"), "ending what still writes") {
		t.Errorf("it was not ended before the server was stopped: %v", err)
	}
	g.judgeAndGoOn(t)
}

// asOwner runs a command as the user that owns a node directory.
func asOwner(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	owner := st.Sys().(*syscall.Stat_t)
	if int(owner.Uid) != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
}

func twoOperators(t *testing.T, g *group) {
	was := g.ready(t)
	codes := make(chan int, 2)
	for _, to := range secondaries(was) {
		go func() { codes <- coterie(t, "failover", "--to", to, "--node", g.node(to)).code }()
	}
	if x, y := <-codes, <-codes; min(x, y) != 0 || max(x, y) != 3 {
		t.Errorf("exit codes %d and %d", x, y)
	}
	if s := g.ready(t); s.Epoch != was.Epoch+1 {
		t.Errorf("epoch %d after %d", s.Epoch, was.Epoch)
	}
	g.judgeAndGoOn(t)
}

// killTarget begins a failover, kills its target at that moment, and returns the command's answer.
func (g *group) killTarget(t *testing.T, to string, moment func() bool) answer {
	t.Helper()
	said := make(chan answer, 1)
	other := secondaries(g.ready(t))
	from := other[0]
	if from == to {
		from = other[1]
	}
	go func() { said <- coterie(t, "failover", "--to", to, "--node", g.node(from)) }()
	for end := time.Now().Add(patience); !moment() && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
	if err := g.Kill(to, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	return <-said
}

func targetDiesInDrain(t *testing.T, g *group) {
	was, c := g.ready(t), g.open(t)
	to := secondaries(was)[0]
	from := g.node(*was.Primary)
	released := false
	a := g.killTarget(t, to, func() bool {
		return strings.Contains(coterie(t, "status", "--node", from).out, "draining")
	})
	if _, err := c.Exec(t.Context(), "COMMIT"); err == nil {
		released = true
	}
	if a.code != 3 || !released {
		t.Errorf("exit code %d, transaction went on: %t: %s", a.code, released, a.err)
	}
	g.acknowledged(t, 20)
	if s, err := g.Status(t.Context()); err != nil || *s.Primary != *was.Primary || s.Epoch != was.Epoch {
		t.Errorf("%+v %v", s, err)
	}
	g.revive(t, to)
	g.judgeAndGoOn(t)
}

func targetDiesBeforeLead(t *testing.T, g *group) {
	was := g.ready(t)
	to := secondaries(was)[0]
	g.killTarget(t, to, func() bool {
		s, err := g.status(t, *was.Primary)
		return err == nil && s.Phase == ag.PhasePromote
	})
	g.acknowledged(t, 20)
	if s, err := g.Status(t.Context()); err != nil || *s.Primary == to {
		t.Errorf("%+v %v", s, err)
	}
	g.revive(t, to)
	g.judgeAndGoOn(t)
}

func targetDiesAfterLead(t *testing.T, g *group) {
	was := g.ready(t)
	to := secondaries(was)[0]
	g.killTarget(t, to, func() bool {
		s, err := g.status(t, *was.Primary)
		return err == nil && s.Phase == ag.PhaseLead && s.Epoch > was.Epoch
	})
	s, err := g.status(t, *was.Primary)
	if err != nil {
		t.Fatal(err)
	}
	if s.SyncCount > 0 { // until a member has flushed what its promotion wrote, only the new primary itself may lead (docs/internals/safety.md, "Promotion")
		g.acknowledged(t, 20)
	}
	g.revive(t, to)
	g.judgeAndGoOn(t)
}

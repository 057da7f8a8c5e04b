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

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndHealth gives the primary faults that kill no process.
func TestEndToEndHealth(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	if t.Run("the postmaster hangs", func(t *testing.T) { postmasterHangs(t, g) }) &&
		t.Run("a server that was started in place opens late", func(t *testing.T) { reopens(t, g) }) &&
		t.Run("a failover while a copy is made", func(t *testing.T) { failoverWhileSeeding(t, g) }) {
		g.down(t)
	}
}

// postmasterHangs stops the postmaster alone, so that sessions live but none can begin, until another replica leads,
// and checks that the failover is explained.
func postmasterHangs(t *testing.T, g *group) {
	was := g.ready(t)
	victim := *was.Primary
	p := pid(t, was, victim, lab.WhatPostgres)
	time.Sleep(12 * time.Second) // until the node knows which answers are usual
	began := time.Now()
	signal(t, p, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(p, syscall.SIGCONT) }() // it is dead by then, unless this failed
	now := g.newPrimary(t, was)
	took := time.Since(began).Round(100 * time.Millisecond)
	t.Logf("%s leads after %v", *now.Primary, took)
	if took > 9*time.Second { // two are unusual, on a host that is not slow, and HEALTH_CHECK_TIMEOUT is ten
		t.Errorf("it took %v", took)
	}
	g.acknowledged(t, 50)
	explain := []string{"explain", "-v", "--node", g.node(secondaries(now)[0])}
	a := must(t, explain...)
	for _, want := range []string{"Failover: " + victim + " -> " + *now.Primary, "has not answered a new connection", "its postmaster is stopped"} {
		if !strings.Contains(a.out, want) {
			t.Errorf("coterie explain does not say %q:\n%s", want, a.out)
		}
	}
	for _, r := range now.Replicas { // in short, the same on every node
		if r.Name == victim {
			continue
		}
		if a := must(t, "explain", "--last-failover", "--node", g.node(r.Name)); !strings.HasPrefix(a.out, "Failover: "+victim+" -> "+*now.Primary+",") || !strings.Contains(a.out, "took ") {
			t.Errorf("coterie explain --last-failover on %s says\n%s", r.Name, a.out)
		}
	}
	g.await(t, "coterie explain names a replica that would take over", func(lab.Status) bool {
		out := must(t, explain...).out
		return strings.Contains(out, " would take over\n") || strings.Contains(out, " could take over\n")
	})
	s := g.ready(t)
	st, err := g.status(t, *s.Primary)
	if err != nil || member(st, victim).StoodDown == "" {
		t.Errorf("the status does not say that %s stood down: %+v, %v", victim, member(st, victim), err)
	}
	if a := must(t, "resume", victim, "--trust", "--node", g.node(victim)); !strings.Contains(a.out+a.err, "it may be chosen again at once") {
		t.Errorf("%s%s", a.out, a.err)
	}
	g.judgeAndGoOn(t)
}

// reopens crashes a primary that must not be replaced, while nothing of it is replicated. Rows that were written and
// never acknowledged must not be readable before they are on a secondary (S6).
func reopens(t *testing.T, g *group) {
	was := g.ready(t)
	sql(t, g.ReadWrite(), "create table if not exists unseen (id int)")
	for range 2 { // each crash is relieved once
		was = g.ready(t)
		if err := g.Kill(*was.Primary, lab.WhatPostgres); err != nil {
			t.Fatal(err)
		}
		g.nextEpoch(t, was)
	}
	was = g.ready(t)
	primary := *was.Primary
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, g.DSN(primary))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var receivers []int
	for _, n := range secondaries(was) {
		receivers = append(receivers, g.walreceivers(n)...)
	}
	if len(receivers) != 2 {
		t.Fatalf("walreceivers: %v", receivers)
	}
	hang := func(sig syscall.Signal) {
		for _, r := range receivers {
			_ = syscall.Kill(r, sig)
		}
	}
	hang(syscall.SIGSTOP)
	defer hang(syscall.SIGCONT)
	insert := make(chan error, 1)
	go func() { _, err := c.Exec(ctx, "insert into unseen values (1)"); insert <- err }()
	time.Sleep(time.Second) // it waits for a secondary
	if err := g.Kill(primary, lab.WhatPostgres); err != nil {
		t.Fatal(err)
	}
	if err := <-insert; err == nil {
		t.Error("the commit was acknowledged")
	}
	time.Sleep(4 * time.Second) // long enough for the server to be up again
	s, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Primary != nil && s.Epoch == was.Epoch+1 && *s.Primary == primary {
		quick, stop := context.WithTimeout(ctx, 2*time.Second)
		defer stop()
		if q, err := pgx.Connect(quick, g.DSN(primary)); err == nil {
			t.Error("the gate is open although nothing that was recovered is replicated")
			_ = q.Close(ctx)
		}
	}
	hang(syscall.SIGCONT)
	g.acknowledged(t, 50)
	g.ready(t)
	g.judgeAndGoOn(t)
}

// walreceivers lists the walreceivers of a node's server.
func (g *group) walreceivers(node string) (out []int) {
	for _, p := range g.servers(node) {
		title, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p), "cmdline"))
		if strings.HasPrefix(string(title), "postgres: walreceiver") {
			out = append(out, p)
		}
	}
	return out
}

// failoverWhileSeeding kills the primary while one of the secondaries is seeded from it.
func failoverWhileSeeding(t *testing.T, g *group) {
	was := g.ready(t)
	sql(t, g.ReadWrite(), "create table if not exists bulk as select g, md5(random()::text) from generate_series(1, 1000000) g")
	g.ready(t)
	victim, other := secondaries(was)[0], secondaries(was)[1]
	slow := fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] MODIFY REPLICA ON '%s' WITH (SEED_MAX_RATE = 16 MB)", was.Group, victim) // to see the copy being made
	if a := coterie(t, "sql", "--node", g.node(other), "-c", slow); a.code != 0 {
		t.Fatal(a.err)
	}
	if err := g.Kill(victim, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(g.node(victim), "pgdata")); err != nil {
		t.Fatal(err)
	}
	// While a commit may be on the lost copy alone, no replica may take over.
	g.await(t, "no commit counts on "+victim, func(s lab.Status) bool { return s.WaitsFor != "" && !strings.Contains(s.WaitsFor, victim) })
	if err := g.Start(victim); err != nil {
		t.Fatal(err)
	}
	was = g.await(t, victim+" is being seeded", func(s lab.Status) bool {
		r, _ := s.Replica(victim)
		if s.Primary != nil && strings.Contains(r.Now, "waiting for checkpoint") {
			g.askPrivately(t, *s.Primary, "checkpoint") // the copy's is spread under a limit
		}
		return r.Sync == "INITIALIZING" && strings.Contains(r.Now, "MiB") && s.Primary != nil
	})
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	// The group requires a synchronized secondary, so no replica takes writes before the copy is made, which is not
	// throttled then.
	now := g.newPrimary(t, was)
	if *now.Primary == victim {
		t.Fatal("a half-made copy leads")
	}
	g.acknowledged(t, 20)
	g.revive(t, *was.Primary)
	if got := sql(t, g.ReadOnly(), "select count(*) from bulk"); got != "1000000" {
		t.Errorf("a secondary has %s rows", got)
	}
	g.judgeAndGoOn(t)
}

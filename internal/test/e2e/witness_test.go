package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndWitness tests two replicas and a witness (docs/internals/safety.md, "Commit rule").
func TestEndToEndWitness(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"the witness dies and hangs", witnessFaults},
		{"the witness's agent restarts in place", restartWitness},
		{"the primary dies", primaryNodeDies},
		{"failover to the witness", failoverToWitness},
		{"the secondary dies, then the primary", degraded},
		{"the secondary falls silent", secondarySilent},
		{"forced failover", forced},
		{"the whole group dies", wholeGroupDies},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	g.down(t)
}

func witnessFaults(t *testing.T, g *group) {
	was := g.ready(t)
	if err := g.Kill("w", lab.WhatAgent); err != nil {
		t.Fatal(err)
	}
	g.acknowledged(t, 100)
	g.revive(t, "w")
	g.pause(t, g.ready(t), "w", lab.WhatAgent, func() { g.acknowledged(t, 500) })
	if s := g.revive(t, "w"); s.Epoch != was.Epoch {
		t.Errorf("a witness's fault led from epoch %d to %d", was.Epoch, s.Epoch)
	}
	g.judgeAndGoOn(t)
}

// restartWitness: the witness's agent replaces itself in its own process, and votes on.
func restartWitness(t *testing.T, g *group) {
	was := g.ready(t)
	agent := pid(t, was, "w", lab.WhatAgent)
	a := must(t, "restart", "--node", g.node("w"))
	if !strings.Contains(a.err, "the agent of w was restarted") || strings.Contains(a.err, "PostgreSQL") {
		t.Errorf("it says %q", a.err)
	}
	g.acknowledged(t, 20)
	s := g.ready(t)
	if now := pid(t, s, "w", lab.WhatAgent); now != agent {
		t.Errorf("the agent is process %d, was %d", now, agent)
	}
	if s.Epoch != was.Epoch {
		t.Errorf("a restart of the witness led from epoch %d to %d", was.Epoch, s.Epoch)
	}
	g.judgeAndGoOn(t)
}

func failoverToWitness(t *testing.T, g *group) {
	was := g.ready(t)
	for _, args := range [][]string{{}, {"--allow-data-loss", "--yes"}} {
		a := coterie(t, append([]string{"failover", "--to", "w", "--node", g.node(*was.Primary)}, args...)...)
		if a.code != exitRefused {
			t.Errorf("%v: exit code %d: %s", args, a.code, a.err)
		}
	}
	if s := g.ready(t); s.Epoch != was.Epoch {
		t.Errorf("epoch %d after %d", s.Epoch, was.Epoch)
	}
}

// unprotected waits until the primary waits for no secondary, and returns how long the writer waited for that.
func (g *group) unprotected(t *testing.T, primary string, since time.Time) time.Duration {
	t.Helper()
	g.await(t, "k = 0", func(lab.Status) bool {
		s, err := g.status(t, primary)
		return err == nil && s.SyncCount == 0 && s.FailoverReady != "ready"
	})
	g.acknowledged(t, 20)
	return g.ledger.OutageBetween(since, time.Now()).Longest
}

// degraded: a secondary that provably does not run is dropped after a second, and then only the old primary may lead.
func degraded(t *testing.T, g *group) {
	was := g.ready(t)
	primary, secondary := *was.Primary, secondaries(was)[0]
	since := time.Now()
	if err := g.Kill(secondary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	outage := g.unprotected(t, primary, since)
	if t.Logf("writes stood still for %v", outage); outage > 8*time.Second {
		t.Errorf("writes stood still for %v: a secondary that refuses connections is dropped after a second", outage)
	}
	if err := g.Kill(primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(secondary); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if s, err := g.status(t, secondary); err == nil && s.Primary == ag.ReplicaID(secondary) {
			t.Fatalf("%s took over although it may lack acknowledged commits: %+v", secondary, s)
		}
	}
	if a := coterie(t, "status", "--node", g.node(secondary)); a.code != exitUnhealthy {
		t.Errorf("status without a primary: exit code %d: %s%s", a.code, a.out, a.err)
	}
	if err := g.Start(primary); err != nil {
		t.Fatal(err)
	}
	if s := g.ready(t); *s.Primary != primary {
		t.Errorf("%s leads, and only %s may", *s.Primary, primary)
	}
	g.judgeAndGoOn(t)
}

// secondarySilent: a silent node may still run, so it is dropped only after the session timeout of 10 s.
func secondarySilent(t *testing.T, g *group) {
	was := g.ready(t)
	since := time.Now()
	if err := g.Pause(secondaries(was)[0], lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	outage := g.unprotected(t, *was.Primary, since)
	if t.Logf("writes stood still for %v", outage); outage > 20*time.Second {
		t.Errorf("writes stood still for %v: the session timeout is 10 s", outage)
	}
	if err := g.Resume(secondaries(was)[0]); err != nil {
		t.Fatal(err)
	}
	if s := g.ready(t); s.Epoch != was.Epoch {
		t.Errorf("a secondary's fault led from epoch %d to %d", was.Epoch, s.Epoch)
	}
	g.judgeAndGoOn(t)
}

// forced: an operator accepts the loss. The other copy stays as it is until it is resumed; its tail is then kept.
func forced(t *testing.T, g *group) {
	was := g.ready(t)
	primary, secondary := *was.Primary, secondaries(was)[0]
	sql(t, g.ReadWrite(), "create table if not exists lost (id int)")
	g.judge(t) // the writer rests: a row that the primary acknowledges alone will be lost
	if err := g.Kill(secondary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.await(t, "k = 0", func(lab.Status) bool {
		s, err := g.status(t, primary)
		return err == nil && s.SyncCount == 0
	})
	sql(t, g.DSN(primary), "insert into lost values (1)")
	if err := g.Kill(primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(secondary); err != nil {
		t.Fatal(err)
	}
	a := coterie(t, "failover", "--to", secondary, "--node", g.node(secondary))
	if a.code == 0 {
		t.Errorf("a planned failover without a primary: %s", a.err)
	}
	g.awaitQuorum(t, secondary)
	must(t, "failover", "--to", secondary, "--allow-data-loss", "--yes", "--node", g.node(secondary))
	s := g.newPrimary(t, was)
	if *s.Primary != secondary {
		t.Fatalf("%s leads", *s.Primary)
	}
	if got := sql(t, g.ReadWrite(), "select count(*) from lost"); got != "0" {
		t.Errorf("the secondary had it: %s", got)
	}
	g.write(t)
	forks := len(g.forks(primary))
	if err := g.Start(primary); err != nil {
		t.Fatal(err)
	}
	g.await(t, primary+" suspended", func(lab.Status) bool {
		s, err := g.status(t, secondary)
		m := member(s, primary)
		return err == nil && m.Suspended && m.Connected == "CONNECTED"
	})
	g.acknowledged(t, 200)
	if r, _ := g.await(t, "a look", func(lab.Status) bool { return true }).Replica(primary); r.Sync == ag.Synchronized || len(g.forks(primary)) != forks {
		t.Errorf("%s was touched before it was resumed: %+v", primary, r)
	}
	must(t, "resume", primary, "--node", g.node(secondary))
	g.ready(t)
	if n := len(g.forks(primary)); n != forks+1 {
		t.Errorf("%s keeps %d diverged tails, had %d", primary, n, forks)
	}
	g.judgeAndGoOn(t)
}

func (g *group) awaitQuorum(t *testing.T, node string) {
	t.Helper()
	g.await(t, "a quorum", func(lab.Status) bool {
		s, err := g.status(t, node)
		return err == nil && s.Quorum
	})
}

package e2e

import (
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
)

// TestEndToEndPowerLoss takes the power of nodes under load, whose disks lose what was not synced: fault F07 of
// docs/internals/faults.md. Every acknowledged row was synced on two nodes, so none may be lost, whichever nodes go
// dark together.
func TestEndToEndPowerLoss(t *testing.T) {
	long(t)
	if err := faultfs.Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	g := newGroup(t, lab.Options{Disks: true})
	var took faultfs.Lost
	primaryAnd := func(n int) func(lab.Status) []string {
		return func(s lab.Status) []string { return append([]string{*s.Primary}, secondaries(s)[:n]...) }
	}
	for i, turn := range []struct {
		name string
		who  func(lab.Status) []string
		kept float64
	}{
		{"F07 the primary and a secondary", primaryAnd(1), 0},
		{"F07 the primary and the other secondary, a part is kept", func(s lab.Status) []string { return []string{*s.Primary, secondaries(s)[1]} }, 0.5},
		{"F07 the primary alone", primaryAnd(0), 0.3},
		{"F07 both secondaries", func(s lab.Status) []string { return secondaries(s) }, 0},
		{"F07 all three", primaryAnd(2), 0},
		{"F07 all three, a part is kept", primaryAnd(2), 0.5},
	} {
		t.Run(turn.name, func(t *testing.T) {
			was := g.ready(t)
			g.acknowledged(t, 100)
			who := turn.who(was)
			lost, err := g.PowerLoss(t.Context(), faultfs.Loss{Kept: turn.kept, Seed: uint64(i)}, who...)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range who {
				t.Logf("%s lost %+v", n, lost[n])
				took.Blocks, took.Names = took.Blocks+lost[n].Blocks, took.Names+lost[n].Names
			}
			g.darkened(t, was, who)
		})
		if t.Failed() {
			return
		}
	}
	if took.Blocks == 0 || took.Names == 0 {
		t.Errorf("nothing was lost: %+v; this test shows nothing", took)
	}
	t.Run("F35 the WAL of a walreceiver cannot be synced", func(t *testing.T) { badWAL(t, g, faultfs.Failing) })
	t.Run("F35 the WAL of a walreceiver cannot be written", func(t *testing.T) { badWAL(t, g, faultfs.Broken) })
	g.down(t)
}

// darkened starts the nodes that were without power, and judges.
func (g *group) darkened(t *testing.T, was lab.Status, who []string) {
	t.Helper()
	if len(who) == 1 {
		g.newPrimary(t, was)
	}
	g.start(t, who...)
	now := g.revive(t, who...)
	g.acknowledged(t, 20)
	t.Logf("epoch %d led by %s, after %d by %s", now.Epoch, *now.Primary, was.Epoch, *was.Primary)
	for _, n := range who {
		if st, err := g.status(t, n); err != nil || slices.ContainsFunc(st.Replicas, func(r api.Replica) bool { return r.Quarantine != "" }) {
			t.Errorf("%s: %v %+v", n, err, st.Replicas)
		}
	}
	g.judgeAndGoOn(t)
}

// badWAL lets the disk of a secondary refuse the WAL that it receives. The group goes on without it, and nobody counts
// what it has not got.
func badWAL(t *testing.T, g *group, kind faultfs.Kind) {
	was := g.ready(t)
	victim := secondaries(was)[0]
	if _, err := g.Disk(t.Context(), victim, faultfs.Fault{Kind: kind, Files: "pgdata/pg_wal/0*"}); err != nil {
		t.Fatal(err)
	}
	g.await(t, victim+" is counted no more", func(lab.Status) bool {
		s, err := g.status(t, *was.Primary)
		return err == nil && s.SyncCount == 1 && len(s.SyncMembers) == 1 && string(s.SyncMembers[0].ID) != victim
	})
	g.acknowledged(t, 50)
	s, err := g.ShowDisk(t.Context(), victim)
	if err != nil || s.Refused == 0 {
		t.Errorf("the disk of %s has refused nothing: %+v %v", victim, s, err)
	}
	if _, err := g.Disk(t.Context(), victim, faultfs.Fault{}); err != nil {
		t.Fatal(err)
	}
	g.start(t, victim)
	// Bytes that the server believed to have synced may be lost: nobody starts it before a person has decided.
	g.await(t, victim+" under quarantine", func(lab.Status) bool {
		st, err := g.status(t, *was.Primary)
		return err == nil && member(st, victim).Quarantine != ""
	})
	if r, _ := g.await(t, "a look", func(lab.Status) bool { return true }).Replica(victim); r.PIDs.Postgres != nil {
		t.Errorf("the server of %s runs under quarantine", victim)
	}
	must(t, "resume", victim, "--node", g.node(*was.Primary))
	if now := g.revive(t, victim); now.Epoch != was.Epoch {
		t.Errorf("a secondary's disk led from epoch %d to %d", was.Epoch, now.Epoch)
	}
	g.judgeAndGoOn(t)
}

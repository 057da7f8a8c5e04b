package e2e

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndLateReplay holds that of two secondaries with all that was acknowledged the one is promoted that has
// replayed it, and that the other one leaves the claim to it.
func TestEndToEndLateReplay(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	both := secondaries(was)
	late, ready := both[0], both[1]
	if err := g.privately(t, late, "select pg_wal_replay_pause()"); err != nil {
		t.Fatal(err)
	}
	sql(t, g.ReadWrite(), "CREATE TABLE late AS SELECT n, repeat('x', 1000) AS filler FROM generate_series(1, 100000) n")
	g.acknowledged(t, 50)
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	now := g.newPrimary(t, was)
	if *now.Primary != ready {
		t.Errorf("%s leads, and had 100 MB to replay; %s had replayed them", *now.Primary, ready)
	}
	if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM late"); got != "100000" {
		t.Errorf("%s of 100000 rows are there, all of which were acknowledged", got)
	}
	if strings.Contains(g.log(late, "agent.log"), "rule=claim") {
		t.Errorf("%s claimed the epoch, although %s was ready", late, ready)
	}
	g.acknowledged(t, 50)
	g.revive(t, *was.Primary)
	g.down(t)
}

package e2e

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
)

// TestEndToEndMemory lets a session of the primary ask for more memory than its node may use: fault F08 of
// docs/internals/faults.md. The kernel ends that session's process, and neither agent nor keeper.
func TestEndToEndMemory(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: limits of memory need root")
	}
	limit := cgroup.Limits{Memory: 1 << 30}
	if _, err := cgroup.Create("coterie-try-memory", limit); err != nil {
		t.Skipf("NOT RUN: memory cannot be limited here: %v", err)
	}
	if err := cgroup.Remove("coterie-try-memory"); err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, lab.Options{Caps: limit})
	for _, on := range []string{"primary", "secondary"} {
		t.Run("F08 on the "+on, func(t *testing.T) { outOfMemory(t, g, on) })
	}
	g.down(t)
}

func outOfMemory(t *testing.T, g *group, on string) {
	was := g.ready(t)
	node := *was.Primary
	if on == "secondary" {
		node = secondaries(was)[0]
	}
	before, _ := was.Replica(node)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	uri := g.DSN(node)
	if on == "secondary" {
		uri = before.Listener.ReadOnly
	}
	c, err := pgx.Connect(ctx, uri)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Exec(ctx, "SELECT array_length(array_agg(repeat('x', 1000) || i), 1) FROM generate_series(1, 20000000) AS i")
	if err == nil {
		t.Error("the session got all the memory that it asked for: this test shows nothing")
	}
	t.Logf("the session: %v", err)
	_ = c.Close(context.WithoutCancel(ctx))
	g.acknowledged(t, 50)
	now := g.revive(t, node)
	after, _ := now.Replica(node)
	if after.Caps == nil || after.Caps.OOMKills == 0 {
		t.Errorf("the kernel has ended nothing: %+v", after.Caps)
	}
	for _, what := range []string{lab.WhatAgent, lab.WhatKeeper} {
		if pid(t, now, node, what) != pid(t, was, node, what) {
			t.Errorf("the %s of %s was ended too", what, node)
		}
	}
	t.Logf("%d processes ended; %s leads epoch %d after %s in %d", after.Caps.OOMKills, *now.Primary, now.Epoch, *was.Primary, was.Epoch)
	g.judgeAndGoOn(t)
}

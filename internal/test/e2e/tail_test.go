package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndTail kills a primary while the longest log is on a secondary that only a person may promote: the other
// one, which lacks acknowledged commits, gets them from there, and leads.
func TestEndToEndTail(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	both := secondaries(was)
	manual, other := both[0], both[1]
	at := []string{"--node", g.node(*was.Primary)}
	must(t, append([]string{"replica", "set", manual, "FAILOVER_MODE=MANUAL"}, at...)...)
	must(t, append([]string{"replica", "set", other, "SESSION_TIMEOUT=600"}, at...)...) // it stays counted, however slow this machine is

	receiver := g.walReceiver(t, other)
	signal(t, receiver, syscall.SIGSTOP)
	thaw := func() { _ = syscall.Kill(receiver, syscall.SIGCONT) } // it may have been killed meanwhile
	defer thaw()
	// More than any buffer on the way holds.
	sql(t, g.ReadWrite(), "CREATE TABLE tail AS SELECT n, repeat('x', 1000) AS filler FROM generate_series(1, 60000) n")
	g.acknowledged(t, 50)
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.await(t, "a candidate", func(s lab.Status) bool { return s.Epoch > was.Epoch })
	thaw()
	if now := g.newPrimary(t, was); *now.Primary != other {
		t.Errorf("%s leads; only a person may promote %s", *now.Primary, manual)
	}
	if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM tail"); got != "60000" {
		t.Errorf("%s of 60000 rows are there, all of which were acknowledged", got)
	}
	if !strings.Contains(g.log(other, "agent.log"), "fetch-tail") {
		t.Errorf("%s leads without having fetched anything", other)
	}
	if said := must(t, "explain", "-v", "--node", g.node(other)).out; !strings.Contains(said, "fetch-tail") {
		t.Errorf("coterie explain does not say where the log came from:\n%s", said)
	}
	g.acknowledged(t, 50)
	g.revive(t, *was.Primary)
	g.down(t)
}

// walReceiver returns the process that receives WAL on a node.
func (g *group) walReceiver(t *testing.T, node string) int {
	t.Helper()
	found := 0
	g.await(t, "a walreceiver on "+node, func(lab.Status) bool {
		for _, p := range g.servers(node) {
			if b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p), "cmdline")); strings.Contains(string(b), "walreceiver") {
				found = p
			}
		}
		return found != 0
	})
	return found
}

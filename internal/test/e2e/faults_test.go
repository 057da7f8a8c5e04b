package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndFaults kills and stops each kind of process, on the primary and on a secondary, while a writer writes.
func TestEndToEndFaults(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	for _, what := range []string{lab.WhatAgent, lab.WhatKeeper, lab.WhatPostgres, lab.WhatNode} {
		for _, on := range []string{"primary", "secondary"} {
			if !t.Run(fmt.Sprintf("SIGKILL the %s's %s", on, what), func(t *testing.T) { g.killOne(t, on, what) }) ||
				!t.Run(fmt.Sprintf("SIGSTOP the %s's %s", on, what), func(t *testing.T) { g.stopOne(t, on, what) }) {
				return
			}
		}
	}
	g.down(t)
}

func (g *group) killOne(t *testing.T, on, what string) {
	was := g.ready(t)
	victim := *was.Primary
	if on == "secondary" {
		victim = secondaries(was)[0]
	}
	forks, mark := len(g.forks(victim)), len(g.log(victim, "agent.log"))
	if err := g.Kill(victim, what); err != nil {
		t.Fatal(err)
	}
	switch {
	case on == "primary" && what == lab.WhatPostgres:
		g.nextEpoch(t, was)
	case on == "primary":
		g.newPrimary(t, was)
	}
	g.acknowledged(t, 50)
	now := g.revive(t, victim)
	if on == "primary" {
		g.cameBack(t, victim, mark, forks)
	} else if now.Epoch != was.Epoch {
		t.Errorf("a secondary's fault led from epoch %d to %d", was.Epoch, now.Epoch)
	}
	g.judgeAndGoOn(t)
}

// stopOne stops a process as a hypervisor or a debugger does, and continues it when the group works without it.
func (g *group) stopOne(t *testing.T, on, what string) {
	was := g.ready(t)
	victim := *was.Primary
	if on == "secondary" {
		victim = secondaries(was)[0]
	}
	forks, mark := len(g.forks(victim)), len(g.log(victim, "agent.log"))
	g.pause(t, was, victim, what, func() {
		if on == "primary" && (what == lab.WhatAgent || what == lab.WhatNode) {
			g.newPrimary(t, was)
		}
		// A node whose keeper or postmaster alone is stopped may still lead: its sessions live. That takes longer than
		// its lease.
		g.acknowledged(t, 1500)
	})
	now := g.revive(t, victim)
	if on == "primary" {
		g.cameBack(t, victim, mark, forks)
	} else if now.Epoch != was.Epoch {
		t.Errorf("a secondary's fault led from epoch %d to %d", was.Epoch, now.Epoch)
	}
	g.judgeAndGoOn(t)
}

// pause stops a process, or all of a node, while f runs.
func (g *group) pause(t *testing.T, s lab.Status, node, what string, f func()) {
	t.Helper()
	if what == lab.WhatNode {
		if err := g.Pause(node, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		f()
		if err := g.Resume(node); err != nil {
			t.Fatal(err)
		}
		return
	}
	p := pid(t, s, node, what)
	signal(t, p, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(p, syscall.SIGCONT) }() // it may have been killed meanwhile
	f()
}

// revive waits until the group is whole, starting the node's agent when it has ended, as a service unit does.
func (g *group) revive(t *testing.T, nodes ...string) lab.Status {
	t.Helper()
	return g.await(t, strings.Join(nodes, ", ")+" back", func(s lab.Status) bool {
		for _, n := range nodes {
			if r, _ := s.Replica(n); r.PIDs.Agent == nil {
				if err := g.Start(n); err != nil {
					t.Logf("start %s: %v", n, err)
				}
				return false
			}
		}
		return s.Ready()
	})
}

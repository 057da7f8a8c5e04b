package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestExternalQuorumOfTwoGroups runs two groups of one name on one etcd, as fault F47 of docs/internals/faults.md says.
// Their primaries die at one moment, and each group fails over by itself; what one does leaves the other as it is.
func TestExternalQuorumOfTwoGroups(t *testing.T) {
	long(t)
	_, flags := outside(t)
	groups := []*group{newGroup(t, lab.Options{Replicas: 2, Quorum: flags}), newGroup(t, lab.Options{Replicas: 2, Quorum: flags})}
	t.Run("F47 both fail over at one moment", func(t *testing.T) {
		for range 3 {
			was := []lab.Status{groups[0].ready(t), groups[1].ready(t)}
			killed := make(chan error)
			for i, g := range groups {
				go func() { killed <- g.Kill(*was[i].Primary, lab.WhatNode) }()
			}
			for range groups {
				if err := <-killed; err != nil {
					t.Fatal(err)
				}
			}
			for i, g := range groups {
				now := g.newPrimary(t, was[i])
				g.acknowledged(t, 20)
				t.Logf("group %d: %s leads epoch %d after %s in %d", i+1, *now.Primary, now.Epoch, *was[i].Primary, was[i].Epoch)
			}
			for i, g := range groups {
				g.revive(t, *was[i].Primary)
				g.judgeAndGoOn(t)
			}
		}
	})
	t.Run("F47 one fails over", func(t *testing.T) {
		was, other := groups[0].ready(t), groups[1].ready(t)
		groups[0].failover(t, secondaries(was)[0])
		now := groups[0].ready(t)
		groups[1].acknowledged(t, 50)
		groups[1].same(t, other)
		if now.Epoch != was.Epoch+1 {
			t.Errorf("epoch %d after %d", now.Epoch, was.Epoch)
		}
	})
	for _, g := range groups {
		g.oneLeaderEach(t)
		g.down(t)
	}
}

// oneLeaderEach checks by the nodes' logs that no two were opened for writes in one epoch.
func (g *group) oneLeaderEach(t *testing.T) {
	t.Helper()
	for e := ag.Epoch(1); e <= g.ready(t).Epoch; e++ {
		var who []string
		for _, n := range g.Nodes() {
			if strings.Contains(g.log(n.Name, "agent.log")+"\n", fmt.Sprintf("\"open for writes\" epoch=%d\n", e)) {
				who = append(who, n.Name)
			}
		}
		if len(who) > 1 {
			t.Errorf("%v were open for writes in epoch %d", who, e)
		}
	}
}

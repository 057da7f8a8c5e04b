package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestQuorumIsLost loses the primary's machine for good, and the quorum directories of the other two. No replica leads
// without help. An administrator has the furthest copy lead, and every acknowledged row is present.
func TestQuorumIsLost(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	left := secondaries(was)
	g.acknowledged(t, 50)
	for _, r := range was.Replicas {
		if err := g.Kill(r.Name, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range left {
		if err := os.RemoveAll(filepath.Join(g.node(n), "etcd")); err != nil {
			t.Fatal(err)
		}
	}
	texts, accounts := g.accounts(t, left)
	slices.SortFunc(left, func(x, y string) int { return -accounts[x].Newer(accounts[y]) })
	lead, follower := left[0], left[1]

	refused := func(why string, args ...string) {
		t.Helper()
		a := coterie(t, append([]string{"recover", "lead", "--node", g.node(lead)}, args...)...)
		if a.code != 4 || !strings.Contains(a.err, why) {
			t.Errorf("recover lead %q: exit code %d: %s", args, a.code, a.err)
		}
		if _, err := os.Stat(filepath.Join(g.node(lead), "state", "founding.json")); err == nil {
			t.Fatal("a refused recovery left something behind")
		}
	}
	refused("nothing is known of", "--yes")
	refused("nothing is known of", "--yes", "--account", texts[follower])
	refused("add --yes", "--account", texts[follower], "--lost", *was.Primary)
	if a := coterie(t, "recover", "lead", "--node", g.node(lead), "--yes", "--account", "account1.x"); a.code != 2 {
		t.Errorf("a mangled account: exit code %d: %s", a.code, a.err)
	}

	must(t, "recover", "lead", "--node", g.node(lead), "--yes", "--account", texts[follower], "--lost", *was.Primary)
	if err := g.Start(lead); err != nil {
		t.Fatal(err)
	}
	s := g.await(t, lead+" leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == lead })
	if s.Epoch <= max(was.Epoch, accounts[lead].Promised, accounts[follower].Promised) {
		t.Errorf("epoch %d after %d", s.Epoch, was.Epoch)
	}
	refused("already runs", "--yes", "--account", texts[follower], "--lost", *was.Primary)
	must(t, "recover", "follow", "--node", g.node(follower))
	if err := g.Start(follower); err != nil {
		t.Fatal(err)
	}
	g.await(t, follower+" is synchronized", func(s lab.Status) bool {
		r, ok := s.Replica(follower)
		return ok && r.Sync == ag.Synchronized && strings.HasPrefix(s.Failover, "not ready")
	})
	g.acknowledged(t, 20)
	g.judge(t)
}

// accounts returns what every stopped node knows.
func (g *group) accounts(t *testing.T, nodes []string) (texts map[string]string, accounts map[string]recovery.Account) {
	t.Helper()
	texts, accounts = map[string]string{}, map[string]recovery.Account{}
	for _, n := range nodes {
		texts[n] = strings.TrimSpace(must(t, "recover", "account", "--node", g.node(n)).out)
		var a recovery.Account
		if err := json.Unmarshal([]byte(must(t, "recover", "account", "--json", "--node", g.node(n)).out), &a); err != nil {
			t.Fatal(err)
		}
		accounts[n] = a
	}
	return texts, accounts
}

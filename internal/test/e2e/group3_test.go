package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndGroup applies to three replicas the cases that need more than one fault.
func TestEndToEndGroup(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"it listens nowhere else", onlyItsPorts},
		{"two failovers in a row", twoFailovers},
		{"planned failover there and back", thereAndBack},
		{"the servers of both secondaries hang", secondariesHang},
		{"the nodes of both secondaries die", secondariesDie},
		{"the whole group dies", wholeGroupDies},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	g.down(t)
}

func twoFailovers(t *testing.T, g *group) {
	for range 2 {
		was := g.ready(t)
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		now := g.newPrimary(t, was)
		g.acknowledged(t, 5)
		others := slices.DeleteFunc(secondaries(was), func(n string) bool { return n == *now.Primary })
		g.yieldsTo(t, *now.Primary, others[0])
		g.revive(t, *was.Primary)
	}
	g.judgeAndGoOn(t)
}

// yieldsTo gives the primary the quorum's leadership, and waits until the member has handed it to the other live one:
// else the primary's death would cost an election there, too.
func (g *group) yieldsTo(t *testing.T, primary, other string) {
	t.Helper()
	this, that := g.quorum(t, primary), g.quorum(t, other)
	leads := func(c *clientv3.Client) (yes bool, id uint64) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := c.Status(ctx, c.Endpoints()[0])
		if err != nil {
			return false, 0
		}
		return s.Leader == s.Header.MemberId, s.Header.MemberId
	}
	g.await(t, primary+" leads the quorum", func(lab.Status) bool {
		yes, id := leads(this)
		if !yes && id != 0 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = that.MoveLeader(ctx, id) // fails while an election is under way
		}
		return yes
	})
	g.await(t, other+" leads the quorum", func(lab.Status) bool {
		yes, _ := leads(that)
		return yes
	})
}

// quorum is a client of the quorum's member on a node.
func (g *group) quorum(t *testing.T, node string) *clientv3.Client {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + l.EtcdClient()}, DialTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func thereAndBack(t *testing.T, g *group) {
	was := g.ready(t)
	from, to := *was.Primary, secondaries(was)[0]
	must(t, "failover", "--to", to, "--node", g.node(to))
	g.ready(t)
	must(t, "failover", "--to", from, "--node", g.node(to))
	if s := g.ready(t); *s.Primary != from || s.Epoch != was.Epoch+2 {
		t.Errorf("%s leads epoch %d, after %s in %d", *s.Primary, s.Epoch, from, was.Epoch)
	}
	g.judgeAndGoOn(t)
}

// silent asserts that nothing is acknowledged for a while.
func (g *group) silent(t *testing.T, during time.Duration) {
	t.Helper()
	time.Sleep(time.Second) // the bytes that were under way
	before := g.ledger.Progress().Acknowledged
	time.Sleep(during) // nothing may happen, so no condition can be waited for
	if now := g.ledger.Progress().Acknowledged; now != before {
		t.Errorf("%d rows were acknowledged that no secondary has", now-before)
	}
}

// secondariesHang: one of two secondaries is REQUIRED, so commits wait when both are silent, with any session timeout.
func secondariesHang(t *testing.T, g *group) {
	was := g.ready(t)
	var pids [][]int
	for _, n := range secondaries(was) {
		servers := g.servers(n)
		if len(servers) == 0 {
			t.Fatalf("%s has no server", n)
		}
		pids = append(pids, servers)
	}
	thaw := func(list []int) {
		for _, p := range list {
			_ = syscall.Kill(p, syscall.SIGCONT)
		}
	}
	defer thaw(pids[1])
	defer thaw(pids[0])
	for _, list := range pids {
		for _, p := range list {
			_ = syscall.Kill(p, syscall.SIGSTOP) // one may have ended on its own
		}
	}
	g.silent(t, 12*time.Second)
	thaw(pids[0])
	g.acknowledged(t, 50)
	thaw(pids[1])
	g.revive(t, "n1", "n2", "n3")
	g.judgeAndGoOn(t)
}

// servers lists the processes of a node's server.
func (g *group) servers(node string) []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); cwd == filepath.Join(g.node(node), "pgdata") {
			out = append(out, p)
		}
	}
	return out
}

func secondariesDie(t *testing.T, g *group) {
	was := g.ready(t)
	both := secondaries(was)
	for _, n := range both {
		if err := g.Kill(n, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	g.silent(t, 3*time.Second)
	if err := g.Start(both[1]); err != nil {
		t.Fatal(err)
	}
	g.acknowledged(t, 50)
	g.revive(t, both...)
	g.judgeAndGoOn(t)
}

func wholeGroupDies(t *testing.T, g *group) {
	was := g.ready(t)
	for _, n := range g.Nodes() {
		if err := g.Kill(n.Name, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range g.Nodes() {
		if err := g.Start(n.Name); err != nil {
			t.Fatal(err)
		}
	}
	if s := g.ready(t); s.Epoch <= was.Epoch {
		t.Errorf("epoch %d after epoch %d died", s.Epoch, was.Epoch)
	}
	g.acknowledged(t, 20)
	g.judgeAndGoOn(t)
}

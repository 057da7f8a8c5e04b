package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndSplits divides a group of four replicas and a witness, five voters in networks of their own, as faults
// F12 to F14 of docs/internals/faults.md say. Clients reach every node all the time, and their answers are judged: two
// primaries that both answer would violate a register.
func TestEndToEndSplits(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	c := &chaos{group: newGroup(t, lab.Options{Net: lab.NetNamespaces, Replicas: 4, Witness: true}), rng: rand.New(rand.NewPCG(12, 0))}
	s := c.ready(t)
	if s.Voters != 5 {
		t.Fatalf("%d voters", s.Voters)
	}
	// A primary that is left with the witness and no synchronized secondary may go on.
	c.says(t, *s.Primary, "ALTER AVAILABILITY GROUP [lab] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)")
	c.begin(t, 12)
	splits := []struct {
		name string
		test func(*testing.T, *chaos)
	}{
		{"F12 the primary and an asynchronous replica on the lesser side", lesserSide},
		{"F12 the same, and no side has a majority", noSide},
		{"F13 the primary and the witness on the greater side", greaterSide},
		{"F14 a ring of cuts that drop", func(t *testing.T, c *chaos) { ring(t, c, false) }},
		{"F14 a ring of cuts that reject", func(t *testing.T, c *chaos) { ring(t, c, true) }},
		{"F14 each hears the primary, and it hears nobody", func(t *testing.T, c *chaos) { deaf(t, c) }},
	}
	for _, split := range splits {
		if !t.Run(split.name, func(t *testing.T) { split.test(t, c) }) {
			return
		}
	}
	c.stop(t)
	c.judgeAll(t, len(splits))
	c.down(t)
}

// mode makes a replica asynchronous or synchronous, by a statement at the primary.
func (c *chaos) mode(t *testing.T, primary, replica string, sync bool) {
	t.Helper()
	how := "AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL"
	if sync {
		how = "AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC"
	}
	c.says(t, primary, fmt.Sprintf("ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'%s' WITH (%s)", replica, how))
}

// divide cuts the links between two sides, both ways.
func (c *chaos) divide(t *testing.T, a, b []string) {
	t.Helper()
	if _, err := c.Cut(t.Context(), strings.Join(a, ","), strings.Join(b, ","), false, false); err != nil {
		t.Fatal(err)
	}
}

// healed heals the network, makes the asynchronous replica synchronous again and waits until the group is whole.
func (c *chaos) healed(t *testing.T, asynchronous string) lab.Status {
	t.Helper()
	c.mend(t)
	s := c.await(t, "a primary, and every process runs", func(s lab.Status) bool {
		return s.Primary != nil && !slices.ContainsFunc(append(s.Replicas, s.Witnesses...), func(r lab.Replica) bool { return r.Connected != "CONNECTED" })
	})
	if asynchronous != "" {
		c.mode(t, *s.Primary, asynchronous, true)
	}
	now := c.whole(t)
	c.progress(t, 50)
	c.acknowledged(t, 20)
	return now
}

// lesserSide: three of five voters promote one of theirs, the primary fences, and the asynchronous replica follows
// after the heal.
func lesserSide(t *testing.T, c *chaos) {
	was := c.whole(t)
	p, others := *was.Primary, secondaries(was)
	async := others[0]
	c.mode(t, p, async, false)
	c.await(t, async+" counts no more", func(lab.Status) bool {
		s, err := c.status(t, p)
		return err == nil && s.SyncCount >= 1 && !slices.ContainsFunc(s.SyncMembers, func(m ag.Member) bool { return m.ID == ag.ReplicaID(async) })
	})
	c.divide(t, []string{p, async}, append([]string{"w"}, others[1:]...))
	now := c.newPrimary(t, was)
	if *now.Primary == async {
		t.Errorf("%s leads, which is on the lesser side", async)
	}
	c.await(t, p+" is fenced", func(s lab.Status) bool { r, _ := s.Replica(p); return r.Role != ag.RolePrimary })
	c.progress(t, 100)
	c.acknowledged(t, 50)
	if s, err := c.status(t, async); err != nil || s.Primary == ag.ReplicaID(async) {
		t.Errorf("%s leads on the lesser side: %v", async, err)
	}
	c.healed(t, async)
}

// noSide: with one node dead, each side has two of five voters. Nobody leads, nobody answers, until the heal.
func noSide(t *testing.T, c *chaos) {
	was := c.whole(t)
	p, others := *was.Primary, secondaries(was)
	async, sync, dead := others[0], others[1], others[2]
	c.mode(t, p, async, false)
	if err := c.Kill(dead, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	c.await(t, "commits wait for "+sync+" alone", func(lab.Status) bool {
		s, err := c.status(t, p)
		return err == nil && s.SyncCount == 1 && len(s.SyncMembers) == 1 && s.SyncMembers[0].ID == ag.ReplicaID(sync)
	})
	c.divide(t, []string{p, async}, []string{sync, "w"})
	c.await(t, "nobody leads", func(s lab.Status) bool {
		return s.Primary == nil && !slices.ContainsFunc(s.Replicas, func(r lab.Replica) bool { return r.Role == ag.RolePrimary })
	})
	c.silent(t, 10*time.Second)
	c.mend(t)
	c.start(t, dead)
	now := c.healed(t, async)
	t.Logf("epoch %d led by %s, after %d by %s", now.Epoch, *now.Primary, was.Epoch, p)
}

// greaterSide: the primary has a majority with the witness and an asynchronous replica. It takes the silent secondaries
// out of the record and goes on in its epoch; neither of them leads.
func greaterSide(t *testing.T, c *chaos) {
	was := c.whole(t)
	p, others := *was.Primary, secondaries(was)
	async, left := others[0], others[1:]
	c.mode(t, p, async, false)
	began := time.Now()
	c.divide(t, []string{p, async, "w"}, left)
	c.await(t, "the record counts nobody", func(lab.Status) bool {
		s, err := c.status(t, p)
		return err == nil && s.SyncCount == 0 && s.Primary == ag.ReplicaID(p)
	})
	c.acknowledged(t, 50)
	t.Logf("writes stood still for %v", c.ledger.OutageBetween(began, time.Now()).Longest.Round(time.Millisecond))
	c.silentSide(t, left, 10*time.Second)
	now := c.healed(t, async)
	if *now.Primary != p || now.Epoch != was.Epoch {
		t.Errorf("%s leads epoch %d, after %s in %d", *now.Primary, now.Epoch, p, was.Epoch)
	}
}

// silentSide checks for a while that no node of a side leads.
func (c *chaos) silentSide(t *testing.T, side []string, during time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for _, n := range side {
			if s, err := c.status(t, n); err == nil && member(s, n).Role == ag.RolePrimary {
				t.Fatalf("%s leads although it reaches no majority: %+v", n, s)
			}
		}
	}
}

// ring cuts one direction of each link of a ring through all five nodes. Each node reaches two others both ways, a
// majority with itself: the primary may go on, and no two may answer.
func ring(t *testing.T, c *chaos, reject bool) {
	was := c.whole(t)
	nodes := append(append([]string{*was.Primary}, secondaries(was)...), "w")
	for i, from := range nodes {
		if _, err := c.Cut(t.Context(), from, nodes[(i+1)%len(nodes)], reject, true); err != nil {
			t.Fatal(err)
		}
	}
	done := c.load.Done()
	time.Sleep(25 * time.Second) // longer than any lease and any silence; what happens meanwhile is judged at the end
	held := c.load.Done() - done
	now := c.healed(t, "")
	t.Logf("%d operations in the ring, epoch %d to %d", held, was.Epoch, now.Epoch)
	if now.Epoch > was.Epoch+8 {
		t.Errorf("the leadership moved %d times in a ring", now.Epoch-was.Epoch)
	}
}

// deaf: what the primary sends arrives, and nothing arrives at it. Its acknowledgements end, so it is fenced, and
// another leads.
func deaf(t *testing.T, c *chaos) {
	was := c.whole(t)
	if _, err := c.Cut(t.Context(), lab.AllNodes, *was.Primary, false, true); err != nil {
		t.Fatal(err)
	}
	c.newPrimary(t, was)
	c.progress(t, 50)
	c.healed(t, "")
}

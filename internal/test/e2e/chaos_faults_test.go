package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// fault is a fault of a group, and its end.
type fault struct {
	name string
	do   func(t *testing.T, was lab.Status, primary string)
}

// faults lists all kinds.
func (c *chaos) faults() []fault {
	var all []fault
	for _, what := range []string{lab.WhatNode, lab.WhatAgent, lab.WhatKeeper, lab.WhatPostgres} {
		all = append(
			all,
			fault{"SIGKILL the primary's " + what, func(t *testing.T, _ lab.Status, p string) { c.kill(t, p, what) }},
			fault{"SIGSTOP the primary's " + what, func(t *testing.T, s lab.Status, p string) { c.pause(t, s, p, what, c.hold) }},
			fault{"SIGKILL a secondary's " + what, func(t *testing.T, s lab.Status, _ string) { c.kill(t, secondaries(s)[0], what) }},
			fault{"SIGSTOP a secondary's " + what, func(t *testing.T, s lab.Status, _ string) { c.pause(t, s, secondaries(s)[0], what, c.hold) }},
		)
	}
	cut := func(name string, from func(string) string, to func(string) string, reject, oneWay bool) {
		all = append(all, fault{name, func(t *testing.T, _ lab.Status, p string) { c.isolate(t, from(p), to(p), reject, oneWay) }})
	}
	self, others := func(p string) string { return p }, func(string) string { return lab.AllNodes }
	cut("cut: the primary from the others, both ways", self, others, false, false)
	cut("cut: what the primary sends", self, others, false, true)
	cut("cut: what is sent to the primary", others, self, false, true)
	cut("cut: the primary from everybody, its clients too", self, func(string) string { return lab.AllEnds }, false, false)
	cut("reject: the primary and the others, both ways", self, others, true, false)
	cut("reject: what the primary sends", self, others, true, true)
	cut("reject: what is sent to the primary", others, self, true, true)
	return append(
		all,
		fault{"reset: the primary's connections, which are accepted again", c.reset},
		fault{"forget: a firewall around the primary loses its table, connections that it has vanish", func(t *testing.T, _ lab.Status, p string) { c.forget(t, p, lab.AllNodes) }},
		fault{"forget: the same, its clients' connections, too", func(t *testing.T, _ lab.Status, p string) { c.forget(t, p, lab.AllEnds) }},
		fault{"cancel: commits while no secondary answers, then SIGKILL the primary's node", c.cancelAndKill},
		fault{"planned failover", c.planned},
	)
}

// suffer applies the fault, waits until the group is whole again, and checks that clients are served.
func (c *chaos) suffer(t *testing.T, n int, f fault) {
	t.Helper()
	was := c.whole(t)
	began, done := time.Now(), c.load.Done()
	f.do(t, was, *was.Primary)
	now := c.whole(t)
	c.progress(t, 20)
	c.say(t, "%2d. %s (%s): whole after %v, %d operations meanwhile, epoch %d to %d", n+1, f.name, *was.Primary,
		time.Since(began).Round(100*time.Millisecond), c.load.Done()-done, was.Epoch, now.Epoch)
}

// whole waits until the group is whole and every process runs, starting agents that have ended as a service unit does.
func (c *chaos) whole(t *testing.T) lab.Status {
	t.Helper()
	return c.await(t, "the group is whole", func(s lab.Status) bool {
		all := true
		for _, r := range s.Replicas {
			if r.PIDs.Agent == nil {
				if err := c.Start(r.Name); err != nil {
					t.Logf("start %s: %v", r.Name, err)
				}
			}
			all = all && r.PIDs.Agent != nil && r.PIDs.Keeper != nil && r.PIDs.Postgres != nil
		}
		return all && s.Ready()
	})
}

// hold is how long a fault lasts that has no end of its own: sometimes shorter than any lease, sometimes longer than
// them all.
func (c *chaos) hold() {
	time.Sleep(time.Duration(300+c.rng.IntN(9000)) * time.Millisecond)
}

func (c *chaos) kill(t *testing.T, node, what string) {
	t.Helper()
	if err := c.Kill(node, what); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Duration(c.rng.IntN(3000)) * time.Millisecond)
}

func (c *chaos) isolate(t *testing.T, a, b string, reject, oneWay bool) {
	t.Helper()
	if _, err := c.Cut(t.Context(), a, b, reject, oneWay); err != nil {
		t.Fatal(err)
	}
	c.hold()
	c.mend(t)
}

func (c *chaos) mend(t *testing.T) {
	t.Helper()
	if _, err := c.Heal(t.Context(), lab.AllEnds, lab.AllEnds, true); err != nil {
		t.Fatal(err)
	}
}

// reset ends every connection between the primary and the others by a reset, as a router does that has lost its state,
// and lets them reconnect at once.
func (c *chaos) reset(t *testing.T, _ lab.Status, primary string) {
	for range 3 {
		if _, err := c.Cut(t.Context(), primary, lab.AllNodes, true, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		c.mend(t)
		time.Sleep(time.Duration(c.rng.IntN(1000)) * time.Millisecond)
	}
}

// forgotten bounds the outage after a firewall lost its table: ten seconds of silence end a connection, two end one
// that commits wait for; the rest is for this machine. A connection that only TCP ends lives for a quarter of an hour.
const forgotten = 2 * time.Minute

// forget lets the connections between the primary and others vanish without a notice, while new ones pass: the group
// must detect that without help, and be whole before they pass again.
func (c *chaos) forget(t *testing.T, primary, others string) {
	t.Helper()
	began := time.Now()
	if _, err := c.Forget(t.Context(), primary, others); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // packets that were under way at that moment prove nothing
	c.whole(t)
	c.progress(t, 20)
	if took := time.Since(began); took > forgotten {
		t.Errorf("whole and writable %v after connections had vanished, want %v", took, forgotten)
	}
	c.mend(t)
}

// cancelAndKill lets commits wait for secondaries that receive nothing, while their client cancels them, and then kills
// the node: PostgreSQL has reported them as committed.
func (c *chaos) cancelAndKill(t *testing.T, was lab.Status, primary string) {
	for _, p := range c.walsenders(primary) {
		if err := syscall.Kill(p, syscall.SIGSTOP); err != nil {
			t.Logf("a walsender has ended: %v", err)
		}
	}
	time.Sleep(time.Second)
	c.kill(t, primary, lab.WhatNode)
	c.newPrimary(t, was)
}

func (c *chaos) planned(t *testing.T, was lab.Status, primary string) {
	to := secondaries(was)[c.rng.IntN(len(secondaries(was)))]
	if a := coterie(t, "failover", "--node", c.node(primary), "--to", to); a.code != 0 {
		t.Logf("refused or given up, as it may be: %s", a.err)
	}
}

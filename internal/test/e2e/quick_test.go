package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEnd is the quick set: one group, one fault after the other, a writer all the time.
func TestEndToEnd(t *testing.T) {
	g := newGroup(t, lab.Options{})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"the primary's node dies", primaryNodeDies},
		{"the primary's server dies", primaryServerDies},
		{"planned failover", plannedFailover},
		{"a secondary's node dies", secondaryNodeDies},
		{"pgbench through both ports", pgbenchWorks},
		{"both ports in one string", bothPorts},
		{"cancel requests at another listener", cancelsAcrossNodes},
		{"bad input", badInput},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return // the group is not what the next step expects
		}
	}
	g.down(t)
}

func primaryNodeDies(t *testing.T, g *group) {
	was := g.ready(t)
	old := *was.Primary
	before := len(g.forks(old))
	if err := g.Kill(old, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, was)
	g.acknowledged(t, 20)
	mark := len(g.log(old, "agent.log"))
	if err := g.Start(old); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
	g.cameBack(t, old, mark, before)
	g.judgeAndGoOn(t)
}

// cameBack looks at how a replica that led became a secondary: by nothing if it had not diverged, else by a rewind,
// with its diverged tail kept. mark is where its log was and forks how many tails it had before.
func (g *group) cameBack(t *testing.T, node string, mark, forks int) {
	t.Helper()
	log := g.log(node, "agent.log")[mark:]
	rewound, kept := done(log, "rewind"), len(g.forks(node)) > forks
	if !server(t).Rewind { // as of an installation whose package leaves it out
		if strings.Contains(log, "rule=rewind") && !(done(log, "seed") && kept) || rewound {
			t.Errorf("%s had diverged, and there is no pg_rewind: made anew %v, tail kept %v", node, done(log, "seed"), kept)
		}
		t.Logf("%s: no pg_rewind here; made anew %v, tail kept %v", node, done(log, "seed"), kept)
		return
	}
	// pg_rewind cannot bring back a copy whose server was killed before the first checkpoint of its timeline: then, and
	// only after it has said so, the copy is made anew.
	if strings.Contains(log, "could not find previous WAL record") || strings.Contains(log, "no rewind required") {
		if !done(log, "seed") || !kept {
			t.Errorf("%s could not be rewound: made anew %v, tail kept %v", node, done(log, "seed"), kept)
		}
		t.Logf("%s: pg_rewind could not, made anew", node)
		return
	}
	if done(log, "seed") {
		t.Errorf("%s was made anew although it could be rewound", node)
	}
	if strings.Contains(log, "rule=rewind") && !(rewound && kept) {
		t.Errorf("%s had diverged: rewound %v, tail kept %v", node, rewound, kept)
	}
	t.Logf("%s: rewound %v, diverged tail kept %v", node, rewound, kept)
}

// done looks for the end of an action in an agent's log.
func done(log, action string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, `msg="action done"`) && strings.Contains(line, " action="+action+" ") {
			return true
		}
	}
	return false
}

func primaryServerDies(t *testing.T, g *group) {
	was := g.ready(t)
	old := *was.Primary
	before, mark := len(g.forks(old)), len(g.log(old, "agent.log"))
	if err := g.Kill(old, lab.WhatPostgres); err != nil {
		t.Fatal(err)
	}
	g.nextEpoch(t, was)
	g.acknowledged(t, 20)
	g.ready(t) // without a command
	g.cameBack(t, old, mark, before)
	g.judgeAndGoOn(t)
}

func plannedFailover(t *testing.T, g *group) {
	was := g.ready(t)
	to := secondaries(was)[1]
	before := len(g.forks(*was.Primary))
	a := must(t, "failover", "--to", to, "--node", g.node(*was.Primary))
	if !strings.Contains(a.err, to+" is the primary") {
		t.Errorf("failover said %q", a.err)
	}
	if s := g.newPrimary(t, was); *s.Primary != to {
		t.Errorf("the primary is %s", *s.Primary)
	}
	for node, rule := range map[string]ag.Rule{*was.Primary: ag.RuleHandOver, to: ag.RuleLead} {
		if !slices.ContainsFunc(g.decisions(t, node), func(d api.Decision) bool { return d.Rule == rule && !d.At.IsZero() && d.Because != "" }) {
			t.Errorf("%s does not tell of its decision %s", node, rule)
		}
	}
	g.acknowledged(t, 20)
	g.ready(t)
	if len(g.forks(*was.Primary)) != before {
		t.Errorf("%s diverged in a planned failover", *was.Primary)
	}
	g.judgeAndGoOn(t)
}

func secondaryNodeDies(t *testing.T, g *group) {
	was := g.ready(t)
	victim := secondaries(was)[0]
	if err := g.Kill(victim, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.acknowledged(t, 50)
	s := g.await(t, victim+" counted out", func(s lab.Status) bool {
		r, _ := s.Replica(victim)
		return s.Primary != nil && r.Sync != "SYNCHRONIZED"
	})
	if *s.Primary != *was.Primary || s.Epoch != was.Epoch {
		t.Errorf("a secondary died and the primary is %s in epoch %d, was %s in %d", *s.Primary, s.Epoch, *was.Primary, was.Epoch)
	}
	g.acknowledged(t, 20)
	if err := g.Start(victim); err != nil {
		t.Fatal(err)
	}
	if s := g.ready(t); s.Epoch != was.Epoch || !slices.Contains(secondaries(s), victim) {
		t.Errorf("%s came back into epoch %d, primary %s", victim, s.Epoch, *s.Primary)
	}
	g.judgeAndGoOn(t)
}

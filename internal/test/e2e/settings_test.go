package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// testRaisedBySome holds that the secondaries of a primary that has more of a setting than they have, because only it
// was restarted since the setting was raised, go on by themselves: PostgreSQL pauses their replay.
func testRaisedBySome(t *testing.T, g *group, await func(want string)) {
	t.Helper()
	first := secondaries(g.ready(t))[0]
	g.says(t, first, "ALTER AVAILABILITY GROUP lab SET PARAMETER max_connections = 170")
	must(t, "restart", "--postgres", first, "--node", g.node(first))
	g.ready(t)
	must(t, "failover", "--to", first, "--node", g.node(first))
	await("n1=170 n2=170 n3=170")
	for _, id := range secondaries(g.ready(t)) {
		g.replayed(t, first, id)
	}
}

// TestEndToEndLowering lowers settings of which no secondary may have less than the primary, and raises another one
// with them, in a running group. Once the leadership changes in the middle: the replica that leads then has more
// than another one, which goes on replaying all the same.
func TestEndToEndLowering(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	was := *s.Primary
	n := secondaries(s)
	has := func(name string) string {
		r, err := g.answered(t, was, "SELECT string_agg(value, ' ') FROM (SELECT value FROM coterie.settings WHERE name = '"+name+"' ORDER BY node)")
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(r.Rows[0][0])
	}
	await := func(name, want string) {
		t.Helper()
		last := ""
		defer func() { t.Logf("%s is %s", name, last) }()
		g.await(t, name+" to be "+want, func(lab.Status) bool { last = has(name); return last == want })
	}
	restart := func(of ...string) {
		t.Helper()
		a := must(t, append([]string{"restart", "--postgres", "--node", g.node(n[0])}, of...)...)
		t.Log(a.out, a.err)
	}
	set := func(connections, workers int) {
		t.Helper()
		g.says(t, n[0], fmt.Sprintf("ALTER AVAILABILITY GROUP lab SET PARAMETER max_connections = %d, max_worker_processes = %d", connections, workers))
	}
	set(150, 16)
	restart("--pending")
	await("max_connections", "150 150 150")
	g.ready(t)

	set(120, 24)
	restart("--pending")
	await("max_connections", "120 120 120")
	await("max_worker_processes", "24 24 24")
	if now := g.ready(t); now.Epoch < s.Epoch {
		t.Errorf("epoch %d", now.Epoch)
	}

	// The primary and one secondary have less, and the other one leads then.
	s = g.ready(t)
	lead, rest := *s.Primary, secondaries(s)
	set(100, 24)
	restart(lead)
	restart(rest[0])
	g.until(t, "two have less", func() bool { return strings.Count(has("max_connections"), "100") == 2 })
	g.ready(t)
	must(t, "failover", "--to", rest[1], "--node", g.node(rest[1]))
	sql(t, g.ReadWrite(), "CREATE TABLE after_it (v int)")
	await("max_connections", "120 120 120")
	if now := g.ready(t); *now.Primary != rest[1] {
		t.Errorf("%s leads", *now.Primary)
	}
	restart("--pending")
	await("max_connections", "100 100 100")
	g.ready(t)

	// A primary that has less dies, and comes back as a secondary of one that has more.
	s = g.ready(t)
	lead = *s.Primary
	set(90, 24)
	restart(lead)
	g.ready(t)
	if err := g.Kill(lead, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, s)
	g.revive(t, lead)
	was = lead
	await("max_connections", "100 100 100")
	restart("--all")
	await("max_connections", "90 90 90")
	g.judge(t)
	g.down(t)
}

// TestEndToEndSettings sets settings of PostgreSQL for a group, and holds that every server has them: at once, or after
// a rolling restart those that need one.
func TestEndToEndSettings(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	other := secondaries(s)[0]
	has := func(name string) string {
		r, err := g.answered(t, other, "SELECT string_agg(node || '=' || value, ' ') FROM (SELECT node, value FROM coterie.settings WHERE name = '"+name+"' ORDER BY node)")
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(r.Rows[0][0])
	}
	await := func(name, want string) {
		t.Helper()
		g.await(t, name+" to be "+want, func(lab.Status) bool { return has(name) == want })
	}
	g.says(t, other, "ALTER AVAILABILITY GROUP lab SET PARAMETER work_mem = '64MB', max_connections = 150, archive_command = 'false'")
	await("work_mem", "n1=64MB n2=64MB n3=64MB")
	g.says(t, other, "ALTER AVAILABILITY GROUP lab SET PARAMETER work_mem = '32MB' FOR REPLICA N'n3'")
	await("work_mem", "n1=64MB n2=64MB n3=32MB")
	if _, err := g.answered(t, other, "ALTER AVAILABILITY GROUP lab SET PARAMETER work_mem = 'lots'"); err == nil || !strings.Contains(err.Error(), "invalid value") {
		t.Errorf("a value that is none: %v", err)
	}
	r, err := g.answered(t, other, "SELECT count(*), sum(pending_restart), max(value) FROM coterie.parameters WHERE name IN ('max_connections')")
	if err != nil || fmt.Sprint(r.Rows[0]) != "[3 3 150]" {
		t.Errorf("what waits for a restart: %v %v", r.Rows, err)
	}
	if r, err := g.answered(t, other, "SELECT count(value) FROM coterie.parameters WHERE name = 'archive_command'"); err != nil || fmt.Sprint(r.Rows[0]) != "[0]" {
		t.Errorf("a value that may be secret is shown: %v %v", r.Rows, err)
	}
	a := must(t, "restart", "--postgres", "--pending", "--json", "--node", g.node(other))
	if got := strings.Count(a.out, `"replica"`); got != 3 {
		t.Errorf("%d servers were restarted:\n%s%s", got, a.out, a.err)
	}
	await("max_connections", "n1=150 n2=150 n3=150")
	if now := g.ready(t); *now.Primary == *s.Primary {
		t.Errorf("%s restarted and leads as before", *s.Primary)
	}
	testRaisedBySome(t, g, func(want string) { t.Helper(); await("max_connections", want) })
	g.says(t, other, "ALTER AVAILABILITY GROUP lab RESET PARAMETER work_mem, archive_command")
	await("work_mem", "n1=4MB n2=4MB n3=32MB")
	g.down(t)
}

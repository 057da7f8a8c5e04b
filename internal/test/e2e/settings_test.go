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

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndMaintenance holds on real nodes that a group under maintenance keeps its primary through the death of its
// server, that a planned failover happens and maintenance outlives it, that a replica under maintenance is out of
// routing and no target, that a dead primary is replaced once maintenance has ended, and that no row is lost.
func TestEndToEndMaintenance(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	primary, others := *s.Primary, secondaries(s)
	must(t, "maintenance", "on", "--for", "24h", "--reason", "new switches", "--node", g.node(others[0]))
	for _, node := range append([]string{primary}, others...) {
		g.await(t, "maintenance to be known on "+node, func(lab.Status) bool {
			st, err := g.status(t, node)
			return err == nil && st.Maintenance != nil && st.Maintenance.Reason == "new switches" && strings.Contains(st.FailoverReady, "new switches")
		})
	}
	if a := must(t, "explain", "--node", g.node(others[0])); !strings.Contains(a.out, "new switches") {
		t.Errorf("explain does not name it:\n%s", a.out)
	}
	if err := g.Kill(primary, lab.WhatPostgres); err != nil {
		t.Fatal(err)
	}
	if now := g.nextEpoch(t, s); *now.Primary != primary {
		t.Errorf("%s took over from %s under maintenance", *now.Primary, primary)
	}
	now := g.ready(t)
	must(t, "failover", "--to", others[0], "--node", g.node(primary))
	now = g.newPrimary(t, now)
	if st, err := g.status(t, others[0]); err != nil || st.Maintenance == nil {
		t.Errorf("maintenance did not survive the failover: %+v, %v", st.Maintenance, err)
	}
	must(t, "maintenance", "on", others[1], "--node", g.node(primary))
	g.await(t, "readers to be kept from "+others[1], func(lab.Status) bool {
		r, err := g.answered(t, others[0], "SELECT (SELECT count(*) FROM coterie.replicas WHERE name = '"+others[1]+"' AND maintenance = 'with no end set'), "+
			"(SELECT count(*) FROM coterie.routes WHERE target = '"+others[1]+"' AND readable)")
		return err == nil && fmt.Sprint(r.Rows[0]) == "[1 0]"
	})
	if a := coterie(t, "failover", "--to", others[1], "--node", g.node(primary)); a.code != 4 || !strings.Contains(a.err, "under maintenance") {
		t.Errorf("a planned failover to a replica under maintenance: %d %s%s", a.code, a.out, a.err)
	}
	g.kill(t, others[0])
	time.Sleep(10 * time.Second) // longer than any takeover would wait: nothing happens
	if st, err := g.status(t, primary); err != nil || st.Epoch != now.Epoch {
		t.Errorf("a takeover began under maintenance: epoch %d after %d, %v", st.Epoch, now.Epoch, err)
	}
	must(t, "maintenance", "off", "--node", g.node(primary))
	after := g.newPrimary(t, now)
	if *after.Primary != primary {
		t.Errorf("%s leads, and %s is under maintenance", *after.Primary, others[1])
	}
	g.start(t, others[0])
	must(t, "maintenance", "off", "--all", "--node", g.node(primary))
	g.ready(t)
	g.down(t)
}

package e2e

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// TestEndToEndReverse has a firewall in front of a node that accepts no connection: the others reach it by connections
// that it dials itself. It is fed, takes over on request, feeds the other replica, dies, is taken over from, comes back
// and takes over from a dead one.
func TestEndToEndReverse(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true, Net: lab.NetNamespaces})
	was := g.ready(t)
	open, closed := *was.Primary, secondaries(was)[0]
	wall := linkem.Profiles["lan"]
	wall.Closed = true
	if _, err := g.Link(t.Context(), open+",w", closed, wall, true); err != nil {
		t.Fatal(err)
	}
	g.kill(t, closed) // open connections would continue
	g.start(t, closed)
	g.ready(t)
	g.acknowledged(t, 100)

	was = g.ready(t)
	g.failover(t, closed)
	s := g.nextEpoch(t, was)
	if *s.Primary != closed {
		t.Fatalf("%s leads", *s.Primary)
	}
	g.ready(t)
	g.acknowledged(t, 100)
	if l := g.linkOf(t, open); l.Transport == "" || l.Via != "" {
		t.Errorf("the link to the closed node: %+v", l)
	}
	if log := g.log(closed, "agent.log"); !strings.Contains(log, "a member cannot dial this node: this node dials it") {
		t.Errorf("the closed node dials nobody:\n%s", log)
	}
	g.await(t, open+" has dialled, and chosen a transport", func(lab.Status) bool {
		stats, err := g.status(t, open)
		return err == nil && dialled(stats.Links)
	})

	g.kill(t, closed)
	g.newPrimary(t, s)
	g.start(t, closed)
	s = g.ready(t)
	g.kill(t, open)
	g.newPrimary(t, s)
	g.acknowledged(t, 50)
	g.start(t, open)
	g.ready(t)
	g.acknowledged(t, 50)
	g.judgeAndGoOn(t)
	g.down(t)
}

// dialled reports whether a node has dialled one of its links.
func dialled(links []api.Link) bool {
	for _, l := range links {
		if l.Dialled {
			return true
		}
	}
	return false
}

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndRelay cuts the primary from its only secondary while both see the witness, and heals the cut. Neither
// causes an error on the connection. The witness relays, commits still wait for the secondary, and the direct link is
// used again after it has healed.
func TestEndToEndRelay(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true, Net: lab.NetNamespaces})
	was := g.ready(t)
	primary, secondary := *was.Primary, secondaries(was)[0]
	g.acknowledged(t, 50)

	began := time.Now()
	if _, err := g.Cut(t.Context(), primary, secondary, false, false); err != nil {
		t.Fatal(err)
	}
	g.await(t, "a link by way of the witness", func(lab.Status) bool { return g.linkOf(t, secondary).Via == "w" })
	g.acknowledged(t, 200)
	outage := g.ledger.OutageBetween(began, time.Now()).Longest
	t.Logf("writes stood still for %v when the way was cut", outage)
	if outage > 5*time.Second {
		t.Errorf("replication went on after %v; want 5 s at most", outage)
	}
	if s, err := g.status(t, "w"); err != nil || !slices.ContainsFunc(s.Relays, func(r api.Relay) bool { return string(r.From) == secondary && string(r.To) == primary }) {
		t.Errorf("the witness says nothing of what it relays: %+v, %v", s.Relays, err)
	}
	g.await(t, "the view that names the witness", func(lab.Status) bool {
		a, err := g.answered(t, primary, "SELECT relay FROM coterie.streams")
		return err == nil && len(a.Rows) == 1 && a.Rows[0][0] == "w"
	})
	for _, at := range []string{secondary, primary} { // the secondary is asked, from any node
		if a := must(t, "check", "link", secondary, primary, "--node", g.node(at)); !strings.Contains(a.out, "w relays") {
			t.Errorf("check link at %s says:\n%s", at, a.out)
		}
	}
	if a := must(t, "check", "link", "w", secondary, "--node", g.node(primary)); !strings.Contains(a.out, "no WAL flows") || !strings.Contains(a.out, "a local network") {
		t.Errorf("check link of two members without WAL says:\n%s", a.out)
	}
	time.Sleep(15 * time.Second) // longer than the session timeout, after which a silent member would be dropped
	s, err := g.status(t, primary)
	if err != nil || s.Epoch != was.Epoch || s.SyncCount != 1 || len(s.SyncMembers) != 1 || s.SyncMembers[0].ID != ag.ReplicaID(secondary) {
		t.Errorf("with the way cut: epoch %d, k = %d of %v, %v", s.Epoch, s.SyncCount, s.SyncMembers, err)
	}

	began = time.Now()
	if _, err := g.Heal(t.Context(), primary, secondary, false); err != nil {
		t.Fatal(err)
	}
	g.await(t, "a direct link", func(lab.Status) bool { l := g.linkOf(t, secondary); return l.Transport != "" && l.Via == "" })
	g.await(t, "the view that names nobody", func(lab.Status) bool {
		a, err := g.answered(t, primary, "SELECT relay FROM coterie.streams")
		return err == nil && len(a.Rows) == 1 && a.Rows[0][0] == nil
	})
	g.acknowledged(t, 200)
	back := g.ledger.OutageBetween(began, time.Now()).Longest
	t.Logf("writes stood still for %v when the way was back", back)
	if back > 5*time.Second {
		t.Errorf("going back to the direct way took %v", back)
	}
	g.await(t, "nothing relayed", func(lab.Status) bool {
		s, err := g.status(t, "w")
		return err == nil && len(s.Relays) == 0
	})
	if s := g.ready(t); s.Epoch != was.Epoch {
		t.Errorf("epoch %d after %d", s.Epoch, was.Epoch)
	}
	for _, e := range g.linkOf(t, secondary).Events {
		t.Logf("%s: %s", e.What, e.Reason)
	}
	g.judgeAndGoOn(t)
	g.down(t)
}

// linkOf is a node's only link.
func (g *group) linkOf(t *testing.T, node string) api.Link {
	t.Helper()
	s, err := g.status(t, node)
	if err != nil || len(s.Links) != 1 {
		return api.Link{}
	}
	return s.Links[0]
}

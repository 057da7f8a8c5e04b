package catalog

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Candidate is what an automatic failover would find in a replica now.
type Candidate struct {
	Replica ag.ReplicaID
	Ready   bool
	Because string
}

// ExplainFailover says of every replica whether it could lead at once without a person and without loss, and why not.
func (f Facts) ExplainFailover() []Candidate {
	var out []Candidate
	for _, r := range f.members() {
		why := f.hinders(r)
		c := Candidate{r.ID, why == "", why}
		if c.Ready {
			c.Because = fmt.Sprintf("has every acknowledged commit: the record counts it, of whom %d of %d must answer", f.Record.State.SealsNeeded(), len(f.Record.State.V))
		}
		out = append(out, c)
	}
	return out
}

func (f Facts) hinders(r ag.Replica) string {
	switch {
	case !r.HasData():
		return "a witness: it votes, and holds no data"
	case r.ID == f.Record.Epoch.Leader:
		return "it leads already"
	case !f.Quorum:
		return "no majority of the quorum answers"
	case !f.Group.Survives(f.Record.Epoch.Leader):
		return "the primary has the vote that decides, and two nodes cannot tell a dead primary from a cut link: add a witness or a third replica"
	case r.Join != "":
		return "it has not joined"
	case r.Suspended:
		return "its data movement is suspended"
	case r.AvailabilityMode != ag.SynchronousCommit:
		return "it commits asynchronously"
	case r.FailoverMode != ag.Automatic:
		return "its failover mode is MANUAL"
	case !f.Nodes[r.ID].Connected:
		return "it does not answer"
	case !f.failoverReady(r):
		return "it is not SYNCHRONIZED: the record does not count it"
	}
	return ""
}

// Routed is where a session of an intent would go from a node now.
type Routed struct {
	Node   ag.ReplicaID
	Intent ag.Intent
	Target ag.ReplicaID // "": nowhere, the client waits
	Entry  int          // of the routing list; 0: by intent alone
	Passed []string     // entries passed over, with the reason
}

// VerifyRouting says for every node that answers where its listener sends sessions of each intent, by the routes in force there.
func (f Facts) VerifyRouting() []Routed {
	var out []Routed
	for _, r := range f.Group.Replicas {
		routes := f.Nodes[r.ID].Routes
		if r.Listener == "" && r.ReadOnly == "" {
			continue
		}
		if routes == nil {
			out = append(out, Routed{Node: r.ID, Passed: []string{"the node does not answer"}})
			continue
		}
		w := Routed{Node: r.ID, Intent: ag.ReadWrite}
		if t, _, ok := routes.Pick(ag.ReadWrite, 0); ok {
			w.Target = t.ID
		} else {
			w.Passed = []string{"no primary takes writes"}
		}
		out = append(out, w, f.routeReader(r.ID, routes))
	}
	return out
}

func (f Facts) routeReader(node ag.ReplicaID, routes *ag.Routes) Routed {
	w := Routed{Node: node, Intent: ag.ReadOnly}
	t, _, ok := routes.Pick(ag.ReadOnly, 0)
	if ok {
		w.Target = t.ID
	}
	for i, set := range routes.ReadList {
		if ok && slices.Contains(set, t.ID) {
			w.Entry = i + 1
			return w
		}
		for _, id := range set {
			w.Passed = append(w.Passed, fmt.Sprintf("%s: %s", id, f.notReadable(id, routes)))
		}
	}
	return w
}

func (f Facts) notReadable(id ag.ReplicaID, routes *ag.Routes) string {
	t, found := routes.Target(id)
	r, _ := f.Group.Replica(id)
	switch {
	case !found:
		return "no such replica"
	case id == routes.Primary:
		return "the primary is not open"
	case r.Suspended:
		return "suspended"
	case r.Allow == ag.AllowNo:
		return "ALLOW_CONNECTIONS = NO"
	case !t.Healthy:
		return "does not answer"
	}
	return "takes no readers at present"
}

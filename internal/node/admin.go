package node

import (
	"slices"

	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/node/operations"
	"github.com/coteriedb/coterie/internal/node/status"
	"github.com/coteriedb/coterie/internal/node/walstream"
)

// admin is the node as administrators see it. It implements api.Node.
type admin struct {
	*status.Service
	*operate
	browsers *web.Server // nil: this node serves none
}

// Metrics returns the metrics of the node's parts.
func (a *admin) Metrics() map[string]float64 {
	out := a.Service.Metrics()
	if a.browsers != nil {
		a.browsers.Metrics(out)
	}
	return out
}

// operate is another name of the service, so that admin can embed two types called Service.
type operate = operations.Service

// newStatus returns the part that reports on this node and the group. Every other part of the node must exist.
func (n *node) newStatus() *status.Service {
	c := status.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Members: n.members, Agent: n.agent, Clients: n.clients, Calls: n.control, Endpoint: n.endpoint,
		Authority: func() string { return n.pki.Identity().Authority() },
		NoVote:    n.quorum.NoVote,
		Disowned:  n.peers.Disowned,
		Roster:    func() ([]uint64, string) { r := n.quorum.Roster(); return r.Voters, r.Stray },
		Listener: func() status.Listener {
			if s := n.clients.Server(); s != nil {
				return s
			}
			return nil
		},
	}
	if n.pg != nil {
		c.Links, c.Server, c.Upstream, c.Downstream, c.Commits, c.Keeper, c.Seedings, c.Log = n.links, n.pg, n.up, n.down, n.penalty, n.server, n.seedJobs.Operations, n.serverSays
	}
	return status.New(c)
}

// relayed returns the pairs of members whose connections this node relays.
func (n *node) relayed() (out [][2]ag.ReplicaID) {
	for _, p := range n.endpoint.Peers() {
		if pair := [2]ag.ReplicaID{p.Identity.ID, p.RelayTo}; p.RelayTo != "" && !slices.Contains(out, pair) {
			out = append(out, pair)
		}
	}
	return out
}

// newOperations returns what carries out the requests of administrators. Every part of the node exists.
func (n *node) newOperations() *operations.Service {
	c := operations.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Logger: n.log, Members: n.members, Store: n.store, Update: n.quorum.UpdateGroup, Agent: n.agent, PKI: n.pki,
		Clients: n.clients, Seeds: n.seedOps, Calls: n.control, Status: n.status, Views: n.views, Path: n.paths().Describe, GroupChanged: n.groupChanged,
	}
	if n.pg != nil {
		c.Server, c.Vouch = n.pg, n.params.Vouch
	}
	return operations.New(c)
}

// paths returns what describes the paths from this node to the others.
func (n *node) paths() *walstream.Paths {
	return &walstream.Paths{Self: n.self, Members: n.members, Links: n.links, Endpoint: n.endpoint, Control: n.control}
}

package node

import (
	"github.com/coteriedb/coterie/internal/node/status"
)

// newStatus returns what this node says of itself and of the group. Every part of the node exists.
func (n *node) newStatus() *status.Service {
	c := status.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Members: n.members, Agent: n.agent, Clients: n.clients, Calls: n.control, Endpoint: n.endpoint,
		Authority: func() string { return n.pki.Identity().Authority() },
		NoVote:    n.quorum.NoVote,
		Listener: func() status.Listener {
			if s := n.clients.Server(); s != nil {
				return s
			}
			return nil
		},
	}
	if n.pg != nil {
		c.Links, c.Server, c.Upstream, c.Downstream, c.Commits, c.Keeper, c.Seedings = n.links, n.pg, n.up, n.down, n.penalty, n.server, n.seedJobs.Operations
	}
	return status.New(c)
}

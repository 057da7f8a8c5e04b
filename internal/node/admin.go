package node

import (
	"context"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/node/endorsement"
	"github.com/coteriedb/coterie/internal/node/events"
	"github.com/coteriedb/coterie/internal/node/hooks"
	"github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/node/metrics"
	"github.com/coteriedb/coterie/internal/node/operations"
	"github.com/coteriedb/coterie/internal/node/status"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/node/webhooks"
)

// admin is the node as administrators see it. It implements api.Node.
type admin struct {
	*status.Service
	*operate
	majors   *majors.Service
	browsers *web.Server      // nil: this node serves none
	refused  func() uint64    // connections refused at the HTTP port
	hooks    *hooks.Runner    // nil: there is no directory of commands
	webhooks *webhooks.Sender // nil: there is no receiver

	backups *node // its part of them
	metrics http.Handler
}

// newAdmin returns the node as its ports for administrators serve it. The caller sets refused before they are open.
func (n *node) newAdmin(browsers *web.Server) *admin {
	a := &admin{Service: n.status, operate: n.operate, majors: n.majors, browsers: browsers, webhooks: n.webhooks, backups: n}
	a.metrics = metrics.Handler(a.measured, n.log.With("part", "metrics"))
	return a
}

// Metrics serves the metrics of the node's parts.
func (a *admin) Metrics() http.Handler { return a.metrics }

func (a *admin) measured() metrics.Facts {
	f := a.Measured()
	f.HTTP = a.refused()
	if a.browsers != nil {
		c := a.browsers.Counts()
		f.Browsers = &c
	}
	a.backups.measureBackups(&f)
	if a.hooks != nil {
		c := metrics.Hooks(a.hooks.Counts())
		f.Hooks = &c
	}
	if a.webhooks != nil {
		f.Webhooks = map[string]metrics.Webhook{}
		for name, c := range a.webhooks.Counts() {
			f.Webhooks[name] = metrics.Webhook(c)
		}
	}
	return f
}

// newHooks returns what runs an administrator's commands for the events of this node; nil without a directory of them.
func (n *node) newHooks() *hooks.Runner {
	if _, err := os.Lstat(n.layout.Hooks()); err != nil {
		return nil
	}
	return hooks.New(n.layout.Hooks(), os.Getuid(), n.events, n.log.With("part", "hooks"))
}

// newWebhooks returns what sends the events of this node to the receivers of coterie.yaml; nil without any.
func (n *node) newWebhooks() *webhooks.Sender {
	if len(n.cfg.Webhooks) == 0 {
		return nil
	}
	return webhooks.New(n.cfg.Webhooks, os.Getuid(), n.events, n.log.With("part", "webhooks"))
}

// events returns what this node remembers of late, as its receivers are told.
func (n *node) events() (out []events.Event) {
	group := n.cfg.Group
	if g := n.members.Group(); g != nil {
		group = g.Name
	}
	for _, e := range n.status.Events() {
		out = append(out, events.Event{Group: group, Node: string(n.self), At: e.At, Epoch: e.Epoch, Kind: e.Kind, What: e.What, Because: e.Because})
	}
	return out
}

// operate is another name of the service, so that admin can embed two types called Service.
type operate = operations.Service

// newStatus returns the part that reports on this node and the group. Every other part of the node must exist.
func (n *node) newStatus() *status.Service {
	c := status.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Members: n.members, Agent: n.agent, Clients: n.clients, Calls: n.control, Endpoint: n.endpoint,
		Expiry:    n.certificates,
		Authority: func() string { return n.pki.Identity().Authority() },
		NoVote:    n.quorum.NoVote,
		Endorsed:  n.endorsed,
		Untold: func() []string {
			if n.webhooks == nil {
				return nil
			}
			return n.webhooks.Problems()
		},
		Disowned: n.peers.Disowned,
		Roster:   func() ([]uint64, string) { r := n.quorum.Roster(); return r.Voters, r.Stray },
		Listener: func() status.Listener {
			if s := n.clients.Server(); s != nil {
				return s
			}
			return nil
		},
	}
	if n.pg != nil {
		c.Links, c.Server, c.Upstream, c.Downstream, c.Commits, c.Keeper, c.Seedings, c.Log = n.links, n.pg, n.up, n.down, n.penalty, n.server, n.seedJobs.Operations, n.serverSays
		c.Observed, c.Parameters, c.Backups = n.observed, n.params, shownBackups{n.backups, n.backupJobs}
	}
	if n.coverage != nil {
		c.Coverage = n.coverage
	}
	return status.New(c)
}

// certificates returns when this node's certificates end.
func (n *node) certificates() map[string]time.Time {
	out := map[string]time.Time{"node": n.pki.Identity().NotAfter()}
	if c := n.clients.Certificate(); c != nil && c.Leaf != nil {
		out["listener"] = c.Leaf.NotAfter
	}
	if ca := n.pki.CA(); ca != nil {
		out["authority"] = ca.Cert.NotAfter
	}
	return out
}

// newEndorsement returns this node's part in the signed configuration.
func (n *node) newEndorsement() *endorsement.Service {
	return endorsement.New(endorsement.Config{
		Self: n.self, Judge: n.judge, Logger: n.log.With("part", "configuration"), Members: n.members, Calls: n.control, Snapshot: n.agent.Snapshot,
		Update: n.quorum.UpdateGroup, Restore: n.store.RestoreGroup, Record: n.store, Votes: n.quorum.IsVoter,
	})
}

// tell writes what this node tells of its own part in the group, once its agent exists.
func (n *node) tell(ctx context.Context, step ag.MemberStep) error { return n.endorsed.Tell(ctx, step) }

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
		Installed: buildinfo.Installed,
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

package status

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
)

// reportLimit is how long another node may take to say how it is; then what it published last is shown.
const reportLimit = 700 * time.Millisecond

// Facts gathers the facts of the whole group: from each node that answers, at this moment, and from the record.
func (s *Service) Facts(ctx context.Context) catalog.Facts {
	f := catalog.Facts{Now: time.Now(), Self: s.Self, Nodes: map[ag.ReplicaID]catalog.Node{}, Version: s.Version()}
	v, snap := s.lastSeen()
	f.Group, f.Record, f.Quorum = snap.Group, snap.Record, v.Quorum
	if f.Group.ID == "" {
		f.Group = v.Group
	}
	f.Profile = f.Group.Profile
	f.Availability = s.Availability()
	f.Voters, _ = s.Roster()
	if r := s.Clients.Routes(); r != nil {
		f.Primary = r.Primary
		f.WriteOpen = r.WriteOpen && (r.Primary == s.Self || slices.Contains(v.Reach, r.Primary))
		if !f.WriteOpen && r.Primary != s.Self && !slices.Contains(v.Reach, r.Primary) {
			f.Primary = ""
		}
	}
	// A node without a quorum may have routes to a primary that is fenced by now, though its agent answers.
	f.WriteOpen = f.WriteOpen && f.Availability.Writable
	if !f.Availability.Writable { // one that is not open yet has routes to itself, which no other node has
		f.Primary = ""
	}
	f.Journals = sync.OnceValue(func() map[ag.ReplicaID]catalog.Journal { return s.journals(ctx, f.Group, v.Reach) })
	f.Settings = sync.OnceValue(func() map[ag.ReplicaID][]catalog.Setting { return s.settings(ctx, f.Group, v.Reach) })
	reached := []ag.Replica{{ID: s.Self}} // also if the group does not have it
	for _, r := range f.Group.Replicas {
		if r.ID != s.Self && slices.Contains(v.Reach, r.ID) {
			reached = append(reached, r)
		}
		f.Nodes[r.ID] = s.published(r.ID, snap.Statuses[r.ID])
	}
	answers, _ := rpc.Each(ctx, reached, func(ctx context.Context, r ag.Replica) (catalog.Node, error) {
		if r.ID == s.Self {
			return s.Report(ctx), nil
		}
		ctx, cancel := context.WithTimeout(ctx, reportLimit)
		defer cancel()
		return rpc.Call(ctx, s.Calls, r, rpc.Report, rpc.Nothing{})
	})
	for id, node := range answers {
		node.Connected = true
		f.Nodes[id] = node
		if id != s.Self && node.Server != "" {
			s.recent.keep(id, node)
		}
	}
	for id, node := range f.Nodes {
		if !node.Connected {
			s.recent.fill(id, &node)
			f.Nodes[id] = node
		}
	}
	return f
}

// published has the last facts that a node published which does not answer now.
func (s *Service) published(id ag.ReplicaID, st agent.Status) catalog.Node {
	return catalog.Node{
		Role: ag.RoleResolving, Data: st.Data, Position: st.Position, Because: "does not answer", Storage: st.Storage, Offline: st.Offline,
		Seedings: seedings(seedjobs.LastKnown(id, st, s.Agent.Heard(id))),
	}
}

// Version returns that of PostgreSQL that this node's console gives as its own: version, or the oldest of those that
// every driver knows.
func (s *Service) Version() string { return cmp.Or(s.version(), "15") }

// version returns PostgreSQL's, of this node or, on a witness, of a replica's major; "": it is not known.
func (s *Service) version() string {
	if s.Server != nil {
		return s.Server.Version()
	}
	if g := s.Members.Group(); g != nil {
		for _, r := range g.Replicas {
			if r.Major != 0 {
				return strconv.Itoa(r.Major) // a witness does not know the rest
			}
		}
	}
	return ""
}

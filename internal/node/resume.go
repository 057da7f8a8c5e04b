package node

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Trust ends the quarantine of a replica's copy as it is.
func (m *admin) Trust(ctx context.Context, id ag.ReplicaID) (string, error) {
	r, ok := m.n.members.Replica(id)
	switch {
	case !ok:
		return "", api.Refused(fmt.Sprintf("the group has no member %s", id))
	case !r.HasData():
		return "", api.Refused(fmt.Sprintf("%s is a witness and holds no data", id))
	case id == m.n.self:
		return m.n.agent.Trust(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	was, err := rpc.Call(ctx, m.n.control, r, rpc.Trust, rpc.Nothing{})
	if err != nil {
		return "", fmt.Errorf("tell %s that its copy is trusted: %w", id, err)
	}
	return was, nil
}

// Resume continues data movement.
func (m *admin) Resume(ctx context.Context, id ag.ReplicaID) error {
	if s := m.n.agent.Snapshot(); s != nil && s.Record.Epoch.Leader == id {
		if st, ok := s.Statuses[id]; ok && st.Quarantine != "" {
			return api.Refused(fmt.Sprintf("%s led last, its copy is under quarantine, and there is no primary to make it anew from: check its storage and run coterie resume %s --trust, or coterie failover --to another --allow-data-loss", id, id))
		}
	}
	return m.n.updateGroup(ctx, func(g *ag.Group) error { return setSuspended(g, id, false) })
}

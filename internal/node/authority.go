package node

import (
	"context"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/status"
)

// RotateAuthority begins a rotation, the key of which is on this node's disk before the record names the authority, or holds or lets go the
// one under way.
func (m *admin) RotateAuthority(ctx context.Context, req api.RotateRequest) (api.Rotation, error) {
	n := m.n
	if n.pki.CA() == nil {
		return api.Rotation{}, api.Refused("a witness does not hold the authority's key; run this on a replica")
	}
	n.pki.Lock()
	defer n.pki.Unlock()
	if req.Abandon {
		return api.Rotation{}, n.abandonRotation(ctx)
	}
	x, err := n.store.Read(ctx)
	if err != nil {
		return api.Rotation{}, err
	}
	if x.Group.Rotation == nil {
		return n.beginRotation(ctx, x.Group.Name, req.Hold)
	}
	var out api.Rotation
	return out, n.updateGroup(ctx, func(g *ag.Group) error {
		if g.Rotation == nil {
			return api.Unhealthy("the rotation ended in this moment; see coterie status")
		}
		next := *g.Rotation
		next.Hold = req.Hold
		g.Rotation, out = &next, *status.RotationOf(*g)
		return nil
	})
}

func (n *node) beginRotation(ctx context.Context, name string, hold bool) (out api.Rotation, err error) {
	ca, err := certs.NewCA(ag.GroupID(n.cfg.Group), name)
	if err != nil {
		return out, err
	}
	if err := certs.SaveAuthorityKey(n.layout.PKI(), ca.KeyPEM()); err != nil {
		return out, err
	}
	n.log.Info("the certificate authority is rotated", "from", n.pki.Identity().Authority(), "to", ca.Pin())
	return out, n.updateGroup(ctx, func(g *ag.Group) error {
		if g.Rotation == nil {
			g.Rotation = &ag.Rotation{Pin: ca.Pin(), Certificate: string(ca.CertPEM), Phase: ag.RotationTrust, Hold: hold}
		}
		out = *status.RotationOf(*g)
		return nil
	})
}

func (n *node) abandonRotation(ctx context.Context) error {
	return n.updateGroup(ctx, func(g *ag.Group) error {
		switch {
		case g.Rotation == nil:
			return api.Refused("no rotation of the certificate authority is under way")
		case g.Rotation.Phase != ag.RotationTrust:
			return api.Refused("certificates of the new authority are in use: the rotation can only be completed; see in coterie status whom it waits for")
		}
		g.Rotation = nil
		return nil
	})
}

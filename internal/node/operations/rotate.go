package operations

import (
	"context"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/status"
)

// RotateAuthority begins a rotation, or holds or releases the one under way. The key of a new rotation is on this
// node's disk before the configuration names the authority.
func (s *Service) RotateAuthority(ctx context.Context, req api.RotateRequest) (out api.Rotation, err error) {
	defer func() { err = s.noQuorum(err) }()
	if s.PKI.CA() == nil {
		return api.Rotation{}, fail.Refusedf("%s is a witness, which does not hold the authority's key; nothing was changed. Run coterie ca rotate on %s", s.Self, s.others(""))
	}
	s.PKI.Lock()
	defer s.PKI.Unlock()
	if req.Abandon {
		return api.Rotation{}, s.abandonRotation(ctx)
	}
	x, err := s.Store.Read(ctx)
	if err != nil {
		return api.Rotation{}, err
	}
	if x.Group.Rotation == nil {
		return s.beginRotation(ctx, x.Group.Name, req.Hold)
	}
	return s.holdRotation(ctx, req.Hold)
}

// holdRotation holds the rotation under way in its phase, or lets it go on, and returns it as it is then.
func (s *Service) holdRotation(ctx context.Context, hold bool) (out api.Rotation, err error) {
	err = s.Update(ctx, func(g *ag.Group) error {
		if g.Rotation == nil {
			return fail.Unhealthyf("the rotation ended in this moment; see coterie status")
		}
		next := *g.Rotation
		next.Hold = hold
		g.Rotation = &next
		out = *status.RotationOf(*g)
		return nil
	})
	return out, err
}

// beginRotation makes an authority, and has the record name it unless another rotation was begun at the same moment. It
// returns the one that is under way then.
func (s *Service) beginRotation(ctx context.Context, name string, hold bool) (out api.Rotation, err error) {
	ca, err := certs.NewCA(ag.GroupID(s.Node.Group), name)
	if err != nil {
		return out, err
	}
	if err := certs.SaveAuthorityKey(s.Layout.PKI(), ca.KeyPEM()); err != nil {
		return out, err
	}
	signature, err := s.PKI.CA().Endorse(certs.NextAuthority, ca.CertPEM)
	if err != nil {
		return out, err
	}
	fault.Point("rotate.key") // the new authority's key is on disk; the record does not name it
	s.Logger.Info("the certificate authority is rotated", "from", s.PKI.Identity().Authority(), "to", ca.Pin())
	err = s.Update(ctx, func(g *ag.Group) error {
		if g.Rotation == nil {
			g.Rotation = &ag.Rotation{Pin: ca.Pin(), Certificate: string(ca.CertPEM), Signature: signature, Phase: ag.RotationTrust, Hold: hold}
		}
		out = *status.RotationOf(*g)
		return nil
	})
	if err != nil {
		return out, err
	}
	if x, err := s.Store.Read(ctx); err == nil {
		s.GroupChanged(x.Group) // while the authorities are locked: the rest of a rotation before is forgotten, and not its key
	}
	return out, nil
}

// abandonRotation gives a rotation up, which it refuses once a certificate of the new authority may be in use.
func (s *Service) abandonRotation(ctx context.Context) error {
	return s.Update(ctx, func(g *ag.Group) error {
		switch {
		case g.Rotation == nil:
			return fail.Refusedf("no rotation of the certificate authority is under way")
		case g.Rotation.Phase != ag.RotationTrust:
			return fail.Refusedf("certificates of the new authority are in use: the rotation can only be completed; see in coterie status whom it waits for")
		}
		g.Rotation = nil
		return nil
	})
}

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// This file replaces the group's certificate authority while everything goes on (decision 58). The record says which authority is to come
// and what phase the change is in; every member does its part of a phase, on disk first, and says so by compare-and-swap. Each part can be
// done again after a crash at any point of it.

// keepAuthority carries out this node's part in a rotation of the group's authority, until ctx is done.
func (n *node) keepAuthority(ctx context.Context) error {
	said := ""
	for {
		if err := n.rotationTurn(ctx); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			n.log.Warn("the rotation of the certificate authority does not get on", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (n *node) rotationTurn(ctx context.Context) error {
	snap := n.agent.Snapshot()
	if snap == nil || snap.Group.ID == "" {
		return nil
	}
	g := snap.Group
	_, member := g.Replica(n.self)
	switch r := g.Rotation; {
	case !member:
		return nil
	case r == nil:
		if len(n.identity.TrustedPins()) == 1 {
			return nil
		}
		return n.changeAuthorities(func(pki string) error { return certs.ForgetAuthorities(pki) }) // it was given up
	case slices.Contains(r.Done, n.self) && (len(g.RotationWaits()) > 0 || r.Held()):
		return nil
	default:
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := n.rotate(ctx, *r); err != nil {
			return fmt.Errorf("phase %s: %w", r.Phase, err)
		}
		if !n.quorum.MemberTrusts() && r.Phase != ag.RotationIssue {
			return nil // the quorum's member is to be started again first
		}
		n.log.Info("this node is through with a phase of the authority's rotation", "phase", r.Phase, "authority", r.Pin)
		return n.updateGroup(ctx, func(g *ag.Group) error { g.RotationStep(n.self, r.Pin, r.Phase); return nil })
	}
}

// rotate does this node's part of a phase.
func (n *node) rotate(ctx context.Context, r ag.Rotation) error {
	switch r.Phase {
	case ag.RotationTrust:
		if slices.Contains(n.identity.TrustedPins(), r.Pin) {
			return nil
		}
		return n.believe(ctx, r)
	case ag.RotationIssue:
		err := n.changeAuthorities(func(pki string) error { return certs.PreferAuthority(pki, r.Pin) })
		if err != nil {
			return err
		}
		return n.renewer.Renew(ctx)
	case ag.RotationDrop:
		return n.changeAuthorities(certs.ForgetAuthorities)
	}
	return fmt.Errorf("this version knows nothing of it: install the version of the other nodes, and coterie restart")
}

// believe adds the new authority to those that this node believes, on a replica with its key.
func (n *node) believe(ctx context.Context, r ag.Rotation) error {
	pin, err := certs.PinOfAuthority([]byte(r.Certificate), ag.GroupID(n.cfg.Group))
	if err != nil || pin != r.Pin {
		return errors.Join(errors.New("the new authority in the record is not what its pin says"), err)
	}
	if n.ca.Load() != nil {
		if _, err := certs.AuthorityKey(n.layout.PKI(), r.Pin); err != nil {
			if err := n.fetchAuthorityKey(ctx, r.Pin); err != nil {
				return err
			}
		}
	}
	return n.changeAuthorities(func(pki string) error { return certs.TrustAuthority(pki, []byte(r.Certificate)) })
}

// fetchAuthorityKey asks the other replicas, one of which has made the key.
func (n *node) fetchAuthorityKey(ctx context.Context, pin string) error {
	key, found, err := rpc.First(ctx, n.members.Others(), certificateTry, func(ctx context.Context, r ag.Replica) ([]byte, error) {
		return rpc.Call(ctx, n.control, r, rpc.AuthorityKey, pin)
	})
	if !found {
		return fmt.Errorf("no replica that answers has the new authority's key (coterie ca rotate --abandon gives it up): %w", err)
	}
	return n.changeAuthorities(func(pki string) error { return certs.SaveAuthorityKey(pki, key) })
}

// authorityKey hands the key of an authority to another replica, which may admit and issue as this one may.
func (n *node) authorityKey(_ context.Context, peer certs.Identity, pin string) ([]byte, error) {
	if r, ok := n.members.Replica(peer.ID); !ok || !r.HasData() {
		return nil, fmt.Errorf("%s is no replica of this group: only replicas hold the authority's key", peer.ID)
	}
	g := n.members.Group()
	if g == nil || g.Rotation == nil || g.Rotation.Pin != pin {
		return nil, errors.New("there is no rotation to that authority, as far as this node knows")
	}
	return certs.AuthorityKey(n.layout.PKI(), pin)
}

// changeAuthorities changes what the pki directory believes, and puts it into use.
func (n *node) changeAuthorities(change func(pki string) error) error {
	n.pki.Lock()
	defer n.pki.Unlock()
	if err := change(n.layout.PKI()); err != nil {
		return err
	}
	if n.ca.Load() != nil {
		if err := n.loadCA(); err != nil {
			return err
		}
	}
	return n.identity.Reload(n.layout.PKI())
}

func (n *node) loadCA() error {
	ca, err := certs.LoadCA(n.layout.PKI())
	if err != nil {
		return fmt.Errorf("the group's certificate authority: %w", err)
	}
	n.ca.Store(ca)
	return nil
}

// believes names the authorities that this node believes, in an order that does not depend on which of them issues.
func (n *node) believes() string {
	pins := n.identity.TrustedPins()
	slices.Sort(pins)
	return strings.Join(pins, " ")
}

// RotateAuthority begins a rotation, the key of which is on this node's disk before the record names the authority, or holds or lets go the
// one under way.
func (m *admin) RotateAuthority(ctx context.Context, req api.RotateRequest) (api.Rotation, error) {
	n := m.n
	if n.ca.Load() == nil {
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
		g.Rotation, out = &next, *rotationOf(*g)
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
	n.log.Info("the certificate authority is rotated", "from", n.identity.Authority(), "to", ca.Pin())
	return out, n.updateGroup(ctx, func(g *ag.Group) error {
		if g.Rotation == nil {
			g.Rotation = &ag.Rotation{Pin: ca.Pin(), Certificate: string(ca.CertPEM), Phase: ag.RotationTrust, Hold: hold}
		}
		out = *rotationOf(*g)
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

// rotationOf is the group's rotation as administrators see it; nil: there is none.
func rotationOf(g ag.Group) *api.Rotation {
	if g.Rotation == nil {
		return nil
	}
	return &api.Rotation{Pin: g.Rotation.Pin, Phase: g.Rotation.Phase, Held: g.Rotation.Held(), WaitsFor: g.RotationWaits()}
}

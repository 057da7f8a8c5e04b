package pki

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// The group's certificate authority is replaced without an interruption (decision 58). The configuration names the new
// authority and the phase of the rotation. Every member does its part of a phase, on disk first, and then reports it by
// compare-and-swap. Each part can be repeated after a crash at any point of it.

// RunRotation carries out this node's part in a rotation of the group's authority, until ctx is done.
func (s *Service) RunRotation(ctx context.Context) error {
	logged := ""
	retry.Every(ctx, 500*time.Millisecond, func() {
		if err := s.rotationTurn(ctx); err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			s.Logger.Warn("the rotation of the certificate authority does not get on", "err", err)
		}
	})
	return nil
}

// rotationTurn does this node's part of the rotation's phase and reports it, if the phase waits for this node.
func (s *Service) rotationTurn(ctx context.Context) error {
	snap := s.Snapshot()
	if snap == nil || snap.Group.ID == "" {
		return nil
	}
	g := snap.Group
	_, member := g.Replica(s.Self)
	switch r := g.Rotation; {
	case !member:
		return nil
	case r == nil:
		if len(s.identity.TrustedPins()) == 1 {
			return nil
		}
		return s.changeAuthorities(func(pki string) error { // the rotation was given up
			if now := s.Members.Group(); now != nil && now.Rotation != nil {
				return nil // another was begun here since: its key is on this disk only, and is not forgotten
			}
			return certs.ForgetAuthorities(pki)
		})
	case slices.Contains(r.Done, s.Self) && (len(g.RotationWaits()) > 0 || r.Held()):
		return nil
	default:
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := s.rotate(ctx, *r); err != nil {
			return fmt.Errorf("phase %s: %w", r.Phase, err)
		}
		if !s.MemberTrusts() && r.Phase != ag.RotationIssue {
			return nil // the quorum's member must restart first
		}
		s.Logger.Info("this node is through with a phase of the authority's rotation", "phase", r.Phase, "authority", r.Pin)
		fault.Point("rotate.done") // this node has done its part on disk; the record does not say so
		return s.Tell(ctx, ag.MemberStep{Pin: r.Pin, Phase: r.Phase})
	}
}

// rotate does this node's part of a phase.
func (s *Service) rotate(ctx context.Context, r ag.Rotation) error {
	switch r.Phase {
	case ag.RotationTrust:
		if slices.Contains(s.identity.TrustedPins(), r.Pin) {
			return nil
		}
		return s.trustAuthority(ctx, r)
	case ag.RotationIssue:
		err := s.changeAuthorities(func(pki string) error { return certs.PreferAuthority(pki, r.Pin) })
		if err != nil {
			return err
		}
		fault.Point("rotate.preferred") // the new authority issues here; the certificates are of the old one
		return s.renewer.Renew(ctx)
	case ag.RotationDrop:
		return s.changeAuthorities(certs.ForgetAuthorities)
	}
	return fmt.Errorf("this version knows nothing of it: install the version of the other nodes, and coterie restart")
}

// trustAuthority adds the new authority to those that this node trusts, on a replica with its key.
func (s *Service) trustAuthority(ctx context.Context, r ag.Rotation) error {
	pin, err := certs.PinOfAuthority([]byte(r.Certificate), s.Group)
	if err != nil || pin != r.Pin {
		return errors.Join(errors.New("the new authority in the record is not what its pin says"), err)
	}
	if err := certs.Endorsed(s.Dir, certs.NextAuthority, []byte(r.Certificate), r.Signature); err != nil {
		return fmt.Errorf("the new authority in the record is not believed: %w; a witness may be stolen: coterie member remove it, then coterie ca rotate --abandon", err)
	}
	if s.ca.Load() != nil {
		if _, err := certs.AuthorityKey(s.Dir, r.Pin); err != nil {
			if err := s.fetchAuthorityKey(ctx, r.Pin); err != nil {
				return err
			}
		}
	}
	fault.Point("rotate.fetched") // the new authority's key is on disk; it is not trusted
	return s.changeAuthorities(func(pki string) error { return certs.TrustAuthority(pki, []byte(r.Certificate)) })
}

// fetchAuthorityKey asks the other replicas for the key, which one of them has created.
func (s *Service) fetchAuthorityKey(ctx context.Context, pin string) error {
	key, found, err := rpc.First(ctx, s.Members.Others(), callTimeout, func(ctx context.Context, r ag.Replica) ([]byte, error) {
		return s.AskKey(ctx, r, pin)
	})
	if !found {
		return fmt.Errorf("no replica that answers has the new authority's key (coterie ca rotate --abandon gives it up): %w", err)
	}
	return s.changeAuthorities(func(pki string) error { return certs.SaveAuthorityKey(pki, key) })
}

// AuthorityKey returns the key of the authority that the group rotates to, for another replica, which may admit and
// issue as this one may. Every other peer and every other authority is refused.
func (s *Service) AuthorityKey(_ context.Context, peer certs.Identity, pin string) ([]byte, error) {
	if r, ok := s.Members.Replica(peer.ID); !ok || !r.HasData() || peer.Kind != certs.KindReplica {
		return nil, fmt.Errorf("%s is no replica of this group: only replicas hold the authority's key", peer.ID)
	}
	g := s.Members.Group()
	if g == nil || g.Rotation == nil || g.Rotation.Pin != pin {
		return nil, errors.New("there is no rotation to that authority, as far as this node knows")
	}
	return certs.AuthorityKey(s.Dir, pin)
}

// changeAuthorities changes the authorities in the pki directory, and puts the change into use.
func (s *Service) changeAuthorities(change func(pki string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := change(s.Dir); err != nil {
		return err
	}
	fault.Point("rotate.changed") // the authorities on disk have changed; those in use have not
	if s.ca.Load() != nil {
		if err := s.loadCA(); err != nil {
			return err
		}
	}
	return s.identity.Reload(s.Dir)
}

package quorum

import (
	"context"
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// MemberTrusts reports whether this node's member of the quorum, if it has one, trusts the authorities that the node
// trusts. The member reads them when it starts, and not again.
func (s *Service) MemberTrusts() bool {
	was := s.trusted.Load()
	return s.running() == nil || was != nil && *was == s.TrustedCAs()
}

// mayRestartMember reports whether the member is to be restarted now so that it trusts what the node trusts. The
// group's members do so one after the other, and only while every other voter answers, so that the quorum keeps its
// majority.
func (s *Service) mayRestartMember() bool {
	snap, v := s.Snapshot(), s.View()
	if s.MemberTrusts() || snap == nil || v == nil || !v.Quorum || !snap.Group.RotationTurn(s.self) {
		return false
	}
	for _, r := range snap.Group.Replicas {
		if snap.Group.Votes(r) && r.ID != s.self && !slices.Contains(v.Reach, r.ID) {
			return false
		}
	}
	return true
}

// restartMember stops the member and starts it again.
func (s *Service) restartMember(ctx context.Context, m member) error {
	s.Logger.Info("the quorum's member restarts, to trust the authorities that this node trusts")
	s.member.Store(nil)
	s.store.Refresh()
	if err := m.Close(); err != nil { // it may still hold its files
		s.memberFailed(fmt.Errorf("%w: %w", embedded.ErrFailed, err))
		return err
	}
	err := s.startMember(ctx)
	s.store.Refresh()
	return err
}

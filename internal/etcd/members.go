package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Members lists the quorum's members, by a linearizable read.
func (s *Store) Members(ctx context.Context) ([]MemberInfo, error) {
	var out []MemberInfo
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	_, err := s.each(ctx, func(ctx context.Context, endpoint string) (err error) {
		out, err = s.back.members(ctx, endpoint)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the quorum's members: %w", err)
	}
	slices.SortFunc(out, func(a, b MemberInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// AddLearner adds a non-voting member that is about to start at peerURL. initial holds the members that it must know
// (MemberConfig.Initial; it adds itself). Calling it again for the same URL returns the learner that is there.
func (s *Store) AddLearner(ctx context.Context, peerURL string) (id uint64, initial map[string]string, err error) {
	if err := checkPeerURL(peerURL); err != nil {
		return 0, nil, fmt.Errorf("add a quorum member: %w", err)
	}
	id, addErr := s.addLearner(ctx, peerURL)
	// Whatever became of the call, the list says what is true; an add that is still under way finds its URL taken if repeated.
	members, err := s.Members(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("add a quorum member: %w", errors.Join(addErr, err))
	}
	initial = map[string]string{}
	found := false
	for _, m := range members {
		if slices.Contains(m.PeerURLs, peerURL) {
			if !m.Learner {
				return 0, nil, fmt.Errorf("add a quorum member: %s is the address of the voting member %q; remove that one first", peerURL, m.Name)
			}
			id, found = m.ID, true
			continue
		}
		name := m.Name
		if name == "" {
			name = fmt.Sprintf("unstarted-%x", m.ID)
		}
		if len(m.PeerURLs) > 0 {
			initial[name] = m.PeerURLs[0]
		}
	}
	if !found {
		return 0, nil, fmt.Errorf("add a quorum member: %w", addErr)
	}
	return id, initial, nil
}

func (s *Store) addLearner(ctx context.Context, peerURL string) (id uint64, err error) {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	_, err = s.each(ctx, func(ctx context.Context, endpoint string) (err error) {
		id, err = s.back.addLearner(ctx, endpoint, peerURL)
		return err
	})
	return id, err
}

// promotePause separates two tries to promote a learner that has not caught up.
const promotePause = 100 * time.Millisecond

// PromoteLearner makes a learner a voter, waiting until it has caught up or ctx ends (30 s at most): then ErrNotReady. It is
// idempotent.
func (s *Store) PromoteLearner(ctx context.Context, id uint64) error {
	ctx, cancel := s.bounded(ctx, 30*time.Second)
	defer cancel()
	for {
		err := s.promoteOnce(ctx, id)
		switch {
		case err == nil || errors.Is(err, errNotLearner):
			return nil
		case errors.Is(err, errMemberNotFound):
			return fmt.Errorf("promote the quorum member %x: %w", id, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("promote the quorum member %x: %w: %w", id, ErrNotReady, err)
		case <-time.After(promotePause):
		}
	}
}

func (s *Store) promoteOnce(ctx context.Context, id uint64) error {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	_, err := s.each(ctx, func(ctx context.Context, endpoint string) error { return s.back.promote(ctx, endpoint, id) })
	return err
}

// RemoveMember removes a member of the quorum for ever; its id is never used again. It is idempotent.
func (s *Store) RemoveMember(ctx context.Context, id uint64) error {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	_, err := s.each(ctx, func(ctx context.Context, endpoint string) error { return s.back.remove(ctx, endpoint, id) })
	if err != nil && !errors.Is(err, errMemberNotFound) {
		return fmt.Errorf("remove the quorum member %x: %w", id, err)
	}
	return nil
}

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Members lists the quorum's members, by a linearizable read.
func (s *Store) Members(ctx context.Context) ([]MemberInfo, error) {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	out, _, err := ask(ctx, s, s.back.members)
	if err != nil {
		return nil, fmt.Errorf("list the quorum's members: %w", err)
	}
	slices.SortFunc(out, func(a, b MemberInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// membershipTimeout bounds a change of the quorum's members, whatever the caller's context allows.
const membershipTimeout = 30 * time.Second

// reconfigurePause separates two tries of a membership change that was not possible yet.
const reconfigurePause = 100 * time.Millisecond

// reconfigure repeats a change of the quorum's members until it is made, refused, or ctx ends. again reports whether an
// error is temporary: for example, etcd refuses changes until all members have been connected for 5 seconds.
// The first answer decides: try may be running at several endpoints at once.
func reconfigure[T any](ctx context.Context, s *Store, again func(error) bool, try func(ctx context.Context, endpoint string) (T, error)) (value T, err error) {
	ctx, cancel := s.bounded(ctx, membershipTimeout)
	defer cancel()
	_ = retry.Until(ctx, reconfigurePause, func() (bool, error) { // the last try's error says more than the end of ctx
		call, cancelCall := s.bounded(ctx, s.cfg.CallTimeout)
		defer cancelCall()
		value, _, err = ask(call, s, try)
		return err == nil || !again(err), nil
	})
	return value, err
}

func notYet(err error) bool { return errors.Is(err, errUnhealthy) || errors.Is(err, ErrNoQuorum) }

// AddLearner adds a non-voting member that is about to start at peerURL. initial holds the members that it must know
// (embedded.Config.Initial; it adds itself). Calling it again for the same URL returns the existing learner. After
// another member has come or gone it can take some seconds, and waits for that until ctx ends, 30 s at most.
func (s *Store) AddLearner(ctx context.Context, peerURL string) (id uint64, initial map[string]string, err error) {
	if err := checkPeerURL(peerURL); err != nil {
		return 0, nil, fmt.Errorf("add a quorum member: %w", err)
	}
	id, addErr := reconfigure(ctx, s, notYet, func(ctx context.Context, endpoint string) (uint64, error) {
		return s.back.addLearner(ctx, endpoint, peerURL)
	})
	// The list tells the outcome of the call. If an add that is still under way is repeated, its URL is taken.
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

// PromoteLearner makes a learner a voter, waiting until it has caught up or ctx ends (30 s at most): then ErrNotReady.
// It is idempotent.
func (s *Store) PromoteLearner(ctx context.Context, id uint64) error {
	again := func(err error) bool { return errors.Is(err, errLearnerNotReady) || notYet(err) }
	_, err := reconfigure(ctx, s, again, func(ctx context.Context, endpoint string) (struct{}, error) {
		return struct{}{}, s.back.promote(ctx, endpoint, id)
	})
	switch {
	case err == nil || errors.Is(err, errNotLearner):
		return nil
	case again(err):
		return fmt.Errorf("promote the quorum member %x: %w: %w", id, ErrNotReady, err)
	}
	return fmt.Errorf("promote the quorum member %x: %w", id, err)
}

// RemoveMember removes a member of the quorum for ever; its id is never used again. It is idempotent.
func (s *Store) RemoveMember(ctx context.Context, id uint64) error {
	_, err := reconfigure(ctx, s, notYet, func(ctx context.Context, endpoint string) (struct{}, error) {
		return struct{}{}, s.back.remove(ctx, endpoint, id)
	})
	if err != nil && !errors.Is(err, errMemberNotFound) {
		return fmt.Errorf("remove the quorum member %x: %w", id, err)
	}
	return nil
}

func checkPeerURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" {
		return fmt.Errorf("peer address %q must be of the form https://host:port", s)
	}
	return nil
}

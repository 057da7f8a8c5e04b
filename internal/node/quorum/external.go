package quorum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// External returns the etcd that the node's configuration file names as its quorum. cfg.Quorum must not be nil.
func External(cfg config.Config) etcd.External {
	q := cfg.Quorum
	return etcd.External{Endpoints: q.Endpoints, CAFile: q.CA, CertFile: q.Cert, KeyFile: q.Key}
}

// external reports whether an administrator runs the quorum's etcd.
func (s *Service) external() bool { return s.Node.Quorum != nil }

// sameQuorum returns an error if the node's configuration file and its group disagree on what the quorum is. The node
// must not start then.
func sameQuorum(cfg config.Config, g ag.Group) error {
	switch {
	case cfg.Quorum == nil && g.External > 0:
		return fmt.Errorf("the quorum of group %s is an external etcd, and %s has no quorum.endpoints; put them back", g.Name, config.File)
	case cfg.Quorum != nil && g.External == 0:
		return fmt.Errorf("the quorum of group %s is embedded in its nodes, and %s names quorum.endpoints; remove them: what the quorum is, is decided by coterie init", g.Name, config.File)
	case cfg.Quorum == nil:
		return nil
	}
	if err := External(cfg).Check(); err != nil {
		return fmt.Errorf("quorum.endpoints in %s: %w", config.File, err)
	}
	return nil
}

// foundExternal writes the first record into the external etcd or, after the loss of that etcd, the new record. After a
// crash it can be called again.
func (s *Service) foundExternal(ctx context.Context, f membership.Founding) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	write := s.calls.Bootstrap
	if f.Token != "" {
		write = s.calls.Replace
	}
	for {
		err := write(ctx, f.Group, f.Epoch, f.State)
		_, readErr := s.calls.Read(ctx)
		if readErr == nil && (err == nil || f.Token == "" && errors.Is(err, etcd.ErrConflict)) {
			return durable.Remove(s.Layout.FoundingFile())
		}
		if errors.Is(err, etcd.ErrConflict) {
			return fmt.Errorf("quorum: %w; the node that wrote it goes on: see coterie status there", err)
		}
		if retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("quorum: %w", errors.Join(err, readErr))
		}
	}
}

// countEvery is how often the primary counts the members of the external etcd. Fast takeover needs three.
const countEvery = 10 * time.Second

// countExternal keeps the number of the external etcd's voting members in the configuration. Only the primary does so.
func (s *Service) countExternal(ctx context.Context, snap *agent.Snapshot) error {
	if snap.Record.Epoch.Leader != s.self || s.now().Sub(s.counted) < countEvery {
		return nil
	}
	s.counted = s.now()
	k, err := s.calls.VotingMembers(ctx)
	if err != nil || k == snap.Group.External || k == 0 {
		return err
	}
	s.Logger.Info("the external quorum has another number of voting members", "was", snap.Group.External, "is", k)
	return s.UpdateGroup(ctx, func(g *ag.Group) error { g.External = k; return nil })
}

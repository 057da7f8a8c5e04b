package node

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
	"github.com/coteriedb/coterie/internal/node/membership"
)

// ExternalQuorum returns the etcd that the configuration names; it must name one.
func ExternalQuorum(cfg config.Config) etcd.External {
	q := cfg.Quorum
	return etcd.External{Endpoints: q.Endpoints, CAFile: q.CA, CertFile: q.Cert, KeyFile: q.Key}
}

// external tells whether an administrator runs the quorum's etcd.
func (n *node) external() bool { return n.cfg.Quorum != nil }

// sameQuorum refuses to start a node whose configuration file and whose group disagree on what the quorum is.
func sameQuorum(cfg config.Config, g ag.Group) error {
	switch {
	case cfg.Quorum == nil && g.External > 0:
		return fmt.Errorf("the quorum of group %s is an external etcd, and %s has no quorum.endpoints; put them back", g.Name, config.File)
	case cfg.Quorum != nil && g.External == 0:
		return fmt.Errorf("the quorum of group %s is embedded in its nodes, and %s names quorum.endpoints; remove them: what the quorum is, is decided by coterie init", g.Name, config.File)
	case cfg.Quorum == nil:
		return nil
	}
	if err := ExternalQuorum(cfg).Check(); err != nil {
		return fmt.Errorf("quorum.endpoints in %s: %w", config.File, err)
	}
	return nil
}

// foundExternal writes the first record into the external etcd, or after its loss the new one; it may run again after a crash.
func (n *node) foundExternal(ctx context.Context, f membership.Founding) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	write := n.store.Bootstrap
	if f.Token != "" {
		write = n.store.Replace
	}
	for {
		err := write(ctx, f.Group, f.Epoch, f.State)
		_, readErr := n.store.Read(ctx)
		if readErr == nil && (err == nil || f.Token == "" && errors.Is(err, etcd.ErrConflict)) {
			return durable.Remove(n.layout.FoundingFile())
		}
		if errors.Is(err, etcd.ErrConflict) {
			return fmt.Errorf("quorum: %w; whoever wrote it goes on: see coterie status there", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("quorum: %w", errors.Join(err, readErr))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// countEvery is how often the primary looks how many members the external etcd has: fast takeover rests on three.
const countEvery = 10 * time.Second

// countExternal keeps the number of the external etcd's members in the configuration; the primary does it.
func (n *node) countExternal(ctx context.Context, snap *agent.Snapshot) error {
	if snap.Record.Epoch.Leader != n.self || time.Since(n.counted) < countEvery {
		return nil
	}
	n.counted = time.Now()
	k, err := n.store.VotingMembers(ctx)
	if err != nil || k == snap.Group.External || k == 0 {
		return err
	}
	n.log.Info("the external quorum has another number of voting members", "was", snap.Group.External, "is", k)
	return n.updateGroup(ctx, func(g *ag.Group) error { g.External = k; return nil })
}

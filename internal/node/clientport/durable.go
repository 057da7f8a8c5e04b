package clientport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener"
)

// durablePoll is how often the synchronous setting in force is looked at again while an answer waits for it: the record
// and the setting change without a change of the streams.
const durablePoll = 50 * time.Millisecond

var (
	errNoServer = errors.New("this node runs no PostgreSQL")
	errNoStream = errors.New("no stream from the primary is open")
)

// progressOf returns how far a replica is. It asks the replica.
func (p *Port) progressOf(ctx context.Context, id ag.ReplicaID) (listener.Progress, error) {
	if id == p.c.Self {
		return p.Progress(ctx)
	}
	r, err := p.replica(id)
	if err != nil {
		return listener.Progress{}, err
	}
	return p.c.Peers.Progress(ctx, r)
}

// Progress returns how far this node is: as the primary what it has flushed, as a secondary what it has replayed. A
// secondary without an open stream from the primary has no progress: its copy may have diverged, and then its position
// means something else there.
func (p *Port) Progress(ctx context.Context) (x listener.Progress, err error) {
	server, routes := p.c.Server(), p.routes.Load()
	switch {
	case server == nil:
		return x, errNoServer
	case routes != nil && routes.Primary == p.c.Self:
		x.Epoch = routes.Epoch
	default:
		up := p.c.Upstream()
		if !up.Connected {
			return x, errNoStream
		}
		x.Epoch = up.Epoch
	}
	x.LSN, err = server.CurrentFlush(ctx)
	return x, err
}

// durable returns nil once the members of the synchronous setting in force have flushed WAL up to lsn. It waits while
// that cannot be known, until ctx ends. A secondary asks the primary.
func (p *Port) durable(ctx context.Context, lsn ag.LSN) error {
	for {
		moved := p.c.Moved() // before the positions: a change between the two would be missed
		ok, err := p.acknowledged(lsn)
		if errors.Is(err, ag.ErrNotLeading) {
			ok, err = p.askDurable(ctx, lsn)
		}
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-time.After(durablePoll):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("WAL up to %s: %w", lsn, context.Cause(ctx)), err)
		}
	}
}

// askDurable asks the primary about a position that this secondary has replayed. Without an open stream from the
// primary the copy may have diverged, and then the position means something else there: the error is ag.ErrNotLeading.
func (p *Port) askDurable(ctx context.Context, lsn ag.LSN) (bool, error) {
	up := p.c.Upstream()
	primary, err := p.replica(up.Source)
	if err != nil || !up.Connected || primary.ID == p.c.Self {
		return false, ag.ErrNotLeading
	}
	return p.c.Peers.Durable(ctx, primary, up.Epoch, lsn)
}

// Durable reports whether a position is durable that a secondary has replayed, of the history that it streams in epoch
// e. It does not wait. Where e is not the epoch in force, the error is ag.ErrNotLeading.
func (p *Port) Durable(e ag.Epoch, lsn ag.LSN) (bool, error) {
	if view := p.c.View(); p.c.Server() == nil || view == nil || view.Record.Epoch.Epoch != e {
		return false, ag.ErrNotLeading
	}
	return p.acknowledged(lsn)
}

// acknowledged reports whether everything up to lsn is durable by the view of this node, which must lead. lsn must have
// been taken before.
func (p *Port) acknowledged(lsn ag.LSN) (bool, error) {
	view := p.c.View()
	if view == nil {
		return false, ag.ErrNotLeading
	}
	var streams []ag.Stream
	for _, s := range p.c.Streams() {
		streams = append(streams, ag.Stream{Member: s.Member, Copy: s.Copy, Open: true, Flush: s.Flush})
	}
	return view.Acknowledged(lsn, streams)
}

// confirmLead returns nil if, by the quorum's word after the call, this node leads the epoch whose sessions it serves.
func (p *Port) confirmLead(ctx context.Context) error {
	routes := p.routes.Load()
	snap, err := p.c.Read(ctx)
	if err != nil {
		return fmt.Errorf("ask the quorum who leads: %w", err)
	}
	e := snap.Record.Epoch
	if routes == nil || e.Epoch != routes.Epoch || e.Leader != p.c.Self || e.Phase != ag.PhaseLead {
		return fmt.Errorf("epoch %d is led by %q: %w", e.Epoch, e.Leader, ag.ErrNotLeading)
	}
	return nil
}

package clientport

import (
	"context"

	"github.com/coteriedb/coterie/internal/ag"
)

// Publish makes a snapshot of the routes the one in force.
func (p *Port) Publish(r *ag.Routes) {
	p.routes.Store(r)
	p.touch()
}

// Routes returns the routes in force; nil before the agent published any.
func (p *Port) Routes() *ag.Routes { return p.routes.Load() }

// Changed returns a channel that is closed at the next change of the routes or of the configuration. Take it before you
// look at either.
func (p *Port) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// touch wakes everything that waits on Changed.
func (p *Port) touch() {
	p.mu.Lock()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
}

// CloseOlder implements agent.Sessions.
func (p *Port) CloseOlder(e ag.Epoch, why string) {
	if s := p.server.Load(); s != nil {
		s.CloseEpoch(e, why)
	}
}

// CloseLocal implements agent.Sessions.
func (p *Port) CloseLocal(why string) {
	if s := p.server.Load(); s != nil {
		s.CloseReplica(p.c.Self, ag.ReadWrite, why)
	}
}

// CloseReaders implements agent.Sessions.
func (p *Port) CloseReaders(why string) {
	if s := p.server.Load(); s != nil {
		s.CloseReplica(p.c.Self, ag.ReadOnly, why)
	}
}

// Hold implements agent.Sessions.
func (p *Port) Hold(on bool) {
	if s := p.server.Load(); s != nil {
		s.HoldNew(on)
	}
}

// Drain implements agent.Sessions.
func (p *Port) Drain(on bool) {
	if s := p.server.Load(); s != nil {
		s.Drain(on)
	}
}

// Busy implements agent.Sessions.
func (p *Port) Busy() int {
	if s := p.server.Load(); s != nil {
		return s.Busy()
	}
	return 0
}

// CutBusy implements agent.Sessions.
func (p *Port) CutBusy(why string) {
	if s := p.server.Load(); s != nil {
		s.CutBusy(why)
	}
}

// ReadAhead implements agent.Sessions.
func (p *Port) ReadAhead(ctx context.Context, told func(asked, of int)) {
	if s := p.server.Load(); s != nil {
		s.ReadAhead(ctx, told)
	}
}

// ReadStates implements agent.Sessions.
func (p *Port) ReadStates(ctx context.Context) {
	if s := p.server.Load(); s != nil {
		s.ReadStates(ctx)
	}
}

// ContinueReaders implements agent.Sessions.
func (p *Port) ContinueReaders(ctx context.Context) {
	if s := p.server.Load(); s != nil {
		s.ContinueReaders(ctx)
	}
}

// ReadRelayedStates implements agent.Sessions.
func (p *Port) ReadRelayedStates(ctx context.Context) {
	if s := p.server.Load(); s != nil {
		s.ReadRelayedStates(ctx)
	}
}

// Moves returns which sessions of this node's server a planned failover would move.
func (p *Port) Moves(ctx context.Context) []ag.SessionMove {
	if s := p.server.Load(); s != nil {
		return s.Moves(ctx)
	}
	return nil
}

// CloseServer implements agent.Sessions.
func (p *Port) CloseServer(why string) {
	if s := p.server.Load(); s != nil {
		s.CloseServer(why)
	}
}

// GateMoved implements agent.Sessions.
func (p *Port) GateMoved() {
	if s := p.server.Load(); s != nil {
		s.GateMoved()
	}
}

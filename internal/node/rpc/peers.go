package rpc

import (
	"context"
	"errors"
	"syscall"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/endpoint"
)

// Peers reaches the other agents over the control stream.
type Peers struct {
	Control  *endpoint.Control
	Endpoint *endpoint.Endpoint
}

// Ping asks a member what record it saw last. The error is agent.ErrRefused where the member's host refuses the
// connection.
func (p *Peers) Ping(ctx context.Context, r ag.Replica) (marks.Seen, error) {
	seen, err := Call(ctx, p.Control, r, Ping, Nothing{})
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = errors.Join(agent.ErrRefused, err)
	}
	return seen, err
}

// Seal asks a member for its promise.
func (p *Peers) Seal(ctx context.Context, r ag.Replica, req agent.SealRequest) (ag.SealReport, error) {
	return Call(ctx, p.Control, r, Seal, req)
}

// Position asks a member how far its copy is.
func (p *Peers) Position(ctx context.Context, r ag.Replica) (agent.Positions, error) {
	return Call(ctx, p.Control, r, Position, Nothing{})
}

// PrepareTakeover asks the target of a planned failover to be ready for it.
func (p *Peers) PrepareTakeover(ctx context.Context, r ag.Replica, req agent.TakeoverRequest) error {
	_, err := Call(ctx, p.Control, r, PrepareTakeover, req)
	return err
}

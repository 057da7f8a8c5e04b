package rpc

import (
	"context"
	"errors"
	"strings"
	"sync"
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

	disowned sync.Map // of ag.ReplicaID: the members that answered last that this node is no member
}

// Disowned reports whether a member answered last that this node is not a member of its group.
func (p *Peers) Disowned() bool {
	some := false
	p.disowned.Range(func(_, _ any) bool { some = true; return false })
	return some
}

// notMember is the end of the answer of a member whose configuration does not have the caller
// (membership.Members.Authorize).
const notMember = "is not a member of this group"

// Disowns reports whether an error is the answer of a member that this node is no member of its group.
func Disowns(err error) bool { return err != nil && strings.Contains(err.Error(), notMember) }

// heed remembers a member's answer to a ping.
func (p *Peers) heed(id ag.ReplicaID, err error) {
	switch {
	case err == nil:
		p.disowned.Delete(id)
	case Disowns(err):
		p.disowned.Store(id, true)
	}
}

// Ping asks a member what record it saw last. The error is agent.ErrRefused where the member's host refuses the
// connection.
func (p *Peers) Ping(ctx context.Context, r ag.Replica) (marks.Seen, error) {
	seen, err := Call(ctx, p.Control, r, Ping, Nothing{})
	p.heed(r.ID, err)
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

// ReleaseReaders asks the target of a planned failover to have its readers continue elsewhere.
func (p *Peers) ReleaseReaders(ctx context.Context, r ag.Replica, req agent.TakeoverRequest) error {
	_, err := Call(ctx, p.Control, r, ReleaseReaders, req)
	return err
}

// PrepareTakeover asks the target of a planned failover to be ready for it.
func (p *Peers) PrepareTakeover(ctx context.Context, r ag.Replica, req agent.TakeoverRequest) error {
	_, err := Call(ctx, p.Control, r, PrepareTakeover, req)
	return err
}

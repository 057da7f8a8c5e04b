package node

import (
	"context"
	"errors"
	"net"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// serveHeart answers another member's heartbeats, once this node's agent exists.
func (n *node) serveHeart(ctx context.Context, peer certs.Identity, conn net.Conn) {
	if n.awaitReady(ctx) {
		n.agent.ServeHeartbeats(ctx, peer.ID, rpc.NewHeartbeatStream(conn))
	}
}

// claim returns which quorum this node belongs to or founds.
func (n *node) claim() recovery.Claim {
	own := n.quorum.Founds()
	select {
	case <-n.ready:
	default:
		return own
	}
	v, seen := n.agent.View(), n.agent.Seen()
	switch {
	case v != nil && v.Quorum && v.Record.Epoch.Epoch >= own.Epoch:
		return recovery.Claim{Epoch: v.Record.Epoch.Epoch, Leader: v.Record.Epoch.Leader, Founds: own.Founds, Answers: true}
	case own.Founds:
		return own
	case seen.Store == 0: // forgotten for the new quorum
		return recovery.Claim{}
	}
	return recovery.Claim{Epoch: seen.Epoch, Leader: seen.Leader}
}

// serveControl offers this node's methods to the other nodes.
func (n *node) serveControl() {
	rpc.Handle(n.control, rpc.Ping, func(context.Context, certs.Identity, rpc.Nothing) (marks.Seen, error) {
		select {
		case <-n.ready:
			return n.agent.Seen(), nil
		default:
			return marks.Seen{}, nil // the node answers, and has seen nothing yet
		}
	})
	rpc.Handle(n.control, rpc.Claim, func(context.Context, certs.Identity, rpc.Nothing) (recovery.Claim, error) { return n.claim(), nil })
	gate := rpc.Gate{To: n.control, Ready: n.ready}
	rpc.Handle(gate, rpc.Seal, func(ctx context.Context, peer certs.Identity, req agent.SealRequest) (r ag.SealReport, err error) {
		if err := rpc.InOwnName(peer, req.Candidate); err != nil {
			return r, err
		}
		return n.agent.Seal(ctx, req)
	})
	rpc.Handle(gate, rpc.Position, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (agent.Positions, error) {
		return n.agent.Position(ctx)
	})
	rpc.Handle(gate, rpc.PrepareTakeover, func(ctx context.Context, peer certs.Identity, req agent.TakeoverRequest) (none rpc.Nothing, err error) {
		if err := rpc.InOwnName(peer, req.From); err != nil {
			return none, err
		}
		return none, n.agent.PrepareTakeover(ctx, req)
	})
	rpc.Handle(gate, rpc.ReleaseReaders, func(ctx context.Context, peer certs.Identity, req agent.TakeoverRequest) (none rpc.Nothing, err error) {
		if err := rpc.InOwnName(peer, req.From); err != nil {
			return none, err
		}
		return none, n.agent.ReleaseReaders(ctx, req)
	})
	rpc.Handle(gate, rpc.Leave, func(ctx context.Context, peer certs.Identity, _ rpc.Nothing) (none rpc.Nothing, err error) {
		return none, n.operate.Dismiss(ctx, peer.ID)
	})
	rpc.Handle(gate, rpc.Decisions, func(context.Context, certs.Identity, rpc.Nothing) (decisions.Report, error) {
		return n.status.DecisionReport(), nil
	})
	rpc.Handle(gate, rpc.Renew, n.pki.RenewFor)
	rpc.Handle(gate, rpc.AuthorityKey, n.pki.AuthorityKey)
	rpc.Handle(gate, rpc.SignsRecord, func(ctx context.Context, peer certs.Identity, none rpc.Nothing) (bool, error) {
		return n.endorsed.Signs(ctx, peer, none)
	})
	rpc.Handle(gate, rpc.Signs, func(ctx context.Context, peer certs.Identity, none rpc.Nothing) (bool, error) {
		return n.endorsed.Signs(ctx, peer, none)
	})
	rpc.Handle(gate, rpc.Tell, func(ctx context.Context, peer certs.Identity, step ag.MemberStep) (rpc.Nothing, error) {
		return n.endorsed.WriteFor(ctx, peer, step)
	})
	rpc.Handle(gate, rpc.Seed, func(ctx context.Context, _ certs.Identity, req api.SeedRequest) (seeding.Operation, error) {
		return n.seedOps.AnswerSeed(ctx, req)
	})
	rpc.Handle(gate, rpc.CancelSeeding, func(context.Context, certs.Identity, rpc.Nothing) (seeding.Operation, error) {
		return n.seedOps.AnswerCancel()
	})
	rpc.Handle(gate, rpc.Seedings, func(context.Context, certs.Identity, rpc.Nothing) ([]seeding.Operation, error) {
		return n.seedOps.AnswerList()
	})
	rpc.Handle(gate, rpc.Trust, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (string, error) {
		if n.pg == nil {
			return "", errors.New("a witness holds no data")
		}
		return n.agent.Trust(ctx)
	})
	n.serveClientPort(gate)
	rpc.Handle(gate, rpc.Link, func(ctx context.Context, _ certs.Identity, to ag.ReplicaID) (api.Link, error) {
		return n.paths().Describe(ctx, to)
	})
	n.serveStatements(gate)
	n.serveMajors(gate)
	n.serveBackups(gate)
}

// serveClientPort offers what the client ports of other nodes ask.
func (n *node) serveClientPort(gate rpc.Gate) {
	rpc.Handle(gate, rpc.Role, func(ctx context.Context, _ certs.Identity, user string) (r rpc.AgedRole, err error) {
		r.Role, r.Age, err = n.clients.Role(ctx, user)
		if errors.Is(err, login.ErrNoRole) {
			r.Missing, err = true, nil
		}
		return r, err
	})
	rpc.Handle(gate, rpc.Viewer, func(ctx context.Context, _ certs.Identity, user string) (rpc.RoleThatLooks, error) {
		v, err := n.clients.Viewer(ctx, user)
		return rpc.RoleThatLooks(v), err
	})
	rpc.Handle(gate, rpc.Progress, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (listener.Progress, error) {
		return n.clients.Progress(ctx)
	})
	rpc.Handle(gate, rpc.Durable, func(_ context.Context, _ certs.Identity, asked rpc.DurableRequest) (bool, error) {
		return n.clients.Durable(asked.Epoch, asked.LSN)
	})
	rpc.Handle(gate, rpc.Cancel, func(ctx context.Context, _ certs.Identity, key listener.CancelKey) (none rpc.Nothing, err error) {
		return none, n.clients.Cancel(ctx, key)
	})
}

// serveStatements offers what other nodes ask for when a statement is run there.
func (n *node) serveStatements(gate rpc.Gate) {
	rpc.Handle(gate, rpc.Report, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (catalog.Node, error) {
		return n.status.Report(ctx), nil
	})
	rpc.Handle(gate, rpc.RestartListener, func(context.Context, certs.Identity, rpc.Nothing) (rpc.Nothing, error) {
		return rpc.Nothing{}, n.clients.Restart()
	})
	rpc.Handle(gate, rpc.SessionMoves, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) ([]ag.SessionMove, error) {
		return n.clients.Moves(ctx), nil
	})
	rpc.Handle(gate, rpc.Journal, func(context.Context, certs.Identity, rpc.Nothing) (catalog.Journal, error) {
		return n.status.Journal(), nil
	})
	rpc.Handle(gate, rpc.Settings, func(ctx context.Context, peer certs.Identity, _ rpc.Nothing) ([]catalog.Setting, error) {
		return n.status.SettingsFor(ctx, peer.Kind == certs.KindReplica)
	})
	rpc.Handle(gate, rpc.CreateDatabase, func(ctx context.Context, _ certs.Identity, name string) (bool, error) {
		return n.operate.CreateDatabase(ctx, name)
	})
	rpc.Handle(gate, rpc.RestartServer, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (none rpc.Nothing, err error) {
		return none, n.operate.RestartServer(ctx)
	})
	rpc.Handle(gate, rpc.RestartPrimary, func(ctx context.Context, _ certs.Identity, r api.RestartRequest) (none rpc.Nothing, err error) {
		return none, n.operate.RestartPrimary(ctx, r)
	})
	rpc.Handle(gate, rpc.Program, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (api.Program, error) {
		return n.operate.OwnProgram(ctx), nil
	})
	rpc.Handle(gate, rpc.RestartAgent, func(ctx context.Context, peer certs.Identity, r api.AgentRequest) (none rpc.Nothing, err error) {
		n.log.Info("the agent is to restart, as an administrator asked", "at", peer.ID)
		return none, n.operate.RestartOwnAgent(ctx, r)
	})
	rpc.Handle(gate, rpc.CheckParameters, func(ctx context.Context, _ certs.Identity, change map[string]*string) ([]string, error) {
		return n.operate.CheckParameters(ctx, change)
	})
	rpc.Handle(gate, rpc.WeighParameters, func(ctx context.Context, _ certs.Identity, values map[string]string) (rpc.Weight, error) {
		return n.operate.WeighParameters(ctx, values)
	})
}

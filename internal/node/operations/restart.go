package operations

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Restart has the agent replace itself, also a witness's, or, if the request says so, restarts the PostgreSQL server of
// a secondary, here or on another node.
func (s *Service) Restart(ctx context.Context, req api.RestartRequest) error {
	if req.Server && req.InPlace {
		return s.restartPrimaryOf(ctx, req)
	}
	if req.Server {
		return s.restartServerOf(ctx, req.Replica)
	}
	if err := s.startsAgain(); err != nil {
		return err
	}
	if err := s.Agent.Restart(ctx, agent.RestartOptions{Drain: req.Drain, Cut: req.Cut}); err != nil {
		return fail.Unhealthyf("not restarted, everything goes on as before: %w", err)
	}
	return nil
}

// startsAgain returns an error if the next agent could not start with coterie.yaml as it is now. The node would stop,
// and on the primary the leadership move.
func (s *Service) startsAgain() error {
	const nothing = "nothing was restarted, and everything goes on as before: "
	run := "coterie config check --node " + s.Layout.Dir
	cfg, err := config.Load(s.Layout.Dir)
	if err != nil {
		return fail.Refusedf(nothing+"the next agent could not start: %w\nmend it, and look with: %s", err, run)
	}
	if cfg.Node != s.Node.Node || cfg.Group != s.Node.Group || cfg.Kind != s.Node.Kind {
		return fail.Refusedf(nothing+"coterie.yaml is now of %s %q of group %s, and this node is %s %q of group %s, whose certificates it has; mend it, and look with: %s",
			cfg.Kind, cfg.Node, cfg.Group, s.Node.Kind, s.Node.Node, s.Node.Group, run)
	}
	return nil
}

// Programs returns the versions of all members' agents and of what is installed beside each, in the group's order.
func (s *Service) Programs(ctx context.Context) ([]api.Program, error) {
	g := s.Members.Group()
	if g == nil {
		return nil, fail.Unhealthyf("this node has not seen its group yet; try again in a moment")
	}
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	answers, failed := rpc.Each(ctx, g.Replicas, func(ctx context.Context, r ag.Replica) (api.Program, error) {
		if r.ID == s.Self {
			return s.OwnProgram(ctx), nil
		}
		return rpc.Call(ctx, s.Calls, r, rpc.Program, rpc.Nothing{})
	})
	all := []api.Program{}
	for _, r := range g.Replicas {
		p, ok := answers[r.ID]
		switch err := failed[r.ID]; {
		case ok:
			p.Node = r.ID
		case rpc.IsUnknown(err):
			p = api.Program{Node: r.ID, Older: true, Problem: "its agent is of a version that does not say it"}
		default:
			p = api.Program{Node: r.ID, Silent: true, Problem: rpc.Plainly(err).Error()}
		}
		all = append(all, p)
	}
	return all, nil
}

// OwnProgram returns the version of this agent, and of the program that its restart would begin.
func (s *Service) OwnProgram(ctx context.Context) api.Program {
	p := api.Program{Node: s.Self, Running: buildinfo.String()}
	installed, err := s.Installed(ctx)
	if err != nil {
		p.Problem = err.Error()
	}
	p.Installed = installed
	return p
}

// RestartAgent has the agent of this or another member replace itself. An answer that is lost with that agent is no
// error: whether it was replaced is seen by its version.
func (s *Service) RestartAgent(ctx context.Context, req api.AgentRequest) error {
	if req.Node == "" || req.Node == s.Self {
		return s.RestartOwnAgent(ctx, req)
	}
	g := s.Members.Group()
	if g == nil {
		return fail.Unhealthyf("this node has not seen its group yet; try again in a moment")
	}
	r, ok := g.Replica(req.Node)
	if !ok {
		return fail.Usagef("the group has no member %s", req.Node)
	}
	ctx, cancel := context.WithTimeout(ctx, req.Drain+inPlace)
	defer cancel()
	_, err := rpc.Call(ctx, s.Calls, r, rpc.RestartAgent, req)
	switch {
	case err == nil || rpc.IsCut(err):
		return nil
	case rpc.IsUnknown(err):
		return fail.Refusedf("the agent of %[1]s is of a version that cannot be asked for it; on %[1]s run: coterie restart", req.Node)
	case rpc.IsSilence(err):
		return fail.Unhealthyf("%s does not answer, so it is not known whether its agent restarts; see coterie status", req.Node)
	}
	return err
}

// RestartOwnAgent has this agent replace itself, as another node or a command has asked. The primary's does so only if
// the request allows that, and that of a secondary only while commits have another one.
func (s *Service) RestartOwnAgent(ctx context.Context, req api.AgentRequest) error {
	if v := s.Agent.View(); v != nil && v.Role() == ag.RolePrimary {
		if !req.Leads {
			return fail.Refusedf("%s is the primary; nothing was changed. Make another replica the primary first: coterie failover", s.Self)
		}
	} else if err := s.dispensable(); err != nil {
		return err
	}
	return s.Restart(ctx, api.RestartRequest{Drain: req.Drain, Cut: req.Cut})
}

func (s *Service) restartServerOf(ctx context.Context, id ag.ReplicaID) error {
	if id == "" || id == s.Self {
		return s.RestartServer(ctx)
	}
	g := s.Members.Group()
	if g == nil {
		return fail.Unhealthyf("this node has not seen its group yet; try again in a moment")
	}
	r, ok := g.Replica(id)
	if !ok {
		return fail.Usagef("the group has no replica %s", id)
	}
	ctx, cancel := context.WithTimeout(ctx, backAgain+callTime)
	defer cancel()
	_, err := rpc.Call(ctx, s.Calls, r, rpc.RestartServer, rpc.Nothing{})
	if rpc.IsSilence(err) {
		return fail.Unhealthyf("%s does not answer, so it is not known whether its server was restarted; see coterie status", id)
	}
	return err
}

// restartPrimaryOf is RestartPrimary, here or on another node.
func (s *Service) restartPrimaryOf(ctx context.Context, req api.RestartRequest) error {
	if req.Replica == "" || req.Replica == s.Self {
		return s.RestartPrimary(ctx, req)
	}
	g := s.Members.Group()
	if g == nil {
		return fail.Unhealthyf("this node has not seen its group yet; try again in a moment")
	}
	r, ok := g.Replica(req.Replica)
	if !ok {
		return fail.Usagef("the group has no replica %s", req.Replica)
	}
	ctx, cancel := context.WithTimeout(ctx, req.Drain+inPlace+checkpointTime)
	defer cancel()
	_, err := rpc.Call(ctx, s.Calls, r, rpc.RestartPrimary, req)
	if rpc.IsSilence(err) {
		return fail.Unhealthyf("%s does not answer, so it is not known whether its server was restarted; see coterie status", req.Replica)
	}
	return err
}

// programTime is how long the members may take to say their versions.
const programTime = 15 * time.Second

const (
	// inPlace is how long a restart in place may take beside the wait for running transactions.
	inPlace = 5 * time.Minute
	// checkpointTime is how long the checkpoint after it may take before nobody waits for it.
	checkpointTime = time.Minute
)

// RestartPrimary restarts the PostgreSQL server of this node, which must be the primary, without another one leading
// meanwhile. It returns when the server writes again, and what a secondary's server needs to start with less of a
// setting is in the WAL: the change, and a checkpoint behind it.
func (s *Service) RestartPrimary(ctx context.Context, req api.RestartRequest) error {
	if s.Server == nil {
		return fail.Refusedf("%s is a witness: it has no PostgreSQL", s.Self)
	}
	if v := s.Agent.View(); v == nil || v.Role() != ag.RolePrimary {
		return fail.Refusedf("%s is not the primary; nothing was changed", s.Self)
	}
	s.Logger.Info("PostgreSQL of the primary is restarted in place, as an administrator asked")
	if err := s.Agent.RestartPrimary(ctx, agent.RestartOptions{Drain: req.Drain, Cut: req.Cut}); err != nil {
		return fail.Unhealthyf("PostgreSQL of %s was not restarted in order: %w; see coterie status", s.Self, err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointTime)
	defer cancel()
	if err := s.Server.Checkpoint(ctx); err != nil {
		s.Logger.Warn("no checkpoint after the restart: secondaries keep the larger values of settings until one", "err", err)
	}
	return nil
}

const (
	// backAgain is how long RestartServer waits for the server, within the time of a control call.
	backAgain = 20 * time.Second
	// callTime is how much longer than the work a call of another node may take.
	callTime = 5 * time.Second
)

// dispensable returns an error if commits count on this secondary and on others, none of which streams at the moment:
// its server may be about to restart, as another administrator asked. Without this one commits would wait, or be
// acknowledged without a secondary. The only secondary that commits count on may restart.
func (s *Service) dispensable() error {
	v, x := s.Agent.View(), s.Agent.Snapshot()
	if v == nil || x == nil {
		return nil
	}
	if _, counted := x.Record.State.InV(s.Self); !counted || len(x.Record.State.V) == 1 {
		return nil
	}
	var others []string
	for _, m := range x.Record.State.V {
		switch {
		case m.ID == s.Self:
		case slices.Contains(v.Reach, m.ID) && x.Statuses[m.ID].Stream:
			return nil
		default:
			others = append(others, string(m.ID))
		}
	}
	return fail.Unhealthyf("commits count on %s and %s, and %[2]s does not stream at the moment, as while its own server restarts; nothing was changed: try again when it is SYNCHRONIZED (coterie status)",
		s.Self, strings.Join(others, ", "))
}

// RestartServer restarts the PostgreSQL server of this node, which must be a secondary. It returns when the server
// answers again as a secondary.
func (s *Service) RestartServer(ctx context.Context) error {
	if s.Server == nil {
		return fail.Refusedf("%s is a witness: it has no PostgreSQL", s.Self)
	}
	if v := s.Agent.View(); v != nil && v.Role() == ag.RolePrimary {
		return fail.Refusedf("%s is the primary; make another replica the primary first: coterie failover", s.Self)
	}
	if err := s.dispensable(); err != nil {
		return err
	}
	if err := s.Agent.RestartServer(ctx); err != nil {
		return fail.Unhealthyf("PostgreSQL of %s was not restarted: %w", s.Self, err)
	}
	s.Logger.Info("PostgreSQL is restarted, as an administrator asked")
	ctx, cancel := context.WithTimeout(ctx, backAgain)
	defer cancel()
	// The agent has seen its server down before it starts it.
	is := func(want bool) func() (bool, error) {
		return func() (bool, error) {
			v := s.Agent.View()
			return v != nil && (v.Local.Server == ag.ServerRecovery) == want, nil
		}
	}
	err := retry.Until(ctx, 10*time.Millisecond, is(false))
	if err == nil {
		err = retry.Until(ctx, 50*time.Millisecond, is(true))
	}
	if err != nil {
		return fail.Unhealthyf("PostgreSQL of %s was stopped and does not answer as a secondary after %v; see log/postgres.log there, and coterie status", s.Self, backAgain)
	}
	return nil
}

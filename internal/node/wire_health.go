package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/health"
)

// The room that must stay free where PostgreSQL writes: for WAL some files more than it needs next, elsewhere enough to go on logging.
const (
	walFloor  = 48 << 20
	dataFloor = 16 << 20
)

// probes is the node's health monitor, as the agent wants it.
type probes struct {
	monitor *health.Monitor
	pg      *postgres.Instance
	log     string // where the server's standard error goes
}

func (n *node) newProbes() *probes {
	p := &probes{pg: n.pg, log: n.serverLog()}
	p.monitor = health.New(health.Config{
		Server: probedServer{n.pg}, Target: n.probeTarget, Logger: n.log.With("part", "health"), Found: func() { n.agent.Wake() },
	})
	return p
}

func (n *node) serverLog() string { return filepath.Join(n.layout.Log(), "postgres.log") }

func (p *probes) Forget() { p.monitor.Forget() }

func (p *probes) Report() agent.Findings {
	r := p.monitor.Report()
	f := agent.Findings{Health: r.Health, Lost: r.Lost, NoRoom: r.NoRoom}
	for _, s := range r.Space {
		f.Space = append(f.Space, agent.Space(s))
	}
	return f
}

func (p *probes) CrashReport(ctx context.Context) (agent.CrashReport, error) {
	c, err := p.pg.CrashReport(ctx, p.log)
	return agent.CrashReport(c), err
}

// probeTarget is what the agent's loop last saw there is to probe.
func (n *node) probeTarget() health.Target {
	t := n.agent.Target()
	return health.Target{
		Data: t.Data, Running: t.Running, PID: t.PID, Writable: t.Writable, Wait: t.Options.HealthWait(), Level: t.Options.Level(),
		Databases: t.Databases, DBOff: t.Options.NoDBFailover,
	}
}

// probedServer is this node's PostgreSQL as the monitor asks it.
type probedServer struct{ pg *postgres.Instance }

func (s probedServer) Answer(ctx context.Context) error {
	err := s.pg.Answer(ctx)
	if errors.Is(err, diagnose.ErrExhausted) {
		return fmt.Errorf("%w: %w", health.ErrExhausted, err)
	}
	return err
}

func (s probedServer) Commit(ctx context.Context) error {
	err := s.pg.Commit(ctx)
	if errors.Is(err, diagnose.ErrBlocked) {
		return fmt.Errorf("%w: %w", health.ErrBlocked, err)
	}
	return err
}

func (s probedServer) Databases(ctx context.Context, names []string) ([]health.DatabaseFault, error) {
	found, err := s.pg.Databases(ctx, names)
	var out []health.DatabaseFault
	for _, f := range found {
		out = append(out, health.DatabaseFault{Name: f.Database, Err: f.Err})
	}
	return out, err
}

func (s probedServer) Places(ctx context.Context) ([]health.Place, error) {
	found, err := s.pg.Places(ctx)
	var out []health.Place
	for _, p := range found {
		floor := int64(dataFloor)
		if p.WAL {
			floor = walFloor
		}
		out = append(out, health.Place{Name: p.Name, Dir: p.Dir, Has: p.Has, Floor: floor, WAL: p.WAL})
	}
	return out, err
}

// suspendSelf suspends this node in the group's configuration: its copy is not to be counted on.
func (n *node) suspendSelf(ctx context.Context) error {
	return n.updateGroup(ctx, func(g *ag.Group) error { return setSuspended(g, n.self, true) })
}

package pgserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/health"
)

// The room that must stay free where PostgreSQL writes: for WAL some files more than it needs next, elsewhere enough
// for its log.
const (
	walFloor  = 48 << 20
	dataFloor = 16 << 20
)

// Probes is the node's health monitor, as the agent wants it.
type Probes struct {
	*health.Monitor
	pg  *postgres.Instance
	log string // where the server's standard error goes
}

// NewProbes returns the monitor of a server whose standard error goes to serverLog. c has everything but the server.
func NewProbes(pg *postgres.Instance, serverLog string, c health.Config) *Probes {
	p := &Probes{pg: pg, log: serverLog}
	c.Server = probedServer{pg}
	p.Monitor = health.New(c)
	return p
}

// Report returns what the probes found last.
func (p *Probes) Report() agent.Findings {
	r := p.Monitor.Report()
	f := agent.Findings{Health: r.Health, Lost: r.Lost, NoRoom: r.NoRoom, Storage: r.Storage, Offline: r.Offline}
	for _, s := range r.Space {
		f.Space = append(f.Space, agent.Space(s))
	}
	return f
}

// CrashReport reads from the server's log why it ended.
func (p *Probes) CrashReport(ctx context.Context) (agent.CrashReport, error) {
	c, err := p.pg.CrashReport(ctx, p.log)
	return agent.CrashReport(c), err
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

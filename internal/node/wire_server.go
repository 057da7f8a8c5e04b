package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/postgres/health"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// openServer starts or finds the keeper and makes the adapters of PostgreSQL and of replication.
func (n *node) openServer(ctx context.Context, run func(string, func(context.Context) error)) error {
	var err error
	if n.fence, err = fencetime.Check(ctx, n.layout, n.members.Group().Profile); err != nil {
		return err
	}
	pg, err := pgserver.NewInstance(n.cfg, n.layout, n.log.With("part", "postgres"))
	if err != nil {
		return err
	}
	n.pg = pg
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	c, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := keeper.Spawn(c, exe, n.layout.Dir, n.layout.Run); err != nil {
		return fmt.Errorf("start the keeper: %w; see %s", err, filepath.Join(n.layout.Log(), "keeper.log"))
	}
	if n.keeper, _, err = keeper.Dial(c, n.layout.KeeperSock(), n.incarnation); err != nil {
		return fmt.Errorf("attach to the keeper: %w", err)
	}
	said := pgserver.NewServerLog(c, n.serverSays, n.keeper, n.pg, n.log.With("part", "server log"))
	run("server log", said.Run)
	n.params = pgserver.NewParameters(pgserver.ParametersConfig{
		Self: n.self, Group: n.members.Group, Server: n.pg.Parameters(), Layout: n.layout, Log: n.log.With("part", "settings"),
	})
	run("settings", n.params.Run)
	log := n.log.With("part", "replication")
	streams := &walstream.Streams{StreamsConfig: walstream.StreamsConfig{Self: n.self, Incarnation: n.incarnation, Server: n.pg, Agent: func() walstream.Decider { return n.agent }, Ready: n.ready}}
	n.up = replication.NewUpstream(replication.UpstreamConfig{Dir: n.layout.Upstream(), Hello: streams.Hello, Logger: log})
	n.penalty = replication.NewPenalty(streams.InForce)
	n.down = replication.NewDownstream(replication.DownstreamConfig{
		SocketDir: n.layout.Sockets(), Superuser: func() string { return n.cfg.PostgreSQL.Superuser },
		Self: streams.Facts, Verify: streams.Verify, OldRowGone: streams.OldRowGone, Penalty: n.penalty, Logger: log,
	})
	run("upstream", n.up.Serve)
	return n.openSeeding()
}

func (n *node) closeServer() {
	if n.closed {
		return
	}
	n.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.down.Close()
	n.links.Close()
	if err := n.keeper.Shutdown(ctx); err != nil {
		n.log.Debug("keeper stays", "err", err)
	}
	_ = n.keeper.Close()
	_ = n.serverSays.Close()
	_ = n.pg.Close()
}

// serverLog is where the standard error of the server goes.
func (n *node) serverLog() string { return filepath.Join(n.layout.Log(), "postgres.log") }

// probeTarget is what the agent's loop last saw there is to probe.
func (n *node) probeTarget() health.Target {
	t := n.agent.Target()
	return health.Target{
		Data: t.Data, Running: t.Running, PID: t.PID, Writable: t.Writable, Wait: t.Options.HealthWait(), Level: t.Options.Level(),
		Databases: t.Databases, DBOff: t.Options.NoDBFailover, Unusual: unusualHang(t.Options),
	}
}

// unusualHang returns after which time a hang of the primary's server or disk may count before HEALTH_CHECK_TIMEOUT.
func unusualHang(o ag.Options) time.Duration {
	switch o.Detection() {
	case ag.DetectFast:
		return health.UnusualFloor
	case ag.DetectAdaptive:
		return max(health.UnusualFloor, o.SilenceFloor)
	case ag.DetectStrict:
	}
	return 0
}

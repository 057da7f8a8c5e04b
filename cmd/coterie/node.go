package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/api"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/keeper"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/replication"
)

// node is one running agent process: every adapter, joined.
type node struct {
	cfg         config.Config
	layout      config.Layout
	self        ag.ReplicaID
	incarnation string
	log         *slog.Logger

	group    atomic.Pointer[ag.Group] // the last configuration seen, also while there is no quorum
	ca       *endpoint.CA             // nil on a witness
	endpoint *endpoint.Endpoint
	control  *endpoint.Control
	member   atomic.Pointer[etcd.Member]
	store    *etcd.Store
	ports    *groupStore
	pg       *postgres.Instance // nil on a witness
	keeper   *keeper.Client
	up       *replication.Upstream
	down     *replication.Downstream
	sessions *sessions
	agent    *agent.Agent
}

// runNode runs the node in dir until ctx is done.
func runNode(ctx context.Context, dir string, log *slog.Logger) (err error) {
	layout, err := config.NewLayout(dir)
	if err != nil {
		return err
	}
	cfg, err := config.Load(layout.Dir)
	if err != nil {
		return err
	}
	if err := layout.Make(); err != nil {
		return err
	}
	unlock, err := lockNode(layout)
	if err != nil {
		return err
	}
	defer unlock()
	n := &node{
		cfg: cfg, layout: layout, self: ag.ReplicaID(cfg.Node), log: log.With("node", cfg.Node),
		incarnation: fmt.Sprintf("%s-%d-%d", cfg.Node, os.Getpid(), time.Now().UnixNano()), sessions: newSessions(ag.ReplicaID(cfg.Node)),
	}
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	// run starts a part of the node; the end of any part ends all.
	run := func(name string, f func(context.Context) error) {
		running.Go(func() {
			if err := f(life); err != nil && life.Err() == nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	if err := n.openEndpoint(run); err != nil {
		return err
	}
	if err := n.openStore(life); err != nil {
		return err
	}
	defer n.closeStore()
	if cfg.Kind == "replica" {
		if err := n.openServer(life, run); err != nil {
			return err
		}
		defer n.closeServer()
	}
	if err := n.openAgent(); err != nil {
		return err
	}
	if err := n.openPorts(run); err != nil {
		return err
	}
	run("quorum membership", n.keepMembership)
	n.log.Info("agent started", "dir", layout.Dir, "pid", os.Getpid(), "endpoint", cfg.Endpoint.Listen)
	err = n.agent.Run(life)
	if cause := context.Cause(life); ctx.Err() == nil && cause != nil {
		err = errors.Join(cause, err)
	}
	return err
}

// lockNode makes sure that one agent runs a node directory.
func lockNode(l config.Layout) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.State(), "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the node directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("an agent already runs %s; see coterie status --node %s", l.Dir, l.Dir)
	}
	return func() { _ = f.Close() }, nil
}

func (n *node) openEndpoint(run func(string, func(context.Context) error)) error {
	if err := n.loadGroup(); err != nil {
		return err
	}
	id, err := endpoint.LoadNode(n.layout.PKI())
	if err != nil {
		return fmt.Errorf("this node's identity: %w", err)
	}
	if n.cfg.Kind == "replica" {
		if n.ca, err = endpoint.LoadCA(n.layout.PKI()); err != nil {
			return fmt.Errorf("the group's certificate authority: %w", err)
		}
	}
	log := n.log.With("part", "endpoint")
	c := endpoint.Config{
		Node: id, Listen: n.cfg.Endpoint.Listen, Authorize: n.authorize, Trust: n.trust, Logger: log,
		Handlers: map[endpoint.Class]endpoint.Handler{
			endpoint.ClassQuorum:   endpoint.RelayTo(n.layout.EtcdClient(), log),
			endpoint.ClassEtcdPeer: endpoint.RelayTo(n.layout.EtcdPeer(), log),
		},
	}
	if n.ca != nil {
		c.Join = n.admit
		c.Handlers[endpoint.ClassWAL] = n.serveStream
		c.Handlers[endpoint.ClassSeed] = n.serveStream
		c.Handlers[endpoint.ClassSQL] = n.serveSession
	}
	n.endpoint = endpoint.New(c)
	n.control = endpoint.NewControl(n.endpoint)
	n.serveControl()
	if err := n.endpoint.Listen(); err != nil {
		return fmt.Errorf("endpoint %s: %w; another program uses the port, or endpoint.listen in %s names an address this machine does not have",
			n.cfg.Endpoint.Listen, err, config.File)
	}
	run("endpoint", n.endpoint.Serve)
	return nil
}

// openServer starts or finds the keeper and makes the adapters of PostgreSQL and of replication.
func (n *node) openServer(ctx context.Context, run func(string, func(context.Context) error)) error {
	pg, err := newInstance(n.cfg, n.layout, n.log.With("part", "postgres"))
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
	log := n.log.With("part", "replication")
	n.up = replication.NewUpstream(replication.UpstreamConfig{Dir: n.layout.Upstream(), Hello: n.hello, Logger: log})
	n.down = replication.NewDownstream(replication.DownstreamConfig{
		SocketDir: n.layout.Sockets(), Superuser: func() string { return n.cfg.PostgreSQL.Superuser },
		Self: n.facts, Verify: n.verifyHello, OldRowGone: n.oldRowGone, Logger: log,
	})
	run("upstream", n.up.Serve)
	return nil
}

// newInstance makes the adapter of the configured server.
func newInstance(cfg config.Config, l config.Layout, log *slog.Logger) (*postgres.Instance, error) {
	found, err := postgres.Inspect(context.Background(), cfg.PostgreSQL.BinDir)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL in %s: %w; correct postgresql.bin_dir in %s", cfg.PostgreSQL.BinDir, err, filepath.Join(l.Dir, config.File))
	}
	return postgres.New(postgres.Config{
		Install: found, PGData: cfg.PostgreSQL.Data, ConfigFile: cfg.PostgreSQL.ConfigFile, SocketDir: l.Sockets(),
		UpstreamDir: l.Upstream(), StateDir: l.State(), LogDir: l.Log(), Superuser: cfg.PostgreSQL.Superuser,
		Slot: postgres.SlotName(ag.ReplicaID(cfg.Node)), Logger: log,
	}), nil
}

func (n *node) closeServer() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.down.Close()
	if err := n.keeper.Shutdown(ctx); err != nil {
		n.log.Debug("keeper stays", "err", err)
	}
	_ = n.keeper.Close()
	_ = n.pg.Close()
}

func (n *node) openAgent() error {
	c := agent.Config{
		Self: n.self, Incarnation: n.incarnation, Marks: agent.OpenMarks(n.layout.State()), Store: n.ports, Peers: &peers{n.control},
		Sessions: n.sessions, Logger: n.log.With("part", "agent"), OnGroup: n.groupChanged,
	}
	if n.pg != nil {
		c.Instance = &instance{n.pg, n.layout, n.self}
		c.Keeper = newServer(n.keeper, n.pg, n.layout)
		c.Upstream = &upstream{n.up, n.endpoint}
		c.Downstream = &downstream{n.down}
		c.Seeder = &seeder{n.dialSeed, n.pg, n.layout, n.self}
	}
	var err error
	n.agent, err = agent.New(c)
	return err
}

// openPorts opens the client ports, the management socket and HTTP.
func (n *node) openPorts(run func(string, func(context.Context) error)) error {
	if n.cfg.ReadWrite.Listen != "" || n.cfg.ReadOnly.Listen != "" {
		s, err := n.newListener()
		if err != nil {
			return err
		}
		n.sessions.server = s
		run("listener", s.Serve)
	}
	server := api.NewServer(&manager{n}, n.log.With("part", "api"))
	run("management socket", func(ctx context.Context) error { return server.ServeAdmin(ctx, n.layout.AgentSock()) })
	if n.cfg.HTTP.Listen != "" {
		run("http", func(ctx context.Context) error { return server.ServeHTTP(ctx, n.cfg.HTTP.Listen) })
	}
	return nil
}

func (n *node) serveStream(ctx context.Context, peer endpoint.Identity, conn netConn) {
	if n.down != nil {
		n.down.Handle(ctx, peer.ID, conn)
	}
}

func (n *node) serveSession(ctx context.Context, _ endpoint.Identity, conn netConn) {
	if s := n.sessions.server; s != nil {
		s.ServeBackend(ctx, conn, n.layout.Sockets())
	}
}

// authorize decides by the group's configuration who may open what here. What a witness needs is the quorum and control.
func (n *node) authorize(peer endpoint.Identity, pin string, class endpoint.Class) error {
	r, ok := n.replica(peer.ID)
	if !ok || r.KeyPin != pin {
		return fmt.Errorf("%s is not a member of this group", peer.ID)
	}
	if !r.HasData() && (class == endpoint.ClassWAL || class == endpoint.ClassSeed || class == endpoint.ClassSQL) {
		return fmt.Errorf("%s is a witness: it votes, and has no business with data", peer.ID)
	}
	return nil
}

func (n *node) replica(id ag.ReplicaID) (ag.Replica, bool) {
	if g := n.group.Load(); g != nil {
		return g.Replica(id)
	}
	return ag.Replica{}, false
}

// trust decides whether a dialled member is who the configuration says it is: a certificate alone is not enough.
func (n *node) trust(peer endpoint.Identity, pin string) error {
	if r, ok := n.replica(peer.ID); !ok || r.KeyPin != pin {
		return fmt.Errorf("%s answers with a key that the group does not know", peer.ID)
	}
	return nil
}

// groupFile keeps the last configuration seen, so that a starting node knows whom to talk to and whom to believe.
func (n *node) groupFile() string { return filepath.Join(n.layout.State(), "group.json") }

func (n *node) loadGroup() error {
	b, err := os.ReadFile(n.groupFile())
	if err != nil {
		return fmt.Errorf("the group as last seen: %w; this node directory is incomplete: make it again with coterie init or coterie join", err)
	}
	var g ag.Group
	if err := json.Unmarshal(b, &g); err != nil {
		return fmt.Errorf("%s: %w", n.groupFile(), err)
	}
	n.group.Store(&g)
	return nil
}

// groupChanged takes a new configuration over: who may connect, whom to ask for the quorum.
func (n *node) groupChanged(g ag.Group) {
	if g.ID == "" {
		return
	}
	n.group.Store(&g)
	if err := saveGroup(n.groupFile(), g); err != nil {
		n.log.Warn("the group's configuration was not saved", "err", err)
	}
	if s := n.sessions.server; s != nil {
		if rules, err := n.rules(); err == nil {
			s.SetRules(rules)
		} else {
			n.log.Error("the listener keeps its rules", "err", err)
		}
	}
	n.endpoint.CloseUnauthorised()
	n.ports.refresh()
}

func saveGroup(path string, g ag.Group) error {
	b, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
	"github.com/coteriedb/coterie/internal/lib/samples"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/node/backupruns"
	"github.com/coteriedb/coterie/internal/node/backups"
	"github.com/coteriedb/coterie/internal/node/clientport"
	"github.com/coteriedb/coterie/internal/node/coverage"
	"github.com/coteriedb/coterie/internal/node/endorsement"
	"github.com/coteriedb/coterie/internal/node/events"
	"github.com/coteriedb/coterie/internal/node/history"
	"github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/operations"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/pki"
	"github.com/coteriedb/coterie/internal/node/quorum"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
	"github.com/coteriedb/coterie/internal/node/status"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/node/webhooks"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/health"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
	"github.com/coteriedb/coterie/internal/postgres/replication"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// node is one running agent process: every adapter, joined.
type node struct {
	cfg         config.Config
	layout      config.Layout
	self        ag.ReplicaID
	incarnation string
	log         *slog.Logger

	members    *membership.Members
	pki        *pki.Service
	judge      *endorsement.Judge
	endorsed   *endorsement.Service
	endpoint   *endpoint.Endpoint
	peers      *rpc.Peers
	control    *endpoint.Control
	quorum     *quorum.Service
	store      *etcd.Store
	ports      *quorum.Store
	pg         *postgres.Instance // nil on a witness
	serverSays *serverlog.Reader  // what its log says of cancelled waits
	keeper     *keeper.Client
	server     *pgserver.Server // nil on a witness
	params     *pgserver.Parameters
	observed   *pgserver.Observed // nil on a witness
	up         *replication.Upstream
	down       *replication.Downstream
	penalty    *replication.Penalty // nil on a witness
	seeds      *source.Source
	seedJobs   *seedjobs.Controller // nil on a witness
	seedOps    *seedjobs.Client
	clients    *clientport.Port
	closed     bool          // closeServer was called
	fence      time.Duration // how long this host takes to fence a server
	probes     *pgserver.Probes
	backups    *backups.Service // nil on a witness
	backupJobs *backupruns.Jobs // nil on a witness
	otherRuns  *backupruns.Watch
	links      *walstream.Links // nil on a witness
	views      *catalog.Catalog
	status     *status.Service
	operate    *operations.Service
	coverage   *coverage.Recorder // nil: this node serves no clients
	journal    *slog.Logger       // nil: no journal of systemd
	majors     *majors.Service
	webhooks   *webhooks.Sender // nil: coterie.yaml names no receiver
	agent      *agent.Agent
	ready      chan struct{} // closed once there is an agent
}

// openNode reads the configuration of the node in dir, and makes sure that no other process runs the node.
func openNode(dir string, logs Logs) (n *node, unlock func(), err error) {
	layout, err := config.NewLayout(dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := config.Load(layout.Dir); err != nil { // before directories are made
		return nil, nil, err
	}
	if err := layout.Make(); err != nil {
		return nil, nil, err
	}
	if unlock, err = config.Lock(layout); err != nil {
		return nil, nil, err
	}
	cfg, err := stays(layout)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	n = &node{
		cfg: cfg, layout: layout, self: ag.ReplicaID(cfg.Node), log: logs.Agent.With("node", cfg.Node), journal: logs.Journal,
		incarnation: fmt.Sprintf("%s-%d-%d", cfg.Node, os.Getpid(), time.Now().UnixNano()),
		ready:       make(chan struct{}),
		serverSays:  serverlog.NewReader(),
	}
	n.members = membership.New(n.self, layout, n.log)
	n.quorum = n.newQuorum()
	n.seedOps = n.newSeedClient()
	n.clients = n.newClientPort()
	return n, unlock, nil
}

// stays returns the configuration of a node that is locked, and an error if it leaves its group: coterie leave or
// coterie destroy may have had the lock since the agent was started.
func stays(layout config.Layout) (config.Config, error) {
	cfg, err := config.Load(layout.Dir)
	if err != nil {
		return cfg, err
	}
	if _, err := os.Lstat(layout.LeavingFile()); !errors.Is(err, os.ErrNotExist) {
		return cfg, fail.Refusedf("this node is leaving its group; nothing was started")
	}
	return cfg, nil
}

// newQuorum returns this node's part in the quorum, not open yet.
func (n *node) newQuorum() *quorum.Service {
	return quorum.New(quorum.Config{
		Node: n.cfg, Layout: n.layout, Incarnation: n.incarnation, Logger: n.log, Members: n.members,
		Dial: func(ctx context.Context, r ag.Replica) (net.Conn, error) {
			return n.endpoint.Dial(ctx, r.Endpoint, endpoint.ClassQuorum, r.ID)
		},
		Pin:        func() string { return n.pki.Identity().Pin },
		TrustedCAs: func() string { return n.pki.TrustedCAs() },
		Endorser:   func() etcd.Endorser { return n.judge },
		Tell:       n.tell,
		AskClaim: func(ctx context.Context, r ag.Replica) (recovery.Claim, error) {
			claim, err := rpc.Call(ctx, n.control, r, rpc.Claim, rpc.Nothing{})
			if rpc.Disowns(err) {
				return recovery.Claim{Disowns: true}, nil
			}
			return claim, err
		},
		Answers:  n.stillThere,
		Snapshot: func() *agent.Snapshot { return n.agent.Snapshot() },
		View:     func() *ag.View { return n.agent.View() },
		Restart:  func(ctx context.Context) error { return n.agent.Restart(ctx, agent.RestartOptions{}) },
	})
}

// openPKI opens this node's part in the group's certificates.
func (n *node) openPKI() (*pki.Service, error) {
	return pki.Open(pki.Config{
		Self: n.self, Group: ag.GroupID(n.cfg.Group), Dir: n.layout.PKI(), Replica: n.cfg.Kind == "replica", Logger: n.log, Members: n.members,
		CallersHosts: endpoint.CallersHosts,
		AskCertificate: func(ctx context.Context, r ag.Replica, csr []byte) ([]byte, error) {
			return rpc.Call(ctx, n.control, r, rpc.Renew, csr)
		},
		AskKey: func(ctx context.Context, r ag.Replica, pin string) ([]byte, error) {
			return rpc.Call(ctx, n.control, r, rpc.AuthorityKey, pin)
		},
		Renewed:      n.clients.CertificateRenewed,
		Snapshot:     func() *agent.Snapshot { return n.agent.Snapshot() },
		Tell:         n.tell,
		MemberTrusts: n.quorum.MemberTrusts,
	})
}

// Logs are where a node writes what it does.
type Logs struct {
	Agent   *slog.Logger
	Journal *slog.Logger // of systemd, for this node's events; nil: there is none
}

// Run runs the node in dir until ctx is done.
func Run(ctx context.Context, dir string, logs Logs) (err error) {
	n, unlock, err := openNode(dir, logs)
	if err != nil {
		return err
	}
	defer unlock()
	n.views = catalog.New(func(ctx context.Context) catalog.Facts { return n.status.Facts(ctx) })
	defer n.views.Close() // last: nothing may ask it any more
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	// The port between nodes outlives the agent: the agent's farewell, its release and its other last messages still go
	// out.
	open, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	// run starts a part of the node; the end of any part ends all.
	part := func(ctx context.Context) func(string, func(context.Context) error) {
		return func(name string, f func(context.Context) error) {
			running.Go(func() {
				if err := f(ctx); err != nil && life.Err() == nil {
					stop(fmt.Errorf("%s: %w", name, err))
				}
			})
		}
	}
	run := part(life)
	if err := n.openEndpoint(part(open)); err != nil {
		return err
	}
	defer n.tellManager()()
	if err := n.quorum.Open(life); err != nil {
		return err
	}
	defer n.quorum.Close()
	n.store, n.ports = n.quorum.Etcd(), n.quorum.Store()
	n.majors = n.newMajors(func() { running.Go(func() { makeRoom(life, stop) }) },
		func(f func(context.Context)) { running.Go(func() { f(life) }) })
	if n.cfg.Kind == "replica" {
		if err := n.openReplica(life, run); err != nil {
			return err
		}
		defer n.closeServer()
	}
	if err := n.openAgent(part(open)); err != nil {
		return err
	}
	if n.seeds != nil {
		run("seeding source", n.seeds.Run)
		run("seeding jobs", n.seedJobs.Run)
	}
	if err := n.openPorts(run); err != nil {
		return err
	}
	n.startChores(run)
	n.log.Info("agent started", "dir", n.layout.Dir, "pid", os.Getpid(), "endpoint", n.cfg.Endpoint.Listen)
	err = n.agent.Run(life)
	if errors.Is(err, agent.ErrRestart) {
		stop(nil)
		hangUp()
		waitAtMost(&running)
		return n.reexec()
	}
	if madeRoom(ctx, life, err) {
		hangUp()
		n.closeServer()
		waitAtMost(&running)
		return n.reexec()
	}
	if cause := context.Cause(life); ctx.Err() == nil && cause != nil {
		err = errors.Join(cause, err)
	}
	return err
}

// startChores starts the background work beside the agent's loop.
func (n *node) startChores(run func(string, func(context.Context) error)) {
	if n.probes != nil {
		run("health", n.probes.Run)
		run("backups", n.backups.Run)
		run("backups for other nodes", n.backupJobs.Run)
		run("major upgrade", n.majors.Run)
	}
	run("backups of other nodes", n.otherRuns.Run)
	run("quorum membership", n.quorum.Run)
	run("signed configuration", n.endorsed.Run)
	run("console roles", n.clients.KeepRoles)
	run("certificates", n.pki.RunRenewal)
	run("authority", n.pki.RunRotation)
	run("maintenance", n.operate.RunMaintenance)
	run("failovers asked for", n.operate.RunRequests)
}

// openReplica goes on with a major upgrade, before anything looks at the data directory, and opens the server.
func (n *node) openReplica(life context.Context, run func(string, func(context.Context) error)) error {
	if err := n.majors.Resume(life); err != nil {
		return err
	}
	return n.openServer(life, run)
}

// madeRoom reports whether the agent and its server have ended in order for another agent in their place.
func madeRoom(ctx, life context.Context, err error) bool {
	return err == nil && ctx.Err() == nil && errors.Is(context.Cause(life), errMakeRoom)
}

func (n *node) openEndpoint(run func(string, func(context.Context) error)) error {
	if err := n.members.Load(); err != nil {
		return err
	}
	var err error
	if n.pki, err = n.openPKI(); err != nil {
		return err
	}
	if n.judge, err = endorsement.NewJudge(n.pki, *n.members.Group(), n.log.With("part", "configuration")); err != nil {
		return err
	}
	log := n.log.With("part", "endpoint")
	c := endpoint.Config{
		Node: n.pki.Identity(), Listen: n.cfg.Endpoint.Listen, Authorize: n.members.Authorize, Trust: n.members.Trust, Logger: log, Relays: n.relays, Member: n.members.Address,
		Handlers: map[endpoint.Class]endpoint.Handler{
			endpoint.ClassHeart:    n.serveHeart,
			endpoint.ClassQuorum:   n.quorum.ServeClient,
			endpoint.ClassEtcdPeer: n.quorum.ServePeer,
		},
	}
	if n.pki.CA() != nil {
		c.Join = n.admit
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + rawconn.MaxBlocked()) // readers that block in read(2) occupy them
		n.links = walstream.NewLinks(n.self, n.members.Options, n.log.With("part", "link"), n.serveLink)
		c.Handlers[endpoint.ClassWAL] = n.links.Serve
		c.Handlers[endpoint.ClassSeed] = n.serveSeed
		c.Handlers[endpoint.ClassSQL] = n.serveSession
	}
	n.endpoint = endpoint.New(c)
	if n.links != nil {
		n.links.Endpoint = n.endpoint
	}
	n.control = endpoint.NewControl(n.endpoint)
	n.serveControl()
	if err := n.endpoint.Listen(); err != nil {
		return fmt.Errorf("endpoint %s: %w; another program uses the port, or endpoint.listen in %s names an address this machine does not have",
			n.cfg.Endpoint.Listen, err, config.File)
	}
	run("endpoint", n.endpoint.Serve)
	return nil
}

// openAgent makes the agent and what needs it. run starts what outlives the agent.
func (n *node) openAgent(run func(string, func(context.Context) error)) error {
	n.peers = &rpc.Peers{Control: n.control, Endpoint: n.endpoint}
	c := agent.Config{
		Self: n.self, Incarnation: n.incarnation, Place: config.Place(n.layout), Marks: marks.Open(n.layout.State()).Beside(n.layout.Run), Store: n.ports, Peers: n.peers,
		Sessions: n.clients, Logger: n.log.With("part", "agent"), OnGroup: n.groupChanged, NoVote: n.quorum.NoVote, NoLogins: n.clients.LoginProblems, Unserved: n.clients.Unserved,
		Relays: n.relayed, Remembered: n.members.Group,
	}
	if n.pg != nil {
		n.observed = &pgserver.Observed{}
		c.Instance = &pgserver.Instance{Instance: n.pg, Layout: n.layout, Self: n.self, GroupSystemID: n.members.SystemID, Owns: n.down.Owns, Seen: n.observed, Log: n.log.With("part", "postgres")}
		n.server = pgserver.NewServer(n.keeper, n.pg, n.serverSays, n.params)
		c.Keeper = n.server
		c.Upstream = walstream.NewUpstream(n.up, n.links)
		c.Downstream = &walstream.Downstream{Downstream: n.down}
		c.Seeder, c.SeedRequests, c.Copying = n.seedJobs, n.seedJobs, n.seedJobs.Copying
		n.probes = pgserver.NewProbes(n.pg, n.serverLog(), health.Config{Target: n.probeTarget, Logger: n.log.With("part", "health"), Found: func() { n.agent.Wake() }})
		if err := n.openBackups(); err != nil {
			return err
		}
		c.Probes, c.Suspend, c.Fence = n.probes, func(ctx context.Context) error { return n.operate.SuspendSelf(ctx) }, n.fence
	}
	var err error
	if n.agent, err = agent.New(c); err != nil {
		return err
	}
	n.endorsed = n.newEndorsement()
	n.otherRuns = &backupruns.Watch{Ask: n.askBackups}
	if n.clients.Serves() {
		n.coverage = coverage.New(n.layout.CoverageFile(), n.outlooks, n.log.With("part", "coverage"))
	}
	n.status = n.newStatus()
	if n.webhooks = n.newWebhooks(); n.webhooks != nil {
		run("webhooks", n.webhooks.Run)
	}
	if n.journal != nil {
		run("events in the journal", events.Log(n.events, n.journal))
	}
	n.operate = n.newOperations()
	n.completeMajors()
	close(n.ready)
	return nil
}

// leads reports whether this node is the primary by its last decision.
func (n *node) leads() bool {
	v := n.agent.View()
	return v != nil && v.Role() == ag.RolePrimary
}

// openPorts opens the client ports, the management socket and HTTP.
func (n *node) openPorts(run func(string, func(context.Context) error)) error {
	if err := n.clients.Open(run); err != nil {
		return err
	}
	if n.coverage != nil {
		run("coverage", n.coverage.Run)
	}
	var browsers *web.Server
	var past *history.Recorder
	if n.cfg.HTTPS.Listen != "" {
		browsers = n.newWeb(func(s samples.Span) web.History { return past.Read(s) })
	}
	a := n.newAdmin(browsers)
	if a.hooks = n.newHooks(); a.hooks != nil {
		run("hooks", a.hooks.Run)
	}
	server := api.NewServer(a, n.log.With("part", "api"))
	a.refused = server.Refused
	if browsers != nil { // nobody else reads the history
		past = history.New(n.self, a.measured, n.log.With("part", "history"))
		run("history", past.Run)
		run("console in the browser", func(ctx context.Context) error { return browsers.Serve(ctx, n.cfg.HTTPS.Listen) })
	}
	run("management socket", func(ctx context.Context) error { return server.ServeAdmin(ctx, n.layout.AgentSock()) })
	if n.cfg.HTTP.Listen != "" {
		run("http", func(ctx context.Context) error { return server.ServeHTTP(ctx, n.cfg.HTTP.Listen) })
	}
	return nil
}

// awaitReady returns true once every part of the node that a stream may need exists.
func (n *node) awaitReady(ctx context.Context) bool {
	select {
	case <-n.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// admitWait bounds how long a joiner waits for a node that is starting. Then the joiner asks the next member.
const admitWait = 10 * time.Second

// admit admits a joiner once every part of this node exists. The endpoint takes joins before that.
func (n *node) admit(ctx context.Context, tokenID string, verify func([]byte) bool, req endpoint.JoinRequest) (endpoint.JoinGrant, error) {
	wait, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	if !n.awaitReady(wait) {
		return endpoint.JoinGrant{}, &endpoint.RemoteError{Code: endpoint.CodeUnavailable, Message: "this node is still starting; try again"}
	}
	return n.operate.Admit(ctx, tokenID, verify, req)
}

// serveLink serves an accepted link, until ctx is done at the latest.
func (n *node) serveLink(ctx context.Context, peer ag.ReplicaID, conn net.Conn) {
	if n.awaitReady(ctx) && n.down != nil {
		n.down.Handle(ctx, peer, conn)
	}
}

// relays lists the members that may be able to relay to one that does not answer.
func (n *node) relays(to ag.ReplicaID) (vias []endpoint.Relay) {
	g := n.members.Group()
	if g == nil {
		return nil
	}
	for _, r := range g.Replicas {
		if r.ID != n.self && r.ID != to {
			vias = append(vias, endpoint.Relay{ID: r.ID, Addr: r.Endpoint})
		}
	}
	return vias
}

// groupChanged applies a new configuration: the members that may connect, and the members of the quorum.
func (n *node) groupChanged(g ag.Group) {
	if g.ID == "" {
		return
	}
	n.members.Update(g)
	n.clients.GroupChanged()
	n.endpoint.CloseUnauthorised()
	n.ports.Refresh()
	if n.down != nil {
		n.down.SetProbeAfter(probeAfter(g))
		n.params.GroupChanged()
	}
}

// probeAfter returns after what silence a member's stream is probed. A member that is alive must not be silent for its
// SESSION_TIMEOUT.
func probeAfter(g ag.Group) time.Duration {
	d := 3 * time.Second
	for _, r := range g.Replicas {
		if t := g.Timeout(r); t > 0 {
			d = min(d, t/4)
		}
	}
	return max(d, 500*time.Millisecond)
}

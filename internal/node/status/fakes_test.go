package status

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/coverage"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc/rpctest"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
	"github.com/coteriedb/coterie/internal/postgres/replication"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

var errTest = errors.New("it failed in a test")

// bed is the service of replica a, the primary of epoch 7 of the group of a, b, c and the witness w, with everything
// around it faked. b is synchronized; c does not answer.
type bed struct {
	*Service
	agent    *fakeAgent
	clients  *fakeClients
	listener *fakeListener // nil: no clients are served
	server   *fakeServer
	up       *fakeUpstream
	down     *fakeDownstream
	keeper   *fakeKeeper
	observed *fakeObserved
	params   *fakeParameters
	calls    rpctest.Calls
	noVote   string
	stray    string
	disowned bool
	untold   []string
}

func newBed(t testing.TB) *bed {
	t.Helper()
	replica := func(id ag.ReplicaID) ag.Replica {
		return ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, EtcdID: 1, Endpoint: string(id) + ":5022", Major: 16}
	}
	w := replica("w")
	w.AvailabilityMode, w.Major = ag.ConfigurationOnly, 0
	g := ag.Group{ID: "g", Name: "DemoAG", Profile: "default", Replicas: []ag.Replica{replica("a"), replica("b"), replica("c"), w}}
	g.Replicas[2].Voter = false
	record := ag.Record{
		Epoch: ag.EpochRecord{Epoch: 7, Phase: ag.PhaseLead, Leader: "a"},
		State: ag.State{Epoch: 7, Leader: "a", V: []ag.Member{{ID: "b"}}, K: 1},
	}
	view := &ag.View{Self: "a", Quorum: true, Group: g, Record: record, Reach: []ag.ReplicaID{"b", "w"}}
	view.Local.Server, view.Local.Data, view.Local.Position.LSN = ag.ServerWritable, ag.DataPresent, 1000
	view.Streams = []ag.Stream{{Member: "b", Open: true, Flush: 800}}
	b := &bed{
		agent: &fakeAgent{view: view, snap: &agent.Snapshot{Group: g, GroupRev: 3, Record: record, Statuses: map[ag.ReplicaID]agent.Status{
			"a": {Role: ag.RolePrimary, Epoch: 7, SyncN: 1, SyncP: []ag.ReplicaID{"b"}},
			"b": {Role: ag.RoleSecondary, Stream: true, Position: ag.Position{LSN: 900}, Epoch: 7},
			"c": {Role: ag.RoleSecondary, Stream: true, Position: ag.Position{LSN: 500}, Data: ag.DataPresent, Epoch: 7},
		}}, plan: &ag.Plan{Rule: ag.RuleLead, Because: "all is well", Open: true}},
		clients: &fakeClients{routes: &ag.Routes{Primary: "a", WriteOpen: true}}, listener: &fakeListener{}, server: &fakeServer{settings: []postgres.Setting{{}}}, up: &fakeUpstream{},
		down: &fakeDownstream{}, keeper: &fakeKeeper{}, observed: &fakeObserved{}, params: &fakeParameters{pending: -1}, calls: rpctest.Calls{},
	}
	members := membership.New("a", config.Layout{}, slog.New(slog.DiscardHandler))
	members.Set(g)
	b.Service = New(Config{
		Self: "a", Node: config.Config{Node: "a", Group: "g", GroupName: "sales", HTTPS: config.Address{Listen: ":8443", Advertise: "db1:8443"}}, Layout: config.Layout{Dir: "/node"}, Members: members, Agent: b.agent,
		Clients: b.clients, Calls: b.calls, Endpoint: fakeEndpoint{}, Authority: func() string { return "pin" },
		Expiry:   func() map[string]time.Time { return map[string]time.Time{"node": time.Unix(99, 0)} },
		NoVote:   func() string { return b.noVote },
		Endorsed: fakeEndorsed{},
		Disowned: func() bool { return b.disowned }, Untold: func() []string { return b.untold },
		Roster: func() ([]uint64, string) { return nil, b.stray },
		Listener: func() Listener {
			if b.listener == nil {
				return nil
			}
			return b.listener
		},
		Links: fakeLinks{}, Server: b.server, Upstream: b.up, Downstream: b.down, Observed: b.observed, Parameters: b.params, Commits: fakeCommits{}, Keeper: b.keeper,
		Seedings: func() []seeding.Operation { return []seeding.Operation{{ID: "1", State: seeding.Completed}} },
	})
	return b
}

// witness makes the node of the bed the witness, which has none of the parts that a replica has.
func (b *bed) witness() {
	c := &b.Config
	c.Self, c.Links, c.Server, c.Upstream, c.Downstream, c.Commits, c.Keeper, c.Seedings = "w", nil, nil, nil, nil, nil, nil, nil
	c.Observed, c.Parameters = nil, nil
	b.listener, b.agent.view.Self, b.agent.view.Reach = nil, "w", []ag.ReplicaID{"a", "b"}
	b.agent.view.Local = ag.Local{}
}

type fakeAgent struct {
	view      *ag.View
	snap      *agent.Snapshot
	own       *agent.Status
	shut      bool // no writes are taken
	plan      *ag.Plan
	decisions []decisions.Decision
	failovers decisions.Failovers
}

func (a *fakeAgent) View() *ag.View { return a.view }
func (a *fakeAgent) Known() (f availability.Facts) {
	if a.view == nil {
		return f
	}
	if a.snap == nil {
		return availability.Facts{View: *a.view, Members: map[ag.ReplicaID]availability.Member{}}
	}
	f = availability.Facts{View: *a.view, Open: !a.shut, Members: map[ag.ReplicaID]availability.Member{}}
	for id, s := range a.snap.Statuses {
		f.Members[id] = availability.Member{
			Copy: s.Copy, Data: s.Data, Server: s.Server, Position: s.Position, Sync: ag.Sync{P: s.SyncP, N: s.SyncN}, Waits: s.Waits, WaitsWhy: s.Why,
			Streams: []ag.ReplicaID{"b"},
		}
	}
	return f
}
func (a *fakeAgent) Plan() *ag.Plan                  { return a.plan }
func (a *fakeAgent) Snapshot() *agent.Snapshot       { return a.snap }
func (a *fakeAgent) Own() *agent.Status              { return a.own }
func (a *fakeAgent) Decisions() []decisions.Decision { return a.decisions }
func (a *fakeAgent) Failovers() decisions.Failovers  { return a.failovers }
func (a *fakeAgent) Transitions() map[ag.Rule]uint64 { return map[ag.Rule]uint64{ag.RuleLead: 3} }
func (a *fakeAgent) Heard(ag.ReplicaID) time.Time    { return time.Time{} }
func (a *fakeAgent) LeaseUntil() time.Duration       { return boottime.Now() + time.Hour }
func (a *fakeAgent) Uptime() time.Duration           { return time.Minute }

type fakeClients struct {
	routes   *ag.Routes
	refused  []string
	down     []string
	settings []catalog.Setting
}

func (c *fakeClients) Routes() *ag.Routes       { return c.routes }
func (c *fakeClients) Places() []catalog.Place  { return []catalog.Place{{}} }
func (c *fakeClients) Consoles() console.Counts { return console.Counts{Sessions: 1} }
func (c *fakeClients) LoginProblems() []string  { return c.refused }
func (c *fakeClients) Unserved() []string       { return c.down }

func (c *fakeClients) Settings() []catalog.Setting { return c.settings }

type fakeListener struct {
	outlooks []listener.ContinuityGroup
	sessions []listener.SessionInfo
	stats    listener.Stats
}

func (l *fakeListener) Sessions() []listener.SessionInfo { return l.sessions }
func (l *fakeListener) Stats() listener.Stats            { return l.stats }
func (l *fakeListener) Continuity() []listener.ContinuityGroup {
	return l.outlooks
}

type fakeCoverage coverage.History

func (c fakeCoverage) Read() coverage.History { return coverage.History(c) }

type fakeEndpoint struct{}

func (fakeEndpoint) Peers() []endpoint.Peer {
	return []endpoint.Peer{{Identity: certs.Identity{ID: "b"}}, {Identity: certs.Identity{ID: "c"}, RelayTo: "b", Since: time.Unix(9, 0)}}
}

func (fakeEndpoint) Refused() uint64 { return 0 }

func (fakeEndpoint) Relayed() endpoint.RelayStatus {
	return endpoint.RelayStatus{Open: 1, Total: 2, Bytes: 3}
}

type fakeLinks struct{}

func (fakeLinks) Describe() []api.Link {
	return []api.Link{{Peer: "b", Codec: "lz4", Events: []api.LinkEvent{{At: time.Unix(20, 0), What: "codec lz4", Reason: "it is quicker"}}}}
}

// fakeServer answers with what it has.
type fakeServer struct {
	facts    postgres.ServerFacts
	settings []postgres.Setting
	err      error
}

func (s *fakeServer) ServerFacts(context.Context) (postgres.ServerFacts, error) {
	return s.facts, s.err
}

func (s *fakeServer) Settings(context.Context) ([]postgres.Setting, error) {
	return s.settings, s.err
}
func (s *fakeServer) Version() string { return "15.9" }

type fakeUpstream struct{ status replication.UpstreamStatus }

func (u *fakeUpstream) Status() replication.UpstreamStatus { return u.status }

type fakeDownstream struct{ streams []replication.Stream }

func (d *fakeDownstream) Streams() []replication.Stream { return d.streams }

type fakeCommits struct{}

func (fakeCommits) Totals() replication.PenaltyTotals { return replication.PenaltyTotals{Blocks: 4} }

type fakeKeeper struct{ err error }

func (k *fakeKeeper) Seen() (keeper.State, error) {
	return keeper.State{KeeperPID: 11, Postmaster: 12, ExitCount: 2, Fenced: &keeper.Fenced{At: time.Unix(7, 0)}}, k.err
}

func (k *fakeKeeper) Fences() uint64 { return 1 }

// fakeObserved has seen nothing while seen is false. A copy is a second behind for each byte that it lacks.
type fakeObserved struct {
	last postgres.Observation
	seen bool
}

func (o *fakeObserved) Latest() (postgres.Observation, bool) { return o.last, o.seen }
func (o *fakeObserved) Behind(lsn ag.LSN) time.Duration {
	return time.Duration(behind(o.last.Flush, lsn)) * time.Second
}
func (o *fakeObserved) ReplayRate() float64 { return 5 }

type fakeParameters struct{ pending int }

func (p *fakeParameters) PendingRestarts() (int, bool) { return p.pending, p.pending >= 0 }

// fakeEndorsed has refused two configurations, and the store holds neither.
type fakeEndorsed struct{}

func (fakeEndorsed) Report() api.Configuration {
	return api.Configuration{Serial: 4, SignedOnly: true, Refused: 2}
}
func (fakeEndorsed) RefusedRecord() api.Refusals { return api.Refusals{} }

func (fakeEndorsed) Requests() api.Refusals { return api.Refusals{Refused: 3} }

func (fakeEndorsed) Problem() string { return "" }

package status

import (
	"context"
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
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/coverage"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
	"github.com/coteriedb/coterie/internal/postgres/replication"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// Config has the sources of a Service. The parts that only a replica has are nil on a witness: Links, Server, Upstream,
// Downstream, Observed, Parameters, Commits, Keeper, Seedings, Log and Backups. No other field may be nil.
type Config struct {
	Self    ag.ReplicaID
	Node    config.Config
	Layout  config.Layout
	Members *membership.Members
	Agent   Agent
	Clients Clients
	Calls   rpc.Caller // asks the other nodes

	Listener  func() Listener // nil where this node serves no clients, or not yet
	Endpoint  Endpoint
	Expiry    func() map[string]time.Time // when this node's certificates end, by what they are for
	Authority func() string               // the pin of the authority that issued this node's certificate
	NoVote    func() string               // why this node's member of the quorum does not run; "": it does, or there is none
	Endorsed  Endorsed
	Untold    func() []string // which receivers of this node's events have failed for long, and why
	Disowned  func() bool     // whether a member answered that this node is not one
	// Roster returns the ids of the quorum's voting members by its own list, nil if that is not known, and how the list
	// and the configuration differ, "" if they do not.
	Roster func() (voters []uint64, stray string)

	Links      Links
	Server     Server
	Upstream   Upstream
	Downstream Downstream
	Observed   Observed
	Parameters Parameters
	Commits    Commits
	Keeper     Keeper
	Seedings   func() []seeding.Operation // the copies to this node, and the verifications
	Log        ServerLog
	Backups    Backups
	Coverage   Coverage // of the sessions of the listener; nil: this node serves no clients
}

// Backups is the part of *backups.Service that a Service shows.
type Backups interface {
	Latest() *catalog.Backup
}

// Agent is the part of *agent.Agent that a Service shows. View, Plan, Snapshot and Own are nil before its first turn.
type Agent interface {
	View() *ag.View
	Plan() *ag.Plan
	Snapshot() *agent.Snapshot
	Own() *agent.Status
	Known() availability.Facts
	Decisions() []decisions.Decision
	Transitions() map[ag.Rule]uint64
	Failovers() decisions.Failovers
	Heard(id ag.ReplicaID) time.Time
	LeaseUntil() time.Duration
	Uptime() time.Duration
}

// Clients is the part of *clientport.Port that a Service shows.
type Clients interface {
	Routes() *ag.Routes
	Places() []catalog.Place
	LoginProblems() []string     // why clients are refused that coterie.yaml would admit
	Settings() []catalog.Setting // what decides who is admitted
	Unserved() []string          // why the group's listener is not served here where it should be
	Consoles() console.Counts
}

// Listener is the part of *listener.Server that a Service shows.
type Listener interface {
	Sessions() []listener.SessionInfo
	Continuity() []listener.ContinuityGroup
	Stats() listener.Stats
}

// Coverage is the part of *coverage.Recorder that a Service shows.
type Coverage interface{ Read() coverage.History }

// Endpoint is the part of *endpoint.Endpoint that a Service shows.
type Endpoint interface {
	Peers() []endpoint.Peer
	Relayed() endpoint.RelayStatus
	Refused() uint64
}

// Endorsed is the part of *endorsement.Service that a Service shows.
type Endorsed interface {
	Report() api.Configuration
	Requests() api.Refusals
	RefusedRecord() api.Refusals
	Problem() string // why the store may have been written by a thief; "": nothing speaks for it
}

// Links is the part of *walstream.Links that a Service shows.
type Links interface {
	Describe() []api.Link
}

// Server is the part of *postgres.Instance that a Service shows.
type Server interface {
	ServerFacts(ctx context.Context) (postgres.ServerFacts, error)
	Settings(ctx context.Context) ([]postgres.Setting, error)
	Version() string
}

// Upstream is the part of *replication.Upstream that a Service shows: the stream from the primary.
type Upstream interface {
	Status() replication.UpstreamStatus
}

// Downstream is the part of *replication.Downstream that a Service shows: the streams to the members.
type Downstream interface {
	Streams() []replication.Stream
}

// Commits is the part of *replication.Penalty that a Service shows.
type Commits interface {
	Totals() replication.PenaltyTotals
}

// ServerLog is the part of *serverlog.Reader that a Service shows.
type ServerLog interface {
	Weakness() string
	Unread() bool
	Sound() bool
	Confirmed() uint64
}

// Keeper is the part of *pgserver.Server that a Service shows.
type Keeper interface {
	Seen() (keeper.State, error)
	Fences() uint64
}

// Service answers what this node, and the group as this node sees it, is like. Any goroutine may call its methods.
type Service struct {
	Config
	last     sample
	recent   recent
	executed statements
	acts     audit
}

// New returns the service of a node whose parts all exist.
func New(c Config) *Service { return &Service{Config: c} }

// said returns what a member last reported about itself. This node's own report is that of its last turn: the store has
// an old one while the quorum does not answer.
func (s *Service) said(snap *agent.Snapshot, id ag.ReplicaID) agent.Status {
	if own := s.Agent.Own(); id == s.Self && own != nil {
		return *own
	}
	return snap.Statuses[id]
}

// Removed reports whether the group does not have this node any more, as far as this node knows.
func (s *Service) Removed() bool { return s.removed(s.known()) }

// known returns what the agent knows. The group is that of the file before the first turn.
func (s *Service) known() availability.Facts {
	f := s.Agent.Known()
	f.View.Self = s.Self
	if g := s.Members.Group(); f.View.Group.ID == "" && g != nil { // nothing was read yet since the agent began
		f.View.Group = *g
	}
	return f
}

// removed reports whether the group does not have this node any more, by its configuration or by what members say.
func (s *Service) removed(f availability.Facts) bool {
	if len(f.View.Group.Replicas) == 0 {
		return false
	}
	_, in := f.View.Group.Replica(s.Self)
	return !in || len(f.View.Reach) == 0 && s.Disowned()
}

// Availability returns the judgement of the group. Everything that says how the group is says this.
func (s *Service) Availability() availability.Report {
	f := s.known()
	f.Voters, f.Stray = s.Roster()
	f.Logins, f.Unserved = s.Clients.LoginProblems(), s.Clients.Unserved()
	f.Refused, f.Untold = s.Endorsed.Problem(), s.Untold()
	f.Removed = s.removed(f)
	return availability.Assess(f)
}

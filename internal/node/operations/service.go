package operations

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// Config is what a Service needs of its node. Server is nil on a witness. No other field may be nil.
type Config struct {
	Self    ag.ReplicaID
	Node    config.Config
	Layout  config.Layout
	Logger  *slog.Logger
	Members *membership.Members

	Store   Store
	Update  func(ctx context.Context, change func(*ag.Group) error) error // as quorum.Service.UpdateGroup
	Agent   Agent
	PKI     PKI
	Server  Server
	Clients Clients
	Seeds   Seeds
	Calls   rpc.Caller // calls the other nodes
	Status  Status
	Views   Views

	Path         func(ctx context.Context, to ag.ReplicaID) (api.Link, error) // as walstream.Paths.Describe
	Vouch        func(values map[string]string) error                         // as pgserver.Parameters.Vouch; nil on a witness
	Installed    func(ctx context.Context) (string, error)                    // as buildinfo.Installed
	GroupChanged func(g ag.Group)                                             // takes a configuration over that was just written
}

// Store is the part of *etcd.Store that a Service uses.
type Store interface {
	Read(ctx context.Context) (etcd.Snapshot, error)
	UpdateGroup(ctx context.Context, rev int64, g ag.Group) (int64, error)
	UpdateGroupIn(ctx context.Context, rev, epochRev int64, g ag.Group) (int64, error)
	PutOp(ctx context.Context, rev, epochRev int64, request json.RawMessage) (int64, error)
	PutToken(ctx context.Context, t etcd.Token, genuine func(etcd.Token) bool) error
	Token(ctx context.Context, id string) (etcd.Token, error)
	ConsumeToken(ctx context.Context, id string) (etcd.Token, error)
	Members(ctx context.Context) ([]etcd.MemberInfo, error)
	RemoveMember(ctx context.Context, id uint64) error
	DeleteStrays(ctx context.Context, members []ag.ReplicaID) error
}

// Agent is the part of *agent.Agent that a Service uses. View and Snapshot are nil before its first turn.
type Agent interface {
	View() *ag.View
	Snapshot() *agent.Snapshot
	Wake()
	Trust(ctx context.Context) (was string, err error)
	Restart(ctx context.Context, o agent.RestartOptions) error
	RestartServer(ctx context.Context) error
	RestartPrimary(ctx context.Context, o agent.RestartOptions) error
}

// PKI is the part of *pki.Service that a Service uses. While it is locked, nothing else changes the authorities in the
// pki directory.
type PKI interface {
	sync.Locker
	CA() *certs.CA // nil on a witness
	Identity() *certs.Node
}

// Server is the PostgreSQL of this node. *postgres.Instance implements it.
type Server interface {
	CreateDatabase(ctx context.Context, name string) (made bool, err error)
	CheckParameter(ctx context.Context, name, value string) (restart bool, err error)
	CheckRoom(ctx context.Context, change map[string]*string) error
	Weigh(ctx context.Context, values map[string]string) (host uint64, warning string, err error)
	Checkpoint(ctx context.Context) error
}

// Clients is the part of *clientport.Port that a Service uses.
type Clients interface {
	Routes() *ag.Routes
	Restart() error
	Moves(ctx context.Context) []ag.SessionMove
	// JudgeRules returns an error if no listener could honour the rules, or what an administrator may not expect.
	// Clients come from those addresses at present.
	JudgeRules(text string, from []netip.Addr) (warnings []string, err error)
}

// Seeds is the part of *seedjobs.Client that a Service uses.
type Seeds interface {
	Seed(ctx context.Context, req api.SeedRequest) (seeding.Operation, error)
	Cancel(ctx context.Context, id ag.ReplicaID) (seeding.Operation, error)
	List(ctx context.Context, id ag.ReplicaID) ([]seeding.Operation, error)
}

// Status is the part of *status.Service that a Service uses.
type Status interface {
	Facts(ctx context.Context) catalog.Facts
	Version() string
	Removed() bool // whether the group does not have this node any more
	NoteStatement(user, text string)
	NoteAct(log *slog.Logger, a catalog.Act)
	NoteFailover(e ag.Epoch, what, because string)
}

// Views is the part of *catalog.Catalog that a Service uses.
type Views interface {
	Describe(ctx context.Context, user, query string, given []uint32) ([]catalog.Column, []uint32, error)
	Query(ctx context.Context, q catalog.Question, to catalog.Rows) error
}

// failoverBudget bounds the wait for a failover beside its drain: a checkpoint may take most of it.
const failoverBudget = 12 * time.Minute

// Service carries out what administrators ask of this node. Any goroutine may call its methods.
type Service struct {
	Config
	unwatched chan request
}

// New returns the service of a node whose parts all exist.
func New(c Config) *Service { return &Service{c, make(chan request, maxUnwatched)} }

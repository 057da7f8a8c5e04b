package majors

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// Config is what a Service needs of its node. Server, View, Status, Calls, Archive and Restart may be nil until the
// agent exists: Resume does not use them.
type Config struct {
	Self    ag.ReplicaID
	Node    config.Config // PostgreSQL in it is changed when this node has another cluster
	Layout  config.Layout
	Logger  *slog.Logger
	Members *membership.Members
	Store   Store
	Update  func(ctx context.Context, change func(*ag.Group) error) error // as quorum.Service.UpdateGroup

	Server  Server
	View    func() *ag.View
	Status  func() api.Status
	Calls   rpc.Caller
	Archive Archive
	// Background runs f beside the agent, until the node ends. Switch is the agent's SwitchCluster. Replaced has the
	// parts of the node use another cluster in the same process.
	Background func(f func(ctx context.Context))
	Switch     func(ctx context.Context, c agent.ClusterSwitch) error
	Replaced   func(in programs.Install, data string)

	// Note keeps for the node's journal what has become of a way back, and why.
	Note    func(what, because string)
	Restart func() // ends the agent and its server in order, and begins another agent in its place
}

// Store is the part of *etcd.Store that a Service uses.
type Store interface {
	Read(ctx context.Context) (etcd.Snapshot, error)
	Pass(ctx context.Context, from etcd.Snapshot, g ag.Group, e ag.EpochRecord, st ag.State) error
}

// Server is the running PostgreSQL of this node. *postgres.Instance implements it.
type Server interface {
	SystemID() (string, error)
	Control(ctx context.Context) (pgfiles.Control, error)
	SessionIn(ctx context.Context, database string) (*pgx.Conn, error)
}

// Archive is the archive of this node's backups. *backups.Service implements it.
type Archive interface {
	ArchiveCommand() string // "" without backups
	Reads(ctx context.Context, data, dir string) error
}

// Service is a node's part in major upgrades.
type Service struct {
	Config
	asked sync.Mutex    // one request at a time
	file  sync.Mutex    // held while the state of a way back is read, changed and stored
	last  etcd.Snapshot // what Facts read last

	filling atomic.Bool // a new cluster is being filled
	leaving int         // how often Run has tried to end an old cluster that followed
}

// New returns the service of a node.
func New(c Config) *Service { return &Service{Config: c} }

// job returns the work of pg_upgrade for an upgrade.
func (s *Service) job(u major.Upgrade) pgupgrade.Job {
	return pgupgrade.Job{
		Old: side(u.From), New: side(u.To), Superuser: s.superuser(), Initdb: u.To.Initdb, Link: u.Mode == major.Link,
		Work: filepath.Join(s.Layout.Run, "major"), Tried: filepath.Join(s.Layout.State(), "major-look"),
		Made: madeFile(s.Layout), Log: s.Logger,
		Emptied: func(ctx context.Context, data string) error {
			of := u.To
			of.Data = data
			pg, err := s.instance(of)
			if err != nil {
				return err
			}
			defer func() { _ = pg.Close() }()
			return pg.RestrictCancel(ctx)
		},
	}
}

func side(c major.Cluster) pgupgrade.Side {
	return pgupgrade.Side{Install: programs.Install{Major: c.Major, Version: c.Version, BinDir: c.BinDir}, Data: c.Data, WAL: c.WAL}
}

func (s *Service) superuser() string {
	if u := s.Node.PostgreSQL.Superuser; u != "" {
		return u
	}
	return "postgres"
}

// instance returns the adapter of one of the two clusters.
func (s *Service) instance(c major.Cluster) (*pgserver.Instance, error) {
	cfg := s.Node
	pg := *cfg.PostgreSQL
	pg.BinDir, pg.Data = c.BinDir, c.Data
	cfg.PostgreSQL = &pg
	in, err := pgserver.NewInstance(cfg, s.Layout, s.Logger)
	if err != nil {
		return nil, err
	}
	return &pgserver.Instance{Instance: in, Layout: s.Layout}, nil
}

// forget removes the wish to give an upgrade up.
func (s *Service) forget() { _ = os.Remove(s.Layout.MajorStop()) }

package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// Config is what a Service needs of its node. Snapshot, View and Restart are the agent's, and are not called before
// Run, as Tell is. No function may be nil.
type Config struct {
	Node        config.Config
	Layout      config.Layout
	Incarnation string // of this process
	Logger      *slog.Logger
	Members     *membership.Members

	Dial       func(ctx context.Context, voter ag.Replica) (net.Conn, error) // opens a stream to another node's member
	Pin        func() string                                                 // of this node's key, as the configuration has it
	TrustedCAs func() string                                                 // names the authorities that this node trusts now
	Endorser   func() etcd.Endorser                                          // signs and verifies the configuration
	Tell       func(ctx context.Context, step ag.MemberStep) error           // as endorsement.Service.Tell
	AskClaim   func(context.Context, ag.Replica) (recovery.Claim, error)     // asks a member for its Claim
	Answers    func(context.Context, ag.Replica) error                       // nil: a former member is at its address, or may be

	Snapshot func() *agent.Snapshot      // nil before the agent's first read of the record
	View     func() *ag.View             // nil before the agent's first turn
	Restart  func(context.Context) error // restarts the agent in place
}

// Service is this node's part in the quorum. Before Open has returned, only ServeClient, ServePeer, Founds and NoVote
// may be called. Run may be called once, after Open.
type Service struct {
	Config
	self    ag.ReplicaID
	member  atomic.Pointer[member] // nil: none runs
	trusted atomic.Pointer[string] // the authorities that the member trusts: those of the time when it was started
	missing atomic.Pointer[string] // why the member does not run although the group knows it; nil: it runs, or there is none

	founds atomic.Pointer[recovery.Claim] // this node's own, if it founded a quorum by a recovery since it started

	waiting atomic.Pointer[string] // why this node does not come to vote, though it is to; nil: it votes, is not to, or has just begun

	// Set by Open.
	etcd  *etcd.Store
	calls calls // the part of etcd that Service itself calls
	store *Store

	// The fields below are used by Open, and then by Run's goroutine only.
	failed    error     // why the member that ran in this process gave up; nil: none did
	restarted time.Time // when a member failed, or a restart of the agent was last tried
	waits     time.Time // since when the node has not come to vote; zero: it need not
	counted   time.Time // when the members of an external quorum were last counted

	roster  atomic.Pointer[Roster]
	trying  atomic.Bool // a write on the disk of a member that gave up is under way
	strayed time.Time   // when the list of members and the configuration were first seen to differ; zero: they do not

	// Tests replace these.
	start     func(context.Context, embedded.Config) (member, error)
	freeBytes func(dir string) (int64, error)
	now       func() time.Time
}

// member is the part of *embedded.Member that Service uses.
type member interface {
	ID() uint64
	Ready(context.Context) error
	IsLeader() bool
	MoveLeader(ctx context.Context, to uint64) error
	DialClient(context.Context) (net.Conn, error)
	ServeClient(context.Context, net.Conn)
	ServePeer(context.Context, net.Conn)
	Err() error
	Close() error
}

// calls is the part of *etcd.Store that Service uses for the group's configuration and for its own membership.
type calls interface {
	Read(context.Context) (etcd.Snapshot, error)
	UpdateGroup(ctx context.Context, rev int64, g ag.Group) (int64, error)
	Bootstrap(context.Context, ag.Group, ag.EpochRecord, ag.State) error
	Replace(context.Context, ag.Group, ag.EpochRecord, ag.State) error
	AddLearner(ctx context.Context, peerURL string) (id uint64, initial map[string]string, err error)
	PromoteLearner(ctx context.Context, id uint64) error
	RemoveMember(ctx context.Context, id uint64) error
	VotingMembers(context.Context) (int, error)
	Members(context.Context) ([]etcd.MemberInfo, error)
}

// New returns the service of a node. It opens nothing.
func New(c Config) *Service {
	return &Service{
		Config: c, self: ag.ReplicaID(c.Node.Node), freeBytes: freeBytes, now: time.Now,
		start: func(ctx context.Context, c embedded.Config) (member, error) {
			m, err := embedded.Start(ctx, c)
			if err != nil {
				return nil, err // and not a nil pointer in an interface
			}
			return m, nil
		},
	}
}

// Open opens the client of the quorum and, on a voter of an embedded one, its member. Close must be called if it
// returns nil.
func (s *Service) Open(ctx context.Context) error {
	c := etcd.StoreConfig{
		Group: ag.GroupID(s.Node.Group), Dial: s.dial, Replica: s.self, Attempt: s.Incarnation,
		Endpoints: []string{string(s.self)}, Logger: s.Logger.With("part", "quorum"), Endorser: s.Endorser(),
	}
	if err := sameQuorum(s.Node, *s.Members.Group()); err != nil {
		return err
	}
	if s.external() {
		x := External(s.Node)
		c.Dial, c.Endpoints = x.Dial, x.Endpoints
	}
	store, err := etcd.OpenStore(c)
	if err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	s.etcd, s.calls = store, store
	s.store = &Store{etcd: store, self: s.self, member: s.running, voters: s.mayVote, pin: s.Pin, external: s.external()}
	if _, err := os.Stat(s.Layout.FoundingFile()); err == nil {
		if err := s.foundGroup(ctx); err != nil {
			return err
		}
	} else if s.wasMember() {
		if err := s.startMember(ctx); err != nil {
			return err
		}
	}
	s.store.Refresh()
	return nil
}

// Close closes the client and stops the member.
func (s *Service) Close() {
	_ = s.etcd.Close()
	if m := s.running(); m != nil {
		if err := m.Close(); err != nil {
			s.Logger.Warn("quorum member", "err", err)
		}
	}
}

// Store returns the quorum's store as the agent wants it.
func (s *Service) Store() *Store { return s.store }

// Etcd returns the client of the quorum.
func (s *Service) Etcd() *etcd.Store { return s.etcd }

// running returns the member that runs; nil: none does.
func (s *Service) running() member {
	if m := s.member.Load(); m != nil {
		return *m
	}
	return nil
}

// foundGroup starts the first member and writes the first record. After a crash it can be called again.
func (s *Service) foundGroup(ctx context.Context) error {
	f, err := membership.ReadFounding(s.Layout)
	if err != nil {
		return err
	}
	if f.Token != "" {
		if err := s.mayFound(ctx, f); err != nil {
			return err
		}
	}
	if s.external() {
		return s.foundExternal(ctx, f)
	}
	if err := s.launch(ctx, embedded.Config{New: true, Token: cmp.Or(f.Token, s.Node.Group)}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m := s.running()
	if err := m.Ready(ctx); err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	for i := range f.Group.Replicas {
		if f.Group.Replicas[i].ID == s.self {
			f.Group.Replicas[i].EtcdID = m.ID()
		}
	}
	fault.Point("found.launched") // the first member runs; there is no record
	s.store.Refresh()
	err = s.calls.Bootstrap(ctx, f.Group, f.Epoch, f.State)
	fault.Point("found.bootstrapped") // the record is written; the founding file is still there
	if _, readErr := s.calls.Read(ctx); readErr != nil {
		return errors.Join(err, readErr)
	}
	return durable.Remove(s.Layout.FoundingFile())
}

// launch starts the member. Of c, only New, Token and Initial are used.
func (s *Service) launch(ctx context.Context, c embedded.Config) error {
	c.Name, c.Dir, c.ClientSocket, c.IdentityFile = string(s.self), s.Layout.Etcd(), s.Layout.EtcdClient(), s.Layout.MemberMark()
	c.AdvertisePeer, c.ServerName = "https://"+s.Node.Endpoint.Advertise, "localhost"
	c.CertFile, c.KeyFile, c.CAFile = certs.TLSFiles(s.Layout.PKI())
	c.HeartbeatMS, c.ElectionMS, c.Logger = 200, 1000, s.Logger.With("part", "quorum")
	trusted := s.TrustedCAs() // before the member reads them
	m, err := s.start(ctx, c)
	if err != nil {
		return fmt.Errorf("quorum member: %w", err)
	}
	s.trusted.Store(&trusted)
	s.member.Store(&m)
	return nil
}

// dial reaches a voter: this node's own member directly, others through the endpoint.
func (s *Service) dial(ctx context.Context, name string) (net.Conn, error) {
	if name == string(s.self) {
		m := s.running()
		if m == nil {
			return nil, errors.New("this node's quorum member does not run")
		}
		return m.DialClient(ctx)
	}
	r, ok := s.Members.Replica(ag.ReplicaID(name))
	if !ok {
		return nil, fmt.Errorf("the group has no member %s", name)
	}
	return s.Dial(ctx, r)
}

// ServeClient serves another node's client of the quorum's store. A node whose own member does not run closes the
// connection; the other node asks again.
func (s *Service) ServeClient(ctx context.Context, _ certs.Identity, conn net.Conn) {
	if m := s.running(); m != nil {
		m.ServeClient(ctx, conn)
	}
}

// ServePeer serves another node's member of the quorum. It closes the connection where ServeClient does.
func (s *Service) ServePeer(ctx context.Context, _ certs.Identity, conn net.Conn) {
	if m := s.running(); m != nil {
		m.ServePeer(ctx, conn)
	}
}

// UpdateGroup changes the group's configuration by compare-and-swap. When another writer was first, it reads the
// configuration again and calls change again. An error of change is returned as it is, and nothing is written.
func (s *Service) UpdateGroup(ctx context.Context, change func(*ag.Group) error) error {
	for {
		x, err := s.calls.Read(ctx)
		if err != nil {
			return err
		}
		if err := change(&x.Group); err != nil {
			return err
		}
		_, err = s.calls.UpdateGroup(ctx, x.GroupRev, x.Group)
		if !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
}

package quorum

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
	"github.com/coteriedb/coterie/internal/node/membership"
)

var errTest = errors.New("it failed in a test")

// fakeMember is a member that runs until it is closed.
type fakeMember struct {
	member
	err, closeErr error
	closed        bool
}

func (m *fakeMember) ID() uint64   { return 1 }
func (m *fakeMember) Err() error   { return m.err }
func (m *fakeMember) Close() error { m.closed = true; return m.closeErr }

// fakeEtcd holds one configuration.
type fakeEtcd struct {
	client
	group     ag.Group
	rev       int64
	overtaken int   // so many updates lose against another writer
	err       error // of AddLearner, PromoteLearner and VotingMembers
	voting    int
	learners  int
	taken     bool // a voter has the address
	promoted  []uint64
	removed   []uint64
	endpoints []string
	members   []etcd.MemberInfo
}

func (e *fakeEtcd) Read(context.Context) (etcd.Snapshot, error) {
	g := e.group
	g.Replicas = append([]ag.Replica(nil), g.Replicas...)
	return etcd.Snapshot{Group: g, GroupRev: e.rev}, nil
}

func (e *fakeEtcd) UpdateGroup(_ context.Context, rev int64, g ag.Group) (int64, error) {
	if e.overtaken > 0 {
		e.overtaken--
		e.rev++
		e.group.SessionTimeout += time.Second // the other writer's change
	}
	if rev != e.rev {
		return 0, etcd.ErrConflict
	}
	e.rev++
	e.group = g
	return e.rev, nil
}

func (e *fakeEtcd) Members(context.Context) ([]etcd.MemberInfo, error) { return e.members, e.err }

func (e *fakeEtcd) Bootstrap(context.Context, ag.Group, ag.EpochRecord, ag.State) error { return nil }

func (e *fakeEtcd) Replace(context.Context, ag.Group, ag.EpochRecord, ag.State) error { return nil }

func (e *fakeEtcd) AddLearner(context.Context, string) (uint64, map[string]string, error) {
	if e.learners++; e.taken {
		return 0, nil, errTest
	}
	return 7, map[string]string{"n2": "https://b:1"}, e.err
}

func (e *fakeEtcd) PromoteLearner(_ context.Context, id uint64) error {
	if e.err == nil {
		e.promoted = append(e.promoted, id)
	}
	return e.err
}

func (e *fakeEtcd) RemoveMember(_ context.Context, id uint64) error {
	if e.err == nil {
		e.removed = append(e.removed, id)
	}
	return e.err
}

func (e *fakeEtcd) VotingMembers(context.Context) (int, error) { return e.voting, e.err }
func (e *fakeEtcd) SetEndpoints(names, last []string) {
	e.endpoints = append(slices.Clone(names), last...)
}

// bed is the service of node n1, with everything around it faked.
type bed struct {
	*Service
	etcd     *fakeEtcd
	snap     *agent.Snapshot
	view     *ag.View
	trusts   string
	free     int64
	clock    time.Time
	started  []embedded.Config
	startErr error
	restarts int
}

// newBed returns the service of n1 in a group of three voters, with its disk empty and no member running.
func newBed(t *testing.T) *bed {
	t.Helper()
	layout, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Make(); err != nil {
		t.Fatal(err)
	}
	g := ag.Group{ID: "g", Replicas: []ag.Replica{
		{ID: "n1", Voter: true, EtcdID: 1, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n2", Voter: true, EtcdID: 2, AvailabilityMode: ag.SynchronousCommit},
		{ID: "w1", Voter: true, EtcdID: 3, AvailabilityMode: ag.ConfigurationOnly},
	}}
	b := &bed{
		etcd: &fakeEtcd{group: g}, snap: &agent.Snapshot{Group: g}, trusts: "old", free: 1 << 30, clock: time.Unix(1e9, 0),
		view: &ag.View{Quorum: true, Reach: []ag.ReplicaID{"n2", "w1"}},
	}
	log := slog.New(slog.DiscardHandler)
	members := membership.New("n1", layout, log)
	members.Set(g)
	b.Service = New(Config{
		Node: config.Config{Node: "n1", Group: "g"}, Layout: layout, Logger: log, Members: members,
		Dial:       func(context.Context, ag.Replica) (net.Conn, error) { return nil, errTest },
		TrustedCAs: func() string { return b.trusts },
		Tell: func(ctx context.Context, step ag.MemberStep) error {
			return b.UpdateGroup(ctx, func(g *ag.Group) error { return step.Apply(g, "n1") })
		},
		Snapshot: func() *agent.Snapshot { return b.snap },
		View:     func() *ag.View { return b.view },
		Restart:  func(context.Context) error { b.restarts++; return nil },
	})
	b.Service.calls = b.etcd
	b.Service.store = &Store{etcd: b.etcd, self: "n1", member: b.running, voters: members.Voters}
	b.Service.now = func() time.Time { return b.clock }
	b.Service.freeBytes = func(string) (int64, error) { return b.free, nil }
	b.Service.start = func(_ context.Context, c embedded.Config) (member, error) {
		b.started = append(b.started, c)
		if b.startErr != nil {
			return nil, b.startErr
		}
		return &fakeMember{}, nil
	}
	return b
}

// run has a member run that trusts what the node trusts, and returns it.
func (b *bed) run(t *testing.T) *fakeMember {
	t.Helper()
	b.mark(t)
	if err := b.launch(t.Context(), embedded.Config{}); err != nil {
		t.Fatal(err)
	}
	b.started = nil
	m, _ := b.running().(*fakeMember)
	return m
}

// mark leaves the trace of a member that this node had.
func (b *bed) mark(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(b.Layout.Etcd(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Layout.MemberMark(), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// alter changes what the agent and the quorum know of the group.
func (b *bed) alter(change func(*ag.Group)) {
	change(&b.etcd.group)
	b.snap.Group = b.etcd.group
	b.Members.Set(b.etcd.group)
}

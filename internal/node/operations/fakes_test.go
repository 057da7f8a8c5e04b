package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc/rpctest"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

var errTest = errors.New("it failed in a test")

// bed is the service of replica a, the primary of epoch 7 of the group of a, b, c and the witness w, with everything
// around it faked. b is synchronized and counted.
type bed struct {
	*Service
	store   *fakeStore
	agent   *fakeAgent
	pki     *fakePKI
	server  *fakeServer
	clients *fakeClients
	seeds   *fakeSeeds
	calls   rpctest.Calls
	status  *fakeStatus
	changed []ag.Group // the configurations that the node was told of
}

func newBed(t *testing.T) *bed {
	t.Helper()
	replica := func(id ag.ReplicaID, vote uint64) ag.Replica {
		return ag.Replica{
			ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, EtcdID: vote, KeyPin: "pin-" + string(id),
			Endpoint: string(id) + ":5022", Major: 15,
		}
	}
	w := replica("w", 4)
	w.AvailabilityMode, w.Major = ag.ConfigurationOnly, 0
	g := ag.Group{ID: groupID, Name: "DemoAG", Profile: "default", Replicas: []ag.Replica{replica("a", 1), replica("b", 2), replica("c", 0), w}}
	g.Replicas[2].Voter = false
	b := &bed{
		store: &fakeStore{
			rev: 1, tokens: map[string]etcd.Token{}, x: etcd.Snapshot{Group: g, GroupRev: 1, Record: ag.Record{
				Epoch: ag.EpochRecord{Epoch: 7, Phase: ag.PhaseLead, Leader: "a"},
				State: ag.State{Epoch: 7, Leader: "a", V: []ag.Member{{ID: "b"}}, K: 1},
			}},
		},
		server: &fakeServer{}, clients: &fakeClients{}, seeds: &fakeSeeds{}, calls: rpctest.Calls{}, status: &fakeStatus{},
		pki: &fakePKI{},
	}
	b.agent = &fakeAgent{store: b.store, view: &ag.View{Self: "a", Reach: []ag.ReplicaID{"b", "c", "w"}}}
	b.agent.view.Record, b.agent.view.Local.Server = b.store.x.Record, ag.ServerWritable
	layout, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Make(); err != nil {
		t.Fatal(err)
	}
	own := config.Config{
		Node: "a", Kind: "replica", Group: string(groupID), Endpoint: config.Address{Listen: "127.0.0.1:5022", Advertise: "127.0.0.1:5022"},
		PostgreSQL: &config.PostgreSQL{BinDir: "/usr/bin", Data: layout.Data()},
	}
	if err := own.Save(layout.Dir); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	members := membership.New("a", layout, log)
	members.Set(g)
	b.Service = New(Config{
		Self: "a", Node: own, Layout: layout, Logger: log, Members: members,
		Store: b.store, Update: b.store.update, Agent: b.agent, PKI: b.pki, Server: b.server, Clients: b.clients, Seeds: b.seeds, Calls: b.calls,
		Status: b.status, Views: fakeViews{},
		Path:         func(_ context.Context, to ag.ReplicaID) (api.Link, error) { return api.Link{Peer: to}, nil },
		Vouch:        func(map[string]string) error { return nil },
		Installed:    func(context.Context) (string, error) { return "0.2.0", nil },
		GroupChanged: func(g ag.Group) { b.changed = append(b.changed, g) },
	})
	return b
}

const groupID ag.GroupID = "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11"

// group returns the group in the record.
func (b *bed) group() ag.Group {
	x, _ := b.store.read()
	return x.Group
}

// replica returns a member in the record.
func (b *bed) replica(id ag.ReplicaID) ag.Replica {
	r, _ := b.group().Replica(id)
	return r
}

// fakeStore holds one record. Its compare-and-swap is that of the real one.
type fakeStore struct {
	mu        sync.Mutex // guards the fields below
	x         etcd.Snapshot
	rev       int64
	tokens    map[string]etcd.Token
	overtaken int      // so many changes of the group lose against another writer, which calls other
	other     func()   // the action of the other writer; mu is not held
	unlisting func()   // what happens before a change of the group that is bound to an epoch is made
	readErr   error    // of Read
	tokenErr  error    // of Token, unless the token is known
	opErr     error    // of PutOp
	opBeaten  int      // so many requests lose against another writer, which calls other
	asked     int      // requests that were written
	removed   []uint64 // votes that were taken
	removeErr error
	electing  int               // so many changes of the group that are bound to an epoch find no leader of the quorum
	unlisted  int               // so many questions for the quorum's members find none
	members   []etcd.MemberInfo // of the quorum
	kept      []ag.ReplicaID    // members whose statuses were not deleted
}

func (s *fakeStore) read() (etcd.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.x
	x.Group.Replicas = slices.Clone(x.Group.Replicas)
	x.Group.Options.Databases = slices.Clone(x.Group.Options.Databases)
	return x, s.readErr
}

// alter changes what the record holds, as another node would.
func (s *fakeStore) alter(change func(x *etcd.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.x)
	s.rev++
	s.x.GroupRev = s.rev
}

func (s *fakeStore) Read(context.Context) (etcd.Snapshot, error) { return s.read() }

func (s *fakeStore) UpdateGroup(_ context.Context, rev int64, g ag.Group) (int64, error) {
	s.mu.Lock()
	beaten := s.overtaken > 0
	if beaten {
		s.overtaken--
	}
	s.mu.Unlock()
	if beaten {
		s.alter(func(x *etcd.Snapshot) { x.Group.SessionTimeout += time.Second })
		if s.other != nil {
			s.other()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev != s.x.GroupRev {
		return 0, etcd.ErrConflict
	}
	s.rev++
	s.x.Group, s.x.GroupRev = g, s.rev
	return s.rev, nil
}

func (s *fakeStore) UpdateGroupIn(ctx context.Context, rev, epochRev int64, g ag.Group) (int64, error) {
	if s.unlisting != nil {
		s.unlisting()
		s.unlisting = nil
	}
	if s.electing > 0 {
		s.electing--
		return 0, fmt.Errorf("change the group: %w", etcd.ErrNoQuorum)
	}
	if x, _ := s.read(); x.Record.Revs.Epoch != epochRev {
		return 0, etcd.ErrConflict
	}
	return s.UpdateGroup(ctx, rev, g)
}

// update is quorum.Service.UpdateGroup.
func (s *fakeStore) update(ctx context.Context, change func(*ag.Group) error) error {
	for {
		x, err := s.Read(ctx)
		if err != nil {
			return err
		}
		if err := change(&x.Group); err != nil {
			return err
		}
		if _, err = s.UpdateGroup(ctx, x.GroupRev, x.Group); !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
}

func (s *fakeStore) PutOp(_ context.Context, _, _ int64, request json.RawMessage) (int64, error) {
	if s.opErr != nil {
		return 0, s.opErr
	}
	if s.opBeaten > 0 {
		s.opBeaten--
		s.other()
		return 0, etcd.ErrConflict
	}
	s.asked++
	s.alter(func(x *etcd.Snapshot) { x.Op, x.OpStale = request, false })
	return s.rev, nil
}

func (s *fakeStore) PutToken(_ context.Context, t etcd.Token, genuine func(etcd.Token) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tokens, func(_ string, t etcd.Token) bool { return genuine != nil && !genuine(t) })
	s.tokens[t.ID] = t
	return s.tokenErr
}

func (s *fakeStore) Token(_ context.Context, id string) (etcd.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[id]
	switch {
	case s.tokenErr != nil:
		return etcd.Token{}, s.tokenErr
	case !ok:
		return etcd.Token{}, etcd.ErrTokenUnknown
	case t.Used:
		return t, etcd.ErrTokenUsed
	}
	return t, nil
}

func (s *fakeStore) ConsumeToken(ctx context.Context, id string) (etcd.Token, error) {
	t, err := s.Token(ctx, id)
	if err != nil {
		return t, err
	}
	t.Used = true
	return t, s.PutToken(ctx, t, nil)
}

func (s *fakeStore) RemoveMember(_ context.Context, id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removeErr != nil {
		return s.removeErr
	}
	s.removed = append(s.removed, id)
	s.members = slices.DeleteFunc(s.members, func(m etcd.MemberInfo) bool { return m.ID == id })
	return nil
}

func (s *fakeStore) Members(context.Context) ([]etcd.MemberInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unlisted > 0 {
		s.unlisted--
		return nil, fmt.Errorf("list the quorum's members: %w", etcd.ErrNoQuorum)
	}
	return slices.Clone(s.members), nil
}

func (s *fakeStore) DeleteStrays(_ context.Context, members []ag.ReplicaID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = members
	return nil
}

// fakeAgent has read what the store holds, and every member acts on it.
type fakeAgent struct {
	store    *fakeStore
	view     *ag.View
	statuses map[ag.ReplicaID]agent.Status // nil: every member follows
	blind    atomic.Bool                   // it has read nothing yet
	stale    atomic.Bool                   // the members have not read the configuration
	woken    int
	trusted  int
	restarts []agent.RestartOptions
	servers  int   // restarts of the server
	err      error // of Trust and Restart
}

func (a *fakeAgent) View() *ag.View { return a.view }

func (a *fakeAgent) Snapshot() *agent.Snapshot {
	if a.blind.Load() {
		return nil
	}
	x, _ := a.store.read()
	snap := &agent.Snapshot{Group: x.Group, GroupRev: x.GroupRev, Record: x.Record, Statuses: a.statuses}
	if a.statuses == nil {
		snap.Statuses = map[ag.ReplicaID]agent.Status{}
		for _, r := range x.Group.Replicas {
			st := agent.Status{Config: x.GroupRev, Stream: true}
			if a.stale.Load() {
				st.Config--
			}
			snap.Statuses[r.ID] = st
		}
	}
	return snap
}

func (a *fakeAgent) Wake() { a.woken++ }

func (a *fakeAgent) Trust(context.Context) (string, error) { a.trusted++; return "damage", a.err }

func (a *fakeAgent) RestartServer(context.Context) error { a.servers++; return a.err }

func (a *fakeAgent) RestartPrimary(_ context.Context, o agent.RestartOptions) error {
	a.restarts = append(a.restarts, o)
	return a.err
}

func (a *fakeAgent) Restart(_ context.Context, o agent.RestartOptions) error {
	a.restarts = append(a.restarts, o)
	return a.err
}

// fakePKI is a witness's unless it has an authority.
type fakePKI struct {
	sync.Mutex
	ca   *certs.CA
	node *certs.Node
}

func (p *fakePKI) CA() *certs.CA         { return p.ca }
func (p *fakePKI) Identity() *certs.Node { return p.node }

// fakeServer has databases. It takes every setting of PostgreSQL but those with a reason in refuses, and needs a
// restart for max_connections.
type fakeServer struct {
	checkpoints int
	databases   []string
	err         error
	refuses     map[string]error
	checked     []string
	host        uint64 // memory
	heavy       string // the warning of Weigh
	weighs      error
}

func (s *fakeServer) Weigh(context.Context, map[string]string) (uint64, string, error) {
	return s.host, s.heavy, s.weighs
}

func (s *fakeServer) CheckParameter(_ context.Context, name, value string) (bool, error) {
	s.checked = append(s.checked, name+"="+value)
	return name == "max_connections", s.refuses[name]
}

func (s *fakeServer) CheckRoom(_ context.Context, change map[string]*string) error {
	if v, given := change["max_connections"]; given && v == nil {
		return s.refuses["no max_connections"]
	}
	return nil
}

func (s *fakeServer) Checkpoint(context.Context) error { s.checkpoints++; return nil }

func (s *fakeServer) CreateDatabase(_ context.Context, name string) (bool, error) {
	if s.err != nil || slices.Contains(s.databases, name) {
		return false, s.err
	}
	s.databases = append(s.databases, name)
	return true, nil
}

type fakeClients struct {
	routes    *ag.Routes
	restarted int
	err       error
	warnings  []string // of JudgeRules
	badRules  error    // of JudgeRules

	from []netip.Addr // that JudgeRules was asked about
}

func (c *fakeClients) JudgeRules(_ string, from []netip.Addr) ([]string, error) {
	c.from = from
	return c.warnings, c.badRules
}

func (c *fakeClients) Routes() *ag.Routes { return c.routes }
func (c *fakeClients) Restart() error     { c.restarted++; return c.err }
func (c *fakeClients) Moves(context.Context) []ag.SessionMove {
	return []ag.SessionMove{{User: "here"}}
}

type fakeSeeds struct {
	asked     []api.SeedRequest
	cancelled []ag.ReplicaID
	err       error
}

func (s *fakeSeeds) Seed(_ context.Context, req api.SeedRequest) (seeding.Operation, error) {
	s.asked = append(s.asked, req)
	return seeding.Operation{ID: "1", Target: req.Replica, State: seeding.Pending}, s.err
}

func (s *fakeSeeds) Cancel(_ context.Context, id ag.ReplicaID) (seeding.Operation, error) {
	s.cancelled = append(s.cancelled, id)
	return seeding.Operation{ID: "1", Target: id, State: seeding.Cancelled}, s.err
}

func (s *fakeSeeds) List(context.Context, ag.ReplicaID) ([]seeding.Operation, error) {
	return []seeding.Operation{{ID: "1"}}, s.err
}

type fakeStatus struct {
	facts catalog.Facts
	then  []catalog.Facts // the next answers after facts
	noted []string
	acts  []catalog.Act

	removed bool
}

func (s *fakeStatus) Facts(context.Context) catalog.Facts {
	f := s.facts
	if len(s.then) > 0 {
		s.facts, s.then = s.then[0], s.then[1:]
	}
	return f
}
func (s *fakeStatus) Removed() bool                         { return s.removed }
func (s *fakeStatus) Version() string                       { return "15.9" }
func (s *fakeStatus) NoteAct(_ *slog.Logger, a catalog.Act) { s.acts = append(s.acts, a) }
func (s *fakeStatus) NoteStatement(user, text string)       { s.noted = append(s.noted, user+": "+text) }

func (s *fakeStatus) NoteFailover(e ag.Epoch, what, because string) {
	s.noted = append(s.noted, fmt.Sprintf("epoch %d: %s: %s", e, what, because))
}

// fakeViews answers every query with one row, except one that is "bad".
type fakeViews struct{}

func (fakeViews) Describe(_ context.Context, _, query string, given []uint32) ([]catalog.Column, []uint32, error) {
	if query == "bad" {
		return nil, nil, &catalog.Error{State: "42P01", Message: "no such view", Hint: "SELECT 1"}
	}
	return []catalog.Column{{Name: "x", Type: 25}}, given, nil
}

func (v fakeViews) Query(ctx context.Context, q catalog.Question, to catalog.Rows) error {
	columns, _, err := v.Describe(ctx, q.User, q.Text, nil)
	if err != nil {
		return err
	}
	return errors.Join(to.Columns(columns), to.Row([]any{q.User}))
}

package clientport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// fakeNode is everything that a port needs, as n1 of the group of n1, n2, n3 and the witness w.
type fakeNode struct {
	mu       sync.Mutex // guards what change changes while the port runs: view, plan and streams
	group    *ag.Group
	view     *ag.View
	plan     *ag.Plan
	snap     agent.Snapshot
	readErr  error
	server   *fakeServer // nil: a witness
	upstream agent.UpstreamStatus
	streams  []agent.Stream
	moved    chan struct{}
	peers    *fakePeers
}

// primary returns n1 as the primary of epoch 7, which commits with one of n2 and n3.
func primary() *fakeNode {
	n := &fakeNode{
		group: &ag.Group{ID: "g", Name: "sales", Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}, {ID: "w", AvailabilityMode: ag.ConfigurationOnly}}},
		view:  &ag.View{Self: "n1"}, server: &fakeServer{flush: 100}, moved: make(chan struct{}), peers: &fakePeers{},
	}
	n.view.Record.Epoch = ag.EpochRecord{Epoch: 7, Leader: "n1", Phase: ag.PhaseLead}
	n.view.Record.State = ag.State{Epoch: 7, Leader: "n1", V: []ag.Member{{ID: "n2", Copy: "c2"}, {ID: "n3", Copy: "c3"}}, K: 1}
	n.view.Local.Server = ag.ServerWritable
	n.view.Local.Sync.P, n.view.Local.Sync.N = []ag.ReplicaID{"n2", "n3"}, 1
	n.snap.Record.Epoch = n.view.Record.Epoch
	n.streams = []agent.Stream{{Member: "n2", Copy: "c2", Flush: 100}}
	return n
}

// secondary returns n1 as a secondary that streams from n2, the primary of epoch 7.
func secondary() *fakeNode {
	n := primary()
	n.view.Record.Epoch.Leader, n.view.Record.State.Leader, n.snap.Record.Epoch.Leader = "n2", "n2", "n2"
	n.view.Local.Server = ag.ServerRecovery
	n.streams = nil
	n.upstream = agent.UpstreamStatus{Connected: true, Source: "n2", Epoch: 7}
	return n
}

// change runs f while nothing of the port looks.
func (n *fakeNode) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// port returns the port of the node. Its directory and its coterie.yaml are empty, but for what change sets.
func (n *fakeNode) port(t *testing.T, change ...func(*config.Config)) *Port {
	t.Helper()
	layout, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Self: "n1", Layout: layout, Logger: slog.New(slog.DiscardHandler),
		Group: func() *ag.Group { return n.group },
		View: func() (v *ag.View) {
			n.change(func() {
				if n.view != nil {
					v = new(ag.View)
					*v = *n.view
				}
			})
			return v
		},
		Plan: func() (plan *ag.Plan) {
			n.change(func() { plan = n.plan })
			return plan
		},
		Snapshot: func() *agent.Snapshot {
			return &n.snap
		},
		Gate:  func() time.Duration { return 0 },
		Lease: func() time.Duration { return 42 },
		Read:  func(context.Context) (agent.Snapshot, error) { return n.snap, n.readErr },
		Server: func() Server {
			if n.server == nil {
				return nil
			}
			return n.server
		},
		Upstream: func() agent.UpstreamStatus { return n.upstream },
		Streams: func() (streams []agent.Stream) {
			n.change(func() { streams = slices.Clone(n.streams) })
			return streams
		},
		Moved: func() <-chan struct{} { return n.moved },
		Dial:  func(context.Context, ag.Replica) (net.Conn, error) { return nil, errDialled },
		Peers: n.peers,
	}
	for _, f := range change {
		f(&c.Node)
	}
	return New(c)
}

// errDialled marks a connection that went through the endpoint.
var errDialled = errors.New("dialled")

// fakeServer is a PostgreSQL that knows one position and one role.
type fakeServer struct {
	flush   ag.LSN
	role    login.Role
	roleErr error
	ensure  func() error
}

func (s *fakeServer) CurrentFlush(context.Context) (ag.LSN, error) { return s.flush, nil }

func (s *fakeServer) Defaults(context.Context, string, string) (map[string]string, error) {
	return nil, nil
}

func (s *fakeServer) Fingerprint(context.Context, string, string) (login.Fingerprint, error) {
	return login.Fingerprint{}, nil
}

func (s *fakeServer) FingerprintSession(context.Context, string) (net.Conn, error) {
	return nil, errors.New("no sessions")
}

func (s *fakeServer) Verifier(context.Context, string) (login.Role, error) { return s.role, s.roleErr }

func (s *fakeServer) EnsureRoles(context.Context, []string) error { return s.ensure() }

// fakePeers answers for the other nodes. A call that has no function fails.
type fakePeers struct {
	role     func(to ag.ReplicaID) (login.Role, time.Duration, error)
	viewer   func(to ag.ReplicaID, user string) (Viewer, error)
	progress func(to ag.ReplicaID) (listener.Progress, error)
	durable  func(to ag.ReplicaID, e ag.Epoch, lsn ag.LSN) (bool, error)
	cancel   func(ctx context.Context, to ag.ReplicaID) error

	mu    sync.Mutex // guards asked
	asked []ag.ReplicaID
}

var errNoRoute = errors.New("no route")

func (p *fakePeers) note(to ag.ReplicaID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, to)
}

func (p *fakePeers) Role(_ context.Context, to ag.Replica, _ string) (login.Role, time.Duration, error) {
	p.note(to.ID)
	if p.role == nil {
		return login.Role{}, 0, errNoRoute
	}
	return p.role(to.ID)
}

func (p *fakePeers) Viewer(_ context.Context, to ag.Replica, user string) (Viewer, error) {
	p.note(to.ID)
	if p.viewer == nil {
		return Viewer{}, errNoRoute
	}
	return p.viewer(to.ID, user)
}

func (p *fakePeers) Progress(_ context.Context, to ag.Replica) (listener.Progress, error) {
	p.note(to.ID)
	if p.progress == nil {
		return listener.Progress{}, errNoRoute
	}
	return p.progress(to.ID)
}

func (p *fakePeers) Durable(_ context.Context, to ag.Replica, e ag.Epoch, lsn ag.LSN) (bool, error) {
	p.note(to.ID)
	if p.durable == nil {
		return false, errNoRoute
	}
	return p.durable(to.ID, e, lsn)
}

func (p *fakePeers) Cancel(ctx context.Context, to ag.Replica, _ listener.CancelKey) error {
	p.note(to.ID)
	if p.cancel == nil {
		return errNoRoute
	}
	return p.cancel(ctx, to.ID)
}

// TestChanged holds that everything that makes a waiter look again closes the channel it took before.
func TestChanged(t *testing.T) {
	t.Parallel()
	p := primary().port(t)
	for name, change := range map[string]func(){
		"routes":          func() { p.Publish(&ag.Routes{Primary: "n2"}) },
		"a configuration": p.GroupChanged,
	} {
		changed := p.Changed()
		change()
		select {
		case <-changed:
		default:
			t.Errorf("%s: not told", name)
		}
		select {
		case <-p.Changed():
			t.Errorf("%s: the next channel is closed already", name)
		default:
		}
	}
	if r := p.Routes(); r == nil || r.Primary != "n2" {
		t.Errorf("the routes are %+v", r)
	}
}

// TestNodeWithoutClients holds that a node that serves no clients answers everything that the agent and other nodes ask
// of its port.
func TestNodeWithoutClients(t *testing.T) {
	t.Parallel()
	p := primary().port(t)
	if err := p.Open(func(name string, _ func(context.Context) error) { t.Errorf("it starts %s", name) }); err != nil {
		t.Errorf("open: %v", err)
	}
	p.CloseOlder(7, "x")
	p.CloseLocal("x")
	p.CloseReaders("x")
	p.ContinueReaders(t.Context())
	p.Hold(true)
	p.Drain(true)
	p.CutBusy("x")
	p.ReadStates(t.Context())
	p.ReadRelayedStates(t.Context())
	p.CloseServer("x")
	p.GateMoved()
	p.ServeBackend(t.Context(), nil)
	if p.Busy() != 0 || p.Server() != nil || p.Places() != nil || p.Restart() != nil || p.CertificateRenewed() != nil {
		t.Error("it has sessions, places or certificates")
	}
	if err := p.Cancel(t.Context(), listener.CancelKey{}); err == nil {
		t.Error("it knows a cancel key")
	}
}

// TestRules holds whose rules are in force: the node's own file before the group's before the default. Rules that
// cannot be used are an error, except the group's that ask for certificates: they came from another node, and its other
// rules are good.
func TestRules(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		f := filepath.Join(t.TempDir(), "hba")
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	const one, two = "host all all all scram-sha-256\n", "host all a all scram-sha-256\nhost all b all reject\n"
	const bad, cert = "host all\n", "hostssl all all all cert\n"
	first, err := primary().port(t).rules()
	if err != nil || len(first.rules) == 0 || first.source != byDefault {
		t.Fatalf("%+v, %v", first, err)
	}
	defaults := len(first.rules)
	for name, tt := range map[string]struct {
		own, group string
		rules      int
		refused    string
	}{
		"the default":           {"", "", defaults, ""},
		"the group's":           {"", two, 2, ""},
		"its own":               {file(one), two, 1, ""},
		"a file that is absent": {"/nowhere/hba", "", 0, "listener rules in /nowhere/hba"},
		"its own are wrong":     {file(bad), "", 0, "listener rules in "},
		"its own need a CA":     {file(cert), "", 0, "client_ca in coterie.yaml"},
		"the group's are wrong": {"", bad, 0, "listener rules in the group's record"},
		"the group's need a CA": {"", cert, 1, ""},
	} {
		n := primary()
		n.group.HBA = tt.group
		rules, err := n.port(t, func(c *config.Config) { c.HBA = tt.own }).rules()
		if tt.refused == "" && (err != nil || len(rules.rules) != tt.rules) || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%s: %+v, %v", name, rules, err)
		}
	}
}

// TestCertificates holds that the ports do not open without their certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	p := primary().port(t, func(c *config.Config) { c.ReadWrite.Listen = "127.0.0.1:0" })
	err := p.Open(func(name string, _ func(context.Context) error) { t.Errorf("it starts %s", name) })
	if err == nil || !strings.Contains(err.Error(), "listener certificate") || p.Server() != nil {
		t.Errorf("%v, and clients are served: %t", err, p.Server() != nil)
	}
}

// TestBackend holds how the server of a replica is reached.
func TestBackend(t *testing.T) {
	t.Parallel()
	p := primary().port(t)
	if _, err := p.backend(t.Context(), "n2", listener.BackendHello{}); !errors.Is(err, errDialled) {
		t.Errorf("another replica's: %v", err)
	}
	if _, err := p.backend(t.Context(), "n9", listener.BackendHello{}); err == nil || !strings.Contains(err.Error(), "the group has no replica n9") {
		t.Errorf("of a replica that does not exist: %v", err)
	}
	if _, err := p.backend(t.Context(), "n1", listener.BackendHello{}); err == nil || !strings.Contains(err.Error(), ".s.PGSQL.5432") {
		t.Errorf("its own, which does not run: %v", err)
	}
}

// TestGroupOptions holds what the listener takes from the group's options, also before the group is known.
func TestGroupOptions(t *testing.T) {
	t.Parallel()
	n := primary()
	p := n.port(t)
	if p.strict() || p.reuse() || p.nodeNumber() != 0 {
		t.Errorf("by default: strict %v, reuse %v, number %d", p.strict(), p.reuse(), p.nodeNumber())
	}
	n.group.Options.CommitBarrier, n.group.Options.BackendReuse = ag.BarrierStrict, true
	n.group.Replicas = n.group.Replicas[1:]
	if !p.strict() || !p.reuse() || p.nodeNumber() != 15 {
		t.Errorf("set, and removed from the group: strict %v, reuse %v, number %d", p.strict(), p.reuse(), p.nodeNumber())
	}
	if n.group.Options.CommitBarrier = "OATH"; !p.strict() {
		t.Error("a barrier of a later version counts as none")
	}
	n.group = nil
	if p.strict() || p.reuse() || p.nodeNumber() != 15 {
		t.Errorf("no group: strict %v, reuse %v, number %d", p.strict(), p.reuse(), p.nodeNumber())
	}
}

// TestRestart holds that a restart reads certificate and rules again where clients are served, and keeps the old one if
// a file cannot be read. A renewed certificate is in use at once.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := primary()
	p := n.port(t, func(c *config.Config) { c.ReadOnly.Listen = "127.0.0.1:0" })
	issue(t, p)
	c, err := p.listenerConfig()
	if err != nil {
		t.Fatal(err)
	}
	c.NoKernelPath = true
	s, err := listener.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	p.server.Store(s)
	told := func(what string, act func() error, ok bool) {
		t.Helper()
		changed, before := p.Changed(), p.cert.Load()
		err := act()
		closed := false
		select {
		case <-changed:
			closed = true
		default:
		}
		if (err == nil) != ok || closed != ok || (p.cert.Load() != before) != ok {
			t.Errorf("%s: %v, told %v, another certificate %v", what, err, closed, p.cert.Load() != before)
		}
	}
	told("restart", p.Restart, true)
	told("renewed", p.CertificateRenewed, true)
	n.group.HBA = "host all"
	told("restart with rules that are wrong", p.Restart, false)
	p.GroupChanged() // only logs
	n.group.HBA = ""
	cert, _ := certs.ListenerFiles(p.c.Layout.PKI())
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	told("restart without a certificate", p.Restart, false)
}

// TestListenerConfig holds that a witness offers nothing that needs a server, and that a replica's limits are those of
// coterie.yaml.
func TestListenerConfig(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]*fakeNode{"replica": primary(), "witness": primary()} {
		if name == "witness" {
			n.server = nil
		}
		p := n.port(t, func(c *config.Config) {
			c.ReadWrite.Listen = "127.0.0.1:0"
			c.Limits = config.Limits{Connections: 1, PerAddress: 2, Logins: 3, LoginTime: 4}
		})
		issue(t, p)
		c, err := p.listenerConfig()
		if err != nil {
			t.Fatal(err)
		}
		if served := c.Durable != nil && c.FlushLSN != nil && c.Confirm != nil && c.Position != nil && c.Fingerprint != nil; served != (name == "replica") {
			t.Errorf("%s: it offers what needs a server: %v", name, served)
		}
		if want := (listener.Limits{Connections: 1, PerAddress: 2, PreAuth: 3, PreAuthTime: 4}); c.Limits != want || c.ReadWrite != "127.0.0.1:0" || c.Certificate() == nil {
			t.Errorf("%s: limits %+v, at %q", name, c.Limits, c.ReadWrite)
		}
	}
}

// issue gives the node of p an authority and a certificate for its ports.
func issue(t *testing.T, p *Port) {
	t.Helper()
	ca, err := certs.NewCA("0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", "sales")
	if err != nil {
		t.Fatal(err)
	}
	pki := p.c.Layout.PKI()
	if err := os.MkdirAll(pki, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(pki); err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.IssueListener([]string{"n1.example"})
	if err != nil {
		t.Fatal(err)
	}
	if err := certs.SaveListener(pki, cert, key); err != nil {
		t.Fatal(err)
	}
}

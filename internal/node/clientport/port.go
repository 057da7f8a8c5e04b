package clientport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// Config is what a Port needs of its node. Its functions are called from many goroutines, none of them before Open or
// before the first call of another node; only Group is called earlier. No function may be nil.
type Config struct {
	Self   ag.ReplicaID
	Node   config.Config
	Layout config.Layout
	Logger *slog.Logger

	Group    func() *ag.Group                              // as this node last saw it; nil: not known yet
	View     func() *ag.View                               // the agent's; nil before its first turn
	Plan     func() *ag.Plan                               // the agent's; nil before its first turn
	Snapshot func() *agent.Snapshot                        // the agent's last reading; nil before that
	Gate     func() time.Duration                          // as listener.Config.Gate
	Lease    func() time.Duration                          // BOOTTIME until which this node may act as the primary
	Read     func(context.Context) (agent.Snapshot, error) // asks the quorum
	Removed  func() bool                                   // whether the group does not have this node any more

	Server   func() Server                                       // this node's PostgreSQL; nil on a witness
	Log      *serverlog.Reader                                   // what that says of cancelled waits
	Upstream func() agent.UpstreamStatus                         // the stream from the primary
	Streams  func() []agent.Stream                               // the streams to the members
	Moved    func() <-chan struct{}                              // closed at the next change of Streams
	Dial     func(context.Context, ag.Replica) (net.Conn, error) // opens a connection to the PostgreSQL of another replica
	Peers    Peers
	Console  func() console.Backend                               // runs the statements of administrators
	Reserved func(setting string) (instead string, reserved bool) // as listener.Config.Reserved
}

// Server is the PostgreSQL of this node. *postgres.Instance implements it.
type Server interface {
	CurrentFlush(ctx context.Context) (ag.LSN, error)
	Defaults(ctx context.Context, user, database string) (map[string]string, error)
	Fingerprint(ctx context.Context, user, database string) (login.Fingerprint, error)
	FingerprintSession(ctx context.Context, statement string) (net.Conn, error)
	Verifier(ctx context.Context, user string) (login.Role, error)
	EnsureRoles(ctx context.Context, names []string) error
}

// Peers asks the ports of other nodes.
type Peers interface {
	// Role returns a role as that node's server has it, and how old its copy may be. An unknown role is
	// login.ErrNoRole, or an error of another node with its text.
	Role(ctx context.Context, to ag.Replica, user string) (login.Role, time.Duration, error)
	Progress(ctx context.Context, to ag.Replica) (listener.Progress, error)
	// Viewer returns what that replica tells a witness of a role.
	Viewer(ctx context.Context, to ag.Replica, user string) (Viewer, error)
	// Durable asks the primary whether a position of the history of epoch e is durable.
	Durable(ctx context.Context, to ag.Replica, e ag.Epoch, lsn ag.LSN) (bool, error)
	Cancel(ctx context.Context, to ag.Replica, key listener.CancelKey) error
}

// Port is the client ports of a node. It implements agent.Sessions.
type Port struct {
	c         Config
	routes    atomic.Pointer[ag.Routes]
	server    atomic.Pointer[listener.Server] // nil: this node serves no clients, or not yet
	cert      atomic.Pointer[tls.Certificate] // of the client ports
	clientCAs atomic.Pointer[x509.CertPool]   // the authorities of client certificates; nil: none
	clientCRL atomic.Pointer[clientcert.CRL]  // the revocation lists of client certificates; nil: none, or not read yet
	files     files
	addresses atomic.Pointer[ListenerAddresses] // nil: as server

	consoles *console.Places // sessions of the console
	watch    *watch          // of a witness; nil: clients log in here

	mu      sync.Mutex // guards changed
	changed chan struct{}
}

// New returns the ports of a node, which Open opens.
func New(c Config) *Port {
	l := c.Node.Limits
	p := &Port{c: c, changed: make(chan struct{}), consoles: console.NewPlaces(console.Limits{
		Sessions: l.Consoles, PerRole: l.ConsolesPerRole, Idle: l.ConsoleIdle, Statement: l.ConsoleStatement,
	})}
	if c.Node.Kind == "witness" {
		p.watch = newWatch()
	}
	return p
}

// Serves reports whether coterie.yaml names a port for clients.
func (p *Port) Serves() bool {
	return p.c.Node.ReadWrite.Listen != "" || p.c.Node.ReadOnly.Listen != ""
}

// Open opens the client ports, unless coterie.yaml names none, and starts their parts with run. When it returns, the
// ports are served. Rules, authorities and revocation lists that cannot be used are no error: clients that they would
// admit are refused, and LoginProblems says so.
func (p *Port) Open(run func(name string, part func(context.Context) error)) error {
	if p.watch != nil && p.c.Node.HTTPS.Listen != "" {
		p.openWatch(run)
	}
	if !p.Serves() {
		return nil
	}
	c, err := p.listenerConfig()
	if err != nil {
		return err
	}
	s, err := listener.New(c)
	if err != nil {
		return err
	}
	p.server.Store(s)
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + listener.Loops()) // an event loop that is busy occupies one
	run("listener", s.Serve)
	run("files of the listener", p.keepFiles)
	a := p.newAddresses(s)
	p.addresses.Store(a)
	a.reconcile() // before the node reports that it runs
	run("listener's addresses", a.run)
	if a.holder != nil {
		run("virtual addresses", a.holder.Run)
	}
	return nil
}

// listenerConfig returns the configuration of the listener. It reads certificates and rules.
func (p *Port) listenerConfig() (listener.Config, error) {
	if err := p.loadCertificate(); err != nil {
		return listener.Config{}, err
	}
	_ = p.loadClientCertificates() // noted: no client is admitted by a certificate until they can be read
	n := p.c.Node
	readWrite, _ := n.ReadWrite.Places() // its sockets are opened, and tried again, with the group's own port
	c := listener.Config{
		ReadWrite: strings.Join(readWrite, ","), ReadOnly: n.ReadOnly.Listen, Rules: p.firstRules(), Logger: p.c.Logger.With("part", "listener"),
		Certificate: p.cert.Load, ClientCAs: p.authorities, CheckClient: p.checkClient, Routes: p.routes.Load, Changed: p.Changed,
		Removed: p.c.Removed, Backend: p.backend, Verifier: p.verifier, Gate: p.c.Gate, Node: p.nodeNumber(), ForwardCancel: p.forwardCancel,
		NameClient: n.NameClients, AuthStaleness: n.AuthStaleness, NoKernelPath: n.NoKernelPath,
		Console: p.serveConsole, ConsoleRole: p.consoleRole,
		// The listener has a default for each limit that coterie.yaml does not name.
		Limits: listener.Limits{Connections: n.Limits.Connections, PerAddress: n.Limits.PerAddress, PreAuth: n.Limits.Logins, PreAuthTime: n.Limits.LoginTime},
	}
	p.readSecrets(&c)
	if server := p.c.Server(); server != nil {
		c.FlushLSN, c.Durable, c.Log, c.Confirm, c.Strict = server.CurrentFlush, p.durable, p.c.Log, p.confirmLead, p.strict
		c.Position, c.Reserved, c.RelaxedCommit = p.progressOf, p.c.Reserved, p.relaxedCommit
		c.Defaults = server.Defaults
		c.Reuse, c.Continuity, c.Replay = p.reuse, p.continuity, p.replay
		c.Fingerprint = func(ctx context.Context, user, database string) (listener.LoginFingerprint, error) {
			f, err := server.Fingerprint(ctx, user, database)
			return listener.LoginFingerprint{Text: f.Text, Exclusive: f.Exclusive, NotReusable: f.NotReusable}, err
		}
		c.FingerprintSession = func(ctx context.Context) (net.Conn, error) {
			return server.FingerprintSession(ctx, listener.FingerprintStatement)
		}
	}
	return c, nil
}

// Server returns the listener; nil where this node serves no clients, or not yet.
func (p *Port) Server() *listener.Server { return p.server.Load() }

// Consoles counts the sessions of the console. The counters of the listener are in its Stats.
func (p *Port) Consoles() console.Counts { return p.consoles.Counts() }

// Places returns the addresses and ports of the group's listener as they are on this node; nil where Server is nil.
func (p *Port) Places() []catalog.Place {
	if a := p.addresses.Load(); a != nil {
		return a.places()
	}
	return nil
}

// ServeBackend serves a session that another node's listener runs on this node's server.
func (p *Port) ServeBackend(ctx context.Context, conn net.Conn) {
	if s := p.server.Load(); s != nil {
		s.ServeBackend(ctx, conn, p.c.Layout.Sockets())
	}
}

// GroupChanged applies the rules of a configuration that Group returns since now, and has everything that waits on
// Changed look again. Rules that cannot be used leave the present ones in force.
func (p *Port) GroupChanged() {
	if p.server.Load() != nil || p.watch != nil && p.watch.rules.Load() != nil {
		p.renewRules()
	}
	p.touch()
}

// CertificateRenewed reads the listener's certificate again. It may have been issued for the names that the listener
// had before: the addresses are looked at again.
func (p *Port) CertificateRenewed() error {
	if p.server.Load() == nil {
		return nil // no clients are served here
	}
	defer p.touch()
	return p.loadCertificate()
}

// Restart reads the certificates and the rules again, and opens the port of the group's listener again. Sessions
// continue. On an error nothing has changed but the certificates that could be read.
func (p *Port) Restart() error {
	s := p.server.Load()
	if s == nil {
		return nil // a witness reads them when its agent starts
	}
	p.files.apply.Lock()
	defer p.files.apply.Unlock()
	if _, err := p.rules(); err == nil { // with wrong ones nothing changes
		if err := errors.Join(p.loadCertificate(), p.loadClientCertificates()); err != nil {
			return err
		}
	}
	j, err := p.readRules() // last: rules that are read here count as those in force
	if err != nil {
		return err
	}
	p.setRules(j)
	s.SetNamed(nil) // reconcile opens them again
	p.touch()
	return nil
}

// nodeNumber returns this node's number in cancel keys: its place among the members when the node starts. Two nodes may
// share a number after members came and went. That is harmless, because a node asks every other node about a key that
// it does not know.
func (p *Port) nodeNumber() uint8 {
	if g := p.c.Group(); g != nil {
		for i, r := range g.Replicas {
			if r.ID == p.c.Self {
				return uint8(i % 16)
			}
		}
	}
	return 15
}

// replica returns a member of the group. An unknown one is an error.
func (p *Port) replica(id ag.ReplicaID) (ag.Replica, error) {
	if g := p.c.Group(); g != nil {
		if r, ok := g.Replica(id); ok {
			return r, nil
		}
	}
	return ag.Replica{}, fmt.Errorf("the group has no replica %s", id)
}

// backend opens a connection to a replica's PostgreSQL: by the private socket on this node, through the endpoint
// elsewhere.
func (p *Port) backend(ctx context.Context, id ag.ReplicaID, _ listener.BackendHello) (net.Conn, error) {
	if id == p.c.Self {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.c.Layout.Sockets(), ".s.PGSQL.5432"))
	}
	r, err := p.replica(id)
	if err != nil {
		return nil, err
	}
	return p.c.Dial(ctx, r)
}

// strict reports whether the group wants every commit confirmed by the listener (COMMIT_BARRIER = STRICT).
func (p *Port) strict() bool {
	g := p.c.Group()
	return g != nil && g.Options.Strict()
}

// continuity reports whether sessions survive a failover (CONTINUITY = SESSION or REPLAY).
func (p *Port) continuity() bool {
	g := p.c.Group()
	return g != nil && g.Options.Continuity != ag.ContinuityOff
}

// replay reports whether open transactions are executed again when their server is lost (CONTINUITY = REPLAY).
func (p *Port) replay() bool {
	g := p.c.Group()
	return g != nil && g.Options.Continuity == ag.ContinuityReplay
}

// reuse reports whether the group lets a backend serve one client after the other (BACKEND_REUSE = ON).
func (p *Port) reuse() bool {
	g := p.c.Group()
	return g != nil && g.Options.BackendReuse
}

// relaxedCommit reports whether the group lets defaults of synchronous_commit be below on (ALLOW_RELAXED_COMMIT = ON).
func (p *Port) relaxedCommit() bool {
	g := p.c.Group()
	return g != nil && g.Options.AllowRelaxedCommit
}

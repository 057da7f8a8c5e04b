package login

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/preauth"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// Role is what the node that will run a session knows about the role that wants to log in.
type Role = auth.Role

// Limits bound what clients may use until they have proved who they are, and how many may be connected then.
type Limits struct {
	PreAuthTime      time.Duration // the client's own time until it is authenticated
	StartupPacket    int           // bytes
	Connections      int           // clients that are authenticated
	PerAddress       int           // those of one address; 0: no limit of its own
	PreAuth          int           // connections that are not authenticated yet and not waiting for a replica
	Waiting          int           // connections that are not authenticated and wait for one
	WrongCancels     int           // wrong cancel requests per second and address
	FailureDelay     time.Duration // between a failed login of a name from an address and the next one
	BackendHandshake time.Duration // for an answer about a role
	ShutdownMessage  time.Duration // for writing the final error to a client that does not read
}

// Config is what logins need of their listener. Functions are called from many goroutines at once.
type Config struct {
	Limits Limits
	Life   context.Context // ends when the listener must stop at once
	Log    *slog.Logger
	Counts *counters.Counters
	// Certificate, ClientCAs and CheckClient are for TLS; each may be nil (package encryption).
	Certificate func() *tls.Certificate
	ClientCAs   func() *x509.CertPool
	CheckClient func(chains [][]*x509.Certificate) error
	// Routes returns the snapshot in force, and Changed a channel that is closed at its next change; nil: Routes is
	// polled. Holding returns a channel that is closed when logins on the primary may continue; nil if they may now.
	Routes  func() *ag.Routes
	Changed func() <-chan struct{}
	Holding func() <-chan struct{}
	// Removed reports whether the group does not have this node any more: nobody waits for a replica then. Nil: it has.
	Removed func() bool
	// Near reports whether a copy is at most that far behind. Nil: coterie.max_lag is not available.
	Near func(ctx context.Context, id ag.ReplicaID, most time.Duration) bool
	// Verifier returns role facts from a replica. Attempts ends a question whose replica has lost its role.
	Verifier func(ctx context.Context, id ag.ReplicaID, user string) (Role, error)
	Attempts *attempts.Set
	// Defaults returns the settings of a role in a database that matter here. Nil: there are none.
	Defaults func(ctx context.Context, user, database string) (map[string]string, error)
	// Guarantees is how far reads can be trusted here.
	Guarantees startup.Guarantees
	// Console serves the database ConsoleDatabase; nil: there is none. ConsoleRole returns the facts of a role that
	// logs in there.
	Console     ConsoleFunc
	ConsoleRole func(ctx context.Context, user string) (Role, error)
	// Node is this node's number in cancel keys. Cancel delivers a cancel request to its session here, and reports
	// whether it may be for one of another node, which ForwardCancel asks.
	Node          uint8
	Cancel        func(ctx context.Context, body []byte) (key cancelkey.Key, elsewhere bool)
	ForwardCancel func(ctx context.Context, node uint8, key cancelkey.Key) error

	ConnectWait   func() time.Duration // how long a login waits for a replica
	MockSecret    func() []byte
	AuthStaleness time.Duration // how old a replica's facts may be to decide a reader's login
	AllowPlainMD5 bool
	// Open opens the session of a client that has proved who it is on the replica of a route, greets the client by Send
	// and calls Leaves. again reports whether an error may be temporary.
	Open func(ctx context.Context, c *Client, r routing.Route) (again bool, err error)
}

// Logins are the logins of one listener.
type Logins struct {
	Config
	Failures    *guessing.Failures // logins that have failed
	rules       atomic.Pointer[[]hba.Rule]
	turn        atomic.Uint64 // round robin over readable replicas
	defaults    defaults
	waiters     *admission.Places // of clients that have proved nothing and wait for a replica
	slots       preauth.Slots     // of clients that are not authenticated
	unproven    *admission.Budget // work for clients that are not authenticated
	checks      chan struct{}     // has room for the passwords that may be checked at once
	forwards    chan struct{}     // holds a token for each cancel request that other nodes are asked about
	wrong       cancelkey.Wrong   // cancel requests without a session
	peeks       *admission.Budget // startup packets that loops read in vain
	consoles    cancelkey.Consoles
	silentSince atomic.Int64 // when the primary last failed to answer about a role, CLOCK_BOOTTIME; 0: never

	mu         sync.Mutex
	perAddress map[string]int // guarded by mu, as are the next two
	waiting    int
	open       int // clients that are authenticated
}

// maxAddresses is how many addresses are known at once; beyond that, the one that was not seen for longest is
// forgotten.
const maxAddresses = 4096

// New returns the logins of a listener that has no client yet.
func New(cfg Config) *Logins {
	return &Logins{
		Config:     cfg,
		perAddress: make(map[string]int),
		waiters:    admission.NewPlaces(cfg.Limits.Waiting, cfg.Limits.Waiting, 0),
		checks:     make(chan struct{}, maxChecks),
		unproven:   admission.NewBudget(EachUnproven, allUnproven, maxAddresses),
		forwards:   make(chan struct{}, maxForwards),
		Failures:   guessing.New(cfg.Limits.FailureDelay, cfg.Log),
		peeks:      admission.NewBudget(eachPeeks, allPeeks, maxAddresses),
	}
}

// SetRules replaces the rules for logins from now on.
func (s *Logins) SetRules(rules []hba.Rule) { s.rules.Store(&rules) }

// Taken is how many places clients have taken.
type Taken struct {
	PreAuth   int // connections that are not authenticated yet and not waiting for a replica
	Waiting   int // logins that wait for a replica
	Unproven  int // those of them that have proved nothing
	Open      int // clients that are authenticated
	Addresses int // from which those come
}

// Taken returns how many places are taken now.
func (s *Logins) Taken() Taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Taken{PreAuth: s.slots.Len(), Waiting: s.waiting, Unproven: s.waiters.Taken(), Open: s.open, Addresses: len(s.perAddress)}
}

// CancelConsole delivers a cancel request to a session of the console. It reports false if no such session exists.
func (s *Logins) CancelConsole(key cancelkey.Key) bool { return s.consoles.Cancel(key) }

// Accept takes a client that was just accepted to its session, or refuses it. It returns when the session is handed
// over, or the client is gone.
func (s *Logins) Accept(raw net.Conn, readOnly bool) {
	c := s.newClient(raw, readOnly)
	c.rejected = !c.enterPreAuth(true)
	c.serve()
}

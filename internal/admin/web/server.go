package web

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/samples"
)

// Config is what the port needs of its node. No function may be nil; all are called from many goroutines.
type Config struct {
	Self   ag.ReplicaID
	Logger *slog.Logger
	// LooksOnly: this node changes nothing, and only a certificate logs in. It is a witness.
	LooksOnly bool
	// Status returns what this node knows. It never blocks.
	Status func() api.Status
	// Seeding reports whether Status shows a copy that is under way. It is asked again and again, also where nobody
	// looks at the console, and costs next to nothing.
	Seeding func() bool
	// Group returns the group's configuration, which shares no memory with a later one. It never blocks.
	Group func() ag.Group
	// Backend runs queries on the views.
	Backend func() console.Backend
	// LogIn checks a password or a certificate as the listener does. Its error is a *pgwire.Error, or that of ctx.
	LogIn func(ctx context.Context, a Attempt) (Account, error)
	// Look returns what a user has now, MayNothing if it may not log in any more. An error means that no replica could
	// be asked.
	Look func(ctx context.Context, user string) (Account, error)
	// Try returns what a failover would do; DryRun is set. Its error is one of a statement.
	Try func(ctx context.Context, req api.FailoverRequest) (api.FailoverResult, error)
	// Holds returns why a replica's host cannot hold a lease profile; nil: each can, as far as it is known.
	Holds func(profile string) error
	// Token makes a join token. Note keeps for the audit how that ended, or that a change was denied for want of the
	// password.
	Token func(ctx context.Context, req api.TokenRequest) (api.TokenResult, error)
	Note  func(who console.Principal, operation string, took time.Duration, err error)
	// History returns what the metrics of this node were in a span of time.
	History func(samples.Span) History
	// Certificate returns the certificate of the port; nil: there is none yet.
	Certificate func() *tls.Certificate
	// ClientCAs returns the authorities of clients' certificates; nil: no client is asked for one. CheckClient returns
	// an error if a certificate with these verified chains may not be used: it is revoked, or that cannot be checked.
	ClientCAs   func() *x509.CertPool
	CheckClient func(chains [][]*x509.Certificate) error
}

// Account is a user with its privilege. Its password is told by a hash of the verifier, which changes with it.
type Account struct {
	console.Principal
	Verifier [sha256.Size]byte
}

// Attempt is an attempt to log in.
type Attempt struct {
	User, Password string
	Client         *net.TCPAddr
	Certificate    *x509.Certificate // of the client; nil: it gave none. Its chain is verified, and it is not revoked
}

// Bounds for connections and requests. A newcomer that finds no place takes the oldest connection of its own address,
// or of the address with the most, or is closed at once; see admission.Places.
const (
	maxConns   = 256
	eachConns  = 64 // of one address
	graceConns = time.Second
	headerTime = 5 * time.Second // of the TLS handshake, and of the head of a request
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second
	idleTime   = 30 * time.Second
	maxHeader  = 16 << 10
	maxBody    = 64 << 10
)

// listenPause is the time between two attempts to open a port that another program uses.
const listenPause = 5 * time.Second

// Server serves the port. Make it with New.
type Server struct {
	c        Config
	places   *admission.Places
	sessions *sessions
	views    *views
	pasts    map[string]*past
	hub      *hub
	logins   chan struct{} // has room for the logins that may be under way
	queries  *queries
	trials   *queries // failovers that are only tried
	plans    *queries
	deeds    *deeds
	consoles consoles
	seedings seedings
	ending   chan struct{} // closed when the server ends
	// lookEvery is how often a stream has its role looked up.
	lookEvery time.Duration
	handler   http.Handler
	refusals  *admission.Budget // lines in the log about certificates
	strangers strangers

	mu      sync.Mutex // guards closed, and Add of running
	closed  bool
	running sync.WaitGroup // requests
}

// New returns a server; Serve runs it.
func New(c Config) *Server {
	s := &Server{
		c: c, places: admission.NewPlaces(maxConns, eachConns, graceConns), sessions: newSessions(time.Now), logins: make(chan struct{}, maxLogins),
		queries: &queries{of: map[string]int{}}, trials: &queries{of: map[string]int{}}, plans: &queries{of: map[string]int{}}, lookEvery: lookEvery,
		deeds: newDeeds(time.Now), ending: make(chan struct{}), refusals: admission.NewBudget(refusalLines, refusalLines, 1),
		strangers: newStrangers(),
	}
	s.views, s.pasts = newViews(s.askView), newPasts()
	s.hub = newHub(s.statusDocument, s.askEvents)
	s.handler = s.routed()
	return s
}

// Serve opens the address and serves it until ctx is done. An address that cannot be opened is tried again: the console
// is no reason to end a node.
func (s *Server) Serve(ctx context.Context, addr string) error {
	var l net.Listener
	told := false
	err := retry.Until(ctx, listenPause, func() (bool, error) {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err != nil && !told {
			told = true
			s.c.Logger.Error("the port of the console in the browser cannot be opened; it is tried again: end the program that uses it, or change https.listen in coterie.yaml", "address", addr, "err", err)
		}
		return err == nil, nil
	})
	if err != nil {
		return nil //nolint:nilerr // the node stops
	}
	s.c.Logger.Info("console in the browser", "address", "https://"+l.Addr().String()+"/")
	return s.serve(ctx, l)
}

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader, DisableGeneralOptionsHandler: true, ErrorLog: slog.NewLogLogger(s.c.Logger.Handler(), slog.LevelDebug),
		BaseContext:  func(net.Listener) context.Context { return ctx },
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2: one request of a connection at a time
		TLSConfig:    s.tlsConfig(),
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.goesOn(ctx, "sending the status", s.hub.run) })
	watching.Go(func() { s.goesOn(ctx, "sending the events", s.hub.runEvents) })
	watching.Go(func() { s.knowConsoles(ctx) })
	watching.Go(func() {
		retry.Every(ctx, lookSeedings, func() {
			s.caught("looking at copies", func() {
				if s.seedings.underWay() || s.c.Seeding() {
					s.lookAtSeedings(ctx)
				}
			})
		})
	})
	defer func() { cancel(); watching.Wait(); s.awaitRequests() }()
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.ServeTLS(admission.Listener{Listener: l, Places: s.places}, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// goesOn runs f until ctx is done, and again after a pause where f panics.
func (s *Server) goesOn(ctx context.Context, what string, f func(context.Context)) {
	retry.Every(ctx, lookEvents, func() { s.caught(what, func() { f(ctx) }) })
}

// caught calls f, and logs its panic: the agent is in this process.
func (s *Server) caught(what string, f func()) {
	defer func() {
		if r := recover(); r != nil {
			s.c.Logger.Error("background work panicked", "in", what, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// begin counts a request, unless the server ends. The caller calls running.Done at its end.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// awaitRequests lets no request begin any more and waits for the end of those under way, whose contexts are done.
func (s *Server) awaitRequests() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.ending)
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Counts are what the port has now, and what it has counted since the start.
type Counts struct {
	Refused  uint64 // connections
	Sessions int    // logged in now
	Limits   map[string]uint64
	Streams  int    // of events, now
	Dropped  uint64 // streams that ended because their reader was slow
}

// Counts returns what the port has now, and what it has counted. Limits has each limit of sessions, by its name.
func (s *Server) Counts() Counts {
	return Counts{
		Refused: s.places.Refused() + s.strangers.handshakes.Refused(), Sessions: s.sessions.count(), Limits: s.sessions.refused(), Streams: s.hub.open(), Dropped: s.hub.dropped.Load(),
	}
}

// Package listener is the address that clients use. It opens the session of each client that has proved who it is
// (package login) on the replica to which the routes lead, relays the PostgreSQL protocol between the two, and has a
// session continue elsewhere when its server is lost.
//
// It owns the client ports, cancel keys, the pool of backends, and the answer gate: no byte that the local PostgreSQL
// produced as primary is passed after the gate's deadline. It must not know the quorum store, certificates between
// nodes, or how a replica is reached: Config brings functions for those, and routes arrive as immutable ag.Routes.
//
// Start reading at open.go (the opening of a session), then session.go and relay.go. Package passage has what becomes
// of each chunk of bytes. loop.go and loopsession.go are the same relay for sessions on event loops, many on one
// thread; offload.go hands them to the kernel. leave.go and continue.go have a session leave its server and go on at
// another one.
package listener

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/sharedquery"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/known"
	"github.com/coteriedb/coterie/internal/listener/lag"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/ports"
	"github.com/coteriedb/coterie/internal/listener/release"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// Server is the listener of one node.
type Server struct {
	cfg            Config
	log            *slog.Logger
	ports          ports.Set
	logins         *login.Logins
	attempts       attempts.Set      // to open a session on a replica
	flushes        *admission.Budget // statements that empty the pool
	counts         counters.Counters
	pool           pool.Pool
	drain          atomic.Pointer[passage.Drain] // nil: no drain
	inquirer       inquiry.Inquirer[*session]
	readerPatience time.Duration
	rules          underway.Rules              // by which sessions go on at another server
	flushed        sharedquery.Query[ag.LSN]   // how far the local PostgreSQL has flushed
	leads          sharedquery.Query[struct{}] // whether this node still leads
	lag            *lag.Judge                  // how far copies are behind

	loops        atomic.Pointer[[]*loop] // nil: no loops, or not yet
	offloadedNow offload.Watch           // offloaded sessions
	starting     chan struct{}           // holds a token for each session that the local server is starting
	order        *release.Order          // of sessions that have left their server

	life context.Context // ends when the server must stop at once
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // accept loops, clients, relayed sessions

	mu       sync.Mutex
	closing  bool                   // guarded by mu, as are all fields below
	lastID   uint64                 //
	sessions map[uint64]*session    // open sessions
	unserved map[*client]struct{}   // whose session has left its server and has no other one yet
	keys     map[CancelKey]*session // minted keys
	held     chan struct{}          // not nil while HoldNew is in force; closed at its end
	closed   chan struct{}          // closed when closing begins
}

// New opens the listen addresses; Serve accepts on them.
func New(cfg Config) (*Server, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:            full,
		log:            full.Logger,
		sessions:       make(map[uint64]*session),
		unserved:       make(map[*client]struct{}),
		keys:           make(map[CancelKey]*session),
		closed:         make(chan struct{}),
		starting:       make(chan struct{}, full.Limits.Starting),
		readerPatience: readerPatience,
		flushes:        admission.NewBudget(eachFlush, allFlushes, maxFlushers),
	}
	s.order = release.New(s.closed)
	s.rules.Continuity, s.rules.Replay = full.Continuity, full.Replay
	s.pool.Config = pool.Config{
		Size: full.Limits.PoolSize, Ahead: full.Limits.PoolAhead, Unused: pool.Unused, Oldest: pool.Oldest, Answer: pool.Answer,
		Open: s.openBackend, Background: s.background, Log: s.log,
	}
	s.flushed.Do, s.flushed.Run, s.flushed.Within = shelteredQuery(s, "asking how far the server has flushed", full.FlushLSN), s.wg.Go, lag.QueryTimeout
	s.leads.Do = shelteredQuery(s, "asking whether this node leads", func(ctx context.Context) (struct{}, error) { return struct{}{}, full.Confirm(ctx) })
	s.leads.Run, s.leads.Within = s.wg.Go, lag.QueryTimeout
	s.lag = lag.New(lag.Config{
		Routes: func() *ag.Routes { return s.cfg.Routes() }, Position: full.Position, Run: s.wg.Go, Log: s.log,
		Shelter: func(q func(context.Context) (lag.Progress, error)) func(context.Context) (lag.Progress, error) {
			return shelteredQuery(s, "asking how far the primary is", q)
		},
	})
	s.life, s.stop = context.WithCancelCause(context.Background())
	s.logins = login.New(s.loginConfig())
	s.setInquirer()
	s.SetRules(full.Rules)
	s.ports.Log, s.ports.Accept = s.log, s.acceptNamed
	if err := errors.Join(s.ports.Listen(s.life, full.ReadWrite, false), s.ports.Listen(s.life, full.ReadOnly, true)); err != nil {
		s.ports.Close()
		return nil, err
	}
	return s, nil
}

// setInquirer sets how sessions are asked for their states.
func (s *Server) setInquirer() {
	i, tick := &s.inquirer, s.cfg.keepTick
	i.Life, i.Closed, i.Sheltered, i.Panicked = s.life, s.closed, s.sheltered, errInternal.Error()
	i.Times = known.Times{Tick: cmp.Or(tick, known.Tick), Pause: cmp.Or(tick, known.PauseMin), Idle: cmp.Or(tick, known.Idle)}
	i.Continues, i.Draining = s.rules.Continues, func() bool { return s.drain.Load() != nil }
	i.Local = s.localSessions
	i.Followed = func() []*session { return s.where(func(x *session) bool { return x.work.Known.Follows }) }
	i.Rescued = func(x *session, f func()) {
		defer x.rescue("keeping its state")
		f()
	}
}

// loginConfig returns what logins need of this listener.
func (s *Server) loginConfig() login.Config {
	cfg := &s.cfg
	l := login.Config{
		Limits: login.Limits{
			PreAuthTime: cfg.Limits.PreAuthTime, StartupPacket: cfg.Limits.StartupPacket, Connections: cfg.Limits.Connections, PerAddress: cfg.Limits.PerAddress,
			PreAuth: cfg.Limits.PreAuth, Waiting: cfg.Limits.Waiting, WrongCancels: cfg.Limits.WrongCancels, FailureDelay: cfg.Limits.FailureDelay,
			BackendHandshake: cfg.Limits.BackendHandshake, ShutdownMessage: cfg.Limits.ShutdownMessage,
		},
		Life: s.life, Log: s.log, Counts: &s.counts, Certificate: cfg.Certificate, ClientCAs: cfg.ClientCAs, CheckClient: cfg.CheckClient,
		Routes: func() *ag.Routes { return cfg.Routes() }, Changed: cfg.Changed, Holding: s.holding, Removed: cfg.Removed, Attempts: &s.attempts,
		Verifier: func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
			return cfg.Verifier(ctx, id, user)
		},
		Defaults: cfg.Defaults, Guarantees: s.guarantees(), Console: cfg.Console, ConsoleRole: cfg.ConsoleRole,
		Node: cfg.Node, Cancel: s.cancelHere, ForwardCancel: cfg.ForwardCancel,
		ConnectWait: func() time.Duration { return cfg.ConnectWait }, MockSecret: cfg.MockSecret, AuthStaleness: cfg.AuthStaleness, AllowPlainMD5: cfg.AllowPlainMD5,
		Open: s.open,
	}
	if cfg.Position != nil {
		l.Near = s.lag.Within
	}
	return l
}

// guarantees returns how far reads can be trusted here.
func (s *Server) guarantees() startup.Guarantees {
	return startup.Guarantees{Durable: s.cfg.Durable != nil, Confirmed: s.cfg.Confirm != nil}
}

// Addrs returns the addresses in use, with the real ports where the configuration has port 0.
func (s *Server) Addrs() (readWrite, readOnly []net.Addr) { return s.ports.Addrs() }

// Serve accepts clients until ctx is done or Shutdown is called. It then ends what is open, and returns when nothing
// runs any more.
func (s *Server) Serve(ctx context.Context) error {
	if !s.enter() {
		return errors.New("listener: Serve after Shutdown")
	}
	if log := s.cfg.Log; log != nil {
		log.OnSuspicion(s.reclaimGuarded)
	}
	stopLoops, err := s.startLoops()
	if err != nil {
		s.beginClosing()
		s.wg.Done()
		return err
	}
	defer stopLoops() // once they carry no session
	for _, p := range s.ports.Fixed() {
		s.wg.Go(func() { s.accept(p) })
	}
	s.wg.Go(s.moveReaders)
	if s.cfg.Continuity != nil {
		s.background("keeping the states of sessions", s.inquirer.KeepKnown)
	}
	if s.cfg.Position != nil {
		s.wg.Go(s.keepAge)
	}
	s.wg.Done()
	select {
	case <-ctx.Done():
		s.stopNow(context.Cause(ctx))
	case <-s.closed:
	}
	s.wg.Wait()
	return nil
}

// background runs f in a goroutine that serves no client. A panic in it ends no session.
func (s *Server) background(what string, f func()) { s.wg.Go(func() { s.sheltered(what, f) }) }

// sheltered runs f. A panic in it is logged and ends nothing else: all clients of the node are in this process, and so
// is the agent.
func (s *Server) sheltered(what string, f func()) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("background work panicked", "in", what, "panic", r, "stack", string(debug.Stack()))
			s.counts.Reject("panic")
		}
	}()
	f()
}

// errInternal is the error of a function that panicked.
var errInternal = errors.New("internal error of the listener; the node's log has the details")

// shelteredQuery returns a query that fails where q panics.
func shelteredQuery[T any](s *Server, what string, q func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (value T, err error) {
		err = errInternal
		s.sheltered(what, func() { value, err = q(ctx) })
		return value, err
	}
}

// ageEvery is how often the primary is asked. The age of a copy is known with about twice that precision.
const ageEvery = 5 * time.Second

// keepAge keeps the age of this node's copy up to date until the server begins to close.
func (s *Server) keepAge() {
	for {
		s.sheltered("comparing the copy with the primary", func() { s.lag.Look(s.life) })
		select {
		case <-time.After(boottime.UntilNext(ageEvery)):
		case <-s.closed:
			return
		}
	}
}

// Age returns how old this node's copy may be: it holds all that the primary had made durable that long ago, or more.
// While the primary answers, it is at most some seconds plus the copy's lag.
func (s *Server) Age() time.Duration { return s.lag.Age() }

// enter adds the caller to the wait group, unless closing has begun.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.wg.Add(1)
	}
	return !s.closing
}

// Shutdown stops accepting, ends idle sessions at once and the others as they become idle. When ctx is done it ends
// all of them.
func (s *Server) Shutdown(ctx context.Context) {
	s.beginClosing()
	gone := make(chan struct{})
	go func() { defer close(gone); s.wg.Wait() }()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		s.endWhere(stopping, func(x *session) bool { return x.work.Idle() })
		select {
		case <-gone:
			s.stopNow(context.Canceled)
			return
		case <-ctx.Done():
			s.stopNow(context.Cause(ctx))
			<-gone
			return
		case <-t.C:
		}
	}
}

var stopping = ending{reason: "stopping", why: "the listener of this node is stopping"}

func (s *Server) beginClosing() {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	if first {
		close(s.closed)
	}
	s.mu.Unlock()
	s.ports.Close()
	s.pool.Close()
}

func (s *Server) stopNow(why error) {
	s.beginClosing()
	s.endWhere(stopping, func(*session) bool { return true })
	s.stop(why)
}

// accept runs until its port is closed.
func (s *Server) accept(p ports.Port) {
	if s.accepts(p) {
		<-p.Acceptor.Stopped()
		return
	}
	pause := 5 * time.Millisecond
	for {
		conn, err := p.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the client has gone
			s.log.Warn("accept a client", "error", err)
			select {
			case <-s.closed:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.counts.Accepted.Add(1)
		if !s.enter() {
			_ = conn.Close()
			return
		}
		go func() {
			defer s.wg.Done()
			s.logins.Accept(conn, p.ReadOnly)
		}()
	}
}

// SetRules replaces the rules for logins from now on.
func (s *Server) SetRules(rules []hba.Rule) { s.logins.SetRules(rules) }

// CheckPassword checks the password or the certificate of a user of the console. Rules, roles and verifiers are those
// of a login over TLS to the database coterie, and an attempt that fails delays the next one there and here. A rule by
// which nothing is asked for lets nobody in without the password. The error is a *pgwire.Error, or that of ctx.
func (s *Server) CheckPassword(ctx context.Context, l PasswordLogin) (Role, error) {
	return s.logins.CheckPassword(ctx, l)
}

// HoldNew makes new read-write logins wait, and those of readers that would come to this node's primary, for at most
// ConnectWait, until it is called with false. Other nodes' listeners open no session on this node's primary meanwhile.
func (s *Server) HoldNew(hold bool) {
	if hold {
		s.pool.Flush("held")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case hold && s.held == nil:
		s.held = make(chan struct{})
	case !hold && s.held != nil:
		close(s.held)
		s.held = nil
	}
}

// holding returns a channel that is closed when logins on the primary may continue; nil if they may now.
func (s *Server) holding() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// leaveTimeout bounds the wait for the clients of an address that leaves this node.
const leaveTimeout = 500 * time.Millisecond

// SetNamed makes the listener serve read-write clients on exactly these addresses, beside those of its configuration.
// An address is host:port or the path of a Unix socket, and need not exist on this machine yet. Sessions of an
// address that is removed continue. The result has an error for each address that could not be opened; the others are
// served.
func (s *Server) SetNamed(addresses []string) map[string]error {
	return s.ports.SetNamed(s.life, addresses)
}

// acceptNamed accepts clients on one of them.
func (s *Server) acceptNamed(p ports.Port) error {
	if !s.enter() {
		return errors.New("the listener is stopping")
	}
	defer s.wg.Done()
	s.wg.Go(func() { s.accept(p) })
	return nil
}

// LeaveAddress ends the sessions of clients connected to a local address that is about to leave this machine, those
// that have no server at the moment, too. It waits a moment for their final messages to be sent.
func (s *Server) LeaveAddress(ctx context.Context, a netip.Addr, why string) {
	on := func(raw net.Conn) bool {
		t, ok := raw.LocalAddr().(*net.TCPAddr)
		return ok && t.AddrPort().Addr().Unmap().WithZone("") == a
	}
	mine := func(x *session) bool { return !x.relayed && on(x.raw) }
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	for {
		left := 0
		s.mu.Lock()
		for c := range s.unserved {
			if on(c.Raw) {
				left++
				c.giveUp(errors.New(why))
			}
		}
		for _, x := range s.sessions {
			if mine(x) {
				left++
			}
		}
		s.mu.Unlock()
		if left == 0 {
			return
		}
		s.endWhere(ending{reason: "address", why: why}, mine) // also one that has just found a server
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	st := s.counts.Stats()
	taken := s.logins.Taken()
	s.mu.Lock()
	st.Open, st.PreAuth, st.Waiting = len(s.sessions), taken.PreAuth, taken.Waiting
	s.mu.Unlock()
	st.Pool = s.pool.Stats()
	return st
}

// Sessions lists the open sessions, the oldest first.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	list := make([]SessionInfo, 0, len(s.sessions))
	for _, x := range s.sessions {
		list = append(list, x.info())
	}
	s.mu.Unlock()
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list
}

// ContinuityGroup is how many sessions have the same outlook.
type ContinuityGroup = continuity.Group

// Prospect is what would become of them in an event.
type Prospect = continuity.Prospect

// maxGroups bounds what Continuity returns, as a report of a node is bounded: the groups beyond it are joined.
const maxGroups = 250

// Continuity returns what would become of the sessions of the clients that are connected here, in a planned failover
// and when their server dies. It asks nobody.
func (s *Server) Continuity() []ContinuityGroup {
	list := s.where(func(x *session) bool { return !x.relayed && x.ended.Load() == nil })
	outlooks := make([]continuity.Outlook, len(list))
	for i, x := range list {
		outlooks[i] = x.work.Outlook(x.replica, x.user)
	}
	return continuity.Groups(outlooks, maxGroups)
}

// epoch returns the epoch of the routes in force; 0 if there are none.
func (s *Server) epoch() ag.Epoch {
	if r := s.cfg.Routes(); r != nil {
		return r.Epoch
	}
	return 0
}

// hasLeft reports whether the session has left its server, or has ended.
func (x *session) hasLeft() bool {
	select {
	case <-x.moving.left:
		return true
	case <-x.cut:
		return true
	default:
		return false
	}
}

package listener

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/ports"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// client is what a session has of its client, as long as one continues another: its login, and what waits for a server.
type client struct {
	srv *Server
	log *slog.Logger
	login.Proved
	unserved context.Context         // while its session has no server; ends when it need not wait for one any more
	giveUp   context.CancelCauseFunc // ends unserved
}

// clientOf returns the client that a login has proved.
func (s *Server) clientOf(p login.Proved) *client { return &client{srv: s, log: s.log, Proved: p} }

// open opens the session of a client on a replica, and has it carried. again reports whether an error may be temporary.
func (s *Server) open(ctx context.Context, l *login.Client, r routing.Route) (again bool, err error) {
	c := s.clientOf(l.Proved)
	x, err := c.connect(ctx, r, l.Send)
	if err != nil {
		_, final := pgwire.AsError(err)
		return !final && !errors.Is(err, errClient), err
	}
	release := l.Leaves()
	s.wg.Add(1)
	c.carry(x, func() { release(); s.wg.Done() })
	return false, nil
}

// startTurn is how long a session's turn to start lasts at most. One that takes longer waits for a lock or a disk,
// and keeps no processor from the others.
const startTurn = time.Second

// startOne waits for a turn to have the local server start a session, in order of arrival. After a failover all
// clients connect at once, and a server that starts hundreds of processes at the same time finishes none of them
// soon. done ends the turn.
func (s *Server) startOne(ctx context.Context) (done func(), err error) {
	select {
	case s.starting <- struct{}{}:
	default:
		s.counts.Queued.Add(1)
		select {
		case s.starting <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("the server was starting %d other sessions all the time: %w", cap(s.starting), ctx.Err())
		}
	}
	end := sync.OnceFunc(func() { <-s.starting })
	late := time.AfterFunc(startTurn, end)
	return func() { late.Stop(); end() }, nil
}

// errClient is a failure of the client's side while its session was being opened.
var errClient = errors.New("client lost")

// connect opens the session on the replica of the route and sends the greeting. An error that is neither a pgwire.Error
// nor errClient may be temporary, and was not sent to the client.
func (c *client) connect(ctx context.Context, r routing.Route, send func([]byte) error) (*session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempts.Attempt{Replica: r.ID, Epoch: r.Epoch, Intent: c.Intent, Cancel: cancel}
	defer c.srv.attempts.Abandon(a)
	if !c.srv.attempts.Begin(a) {
		return nil, attempts.ErrMoved
	}
	ctx, stopTimer := context.WithTimeout(ctx, c.srv.cfg.Limits.BackendHandshake)
	defer stopTimer()
	lease := c.reusableBackend(ctx, r)
	x, greeting, err := c.join(ctx, r, lease)
	if err != nil {
		return nil, err
	}
	if !c.srv.activate(a, x) {
		_ = x.backend.Close()
		return nil, attempts.ErrMoved
	}
	if lease != nil && x.backendFrom != counters.BackendReused { // reused backends return to the pool
		defer c.srv.pool.NoteLogin(lease)
	}
	if err := send(x.mint(greeting)); err != nil {
		x.close()
		return nil, errClient
	}
	c.logOpened(x, r)
	return x, nil
}

// logOpened logs the session.
func (c *client) logOpened(x *session, r routing.Route) {
	c.log.Info("session opened", "session", x.id, "user", x.user, "database", x.database, "client", x.addr,
		"tls", x.tls, "tls_name", x.asked, "tls_identity", x.identity, "intent", x.intent, "replica", x.replica, "epoch", x.epoch, "pid", x.pid, "fell_back", r.FellBack)
}

// join joins the client to a backend: a pooled one that fits, or a new one.
func (c *client) join(ctx context.Context, r routing.Route, lease *pool.Backend) (*session, opening.Greeting, error) {
	own := BackendHello{User: c.Start.User, Database: c.Start.Database, ClientAddr: c.Address(), Intent: c.Intent, Epoch: r.Epoch}
	var warm *pool.Backend
	if lease != nil {
		own = lease.Hello
		warm = c.srv.pool.Take(lease)
	}
	var conn net.Conn
	if warm != nil {
		conn = warm.Conn
	} else {
		if r.Local {
			done, err := c.srv.startOne(ctx)
			if err != nil {
				return nil, opening.Greeting{}, err
			}
			defer done()
		}
		var err error
		if conn, err = c.srv.cfg.Backend(ctx, r.ID, own); err != nil {
			return nil, opening.Greeting{}, fmt.Errorf("reach replica %s: %w", r.ID, err)
		}
	}
	x := c.newSession(r, conn)
	x.setInput(r.Local, ctx.Done())
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	g, err := c.greet(x, warm, own.ClientAddr)
	if err == nil && x.work.Replicates {
		if bad := passage.CheckGreeting(&x.work, g.Bytes); bad != nil {
			err = bad
		}
	}
	if err != nil || !unhook() {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if r.Local {
			err = c.srv.makeRoom(err)
		}
		return nil, g, err
	}
	if warm != nil {
		x.adoptBackend(warm, g)
		return x, g, nil
	}
	x.pid, x.realKey = g.PID(), g.Key
	x.offerBackend(lease, g)
	return x, g, nil
}

// adoptBackend gives the session a pooled backend.
func (x *session) adoptBackend(b *pool.Backend, g opening.Greeting) {
	x.pid, x.realKey, x.backendFrom = g.PID(), g.Key, counters.BackendAhead
	if b.Used {
		x.backendFrom = counters.BackendReused
	}
	x.offerBackend(b, g)
}

// greet returns the greeting of the session's backend. That of a pooled backend passes the gate now.
func (c *client) greet(x *session, warm *pool.Backend, addr string) (g opening.Greeting, err error) {
	if warm == nil {
		return opening.Start(x.backend, x.in, c.packet(addr, x.replica), x.replica)
	}
	if x.gate != nil {
		err = x.gate.Pass()
	}
	return warm.Greeting.Copy(), err
}

// packet returns the startup packet of the client's session on that replica; addr is the client's address for the
// server.
func (c *client) packet(addr string, id ag.ReplicaID) []byte {
	tls := ""
	if c.TLS != nil {
		tls = tlsName(c.TLS.Version)
	}
	start := c.Start
	if c.srv.cfg.NameClient && start.Replication == pgwire.ReplicationNone { // standbys are known by that name
		start = start.WithClientName(addr)
	}
	back := c.takesBack(id)
	h := hello.Hello{ClientAddr: addr, TLS: tls, Intent: c.Intent, Reads: c.Start.Reads, Moves: back, Outlives: back}
	return start.Packet(h.Parameters(id)...)
}

// newSession returns the session of the client on that route, which has no backend but that connection.
func (c *client) newSession(r routing.Route, backend net.Conn) *session {
	x := &session{
		srv: c.srv, user: c.Start.User, database: c.Start.Database, addr: c.Address(), intent: c.Intent,
		replica: r.ID, epoch: r.Epoch, since: time.Now(), client: c.Conn, raw: c.Raw, backend: backend,
		fellBack: r.FellBack, entry: r.Entry, cut: make(chan struct{}), moving: newMoving(c),
	}
	if c.TLS != nil {
		x.tls, x.asked = tlsName(c.TLS.Version), c.TLS.ServerName
		if len(c.TLS.VerifiedChains) > 0 {
			x.identity, _ = clientcert.Name(c.TLS.PeerCertificates[0])
		}
	}
	x.work.Rules, x.work.Promoted, x.work.OnPrimary = &c.srv.rules, x.promoted, c.Intent == ag.ReadWrite || r.FellBack
	x.work.Replicates = c.Start.Replication == pgwire.ReplicationLogical
	x.longKey = c.Start.Minor >= 2
	x.way.Confirmation.Rules, x.way.Confirmation.Reads = c.srv.answerRules(), c.Start.Reads
	x.work.Requests.Texts = x.work.PreparedText
	x.work.Known.Unchanged.Brief = r.Local
	x.work.Known.Follows, x.work.Application = c.mayOutlive(), c.Start.Setting(underway.ApplicationName)
	return x
}

// answerRules returns by which rules answers are confirmed here.
func (s *Server) answerRules() gate.Rules { return gate.Rules{Log: s.cfg.Log, Strict: s.cfg.Strict} }

// carry has a loop or goroutines carry the session until it ends, or is continued by another one. finished is called
// once, when the last has ended.
func (c *client) carry(x *session, finished func()) {
	if x.toLoop(finished) {
		return
	}
	if !x.relayed {
		c.srv.counts.Carry(PathGoroutines)
	}
	go func() { // on a new stack: this one has grown with the handshake
		moved := false
		func() {
			defer x.rescue("end") // of the two directions each has its own
			moved = x.relay()
		}()
		if moved {
			c.carryOn(x, finished)
			return
		}
		finished()
	}()
}

// carryOn continues a session that has left its backend.
func (c *client) carryOn(x *session, finished func()) {
	var y *session
	func() {
		defer func() {
			if r := recover(); r != nil {
				c.log.Error("session panicked", "session", x.id, "direction", "move", "panic", r, "stack", string(debug.Stack()))
				c.lose(x, errors.New("internal error of the listener"))
			}
			c.noServer(false)
		}()
		y = c.again(x)
	}()
	if y == nil {
		finished()
		return
	}
	c.carry(y, finished)
}

// accepts has a loop accept the clients of the port. It reports false where a goroutine has to: no loop runs, or no
// login could be completed on one.
func (s *Server) accepts(p ports.Port) bool {
	l := s.firstLoop()
	listener, ok := p.Listener.(*net.TCPListener)
	if l == nil || !ok || s.cfg.FingerprintSession == nil {
		return false
	}
	a := p.Acceptor
	return a.Open(&l.Loop, s.log, listener, func(fd int, from netip.AddrPort) bool {
		s.counts.Accepted.Add(1)
		if !s.enter() {
			return false
		}
		l.logins.NewClient(socket.NewBare(fd), from, net.TCPAddrFromAddrPort(a.LocalOf(fd)), p.ReadOnly).Begin()
		return true
	})
}

// fits returns how the session of a client whose login is on the loop is opened on a pooled backend of that route; nil:
// none would fit.
func (l *loop) fits(st *login.LoopClient, r routing.Route) (enter func(LoginFingerprint) bool) {
	if l.srv.drain.Load() != nil {
		return nil
	}
	e := &entering{client: l.srv.clientOf(st.Proved), login: st, loop: l, route: r}
	if e.wants = e.wantedBackend(r); !l.srv.pool.Has(e.wants.Packet) {
		return nil
	}
	return e.enter
}

// entering is a client whose login a loop completes.
type entering struct {
	*client
	login *login.LoopClient
	loop  *loop
	route routing.Route // where its session goes
	wants *pool.Backend // the backend that would fit, without the fingerprint
}

// enter opens the session on a pooled backend. It reports false if there is none that fits.
func (e *entering) enter(m LoginFingerprint) bool {
	c, s, r := e.client, e.srv, e.route
	a := &attempts.Attempt{Replica: r.ID, Epoch: r.Epoch, Intent: c.Intent, Cancel: func(error) {}}
	if !s.attempts.Begin(a) {
		return false
	}
	defer s.attempts.Abandon(a)
	setFingerprint(e.wants, m, c.Start)
	b := s.pool.TakeFresh(e.wants)
	if b == nil {
		return false
	}
	x := c.newSession(r, b.Conn)
	x.setGate(true, nil)
	if x.gate != nil {
		if open, err := x.gate.Look(); !open || err != nil {
			s.pool.Drop(b, "gate")
			return false
		}
	}
	g := b.Greeting.Copy()
	x.adoptBackend(b, g)
	if !s.activate(a, x) {
		s.pool.Drop(b, "ended")
		return false
	}
	e.opened(x, x.mint(g))
	return true
}

// opened hands the session and its greeting to the least loaded loop.
func (e *entering) opened(x *session, greeting []byte) {
	s := e.srv
	conn, size, release := e.login.Leaves()
	e.logOpened(x, e.route)
	finished := func() { release(); s.wg.Done() }
	client, backend, err := takeBoth(conn, x.backend)
	if err != nil { // out of descriptors
		x.close()
		finished()
		return
	}
	socket.Consume(client, size)
	p := x.attach(s.leastLoaded(), client, backend, finished)
	begin := p.first(func() { p.begin(pgwire.AppendAuth(nil, auth.OK, nil), greeting) })
	if p.loop == e.loop {
		begin()
		return
	}
	p.loop.Post(begin)
}

// fingerprintOf asks for the fingerprint of a login from a goroutine. Without a session for queries it asks the server
// on another one (Config.Fingerprint).
func (s *Server) fingerprintOf(ctx context.Context, user, database string) (LoginFingerprint, error) {
	if l := s.firstLoop(); l != nil && s.cfg.FingerprintSession != nil {
		type reply struct {
			fingerprint LoginFingerprint
			ok          bool
		}
		there := make(chan reply, 1)
		l.Post(func() {
			answer := func(m LoginFingerprint, ok bool) { there <- reply{m, ok} }
			if !l.fingerprints.Ask(user, database, answer) {
				answer(LoginFingerprint{}, false)
			}
		})
		select {
		case r := <-there:
			if r.ok {
				return r.fingerprint, nil
			}
		case <-ctx.Done():
			return LoginFingerprint{}, context.Cause(ctx)
		}
	}
	return s.cfg.Fingerprint(ctx, user, database)
}

// reusableBackend returns the description of a pooled backend that would fit the client; nil if it needs one of its
// own. The server is asked after the client came, so that earlier changes are seen.
func (c *client) reusableBackend(ctx context.Context, r routing.Route) *pool.Backend {
	w := &c.srv.pool
	if c.srv.cfg.Fingerprint == nil || !r.Local || c.Start.Replication != pgwire.ReplicationNone || c.srv.drain.Load() != nil {
		return nil
	}
	b := c.wantedBackend(r)
	ctx, cancel := context.WithTimeout(ctx, w.Answer)
	defer cancel()
	m, err := c.srv.fingerprintOf(ctx, c.Start.User, c.Start.Database)
	if err != nil {
		c.log.Debug("no pooled backend: the server did not tell the fingerprint of the login", "user", c.Start.User, "error", err)
		return nil
	}
	if m.Exclusive {
		return nil
	}
	setFingerprint(b, m, c.Start)
	return b
}

// wantedBackend returns that description without the fingerprint, which has to be asked for afterwards.
func (c *client) wantedBackend(r routing.Route) *pool.Backend {
	hello := BackendHello{User: c.Start.User, Database: c.Start.Database, ClientAddr: c.SharedAddress(), Intent: c.Intent, Epoch: r.Epoch}
	return &pool.Backend{Kind: pool.Kind{Packet: string(c.packet(hello.ClientAddr, r.ID)), Epoch: r.Epoch}, Replica: r.ID, Hello: hello, Generation: c.srv.pool.Generation()}
}

// setFingerprint completes the description of a backend.
func setFingerprint(b *pool.Backend, m LoginFingerprint, start *startup.Message) {
	b.Fingerprint, b.NotReusable = m.Text, m.NotReusable || start.FixesRole()
}

// makeRoom drops pooled backends if the server refused a session for lack of connection slots, so that the next try
// may succeed.
func (s *Server) makeRoom(err error) error {
	bad, ok := pgwire.AsError(err)
	if !ok || bad.Reason != "postgresql" || bad.Code != pgwire.StateTooMany {
		return err
	}
	if !s.pool.MakeRoom() {
		return err
	}
	return fmt.Errorf("start a session: %s", bad.Message)
}

// openBackend starts the session of a backend on the server. If the epoch ends meanwhile, so does the pool's
// generation, and put drops the backend.
func (s *Server) openBackend(b *pool.Backend) error {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.Limits.BackendHandshake)
	defer cancel()
	conn, err := s.cfg.Backend(ctx, b.Replica, b.Hello)
	if err != nil {
		return err
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	in := bufio.NewReader(conn)
	b.Conn, b.Born = conn, time.Now()
	if b.Greeting, err = opening.Start(conn, in, []byte(b.Packet), b.Replica); err == nil && in.Buffered() > 0 {
		err = errors.New("it says more than its greeting")
	}
	if err != nil {
		_ = conn.Close()
	}
	return err
}

// takeBoth returns a descriptor of each socket that only the caller owns, and closes the connections. The end of a
// session sets a deadline on them; Go watches them from then on, and they can only be duplicated.
func takeBoth(client, backend net.Conn) (clientFD, backendFD int, err error) {
	if clientFD, err = socket.Take(client); err != nil {
		return -1, -1, err
	}
	if backendFD, err = socket.Take(backend); err != nil {
		_ = unix.Close(clientFD)
		return -1, -1, err
	}
	_, _ = client.Close(), backend.Close() // those that were duplicated
	return clientFD, backendFD, nil
}

// begin is start for a session whose client has not got its greeting yet.
func (p *loopSession) begin(greeting ...[]byte) {
	p.start()
	if p.phase != relaying {
		return
	}
	if err := p.toClient(slices.Concat(greeting...)); err != nil {
		p.terminate(p.x.passFailed(errClient))
	}
	p.woken()
	p.updateInterest()
}

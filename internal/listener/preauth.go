package listener

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/ports"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

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

package listener

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/ports"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// maxPeeked is the longest startup packet in bytes that a loop reads. Those of usual drivers have 100 to 300.
const maxPeeked = 1 << 10

// Startup packets that a loop reads although it cannot complete their logins, of one address and of all. Beyond it a
// goroutine reads them, so that no flood of them takes the loop's time from the sessions that it carries.
var (
	eachPeeks = admission.Rate{PerSecond: 200, Burst: 400}
	allPeeks  = admission.Rate{PerSecond: 2000, Burst: 4000}
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
		conn := socket.NewBare(fd)
		conn.Remote, conn.Local, conn.LastMessage = net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(a.LocalOf(fd)), outOfFilesMessage
		l.accepted(s.newClient(conn, p.ReadOnly), conn)
		return true
	})
}

// preauthConn is an accepted connection whose login is still handled on the event loop. The loop completes the login
// itself if nothing can block: no TLS, local server, a "trust" rule, and a pooled backend with the same startup
// packet. Any other login is handed to a goroutine (handOff), which reads the startup packet again. Until the login
// is complete nothing is taken from the socket and nothing is written, so handing off is always possible, and
// refusals are sent by that goroutine only.
type preauthConn struct {
	c     *client
	loop  *loop
	conn  *socket.Bare
	size  int           // of the startup packet, in bytes
	wants *pool.Backend // the backend that would fit, without the fingerprint
	route routing.Route // where the session goes
	late  *time.Timer   // ends the wait for the startup packet
	gone  bool          // the login is complete or handed off
}

// outOfFilesMessage is sent to a client whose login cannot be handed off for want of descriptors.
var outOfFilesMessage = outOfFiles().Encode()

// accepted begins the login of a client.
func (l *loop) accepted(c *client, conn *socket.Bare) {
	s := l.srv
	st := &preauthConn{c: c, loop: l, conn: conn}
	s.preauth.Hold(c.slot, false, func() { l.Post(st.guarded(st.handOff)) })
	l.preauth[st] = struct{}{}
	defer st.rescue()
	if c.rejected = !c.enterPreAuth(true); c.rejected {
		st.handOff()
		return
	}
	c.waits()
	st.late = time.AfterFunc(s.cfg.Limits.PreAuthTime, func() { l.Post(st.guarded(st.handOff)) })
	if s.life.Err() != nil || l.Watch(conn.Descriptor(), st, unix.EPOLL_CTL_ADD, unix.EPOLLIN|unix.EPOLLONESHOT) != nil {
		st.handOff()
	}
}

// guarded wraps f for the loop. A panic in it ends this client only, and it does nothing once the login has left the
// loop.
func (st *preauthConn) guarded(f func()) func() {
	return func() {
		if st.gone {
			return
		}
		defer st.rescue()
		f()
	}
}

func (st *preauthConn) rescue() {
	if r := recover(); r != nil {
		st.c.log.Error("session panicked", "direction", "login", "panic", r, "stack", string(debug.Stack()))
		st.c.srv.counts.Reject("panic")
		if !st.gone {
			st.detach()
			_ = st.conn.Close()
			st.c.release()
			st.c.srv.wg.Done()
		}
	}
}

// detach takes the connection off the loop.
func (st *preauthConn) detach() {
	st.gone = true
	if st.late != nil {
		st.late.Stop()
	}
	delete(st.loop.preauth, st)
	if fd := st.conn.Descriptor(); st.loop.Watches(fd, st) {
		st.loop.Forget(fd)
	}
}

// handOff continues the login in a goroutine, which reads the startup packet again.
func (st *preauthConn) handOff() {
	st.detach()
	c, s := st.c, st.c.srv
	go func() {
		defer s.wg.Done()
		conn, err := st.conn.Watched()
		if err != nil {
			s.log.Warn("take in a client", "error", err)
			s.counts.Reject("descriptors")
			c.release()
			_ = st.conn.Close()
			return
		}
		c.raw, c.conn = conn, conn
		evicted := s.preauth.Hold(c.slot, true, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		c.rejected = c.rejected || evicted
		c.serve()
	}()
}

// Ready reads the startup packet.
func (st *preauthConn) Ready(uint32) { st.guarded(st.readStartup)() }

func (st *preauthConn) readStartup() {
	var packet []byte
	if st.c.srv.peeks.Spend(st.c.from.Key, 1, boottime.Now()) {
		packet = st.peek()
	}
	if packet == nil {
		st.handOff()
		return
	}
	start, bad := startup.Parse(packet)
	st.c.heard() // the next wait is not for the client
	if bad != nil || !st.simple(start) || !st.loop.fingerprints.Ask(start.User, start.Database, st.fingerprintCame) {
		st.handOff()
	}
}

// peek returns the StartupMessage without its length, in the loop's buffer. It is nil if the socket holds anything
// but one whole StartupMessage of at most maxPeeked bytes. The bytes stay in the socket.
func (st *preauthConn) peek() []byte {
	b := st.loop.Buf[:min(maxPeeked, st.c.srv.cfg.Limits.StartupPacket)+1]
	n, err := socket.Look(st.conn.Descriptor(), b)
	if err != nil || n < 8 || n == len(b) || int(binary.BigEndian.Uint32(b)) != n || binary.BigEndian.Uint32(b[4:])>>16 != 3 {
		return nil
	}
	st.size = n
	return b[4:n]
}

// simple reports whether the login can be completed here, as far as can be seen before the server has sent the
// fingerprint.
func (st *preauthConn) simple(start *startup.Message) bool {
	c := st.c
	s := c.srv
	c.start = start
	if start.Replication != pgwire.ReplicationNone || start.Minor > newestMinor || len(start.Unknown) > 0 || start.MaxLag > 0 || c.wantsConsole() || s.drain.Load() != nil {
		return false
	}
	set, known := s.defaultsCache.now(s, start.User, start.Database)
	if !known {
		return false
	}
	if c.intent = startup.IntentOf(c.readOnly, start, set); s.checkReads(start.Reads, c.intent) != nil || c.intent == ag.ReadOnly && set["coterie.max_lag"] != "" {
		return false
	}
	c.login.User, c.login.Database = start.User, start.Database
	if rules := *s.rules.Load(); slices.ContainsFunc(rules, asksAround) {
		return false
	} else if rule, ok := hba.Match(rules, c.login); !ok || rule.Method != hba.MethodTrust || rule.ClientCert != "" {
		return false
	}
	r, _, ok := s.pick(c.intent)
	if !ok {
		return false
	}
	if st.route = r; c.intent == ag.ReadOnly { // a writer is routed again: it may have to wait by then
		c.picked = &r
	}
	if !r.Local {
		return false
	}
	st.wants = c.wantedBackend(r)
	return s.pool.Has(st.wants.Packet)
}

// asksAround reports whether matching a rule needs the server's memberships or this machine's addresses.
func asksAround(r hba.Rule) bool {
	return r.SameHost || r.SameNet || hba.NeedsMemberships([]hba.Rule{r})
}

// fingerprintCame continues the login with the server's fingerprint; ok is false if there is none.
func (st *preauthConn) fingerprintCame(m LoginFingerprint, ok bool) {
	st.guarded(func() {
		if !ok || m.Exclusive || !st.enter(m) {
			st.handOff()
		}
	})()
}

// enter opens the session on a pooled backend. It reports false if there is none that fits.
func (st *preauthConn) enter(m LoginFingerprint) bool {
	c, s, r := st.c, st.c.srv, st.route
	if c.count() != nil {
		return false
	}
	a := &attempt{Route: r, intent: c.intent, cancel: func(error) {}}
	if !s.begin(a) {
		return false
	}
	defer s.abandon(a)
	setFingerprint(st.wants, m, c.start)
	b := s.pool.TakeFresh(st.wants)
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
	st.opened(x, x.mint(g))
	return true
}

// opened hands the session and its greeting to the least loaded loop.
func (st *preauthConn) opened(x *session, greeting []byte) {
	c, s := st.c, st.c.srv
	st.detach()
	c.leavePreAuth()
	s.counts.LoopLogins.Add(1)
	s.peeks.Succeeded(c.from.Key, 1)
	c.logOpened(x, st.route)
	finished := func() { c.release(); s.wg.Done() }
	client, backend, err := takeBoth(st.conn, x.backend)
	if err != nil { // out of descriptors
		x.close()
		finished()
		return
	}
	socket.Consume(client, st.size)
	p := x.attach(s.leastLoaded(), client, backend, finished)
	begin := p.first(func() { p.begin(pgwire.AppendAuth(nil, auth.OK, nil), greeting) })
	if p.loop == st.loop {
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
	if c.srv.cfg.Fingerprint == nil || !r.Local || c.start.Replication != pgwire.ReplicationNone || c.srv.drain.Load() != nil {
		return nil
	}
	b := c.wantedBackend(r)
	ctx, cancel := context.WithTimeout(ctx, w.Answer)
	defer cancel()
	m, err := c.srv.fingerprintOf(ctx, c.start.User, c.start.Database)
	if err != nil {
		c.log.Debug("no pooled backend: the server did not tell the fingerprint of the login", "user", c.start.User, "error", err)
		return nil
	}
	if m.Exclusive {
		return nil
	}
	setFingerprint(b, m, c.start)
	return b
}

// wantedBackend returns that description without the fingerprint, which has to be asked for afterwards.
func (c *client) wantedBackend(r routing.Route) *pool.Backend {
	hello := BackendHello{User: c.start.User, Database: c.start.Database, ClientAddr: c.sharedAddress(), Intent: c.intent, Epoch: r.Epoch}
	return &pool.Backend{Kind: pool.Kind{Packet: string(c.packet(hello.ClientAddr, r.ID)), Epoch: r.Epoch}, Replica: r.ID, Hello: hello, Generation: c.srv.pool.Generation()}
}

// setFingerprint completes the description of a backend.
func setFingerprint(b *pool.Backend, m LoginFingerprint, start *startup.Message) {
	b.Fingerprint, b.NotReusable = m.Text, m.NotReusable || start.FixesRole()
}

// sharedAddress returns the client's address in the form that the server gets if several clients may use the backend in
// turn: without a port.
func (c *client) sharedAddress() string {
	if c.login.Local {
		return "local"
	}
	return c.from.Host
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

// handOffAll hands every login off: the server stops at once, and the goroutines tell the clients.
func (l *loop) handOffAll() {
	for st := range l.preauth {
		st.guarded(st.handOff)()
	}
}

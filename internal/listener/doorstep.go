package listener

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// doorstep is a client that an event loop has taken in, until its first packet is there. What that asks for the loop gives by itself where
// it has to wait for nobody but the server's word on the mark: a session in clear, of the local server, by a rule that trusts the client, on
// a backend of its kind that waits (warm.go). Everybody else goes in (inside), to a goroutine that reads the packet again and does all that
// a login may need. Until the session is the client's nothing is taken from its socket and nothing is said, so going in is always possible,
// and no refusal is spoken from here.
type doorstep struct {
	c     *client
	loop  *loop
	conn  *bareConn
	size  int         // of the first packet
	wants *backend    // what a backend would have to be, but for the mark
	muted bool        // the session begins with warnings hidden
	route route       // where the session goes
	late  *time.Timer // ends the wait for the first packet
	gone  bool        // the client has its session, or is inside
}

// farewell is what a client hears that cannot go inside.
var farewell = outOfFiles().Encode()

// welcome takes a client in.
func (d *door) welcome(fd int, from netip.AddrPort) {
	s, l := d.srv, d.at
	conn := &bareConn{fd: fd, remote: net.TCPAddrFromAddrPort(from), local: net.TCPAddrFromAddrPort(d.localOf(fd)), farewell: farewell}
	c := s.newClient(conn, d.readOnly)
	st := &doorstep{c: c, loop: l, conn: conn}
	c.step = st
	l.steps[st] = struct{}{}
	defer st.rescue()
	if c.barred = !c.enterPreAuth(true); c.barred {
		st.inside()
		return
	}
	c.waits()
	st.late = time.AfterFunc(s.cfg.Limits.PreAuthTime, func() { l.post(st.guarded(st.inside)) })
	if s.life.Err() != nil || l.watch(fd, st, unix.EPOLL_CTL_ADD, unix.EPOLLIN|unix.EPOLLONESHOT) != nil {
		st.inside()
	}
}

// guarded is f for the loop: a panic ends this client and no other, and one that is gone does nothing.
func (st *doorstep) guarded(f func()) func() {
	return func() {
		if st.gone {
			return
		}
		defer st.rescue()
		f()
	}
}

func (st *doorstep) rescue() {
	if r := recover(); r != nil {
		st.c.log.Error("session panicked", "direction", "login", "panic", r, "stack", string(debug.Stack()))
		st.c.srv.counts.reject("panic")
		if !st.gone {
			st.leave()
			_ = st.conn.Close()
			st.c.release()
			st.c.srv.wg.Done()
		}
	}
}

// leave takes the client off the doorstep.
func (st *doorstep) leave() {
	st.gone = true
	if st.late != nil {
		st.late.Stop()
	}
	delete(st.loop.steps, st)
	if fd := st.conn.fd; fd >= 0 && fd < len(st.loop.sides) && st.loop.sides[fd] == watcher(st) {
		st.loop.forget(fd)
	}
}

// inside has a goroutine go on with the client, who is asked for the first packet again.
func (st *doorstep) inside() {
	st.leave()
	c, s := st.c, st.c.srv
	go func() {
		defer s.wg.Done()
		conn, err := st.conn.watched()
		if err != nil {
			s.log.Warn("take in a client", "error", err)
			s.counts.reject("descriptors")
			c.release()
			_ = st.conn.Close()
			return
		}
		s.mu.Lock()
		c.raw, c.conn, c.step = conn, conn, nil
		c.barred = c.barred || c.entering.expelled
		s.mu.Unlock()
		c.serve()
	}()
}

// Ready looks at the first packet.
func (st *doorstep) Ready(uint32) { st.guarded(st.look)() }

func (st *doorstep) look() {
	packet := st.peek()
	if packet == nil {
		st.inside()
		return
	}
	start, bad := startup.Parse(packet)
	st.c.heard() // what is waited for now is not the client
	if bad != nil || !st.simple(start) || !st.loop.asker.ask(start.User, start.Database, st.marked) {
		st.inside()
	}
}

// peek returns the StartupMessage without its length, in the loop's buffer; nil if what came is not that, whole, and nothing else. It stays
// in the socket.
func (st *doorstep) peek() []byte {
	b := st.loop.buf[:st.c.srv.cfg.Limits.StartupPacket+1]
	r, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(st.conn.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0) //nolint:gosec // the kernel fills b
	n := int(r)
	if errno != 0 || n < 8 || n == len(b) || int(binary.BigEndian.Uint32(b)) != n || binary.BigEndian.Uint32(b[4:])>>16 != 3 {
		return nil
	}
	st.size = n
	return b[4:n]
}

// simple says that nobody has to be waited for but the server, for its word on the mark, as far as can be seen before that.
func (st *doorstep) simple(start *startup.Message) bool {
	c := st.c
	s := c.srv
	c.start = start
	if start.Replication != pgwire.ReplicationNone || start.Minor > newestMinor || len(start.Unknown) > 0 || start.MaxLag > 0 || c.wantsConsole() || s.drain.Load() != nil {
		return false
	}
	set, known := s.remembered.now(s, start.User, start.Database)
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
	if st.route = r; c.intent == ag.ReadOnly { // a writer asks again inside: it may have to wait by then
		c.picked = &r
	}
	if !r.Local {
		return false
	}
	st.muted = startup.HidesWarnings(start.Settings, func() map[string]string { return set })
	st.wants = c.wanting(r)
	return s.warm.has(st.wants.packet)
}

// asksAround says that matching a rule asks somebody: the server for memberships, or the kernel for this machine's addresses.
func asksAround(r hba.Rule) bool {
	return r.SameHost || r.SameNet || hba.NeedsMemberships([]hba.Rule{r})
}

// marked goes on with the server's word on the mark; ok is false where there is none.
func (st *doorstep) marked(m Mark, ok bool) {
	st.guarded(func() {
		if !ok || m.Single || !st.enter(m) {
			st.inside()
		}
	})()
}

// enter gives the client its session. It is false if there is none to be had so.
func (st *doorstep) enter(m Mark) bool {
	c, s, r := st.c, st.c.srv, st.route
	if c.count() != nil {
		return false
	}
	a := &attempt{route: r, intent: c.intent, cancel: func(error) {}}
	if !s.begin(a) {
		return false
	}
	defer s.abandon(a)
	st.wants.say(m, c.start)
	b := s.warm.takeFresh(st.wants)
	if b == nil {
		return false
	}
	x := c.newSession(r, b.conn)
	x.setGate(true, nil)
	x.suspect.muted.Store(x.guarded && st.muted)
	if x.gate != nil {
		if open, err := x.gate.look(s); !open || err != nil {
			s.warm.drop(b, "gate")
			return false
		}
	}
	g := b.greeting.copy()
	x.takes(b, g)
	if !s.activate(a, x) {
		s.warm.drop(b, "ended")
		return false
	}
	st.opened(x, x.mint(g))
	return true
}

// opened hands the session over to the loop that has least to do, its greeting with it.
func (st *doorstep) opened(x *session, greeting []byte) {
	c, s := st.c, st.c.srv
	st.leave()
	c.leavePreAuth()
	s.counts.doorstep.Add(1)
	c.logOpened(x, st.route)
	finished := func() { c.release(); s.wg.Done() }
	backend, err := take(x.backend)
	if err != nil { // out of descriptors
		x.close()
		finished()
		return
	}
	_ = x.backend.Close() // unless it was the only descriptor
	client, _ := st.conn.take()
	consume(client, st.size)
	p := x.pumpOn(s.quietest(), client, backend, finished)
	begin := p.guarded(func() { p.begin(pgwire.AppendAuth(nil, authOK, nil), greeting) })
	if p.loop == st.loop {
		begin()
		return
	}
	p.loop.post(begin)
}

// consume takes bytes that were looked at from a socket.
func consume(fd, n int) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0) // an error shows again
}

// begin is start, of a session whose client has not been greeted yet.
func (p *pump) begin(greeting ...[]byte) {
	p.start()
	if p.phase != relaying {
		return
	}
	if err := p.toClient(slices.Concat(greeting...)); err != nil {
		p.part(p.x.passFailed(errClient))
	}
	p.settle()
}

// clearSteps sends everybody inside: the server stops at once.
func (l *loop) clearSteps() {
	for st := range l.steps {
		st.guarded(st.inside)()
	}
}

package login

import (
	"encoding/binary"
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
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/fingerprint"
	"github.com/coteriedb/coterie/internal/listener/hba"
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

// outOfFilesMessage is sent to a client whose login cannot be handed off for want of descriptors.
var outOfFilesMessage = outOfFiles().Encode()

// Loop is what logins need of the event loop on which they begin. Its functions are called there.
type Loop struct {
	*eventloop.Loop
	Logins *Logins
	// Ask has the local server tell the fingerprint of a login. It reports false if that cannot be asked.
	Ask func(user, database string, answer func(m fingerprint.Login, ok bool)) bool
	// Fits returns how the client's session is opened on a pooled backend, by that fingerprint; nil: none would fit.
	// enter reports false if none fits; else it calls Leaves.
	Fits func(c *LoopClient, r routing.Route) (enter func(m fingerprint.Login) bool)
	// Gone is called, on any goroutine, when a client is gone or was taken to its session by a goroutine.
	Gone    func()
	waiting map[*LoopClient]struct{}
}

// LoopClient is an accepted connection whose login is still handled on the event loop. The loop completes the login
// itself if nothing can block: no TLS, local server, a "trust" rule, and a pooled backend with the same startup
// packet. Any other login is handed to a goroutine (handOff), which reads the startup packet again. Until the login
// is complete nothing is taken from the socket and nothing is written, so handing off is always possible, and
// refusals are sent by that goroutine only.
type LoopClient struct {
	*Client
	loop  *Loop
	conn  *socket.Bare
	size  int                          // of the startup packet, in bytes
	enter func(fingerprint.Login) bool // opens the session on a backend that fits
	late  *time.Timer                  // ends the wait for the startup packet
	gone  bool                         // the login is complete or handed off
}

// NewClient returns a client whose connection the loop has accepted on that local address.
func (l *Loop) NewClient(conn *socket.Bare, from netip.AddrPort, local net.Addr, readOnly bool) *LoopClient {
	conn.Remote, conn.Local, conn.LastMessage = net.TCPAddrFromAddrPort(from), local, outOfFilesMessage
	st := &LoopClient{Client: l.Logins.newClient(conn, readOnly), loop: l, conn: conn}
	if l.waiting == nil {
		l.waiting = make(map[*LoopClient]struct{})
	}
	l.waiting[st] = struct{}{}
	return st
}

// Begin begins the login.
func (st *LoopClient) Begin() {
	l, s := st.loop, st.srv
	s.slots.Hold(st.slot, false, func() { l.Post(st.guarded(st.handOff)) })
	defer st.rescue()
	if st.rejected = !st.enterPreAuth(true); st.rejected {
		st.handOff()
		return
	}
	st.waits()
	st.late = time.AfterFunc(s.Limits.PreAuthTime, func() { l.Post(st.guarded(st.handOff)) })
	if s.Life.Err() != nil || l.Watch(st.conn.Descriptor(), st, unix.EPOLL_CTL_ADD, unix.EPOLLIN|unix.EPOLLONESHOT) != nil {
		st.handOff()
	}
}

// guarded wraps f for the loop. A panic in it ends this client only, and it does nothing once the login has left the
// loop.
func (st *LoopClient) guarded(f func()) func() {
	return func() {
		if st.gone {
			return
		}
		defer st.rescue()
		f()
	}
}

func (st *LoopClient) rescue() {
	if r := recover(); r != nil {
		st.srv.Log.Error("session panicked", "direction", "login", "panic", r, "stack", string(debug.Stack()))
		st.srv.Counts.Reject("panic")
		if !st.gone {
			st.detach()
			_ = st.conn.Close()
			st.release()
			st.loop.Gone()
		}
	}
}

// detach takes the connection off the loop.
func (st *LoopClient) detach() {
	st.gone = true
	if st.late != nil {
		st.late.Stop()
	}
	delete(st.loop.waiting, st)
	if fd := st.conn.Descriptor(); st.loop.Watches(fd, st) {
		st.loop.Forget(fd)
	}
}

// Leaves takes the client off the loop, with nothing read of its startup packet of size bytes: its session is open.
// release gives back what the client was counted under, and is called at the session's end.
func (st *LoopClient) Leaves() (conn *socket.Bare, size int, release func()) {
	st.detach()
	st.leavePreAuth()
	st.srv.Counts.LoopLogins.Add(1)
	st.srv.peeks.Succeeded(st.from.Key, 1)
	return st.conn, st.size, st.release
}

// handOff continues the login in a goroutine, which reads the startup packet again.
func (st *LoopClient) handOff() {
	st.detach()
	c, s, gone := st.Client, st.srv, st.loop.Gone
	go func() {
		defer gone()
		conn, err := st.conn.Watched()
		if err != nil {
			s.Log.Warn("take in a client", "error", err)
			s.Counts.Reject("descriptors")
			c.release()
			_ = st.conn.Close()
			return
		}
		c.Raw, c.Conn = conn, conn
		evicted := s.slots.Hold(c.slot, true, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		c.rejected = c.rejected || evicted
		c.serve()
	}()
}

// Ready reads the startup packet.
func (st *LoopClient) Ready(uint32) { st.guarded(st.readStartup)() }

func (st *LoopClient) readStartup() {
	var packet []byte
	if st.srv.peeks.Spend(st.from.Key, 1, boottime.Now()) {
		packet = st.peek()
	}
	if packet == nil {
		st.handOff()
		return
	}
	start, bad := startup.Parse(packet)
	st.heard() // the next wait is not for the client
	if bad != nil || !st.simple(start) || !st.loop.Ask(start.User, start.Database, st.fingerprintCame) {
		st.handOff()
	}
}

// peek returns the StartupMessage without its length, in the loop's buffer. It is nil if the socket holds anything
// but one whole StartupMessage of at most maxPeeked bytes. The bytes stay in the socket.
func (st *LoopClient) peek() []byte {
	b := st.loop.Buf[:min(maxPeeked, st.srv.Limits.StartupPacket)+1]
	n, err := socket.Look(st.conn.Descriptor(), b)
	if err != nil || n < 8 || n == len(b) || int(binary.BigEndian.Uint32(b)) != n || binary.BigEndian.Uint32(b[4:])>>16 != 3 {
		return nil
	}
	st.size = n
	return b[4:n]
}

// simple reports whether the login can be completed here, as far as can be seen before the server has sent the
// fingerprint.
func (st *LoopClient) simple(start *startup.Message) bool {
	c, s := st.Client, st.srv
	c.Start = start
	if start.Replication != pgwire.ReplicationNone || start.Minor > newestMinor || len(start.Unknown) > 0 || start.MaxLag > 0 || c.wantsConsole() {
		return false
	}
	set, known := s.defaults.now(s, start.User, start.Database)
	if !known {
		return false
	}
	if c.Intent = startup.IntentOf(c.readOnly, start, set); s.Guarantees.Check(start.Reads, c.Intent) != nil || c.Intent == ag.ReadOnly && set["coterie.max_lag"] != "" {
		return false
	}
	c.login.User, c.login.Database = start.User, start.Database
	if rules := *s.rules.Load(); slices.ContainsFunc(rules, asksAround) {
		return false
	} else if rule, ok := hba.Match(rules, c.login); !ok || rule.Method != hba.MethodTrust || rule.ClientCert != "" {
		return false
	}
	r, _, ok := s.pick(c.Intent)
	if !ok {
		return false
	}
	if c.Intent == ag.ReadOnly { // a writer is routed again: it may have to wait by then
		c.picked = &r
	}
	if !r.Local {
		return false
	}
	st.enter = st.loop.Fits(st, r)
	return st.enter != nil
}

// asksAround reports whether matching a rule needs the server's memberships or this machine's addresses.
func asksAround(r hba.Rule) bool {
	return r.SameHost || r.SameNet || hba.NeedsMemberships([]hba.Rule{r})
}

// fingerprintCame continues the login with the server's fingerprint; ok is false if there is none.
func (st *LoopClient) fingerprintCame(m fingerprint.Login, ok bool) {
	st.guarded(func() {
		if !ok || m.Exclusive || st.count() != nil || !st.enter(m) {
			st.handOff()
		}
	})()
}

// HandOffAll hands every login off: the listener stops at once, and the goroutines tell the clients.
func (l *Loop) HandOffAll() {
	for st := range l.waiting {
		st.guarded(st.handOff)()
	}
}

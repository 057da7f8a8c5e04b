package listener

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// session is a client joined to a PostgreSQL backend, or another node's listener joined to the local one.
type session struct {
	srv            *Server
	id             uint64
	user, database string
	addr, tls      string
	asked          string // server name that the client asked for in TLS
	identity       string // of the client's certificate
	intent         ag.Intent
	reads          startup.Reads
	replica        ag.ReplicaID
	epoch          ag.Epoch
	since          time.Time
	relayed        bool // the client is at another node's listener
	replicates     bool // logically, when it says so
	onPrimary      bool // it can write
	fellBack       bool
	entry          int // of the routing list, that won; 0: none was asked
	pid            uint32
	realKey        [8]byte                // of the backend
	backendKey     atomic.Pointer[[]byte] // the same, of a relayed session: pid and secret
	key            CancelKey              // minted, what the client has
	longKey        bool                   // of 32 bytes: it speaks protocol 3.2

	client      net.Conn // raw or TLS; written by downstream only
	raw         net.Conn // under client
	backend     net.Conn
	gate        *gated        // nil where the backend is not local
	in          *bufio.Reader // from the backend, through the gate
	guarded     bool          // its backend is local and its answers may have to be confirmed
	cancels     cancelState
	settings    []pgwire.Parameter // of the startup packet, of a relayed session
	started     func()             // of a relayed session: ends its turn to be started
	backendFrom string
	reusable    *backend // as what its backend may wait for another client; nil: it may not

	// downstream's own
	answers      pgwire.Framer
	starting     bool // it is the session's turn to be started, and its backend has not said that it is ready
	confirmation confirmState
	midMessage   bool // the client has received half a message

	// What the two directions saw. status is of the last ReadyForQuery; owed counts Query, Sync and FunctionCall without it;
	// unsynced: extended messages were forwarded and no Sync after them; bySync: what is owed was counted by a Sync.
	status             atomic.Uint32
	owed               atomic.Int32
	unsynced, bySync   atomic.Bool
	terminated         atomic.Bool // the client said Terminate
	fatalSent          atomic.Bool // PostgreSQL said FATAL itself
	bytesIn, bytesOut  atomic.Uint64
	ended              atomic.Pointer[ending]
	cut                chan struct{}               // closed when ended is set
	onLoop             atomic.Pointer[loopSession] // nil: goroutines carry the session
	registered, closed atomic.Bool
	tainted            atomic.Bool // its backend is not for another client
	offloaded          atomic.Bool // the kernel carries it
	copies             bool        // it has prepared what may be a COPY; upstream's own
	leaves             atomic.Bool // the client has said goodbye, and its backend stays
	drained            draining
	requests           stmt.Requests // guarded by drained.mu
}

// ending is why a session was ended from here.
type ending struct {
	reason string // counted under this name
	why    string // for the client
	broken bool   // it was the client that broke the protocol
}

// Reasons of endings that decide what the client is told: its last answer was discarded for want of confirmation; it took too long
// for a planned failover.
const (
	endUnconfirmed = "unconfirmed"
	endDrain       = "drain"
)

// setInput reads the backend through the gate where there is one. Until the session is open, done ends a wait at it.
func (x *session) setInput(gate bool, done <-chan struct{}) {
	x.setGate(gate, done)
	var in io.Reader = x.backend
	if x.gate != nil {
		in = x.gate
	}
	// The buffer serves the greeting; reads of the relay are as long at least and go past it.
	x.in = bufio.NewReaderSize(in, smallBuffer)
}

// setGate puts the gate before a backend of the local server.
func (x *session) setGate(gate bool, done <-chan struct{}) {
	x.drained.local = gate
	if gate && x.srv.cfg.Gate != nil {
		x.gate = &gated{conn: x.backend, srv: x.srv, done: done}
	}
	x.guarded = gate && x.srv.cfg.Durable != nil && (x.onPrimary || x.reads == startup.ReadsDurable)
}

// activate makes the session one that CloseEpoch and the others see, unless its attempt was overtaken.
func (s *Server) activate(a *attempt, x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || x.intent == ag.ReadWrite && x.epoch < s.minEpoch {
		return false
	}
	if a != nil {
		if _, ok := s.attempts[a]; !ok {
			return false
		}
		delete(s.attempts, a)
	}
	s.lastID++
	x.id = s.lastID
	x.status.Store('I')
	if x.gate != nil {
		x.gate.done = x.cut
	}
	x.registered.Store(true)
	s.sessions[x.id] = x
	if !x.relayed {
		x.key = s.mintKey(x.pid, x.longKey)
		s.keys[x.key] = x
	}
	s.counts.route(RoutedKey{x.replica, x.intent}, x.fellBack)
	if x.intent == ag.ReadOnly && !x.relayed {
		s.counts.readers.add(time.Now(), x.fellBack)
	}
	return true
}

// mint puts the listener's key in the place of the backend's.
func (x *session) mint(g greeting) []byte {
	binary.BigEndian.PutUint32(g.bytes[g.keyAt:], x.key.PID)
	binary.BigEndian.PutUint32(g.bytes[g.keyAt+4:], x.key.Secret)
	if !x.longKey {
		return g.bytes
	}
	binary.BigEndian.PutUint32(g.bytes[g.keyAt-4:], 4+8+longKey) // the message's length
	return slices.Insert(g.bytes, g.keyAt+8, x.key.Long[:]...)
}

// end ends the session from outside: what is held is discarded and the client is told why, if it stands between two
// messages. It is false if the session had ended already. It never waits.
func (x *session) end(e ending) bool {
	if !x.ended.CompareAndSwap(nil, &e) {
		return false
	}
	x.srv.counts.end(e.reason)
	close(x.cut)
	_ = x.raw.SetWriteDeadline(time.Now().Add(x.srv.cfg.Limits.ShutdownMessage))
	_ = x.backend.SetReadDeadline(time.Unix(1, 0))
	if p := x.onLoop.Load(); p != nil { // after ended is set: a loop that takes the session over now sees that
		x.reclaim()
		p.recheck()
	}
	return true
}

// forget takes the session off the lists.
func (x *session) forget() {
	if x.registered.Load() {
		x.srv.mu.Lock()
		delete(x.srv.sessions, x.id)
		if !x.relayed {
			delete(x.srv.keys, x.key)
		}
		x.srv.mu.Unlock()
	}
}

// close takes the session off the lists and closes both connections.
func (x *session) close() {
	if x.closed.Swap(true) {
		return
	}
	x.forget()
	_ = x.backend.Close()
	_ = x.client.SetDeadline(time.Now().Add(100 * time.Millisecond)) // for the close_notify of TLS
	_ = x.client.Close()
	_ = x.raw.Close()
}

// idle says that nothing is owed to the client and no transaction is open. status is looked at last: an answer changes it before it is
// counted as delivered, so what is not owed any more has left its status behind.
func (x *session) idle() bool {
	if x.offloaded.Load() {
		if s := x.onLoop.Load().kernel.Slot; x.offloaded.Load() { // a session that comes back has its books in order before it is not lent any more
			return s.Quiet() && atomic.LoadUint32(&s.Status) == 'I'
		}
	}
	return x.owed.Load() <= 0 && !x.unsynced.Load() && x.status.Load() == 'I'
}

// judge says what has become of the client's last request. From here on nothing is forwarded any more.
func (x *session) judge() (v stmt.Verdict, neverBegun bool) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.requests.Sealed = true
	if v = x.requests.Verdict(); v == stmt.Idle && x.drained.midway {
		v = stmt.Aborted
	}
	if !x.onPrimary {
		v = stmt.Idle
	}
	return v, x.drained.held && x.idle()
}

// outcomeError is the last error of a session that did not end by itself.
func (x *session) outcomeError(why string) *pgwire.Error {
	if e := x.ended.Load(); e != nil && e.broken {
		return pgwire.Fatal("", pgwire.StateProtocolViolation, "terminating connection: %s", why)
	}
	v, neverBegun := x.judge()
	switch e := x.ended.Load(); {
	case e == nil:
	case e.reason == endUnconfirmed:
		v = stmt.Unknown // whatever it was, PostgreSQL called it done
	case e.reason == endDrain && v == stmt.Aborted:
		v = stmt.Idle // who took too long for a planned failover is cut (docs/internals/safety.md, "Planned failover")
	}
	switch {
	case neverBegun:
		bad := pgwire.Fatal("", pgwire.StateSerialization, "terminating connection before the transaction was begun: %s", why)
		bad.Hint = "Nothing of it was executed: reconnect and run it again."
		return bad
	case v == stmt.Unknown:
		bad := pgwire.Fatal("", pgwire.StateUnknownOutcome, "terminating connection with a request in flight: %s", why)
		bad.Detail = "If the request would have committed a transaction, it may or may not have been committed."
		bad.Hint = "Reconnect and check before running it again."
		return bad
	case v == stmt.Aborted:
		bad := pgwire.Fatal("", pgwire.StateSerialization, "terminating connection with a transaction open: %s", why)
		bad.Detail = "It was not committed: no request that could have committed it was forwarded."
		bad.Hint = "Reconnect and run the transaction again."
		return bad
	}
	bad := pgwire.Fatal("", pgwire.StateAdminShutdown, "terminating connection: %s", why)
	bad.Hint = "Reconnect; the listener finds the replica that serves the session."
	return bad
}

func (x *session) state() string {
	status, active := x.status.Load(), x.owed.Load() > 0 || x.unsynced.Load()
	if x.offloaded.Load() {
		s := x.onLoop.Load().kernel.Slot
		status, active = atomic.LoadUint32(&s.Status), !s.Quiet()
	}
	switch {
	case active:
		return "active"
	case status == 'T', status == 'E':
		return "idle in transaction"
	}
	return "idle"
}

func (x *session) info() SessionInfo {
	in, out := x.bytesIn.Load(), x.bytesOut.Load()
	if x.offloaded.Load() {
		up, down := x.onLoop.Load().kernel.Passed()
		in, out = in+up, out+down
	}
	return SessionInfo{
		ID: x.id, User: x.user, Database: x.database, ClientAddr: x.addr, TLS: x.tls, TLSName: x.asked, Identity: x.identity, Intent: x.intent, Entry: x.entry, Replica: x.replica,
		Epoch: x.epoch, PID: x.pid, State: x.state(), Since: x.since, Relayed: x.relayed,
		BytesIn: in, BytesOut: out, Path: x.path(), Backend: cmp.Or(x.backendFrom, backendOwn),
	}
}

// path is which of the data paths serves the session.
func (x *session) path() string {
	switch {
	case x.offloaded.Load():
		return PathKernel
	case x.onLoop.Load() != nil:
		return PathLoop
	}
	return PathGoroutines
}

// tlsName is the version as PostgreSQL spells it.
func tlsName(version uint16) string {
	return strings.Replace(tls.VersionName(version), "TLS ", "TLSv", 1)
}

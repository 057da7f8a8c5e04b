package listener

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// session is a client joined to a PostgreSQL backend, or another node's listener joined to the local one.
type session struct {
	srv            *Server
	id             uint64
	user, database string
	addr, tls      string
	intent         ag.Intent
	replica        ag.ReplicaID
	epoch          ag.Epoch
	since          time.Time
	relayed        bool // the client is at another node's listener
	onPrimary      bool // it can write
	fellBack       bool
	pid            uint32
	realKey        [8]byte   // of the backend
	key            CancelKey // minted, what the client has

	client  net.Conn // raw or TLS; written by downstream only
	raw     net.Conn // under client
	backend net.Conn
	gate    *gated        // nil where the backend is not local
	in      *bufio.Reader // from the backend, through the gate

	// What the two directions saw. status is of the last ReadyForQuery; owed counts Query, Sync and FunctionCall without it;
	// unsynced: extended messages were forwarded and no Sync after them; bySync: what is owed was counted by a Sync.
	status             atomic.Uint32
	owed               atomic.Int32
	unsynced, bySync   atomic.Bool
	terminated         atomic.Bool // the client said Terminate
	fatalSent          atomic.Bool // PostgreSQL said FATAL itself
	bytesIn, bytesOut  atomic.Uint64
	ended              atomic.Pointer[ending]
	cut                chan struct{} // closed when ended is set
	registered, closed atomic.Bool
}

// ending is why a session was ended from here.
type ending struct {
	reason string // counted under this name
	why    string // for the client
	broken bool   // it was the client that broke the protocol
}

// setInput reads the backend through the gate where there is one. Until the session is open, done ends a wait at it.
func (x *session) setInput(gate bool, done <-chan struct{}) {
	var in io.Reader = x.backend
	if gate && x.srv.cfg.Gate != nil {
		x.gate = &gated{conn: x.backend, srv: x.srv, done: done}
		in = x.gate
	}
	// The small buffer serves the greeting; reads of the relay are longer and go past it.
	x.in = bufio.NewReaderSize(in, 4096)
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
		x.key = s.mintKey(x.pid)
		s.keys[x.key] = x
	}
	s.counts.route(RoutedKey{x.replica, x.intent}, x.fellBack)
	return true
}

// mint puts the listener's key in the place of the backend's.
func (x *session) mint(g greeting) []byte {
	binary.BigEndian.PutUint32(g.bytes[g.keyAt:], x.key.PID)
	binary.BigEndian.PutUint32(g.bytes[g.keyAt+4:], x.key.Secret)
	return g.bytes
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
	return true
}

// close takes the session off the lists and closes both connections.
func (x *session) close() {
	if x.closed.Swap(true) {
		return
	}
	if x.registered.Load() {
		x.srv.mu.Lock()
		delete(x.srv.sessions, x.id)
		if !x.relayed {
			delete(x.srv.keys, x.key)
		}
		x.srv.mu.Unlock()
	}
	_ = x.backend.Close()
	_ = x.client.SetDeadline(time.Now().Add(100 * time.Millisecond)) // for the close_notify of TLS
	_ = x.client.Close()
	_ = x.raw.Close()
}

// idle says that nothing is owed to the client and no transaction is open.
func (x *session) idle() bool {
	return x.status.Load() == 'I' && x.owed.Load() <= 0 && !x.unsynced.Load()
}

// inDoubt says that a commit may have been forwarded whose outcome the client has not been told.
func (x *session) inDoubt() bool { return x.onPrimary && (x.owed.Load() > 0 || x.unsynced.Load()) }

// farewell is the last error of a session that did not end by itself.
func (x *session) farewell(why string) *pgError {
	if e := x.ended.Load(); e != nil && e.broken {
		return fatal("", stateProtocolViolation, "terminating connection: %s", why)
	}
	if !x.inDoubt() {
		bad := fatal("", stateAdminShutdown, "terminating connection: %s", why)
		bad.hint = "Reconnect; the listener finds the replica that serves the session."
		return bad
	}
	bad := fatal("", stateUnknownOutcome, "terminating connection with a request in flight: %s", why)
	bad.detail = "If the request would have committed a transaction, it may or may not have been committed."
	bad.hint = "Reconnect and check before running it again."
	return bad
}

func (x *session) state() string {
	switch status := x.status.Load(); {
	case x.owed.Load() > 0 || x.unsynced.Load():
		return "active"
	case status == 'T', status == 'E':
		return "idle in transaction"
	}
	return "idle"
}

func (x *session) info() SessionInfo {
	return SessionInfo{
		ID: x.id, User: x.user, Database: x.database, ClientAddr: x.addr, TLS: x.tls, Intent: x.intent, Replica: x.replica,
		Epoch: x.epoch, PID: x.pid, State: x.state(), Since: x.since, Relayed: x.relayed,
		BytesIn: x.bytesIn.Load(), BytesOut: x.bytesOut.Load(),
	}
}

// tlsName is the version as PostgreSQL spells it.
func tlsName(version uint16) string {
	return strings.Replace(tls.VersionName(version), "TLS ", "TLSv", 1)
}

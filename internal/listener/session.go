package listener

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/resume"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// session is a client joined to a PostgreSQL backend, or another node's listener joined to the local one.
type session struct {
	srv            *Server
	id             uint64
	user, database string
	addr, tls      string
	asked          string // server name in the client's TLS handshake (SNI)
	identity       string // common name of the client's certificate
	intent         ag.Intent
	replica        ag.ReplicaID
	epoch          ag.Epoch
	since          time.Time
	relayed        bool // the client is at another node's listener
	fellBack       bool
	entry          int // place in the routing list; 0: the list was not used
	pid            uint32
	realKey        [8]byte   // the backend's own cancel key, unless the session is relayed
	key            CancelKey // minted here, the client's
	longKey        bool      // the key has 32 bytes: protocol 3.2

	client      net.Conn // raw or TLS; written by downstream only
	raw         net.Conn // under client
	backend     net.Conn
	gate        *gate.Reader  // nil: the backend is not local
	in          *bufio.Reader // from the backend, through the gate
	turnOver    func()        // of a relayed session: ends its turn to start
	backendFrom string
	use         pool.Use // of its backend

	work               underway.Work   // as the two directions have seen it
	way                passage.Passage // of its bytes
	bytesIn, bytesOut  atomic.Uint64
	ended              atomic.Pointer[ending]
	cut                chan struct{}               // closed when ended is set
	onLoop             atomic.Pointer[loopSession] // nil: goroutines carry the session
	registered, closed atomic.Bool
	keepsBackend       atomic.Bool // the client sent Terminate, and its backend is kept
	moving             moving
}

// ending is why the listener ended a session.
type ending struct {
	reason string // the name under which it is counted
	why    string // the reason that the client gets
	broken bool   // the client violated the protocol
}

// Reasons that change the client's error. Its last answer was discarded because it could not be confirmed, or it was
// busy for too long in a planned failover.
const (
	endUnconfirmed = "unconfirmed"
	endDrain       = "drain"
	endSetting     = "setting"  // a change of a setting is refused
	endPromoted    = "promoted" // its server was promoted under it
	endLost        = "backend lost"
	endEpoch       = "epoch"   // there is a new primary
	endReplica     = "replica" // its replica serves it no longer
)

// setInput reads the backend, through the gate if it is the local server. Until the session is open, done ends a wait
// at the gate.
func (x *session) setInput(local bool, done <-chan struct{}) {
	x.setGate(local, done)
	var in io.Reader = x.backend
	if x.gate != nil {
		in = x.gate
	}
	// The buffer is for the greeting: reads of the relay are at least as long and bypass it.
	x.in = bufio.NewReaderSize(in, socket.SmallBuffer)
}

// setGate puts the gate before a backend of the local server.
func (x *session) setGate(local bool, done <-chan struct{}) {
	x.work.Local = local
	if local && x.srv.cfg.Gate != nil {
		all := gate.Config{Deadline: x.srv.cfg.Gate, Hold: x.srv.cfg.GateHold, Counts: &x.srv.counts}
		x.gate = &gate.Reader{Config: all, Conn: x.backend, Done: done, Lost: &x.moving.outlived}
	}
	x.way.Pooled = local && x.srv.cfg.Fingerprint != nil
	x.way.Confirmation.Guarded = local && x.srv.cfg.Durable != nil && (x.work.OnPrimary || x.way.Confirmation.Reads == startup.ReadsDurable)
}

// roleHolds reports whether the local server still has the role for which the session was opened. The caller holds
// s.mu: a change of the role is published before the sessions are ended, so a session either sees it here or is ended.
func (s *Server) roleHolds(x *session) bool {
	if !x.work.Local {
		return true
	}
	return routing.Holds(s.cfg.Routes(), x.replica, x.work.OnPrimary)
}

// activate registers the session for CloseEpoch and the like. It reports false if its attempt was overtaken, or if the
// primary here is about to stop: it may have read the states of its sessions already.
func (s *Server) activate(a *attempts.Attempt, x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.held != nil && x.work.Local && x.work.OnPrimary || s.attempts.Outdated(x.intent, x.epoch) || !s.roleHolds(x) {
		return false
	}
	if a != nil && !s.attempts.Finish(a) {
		return false
	}
	assert.That(!x.work.Local || x.gate != nil || s.cfg.Gate == nil, "a session of the local server has no answer gate")
	if x.id == 0 { // it does not continue another one
		s.lastID++
		x.id = s.lastID
	}
	x.work.Status.Store('I')
	if x.work.Loss.Failed {
		x.work.Status.Store('E')
		x.work.Loss.Failed = false // from now on its status tells
	}
	if x.moving.resumed {
		x.work.Status.Store('T')
	}
	if x.gate != nil {
		x.gate.Done = x.cut
	}
	x.registered.Store(true)
	s.sessions[x.id] = x
	if !x.relayed {
		if x.key == (CancelKey{}) {
			x.key = s.mintKey(x.pid, x.longKey)
		}
		s.keys[x.key] = x
	}
	s.counts.Route(RoutedKey{Replica: x.replica, Intent: x.intent}, x.fellBack)
	if x.intent == ag.ReadOnly && !x.relayed {
		s.counts.Reader(time.Now(), x.fellBack)
	}
	return true
}

// mint replaces the backend's cancel key in the greeting by a key of the listener.
func (x *session) mint(g opening.Greeting) []byte {
	assert.That(g.KeyAt >= 5 && g.KeyAt+8 <= len(g.Bytes), "a greeting has no cancel key")
	x.way.Recovery.Greeted(g.Bytes)
	x.work.ReadOnly = bytes.Contains(g.Bytes, []byte(continuity.ReadOnly+"\x00on\x00"))
	binary.BigEndian.PutUint32(g.Bytes[g.KeyAt:], x.key.PID)
	binary.BigEndian.PutUint32(g.Bytes[g.KeyAt+4:], x.key.Secret)
	if !x.longKey {
		return g.Bytes
	}
	binary.BigEndian.PutUint32(g.Bytes[g.KeyAt-4:], 4+8+cancelkey.LongLength) // length of the message
	return slices.Insert(g.Bytes, g.KeyAt+8, x.key.Long[:]...)
}

// end ends the session from outside. Held bytes are discarded, and the client gets the reason if it is between two
// messages. It reports false if the session had ended before. It never blocks.
func (x *session) end(e ending) bool {
	if !x.ended.CompareAndSwap(nil, &e) {
		return false
	}
	x.srv.counts.End(e.reason)
	close(x.cut)
	_ = x.raw.SetWriteDeadline(time.Now().Add(x.srv.cfg.Limits.ShutdownMessage))
	_ = x.backend.SetReadDeadline(time.Unix(1, 0))
	if p := x.onLoop.Load(); p != nil { // after ended is set, so a loop that takes the session over now sees it
		x.reclaim()
		p.recheck()
	}
	return true
}

// rescue keeps a panic of one session from the others.
func (x *session) rescue(direction string) {
	if r := recover(); r != nil {
		x.srv.log.Error("session panicked", "session", x.id, "direction", direction, "panic", r, "stack", string(debug.Stack()))
		x.end(ending{reason: "panic", why: "internal error of the listener"})
		_ = x.backend.Close()
		_ = x.raw.Close()
	}
}

// forget removes the session from the server's lists.
func (x *session) forget() {
	if x.registered.Load() {
		x.srv.mu.Lock()
		if x.srv.sessions[x.id] == x {
			delete(x.srv.sessions, x.id)
		}
		if !x.relayed && x.ended.Load() != movedOn {
			delete(x.srv.keys, x.key)
		}
		x.srv.mu.Unlock()
	}
}

// dropKey removes the client's cancel key, if no other session has it.
func (x *session) dropKey() {
	x.srv.mu.Lock()
	defer x.srv.mu.Unlock()
	if x.srv.keys[x.key] == x {
		delete(x.srv.keys, x.key)
	}
}

// close removes the session from the lists and closes both connections.
func (x *session) close() {
	if x.closed.Swap(true) {
		return
	}
	x.forget()
	x.work.Close()
	x.moving.over()
	_ = x.backend.Close()
	_ = x.client.SetDeadline(time.Now().Add(100 * time.Millisecond)) // for the close_notify of TLS
	_ = x.client.Close()
	_ = x.raw.Close()
}

// lingers reports whether the client may still have something to read that a reset of its connection would destroy.
func (x *session) lingers() bool { return x.ended.Load() != nil || !x.way.Terminated.Load() }

// promoted reports whether the server of a session that was opened on a secondary may have become a primary since. A
// request that was forwarded may then have been executed as a write.
func (x *session) promoted() bool {
	return routing.Promoted(x.srv.cfg.Routes(), x.replica, x.epoch, x.work.Local)
}

// judge returns the outcome of the client's last request. After it nothing is forwarded.
func (x *session) judge() (v stmt.Verdict, neverBegun bool) {
	x.work.Lock()
	defer x.work.Unlock()
	x.work.Requests.Sealed = true
	if v = x.work.Requests.Verdict(); v == stmt.Idle && x.work.Midway {
		v = stmt.Aborted
	}
	if e := x.ended.Load(); !x.work.OnPrimary && !x.promoted() && (e == nil || e.reason != endPromoted) {
		v = stmt.Idle
	}
	return v, x.work.Held && x.work.Idle()
}

// outcomeError returns the final error of a session that the listener ended.
func (x *session) outcomeError(why string) *pgwire.Error {
	if e := x.ended.Load(); e != nil && e.broken {
		return pgwire.Fatal("", pgwire.StateProtocolViolation, "terminating connection: %s", why)
	}
	v, neverBegun := x.judge()
	switch e := x.ended.Load(); {
	case e == nil:
	case e.reason == endUnconfirmed:
		v = stmt.Unknown // PostgreSQL reported it done
	case (e.reason == endDrain || e.reason == endSetting) && v == stmt.Aborted:
		v = stmt.Idle // a request that takes too long for a planned failover is cut (docs/internals/safety.md, "Planned failover")
	}
	if neverBegun {
		return lostblock.NotBegun(why)
	}
	if v == stmt.Unknown && !x.leftToNode() { // else that node may prove the outcome, and counts it
		reason := x.whyUnknown()
		x.srv.counts.Doubt(indoubt.Unknown.String())
		x.srv.counts.Unknown(string(reason))
		x.srv.log.Info("outcome unknown", "session", x.id, "user", x.user, "reason", reason)
	}
	return lostblock.Final(v, why)
}

// passFailed ends a session whose answers cannot be passed on. It returns the final error for the client, or nil.
func (x *session) passFailed(err error) *pgwire.Error {
	switch {
	case errors.Is(err, errClient):
	case errors.Is(err, gate.ErrUnconfirmed), errors.Is(err, gate.ErrClosed), errors.Is(err, passage.ErrPromoted):
		return x.finalError(err)
	default:
		x.srv.log.Error("PostgreSQL sent an invalid message", "session", x.id, "error", err)
		x.end(ending{reason: "postgresql protocol", why: "protocol error"})
	}
	return nil
}

// finalError ends the session. It returns the final error for the client; nil if PostgreSQL has sent one itself or
// nothing can be written.
func (x *session) finalError(err error) *pgwire.Error {
	why := "the connection to PostgreSQL was lost"
	switch e := x.ended.Load(); {
	case e != nil:
		why = e.why
	case errors.Is(err, gate.ErrClosed):
		why = "its answers could not be confirmed in time"
		x.end(ending{reason: "gate", why: why})
	case errors.Is(err, gate.ErrUnconfirmed):
		why = "the synchronous secondaries did not confirm a commit in time"
		x.end(ending{reason: endUnconfirmed, why: why})
	case x.way.Terminated.Load() || x.way.FatalSent.Load():
		return nil
	default:
		x.end(ending{reason: endLost, why: why})
	}
	switch e := x.ended.Load(); {
	case e.reason == endLost, e.reason == endEpoch, x.way.MidMessage && (e.reason == endReplica || e.reason == endDrain):
		why += x.unknown()
	}
	last := x.outcomeError(why)
	untold := x.way.MidMessage || x.way.FatalSent.Load() || x.way.Terminated.Load() || x.leftToNode()
	x.srv.log.Info("session cut", "session", x.id, "replica", x.replica, "user", x.user, "reason", why, "sqlstate", last.Code, "told", !untold)
	if untold {
		return nil
	}
	return last
}

// sendFinal writes the final error.
func (x *session) sendFinal(last *pgwire.Error) {
	if last == nil {
		return
	}
	_ = x.raw.SetWriteDeadline(time.Now().Add(x.srv.cfg.Limits.ShutdownMessage))
	_, _ = x.client.Write(last.Encode())
}

// whyUnknown returns why the outcome of the session's last request is not known.
func (x *session) whyUnknown() indoubt.Reason {
	e, unresumed := x.ended.Load(), x.moving.unresumed
	x.work.Lock()
	defer x.work.Unlock()
	switch {
	case e != nil && e.reason == endUnconfirmed:
		return indoubt.ReasonUnconfirmed
	case x.way.MidMessage:
		return indoubt.ReasonCut
	case errors.Is(unresumed, resume.ErrAnswerLost):
		return indoubt.ReasonAnswer
	case errors.Is(unresumed, resume.ErrNotTheSame):
		return indoubt.ReasonNotProved
	case unresumed != nil:
		return indoubt.ReasonNoServer
	}
	return x.work.WhyUnknown()
}

// info returns the session as status and views show it.
func (x *session) info() SessionInfo {
	in, out := x.carried()
	info := SessionInfo{
		ID: x.id, User: x.user, Database: x.database, ClientAddr: x.addr, TLS: x.tls, TLSName: x.asked, Identity: x.identity, Intent: x.intent, Entry: x.entry, Replica: x.replica,
		Epoch: x.epoch, PID: x.pid, State: x.work.State(), Since: x.since, Relayed: x.relayed,
		BytesIn: in, BytesOut: out, Path: x.path(), Backend: cmp.Or(x.backendFrom, counters.BackendOwn),
	}
	if !x.relayed {
		info.Outlook = func() continuity.Outlook { return x.work.Outlook(x.replica, x.user) }
	}
	return info
}

// Inquiry and the following methods are what package inquiry needs of a session.
func (x *session) Inquiry() *inquiry.Session { return &x.moving.inquiry }

// Underway returns what is under way in the session.
func (x *session) Underway() *underway.Work { return &x.work }

// Facts returns what is asked about the session now.
func (x *session) Facts() inquiry.Facts {
	in, out := x.carried()
	return inquiry.Facts{
		Move:    ag.SessionMove{Replica: x.replica, User: x.user, Database: x.database, Client: x.addr, Since: x.since},
		Carried: in + out, Process: x.backendPID(), Relayed: x.relayed, Over: x.ended.Load() != nil,
		Immovable: x.moving.immovable(x.relayed), Ended: x.cut, Left: x.moving.left,
	}
}

// path returns which data path serves the session.
func (x *session) path() string {
	switch {
	case x.work.Offloaded():
		return PathKernel
	case x.onLoop.Load() != nil:
		return PathLoop
	}
	return PathGoroutines
}

// tlsName returns the TLS version in PostgreSQL's spelling.
func tlsName(version uint16) string {
	return strings.Replace(tls.VersionName(version), "TLS ", "TLSv", 1)
}

// tellLoss answers the next request of a client whose transaction was open on a server that is lost. The session has no
// server until then. It reports false if the client has ended or was ended.
func (c *client) tellLoss(x *session) bool {
	s := c.srv
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-s.closed:
			_ = c.Raw.SetReadDeadline(time.Unix(1, 0))
		case <-c.unserved.Done():
			_ = c.Raw.SetReadDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	rest, err := c.answerLost(x)
	close(over)
	<-stopped
	_ = c.Raw.SetDeadline(time.Time{})
	switch {
	case err == nil:
		x.work.Loss.Open, x.moving.rest.B = false, rest
		return true
	case errors.Is(err, errStopping), errors.Is(err, pgwire.ErrProtocol):
		x.work.Loss.Failed = true
		c.lose(x, c.overBy(err))
	default:
		x.dropKey()
		c.closeBoth()
	}
	return false
}

var errStopping = errors.New("the listener of this node is stopping")

// answerLost reads the client's next request and answers it. rest is what the client's next server gets.
func (c *client) answerLost(x *session) (rest []byte, err error) {
	r := lostblock.Reply{Why: x.work.Loss.Unreplayed, Statements: x.moving.inquiry.State.Texts()}
	var buf [socket.SmallBuffer]byte
	for b, done := x.moving.rest.B, false; ; {
		var used int
		var out []byte
		if used, out, done, err = r.Feed(b); err != nil {
			return nil, err
		}
		_ = c.Raw.SetWriteDeadline(time.Now().Add(c.srv.cfg.Limits.ShutdownMessage))
		if _, err := c.Conn.Write(out); err != nil {
			return nil, errClient
		}
		if rest = b[used:]; done {
			break
		}
		n, err := c.Conn.Read(buf[:])
		switch {
		case n > 0:
			b = buf[:n]
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errStopping
		default:
			return nil, errClient
		}
	}
	if r.Terminated {
		return nil, errClient
	}
	maps.DeleteFunc(x.moving.inquiry.State.Statements, func(name string, _ continuity.Statement) bool {
		_, open := r.Statements[name]
		return !open
	})
	x.work.Loss.Failed = r.Failed
	return slices.Concat(r.Forward, rest), nil
}

func (c *client) closeBoth() {
	_ = c.Conn.Close()
	_ = c.Raw.Close()
}

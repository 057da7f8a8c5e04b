package listener

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

// socketName is the file name of PostgreSQL's private socket: its port is always 5432.
const socketName = ".s.PGSQL.5432"

// ServeBackend relays a session that arrived from another node's listener to the local PostgreSQL in socketDir. The
// gate is checked after each read from PostgreSQL. It returns when the session has ended and conn is closed. The
// caller has authenticated the node; its listener has authenticated the client.
func (s *Server) ServeBackend(ctx context.Context, conn net.Conn, socketDir string) {
	if !s.enter() {
		_ = conn.Close()
		return
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unhook := context.AfterFunc(s.life, cancel)
	defer unhook()
	// Until it has a backend, a panic finds the connection in its place.
	x := &session{srv: s, relayed: true, since: time.Now(), client: conn, raw: conn, backend: conn, cut: make(chan struct{}), moving: newMoving(nil)}
	x.way.Confirmation.Rules, x.work.Rules, x.work.Promoted = s.answerRules(), &s.rules, x.promoted
	defer func() { _ = conn.Close() }()
	defer x.rescue("relayed")
	if bad := x.serveRelayed(ctx, socketDir); bad != nil {
		s.counts.Refuse(bad)
		_ = conn.SetDeadline(time.Now().Add(s.cfg.Limits.ShutdownMessage))
		_, _ = conn.Write(bad.Encode())
	}
}

// serveRelayed opens the session and relays it. It returns an error if the session could not be opened.
func (x *session) serveRelayed(ctx context.Context, socketDir string) *pgwire.Error {
	s := x.srv
	unhook := context.AfterFunc(ctx, func() { _ = x.client.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.PreAuthTime))
	packet, err := pgwire.ReadPacket(x.client, s.cfg.Limits.StartupPacket)
	if err != nil {
		return pgwire.Fatal("malformed", pgwire.StateProtocolViolation, "no startup packet")
	}
	cancel := binary.BigEndian.Uint32(packet) == pgwire.CancelRequest
	if !cancel {
		if bad := x.readHello(packet); bad != nil {
			return bad
		}
		if bad := x.startRelayed(ctx); bad != nil {
			return bad
		}
		defer x.turnOver()
	}
	if cancel {
		defer s.cancelRelayed(packet[4:])()
	}
	until := time.Now().Add(s.cfg.Limits.BackendHandshake)
	backend, err := s.begun(ctx, filepath.Join(socketDir, socketName), packet, until)
	for ; err == nil && !cancel && s.refusedForRoom(ctx, backend); backend, err = s.begun(ctx, filepath.Join(socketDir, socketName), packet, until) {
		_ = backend.Close()
	}
	if err != nil {
		return pgwire.Fatal("postgresql down", pgwire.StateCannotConnect, "PostgreSQL of this replica cannot be reached")
	}
	x.backend = backend
	defer func() { _ = backend.Close() }()
	if cancel {
		_, _ = io.CopyN(io.Discard, backend, 64)
		s.counts.Cancels.Add(1)
		return nil
	}
	x.setInput(true, x.cut)
	_ = backend.SetDeadline(time.Time{})
	_ = x.client.SetDeadline(time.Time{})
	if !s.activate(nil, x) {
		return pgwire.Fatal("moved", pgwire.StateCannotConnect, "the group has moved on")
	}
	stop := context.AfterFunc(ctx, func() { x.end(stopping) })
	defer stop()
	unhook()
	if x.relay() {
		x.giveBack()
	}
	return nil
}

// begun returns a connection to the local server on which a first packet was sent.
func (s *Server) begun(ctx context.Context, socket string, packet []byte, until time.Time) (net.Conn, error) {
	conn, err := (&net.Dialer{Deadline: until}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(until)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(packet)+4)), packet...)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// roomPause is how long the processes of dropped backends are given to exit before the next try.
const roomPause = 20 * time.Millisecond

// refusedForRoom peeks at the server's first answer. It reports whether the server refuses the session for lack of
// connection slots and dropping pooled backends has freed some. An answer that does not arrive in time is relayed as
// it comes.
func (s *Server) refusedForRoom(ctx context.Context, conn net.Conn) bool {
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	body := opening.Refusal(conn)
	if pgwire.ErrorField(body, 'C') != pgwire.StateTooMany {
		return false
	}
	err := s.makeRoom(&pgwire.Error{Reason: "postgresql", Code: pgwire.StateTooMany, Message: pgwire.ErrorField(body, 'M')})
	if _, final := pgwire.AsError(err); final {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(roomPause):
	}
	return true
}

// startRelayed waits for the session's turn to start. The turn ends with its first ReadyForQuery, or with the
// session.
func (x *session) startRelayed(ctx context.Context) *pgwire.Error {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.Limits.BackendHandshake)
	defer cancel()
	done, err := x.srv.startOne(ctx)
	if err != nil {
		return pgwire.Fatal("starting", pgwire.StateCannotConnect, "too many sessions are being started on this replica")
	}
	x.way.Starting, x.turnOver = true, done
	return nil
}

// readHello reads the session's properties from the startup packet.
func (x *session) readHello(packet []byte) *pgwire.Error {
	h, bad := hello.Read(packet)
	if bad != nil {
		return bad
	}
	x.user, x.database, x.addr, x.tls, x.intent, x.work.Replicates = h.User, h.Database, h.ClientAddr, h.TLS, h.Intent, h.Replicates
	x.moving.accepts, x.moving.outlives, x.way.Confirmation.Reads = h.Moves, h.Outlives, h.Reads
	if bad := x.srv.guarantees().Check(h.Reads, h.Intent); bad != nil {
		return bad
	}
	if bad := h.Check(); bad != nil {
		return bad
	}
	return x.place()
}

// place checks the session against this node's own routes: the other node's routes may be older.
func (x *session) place() *pgwire.Error {
	p, bad := routing.Place(x.srv.cfg.Routes(), x.intent, func() bool { return x.srv.holding() != nil })
	x.replica, x.epoch, x.work.OnPrimary = p.Replica, p.Epoch, p.OnPrimary
	return bad
}

// cancelRelayed finds the session of a relayed cancel request and notes the request. The caller calls delivered when
// it was delivered.
func (s *Server) cancelRelayed(key []byte) (delivered func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if known := x.way.Key.Load(); known != nil && bytes.Equal(*known, key) {
			return x.cancelStarts()
		}
	}
	return func() {}
}

// backendPID returns the process of the session's backend on this node.
func (x *session) backendPID() uint32 {
	if key := x.way.Key.Load(); key != nil && len(*key) >= 4 {
		return binary.BigEndian.Uint32(*key)
	}
	return x.pid
}

// giveBack gives a session that has left its backend to the listener of its client.
func (x *session) giveBack() {
	defer x.moving.over()
	giveback.Give(x.raw, x.moving.inquiry.State, x.moving.rest.B)
}

// leftToNode reports whether the listener of the client's node judges what became of the session: it hears of its end
// by the end of the stream.
func (x *session) leftToNode() bool {
	e := x.ended.Load()
	return x.relayed && x.moving.outlives && e != nil && slices.Contains([]string{endLost, endEpoch, endReplica, endDrain, stopping.reason}, e.reason)
}

// takeBack takes a session that its node gives back.
func (x *session) takeBack() error {
	st, rest, err := giveback.Take(x.backend, x.in, x.way.Given, x.way.Unanswered)
	if err != nil {
		return err
	}
	delete(st.Statements, lone.OwnStatement)
	x.moving.inquiry.State, x.moving.rest.B = st, append(rest, x.moving.rest.B...)
	x.work.Tracker.Remember(st.Names())
	for _, q := range st.Statements { // they may set more of them
		x.work.Tracker.Message('P', []byte("named\x00"+q.Text), true, true)
	}
	return nil
}

// CancelKey is what a client sends to cancel a query.
type CancelKey = cancelkey.Key

// cancelHere delivers a cancel request to its session here. elsewhere reports whether it may be for one of another
// node.
func (s *Server) cancelHere(ctx context.Context, body []byte) (key CancelKey, elsewhere bool) {
	key, ok := s.cancelKeys().Read(body, s.isOpen)
	if ok && s.Cancel(ctx, key) {
		return key, false
	}
	if !ok || s.cfg.ForwardCancel == nil || s.twin(key) {
		s.counts.Reject("wrong cancel")
		return key, false
	}
	return key, true
}

// cancelKeys returns what mints the keys of this node.
func (s *Server) cancelKeys() cancelkey.Maker {
	return cancelkey.Maker{Node: s.cfg.Node, Secret: s.cfg.KeySecret}
}

// mintKey mints a key that no open session has. The caller holds s.mu.
func (s *Server) mintKey(pid uint32, long bool) CancelKey {
	for {
		k := s.cancelKeys().Mint(pid, long)
		if _, taken := s.keys[k]; !taken {
			return k
		}
	}
}

// isOpen reports whether a session of this node has that key.
func (s *Server) isOpen(key CancelKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.keys[key]
	return open
}

// twin reports whether a session of this node has a key that differs from this one in its long part only. No other
// node can have one then.
func (s *Server) twin(key CancelKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.keys {
		if k.PID == key.PID && k.Secret == key.Secret {
			return true
		}
	}
	return false
}

// Cancel delivers a cancel request whose key this node minted. It reports false if no such session exists.
func (s *Server) Cancel(ctx context.Context, key CancelKey) bool {
	s.mu.Lock()
	x, ok := s.keys[key]
	delivered := func() {}
	if ok {
		delivered = x.cancelStarts() // before the session can be forgotten: its backend may go to another client then
	}
	s.mu.Unlock()
	defer delivered()
	if !ok {
		return s.logins.CancelConsole(CancelKey{PID: key.PID, Secret: key.Secret})
	}
	conn, err := s.cfg.Backend(ctx, x.replica, BackendHello{ClientAddr: x.addr, Intent: x.intent, Epoch: x.epoch, Cancel: true})
	if err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(login.CancelTime))
	if _, err := conn.Write(cancelkey.Packet(x.realKey)); err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	// PostgreSQL closes the connection after it has sent the signal: the client's cancel call returns then and not
	// before.
	_, _ = io.CopyN(io.Discard, conn, 64)
	s.counts.Cancels.Add(1)
	return true
}

// cancelStarts must be called before a cancel request for the session is forwarded, and delivered after its delivery.
func (x *session) cancelStarts() (delivered func()) {
	delivered = x.way.Confirmation.CancelStarts()
	x.reclaim()
	return delivered
}

// takesBack reports whether that replica is behind another node's listener, which may have to give sessions back.
func (c *client) takesBack(id ag.ReplicaID) bool {
	r := c.srv.cfg.Routes()
	return r != nil && r.Self != id && c.mayOutlive()
}

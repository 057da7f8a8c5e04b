package listener

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/encryption"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/preauth"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// client is one connection from accept to the end of its session: negotiate, parse, match a rule, wait for a replica,
// authenticate, connect there, relay.
type client struct {
	srv         *Server
	log         *slog.Logger
	raw         net.Conn // as accepted
	conn        net.Conn // raw, or TLS over it
	tlsState    *tls.ConnectionState
	binding     []byte          // for SCRAM-SHA-256-PLUS
	readOnly    bool            // accepted on the read-only port
	from        guessing.Client // its address, and the keys under which it is counted and limited
	start       *startup.Message
	login       hba.Login
	intent      ag.Intent
	maxLag      time.Duration // by how much the copy may be behind; 0: no limit
	until       time.Time     // when the client's own time ends
	slot        *preauth.Slot
	handshaking bool           // a TLS handshake is in progress: no error can be sent
	spent       float64        // of the budget of those that have proved nothing; only the client's goroutine writes it
	counted     bool           // counted among the sessions of its address
	rejected    bool           // no pre-auth slot was free for it
	picked      *routing.Route // where its session goes, if that was chosen before
	withNext    []byte         // AuthenticationOk, sent with the greeting or the refusal, so that the client wakes once
	unhook      func() bool
	carried     bool                    // the session is open, and releases the client's counts at its end
	unserved    context.Context         // while its session has no server; ends when it need not wait for one any more
	giveUp      context.CancelCauseFunc // ends unserved
}

// newClient returns a client that was just accepted.
func (s *Server) newClient(raw net.Conn, readOnly bool) *client {
	c := &client{srv: s, log: s.log, raw: raw, conn: raw, readOnly: readOnly, from: guessing.From(raw.RemoteAddr())}
	c.until = time.Now().Add(s.cfg.Limits.PreAuthTime)
	c.slot = preauth.NewSlot(c.from.Key, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	c.login.Local = raw.RemoteAddr().Network() == "unix"
	if t, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.login.Addr = t.AddrPort().Addr().Unmap().WithZone("")
	}
	return c
}

// serve serves the client in a goroutine of its own.
func (c *client) serve() {
	s, raw := c.srv, c.raw
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("session panicked", "panic", r, "stack", string(debug.Stack()))
			s.counts.Reject("panic")
		}
		if !c.carried {
			c.release()
			_ = raw.Close()
		}
	}()
	// The end of the server ends all reads and writes of a client that is not relayed yet.
	c.unhook = context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer c.unhook()
	err := error(tooManyEnter())
	if !c.rejected {
		err = c.run(ctx)
	}
	if err != nil {
		c.refuse(c.evictionError(err))
	}
}

// run takes the client from its first packet to its session. An error means that it got no session; a pgwire.Error is
// sent to the client.
func (c *client) run(ctx context.Context) error {
	c.arm(ctx)
	c.waits()
	packet, err := c.firstPacket(ctx)
	c.heard()
	if err != nil || packet == nil {
		return err
	}
	start, bad := startup.Parse(packet)
	if bad != nil {
		return bad
	}
	c.start = start
	c.login.User, c.login.Database, c.login.Replication = start.User, start.Database, start.Replication
	c.login.TLS = c.tlsState != nil
	c.intent = c.intentOf(ctx)
	if bad := c.srv.checkReads(start.Reads, c.intent); bad != nil {
		return bad
	}
	if bad := c.takeLag(ctx); bad != nil {
		return bad
	}
	if start.Minor > newestMinor || len(start.Unknown) > 0 {
		if err := c.send(pgwire.NegotiateVersion(min(start.Minor, newestMinor), start.Unknown)); err != nil {
			return err
		}
	}
	if bad := start.CheckStandby(); bad != nil {
		return bad
	}
	rules := *c.srv.rules.Load()
	if bad := c.full(); bad != nil {
		return bad
	}
	if hba.NeedsMemberships(rules) {
		if c.login.MemberOf, err = c.memberships(ctx); err != nil {
			return err
		}
	}
	rule, ok := hba.Match(rules, c.login)
	if !ok || rule.Method == hba.MethodReject {
		return c.noRule(ok)
	}
	if c.wantsConsole() {
		return c.console(ctx, rule)
	}
	return c.open(ctx, rule)
}

// firstPacket returns the client's StartupMessage without its length, which may come after requests for encryption. It
// returns nil if the connection brought a cancel request, which is served then.
func (c *client) firstPacket(ctx context.Context) ([]byte, error) {
	e := encryption.Client{
		Longest: c.srv.cfg.Limits.StartupPacket, CAs: c.srv.cfg.ClientCAs, Check: c.srv.cfg.CheckClient, Pay: c.spend, Waits: c.waits,
		Refused: func(err error) { c.log.Info("client certificate refused", "client", c.from.Host, "error", err) },
	}
	if !c.login.Local {
		e.Certificate = c.srv.cfg.Certificate
	}
	packet, err := e.Negotiate(ctx, c.raw)
	c.conn, c.tlsState, c.binding, c.handshaking = e.Conn, e.TLS, e.Binding, e.Handshaking
	if err == nil && binary.BigEndian.Uint32(packet) == pgwire.CancelRequest {
		c.cancelRequest(ctx, packet[4:])
		return nil, nil
	}
	return packet, err
}

// takeLag finds by how much a reader's copy may be behind: by the startup packet, else by the defaults of the role or
// the database. Writers go to the primary, which is never behind.
func (c *client) takeLag(ctx context.Context) *pgwire.Error {
	if c.intent != ag.ReadOnly {
		return nil
	}
	if c.maxLag = c.start.MaxLag; c.maxLag == 0 {
		if text := c.srv.defaults(ctx, c.start.User, c.start.Database)["coterie.max_lag"]; text != "" {
			var bad *pgwire.Error
			if c.maxLag, bad = startup.ParseLag(pgwire.Parameter{Name: "coterie.max_lag", Value: text}); bad != nil {
				return bad
			}
		}
	}
	if c.maxLag > 0 && c.srv.cfg.Position == nil {
		return pgwire.Fatal("max_lag", pgwire.StateNotSupported, "coterie.max_lag is not available here")
	}
	return nil
}

// noRule returns PostgreSQL's error for a login that no rule admits, or that a rule rejects.
func (c *client) noRule(rejected bool) *pgwire.Error {
	from, encryption := "[local]", "no encryption"
	if !c.login.Local {
		from = c.login.Addr.String()
	}
	if c.login.TLS {
		encryption = "SSL encryption"
	}
	why := "no rule admits it"
	if rejected {
		why = "a rule rejects it"
	}
	c.logFailure(why)
	switch physical := c.start.Replication == pgwire.ReplicationPhysical; {
	case rejected && physical:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "pg_hba.conf rejects replication connection for host %q, user %q, %s", from, c.start.User, encryption)
	case rejected:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "pg_hba.conf rejects connection for host %q, user %q, database %q, %s", from, c.start.User, c.start.Database, encryption)
	case physical:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "no pg_hba.conf entry for replication connection from host %q, user %q, %s", from, c.start.User, encryption)
	default:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "no pg_hba.conf entry for host %q, user %q, database %q, %s", from, c.start.User, c.start.Database, encryption)
	}
}

// maxForwards is how many cancel requests of all clients other nodes are asked about at once.
const maxForwards = 16

// cancelTime bounds the delivery of a cancel request.
const cancelTime = 5 * time.Second

// cancelRequest serves a connection that brought a CancelRequest. As in PostgreSQL, there is no answer. A request whose
// session is here is always delivered, and one that no node can know costs nothing. Any other one counts as wrong until
// another node has found its session: other nodes are asked about at most WrongCancels of an address at once, and as
// many wrong ones a second. The rest waits, and its places may be taken.
func (c *client) cancelRequest(ctx context.Context, body []byte) {
	s := c.srv
	key, ok := s.cancelKeys().Read(body, s.isOpen)
	ctx, cancel := context.WithTimeout(ctx, cancelTime)
	defer cancel()
	if ok && s.Cancel(ctx, key) {
		return
	}
	if !ok || s.cfg.ForwardCancel == nil || s.twin(key) {
		s.counts.Reject("wrong cancel")
		return
	}
	c.waits() // its slot may be taken from now on
	counted, turn := s.wrong.Await(ctx, c.from.Key, s.cfg.Limits.WrongCancels, c.slot.Taken())
	if !turn {
		s.counts.Reject("cancel limit")
		return
	}
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	case <-ctx.Done():
		s.counts.Reject("cancel limit")
		return
	case <-c.slot.Taken():
		s.counts.Reject("cancel limit")
		return
	}
	if err := s.cfg.ForwardCancel(ctx, key.Node(), key); err != nil {
		s.counts.Reject("wrong cancel")
		if s.failures.MayLog(c.from) {
			s.log.Info("no other node knows the session of a cancel request", "client", c.from.Host, "error", err)
		}
		return
	}
	s.wrong.TakeBack(c.from.Key, counted)
}

// CancelKey is what a client sends to cancel a query.
type CancelKey = cancelkey.Key

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
		return s.consoles.Cancel(CancelKey{PID: key.PID, Secret: key.Secret})
	}
	conn, err := s.cfg.Backend(ctx, x.replica, BackendHello{ClientAddr: x.addr, Intent: x.intent, Epoch: x.epoch, Cancel: true})
	if err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(cancelTime))
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
	delivered = x.confirmation.CancelStarts()
	x.reclaim()
	return delivered
}

// newestMinor is the newest minor version spoken with clients: 3.2, which differs from 3.0 in the length of cancel
// keys. With PostgreSQL 3.0 is spoken, whatever the client speaks.
const newestMinor = 2

// send writes to the client.
func (c *client) send(b []byte) error {
	if len(c.withNext) > 0 {
		b = append(c.withNext, b...)
		c.withNext = nil
	}
	_, err := c.conn.Write(b)
	return err
}

// arm sets the deadline for everything that the client has to do before it is authenticated.
func (c *client) arm(ctx context.Context) {
	_ = c.raw.SetDeadline(c.until)
	if ctx.Err() != nil {
		_ = c.raw.SetDeadline(time.Unix(1, 0))
	}
}

// refuse sends the client the reason why it gets no session, if that is possible.
func (c *client) refuse(err error) {
	bad, ok := pgwire.AsError(err)
	if !ok {
		reason := "gone"
		if errors.Is(err, pgwire.ErrProtocol) {
			reason = "malformed"
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			reason = "timeout"
		} else if !errors.Is(err, io.EOF) {
			c.log.Debug("client lost before its session", "client", c.from.Host, "error", err)
		}
		c.srv.counts.Reject(reason)
		return
	}
	c.srv.counts.Refuse(bad)
	c.log.Debug("client refused", "client", c.from.Host, "sqlstate", bad.Code, "error", bad.Message)
	c.waits() // its slot may be taken from now on
	_ = c.raw.SetDeadline(time.Now().Add(c.srv.cfg.Limits.ShutdownMessage))
	if c.handshaking || c.send(bad.Encode()) != nil {
		return
	}
	select {
	case <-c.slot.Taken():
		return // a flood is not waited for
	default:
	}
	if bad.Reason == "pre-auth limit" {
		return
	}
	socket.HalfClose(c.conn)
	drain(c.raw)
}

// outOfFiles returns the error of a session for which there are no descriptors left.
func outOfFiles() *pgwire.Error {
	e := pgwire.Fatal("descriptors", pgwire.StateTooMany, "the listener has no file descriptor left for one more session")
	e.Hint = "Raise the agent's limit of open files (LimitNOFILE of its unit)."
	return e
}

// linger is how long a client may take to read the final error, while its further bytes are discarded.
const linger = 250 * time.Millisecond

// drain reads what a client has still sent, for a moment: closing a socket with unread bytes resets it, and the
// client would lose the error.
func drain(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(linger))
	_, _ = io.CopyN(io.Discard, conn, 64<<10)
}

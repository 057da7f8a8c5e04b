package login

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/encryption"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/preauth"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// Proved is what a session needs of its client's login.
type Proved struct {
	Raw    net.Conn // as accepted
	Conn   net.Conn // Raw, or TLS over it
	TLS    *tls.ConnectionState
	Start  *startup.Message
	Intent ag.Intent
	MaxLag time.Duration // by how much the copy may be behind; 0: no limit
	Local  bool          // it is connected by a Unix socket
	Host   string        // its address without the port
}

// Address returns the client's address as coterie.client_addr and the log show it.
func (p *Proved) Address() string {
	if p.Local {
		return "local"
	}
	return p.Raw.RemoteAddr().String()
}

// SharedAddress returns the client's address in the form that the server gets if several clients may use the backend in
// turn: without a port.
func (p *Proved) SharedAddress() string {
	if p.Local {
		return "local"
	}
	return p.Host
}

// Client is one connection from its first byte until its session is open: negotiate, parse, match a rule, wait for a
// replica, authenticate.
type Client struct {
	Proved
	srv         *Logins
	binding     []byte          // for SCRAM-SHA-256-PLUS
	readOnly    bool            // accepted on the read-only port
	from        guessing.Client // its address, and the keys under which it is counted and limited
	login       hba.Login
	until       time.Time // when the client's own time ends
	slot        *preauth.Slot
	handshaking bool           // a TLS handshake is in progress: no error can be sent
	spent       float64        // of the budget of those that have proved nothing; only the client's goroutine writes it
	counted     bool           // counted among the sessions of its address
	rejected    bool           // no pre-auth slot was free for it
	picked      *routing.Route // where its session goes, if that was chosen before
	withNext    []byte         // AuthenticationOk, sent with the greeting or the refusal, so that the client wakes once
	unhook      func() bool
	carried     bool // the session is open, and releases the client's counts at its end
}

// newClient returns a client that was just accepted.
func (s *Logins) newClient(raw net.Conn, readOnly bool) *Client {
	c := &Client{srv: s, readOnly: readOnly, from: guessing.From(raw.RemoteAddr())}
	c.Raw, c.Conn = raw, raw
	c.until = time.Now().Add(s.Limits.PreAuthTime)
	c.slot = preauth.NewSlot(c.from.Key, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	c.login.Local = raw.RemoteAddr().Network() == "unix"
	c.Local, c.Host = c.login.Local, c.from.Host
	if t, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.login.Addr = t.AddrPort().Addr().Unmap().WithZone("")
	}
	return c
}

// serve serves the client in a goroutine of its own.
func (c *Client) serve() {
	s, raw := c.srv, c.Raw
	ctx, cancel := context.WithCancel(s.Life)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("session panicked", "panic", r, "stack", string(debug.Stack()))
			s.Counts.Reject("panic")
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

// Leaves is called once the session is open: it ends by its own means from here on. release gives back what the client
// was counted under, and is called at the session's end.
func (c *Client) Leaves() (release func()) {
	c.unhook()
	c.carried = true
	return c.release
}

// run takes the client from its first packet to its session. An error means that it got no session; a pgwire.Error is
// sent to the client.
func (c *Client) run(ctx context.Context) error {
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
	c.Start = start
	c.login.User, c.login.Database, c.login.Replication = start.User, start.Database, start.Replication
	c.login.TLS = c.TLS != nil
	c.Intent = c.intentOf(ctx)
	if bad := c.srv.Guarantees.Check(start.Reads, c.Intent); bad != nil {
		return bad
	}
	if bad := c.takeLag(ctx); bad != nil {
		return bad
	}
	if start.Minor > newestMinor || len(start.Unknown) > 0 {
		if err := c.Send(pgwire.NegotiateVersion(min(start.Minor, newestMinor), start.Unknown)); err != nil {
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
func (c *Client) firstPacket(ctx context.Context) ([]byte, error) {
	s := c.srv
	e := encryption.Client{
		Longest: s.Limits.StartupPacket, CAs: s.ClientCAs, Check: s.CheckClient, Pay: c.spend, Waits: c.waits,
		Refused: func(err error) { s.Log.Info("client certificate refused", "client", c.from.Host, "error", err) },
	}
	if !c.login.Local {
		e.Certificate = s.Certificate
	}
	packet, err := e.Negotiate(ctx, c.Raw)
	c.Conn, c.TLS, c.binding, c.handshaking = e.Conn, e.TLS, e.Binding, e.Handshaking
	if err == nil && binary.BigEndian.Uint32(packet) == pgwire.CancelRequest {
		c.cancelRequest(ctx, packet[4:])
		return nil, nil
	}
	return packet, err
}

// noRule returns PostgreSQL's error for a login that no rule admits, or that a rule rejects.
func (c *Client) noRule(rejected bool) *pgwire.Error {
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
	switch physical := c.Start.Replication == pgwire.ReplicationPhysical; {
	case rejected && physical:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "pg_hba.conf rejects replication connection for host %q, user %q, %s", from, c.Start.User, encryption)
	case rejected:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "pg_hba.conf rejects connection for host %q, user %q, database %q, %s", from, c.Start.User, c.Start.Database, encryption)
	case physical:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "no pg_hba.conf entry for replication connection from host %q, user %q, %s", from, c.Start.User, encryption)
	default:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "no pg_hba.conf entry for host %q, user %q, database %q, %s", from, c.Start.User, c.Start.Database, encryption)
	}
}

// newestMinor is the newest minor version spoken with clients: 3.2, which differs from 3.0 in the length of cancel
// keys. With PostgreSQL 3.0 is spoken, whatever the client speaks.
const newestMinor = 2

// Send writes to the client.
func (c *Client) Send(b []byte) error {
	if len(c.withNext) > 0 {
		b = append(c.withNext, b...)
		c.withNext = nil
	}
	_, err := c.Conn.Write(b)
	return err
}

// arm sets the deadline for everything that the client has to do before it is authenticated.
func (c *Client) arm(ctx context.Context) {
	_ = c.Raw.SetDeadline(c.until)
	if ctx.Err() != nil {
		_ = c.Raw.SetDeadline(time.Unix(1, 0))
	}
}

// refuse sends the client the reason why it gets no session, if that is possible.
func (c *Client) refuse(err error) {
	s := c.srv
	bad, ok := pgwire.AsError(err)
	if !ok {
		reason := "gone"
		if errors.Is(err, pgwire.ErrProtocol) {
			reason = "malformed"
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			reason = "timeout"
		} else if !errors.Is(err, io.EOF) {
			s.Log.Debug("client lost before its session", "client", c.from.Host, "error", err)
		}
		s.Counts.Reject(reason)
		return
	}
	s.Counts.Refuse(bad)
	s.Log.Debug("client refused", "client", c.from.Host, "sqlstate", bad.Code, "error", bad.Message)
	c.waits() // its slot may be taken from now on
	_ = c.Raw.SetDeadline(time.Now().Add(s.Limits.ShutdownMessage))
	if c.handshaking || c.Send(bad.Encode()) != nil {
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
	socket.HalfClose(c.Conn)
	socket.Drain(c.Raw)
}

// outOfFiles returns the error of a session for which there are no descriptors left.
func outOfFiles() *pgwire.Error {
	e := pgwire.Fatal("descriptors", pgwire.StateTooMany, "the listener has no file descriptor left for one more session")
	e.Hint = "Raise the agent's limit of open files (LimitNOFILE of its unit)."
	return e
}

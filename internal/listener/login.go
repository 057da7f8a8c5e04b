package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

// enterPreAuth takes a pre-auth slot. With limit there are no more slots than the configured number; it reports false
// if there is none for this client. A client that returns from waiting for a primary is not limited.
func (c *client) enterPreAuth(limit bool) bool {
	most := 0
	if limit {
		most = c.srv.cfg.Limits.PreAuth
	}
	return c.srv.preauth.Enter(c.slot, most)
}

// awaitPrimary takes the client from its pre-auth slot to a place among those that have proved nothing and wait for a
// replica. It reports false if all those places are taken by others with a better right to them: the client that has
// waited longest, of the address with the most places, gives way. leave gives the place back.
func (c *client) awaitPrimary() (leave func(), ok bool) {
	c.leavePreAuth()
	p := c.srv.waiters.Enter(c.from.Key, boottime.Now(), func() { c.srv.preauth.Evict(c.slot) })
	if p == nil {
		return nil, false
	}
	return func() {
		p.Leave()
		c.enterPreAuth(false)
	}, true
}

// eachUnproven and allUnproven bound the work for clients that are not authenticated, of one address and of all: a TLS
// handshake counts as one, and so does a question about a role. A login that succeeds costs nothing, and its address is
// not subject to the bound of all.
var (
	eachUnproven = admission.Rate{PerSecond: 100, Burst: 500}
	allUnproven  = admission.Rate{PerSecond: 1000, Burst: 4000}
)

// spendPause is how long a client without budget waits until it tries again.
const spendPause = 20 * time.Millisecond

// spend waits until the budget allows one more handshake or question for the client, if it is not authenticated. The
// wait ends with the client's time, and its place may be taken.
func (c *client) spend(ctx context.Context) error {
	if !c.holdsSlot() {
		return nil
	}
	waits := false
	for !c.srv.unproven.Spend(c.from.Key, 1, boottime.Now()) {
		if !waits {
			waits = true
			c.waits()
			defer c.heard()
		}
		if !time.Now().Before(c.until) {
			return tooManyEnter()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.slot.Taken():
			return tooManyEnter()
		case <-time.After(spendPause):
		}
	}
	c.spent++
	return nil
}

// asking returns a context for a question that is asked for the client. It ends when the client loses its place.
func (c *client) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.slot.Kept(), func() { cancel(tooManyEnter()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// evictionError returns the reason why the client was lost, if it was evicted; else err.
func (c *client) evictionError(err error) error {
	if _, said := pgwire.AsError(err); said || !c.srv.preauth.Evicted(c.slot) {
		return err
	}
	return tooManyEnter()
}

// tooManyEnter returns the error of a client without a pre-auth slot.
func tooManyEnter() *pgwire.Error {
	return pgwire.Fatal("pre-auth limit", pgwire.StateTooMany, "too many connections are being opened")
}

// waits notes that it is the client's turn. heard notes that the client has acted.
func (c *client) waits() { c.slot.Waits() }
func (c *client) heard() { c.slot.Heard() }

// holdsSlot reports whether the client holds a pre-auth slot.
func (c *client) holdsSlot() bool { return c.srv.preauth.Holds(c.slot) }

// leavePreAuth gives the slot back.
func (c *client) leavePreAuth() { c.srv.preauth.Leave(c.slot) }

// startTurn is how long a session's turn to start lasts at most. One that takes longer waits for a lock or a disk,
// and keeps no processor from the others.
const startTurn = time.Second

// startOne waits for a turn to have the local server start a session, in order of arrival. After a failover all
// clients connect at once, and a server that starts hundreds of processes at the same time finishes none of them
// soon. done ends the turn.
func (s *Server) startOne(ctx context.Context) (done func(), err error) {
	select {
	case s.starting <- struct{}{}:
	default:
		s.counts.Queued.Add(1)
		select {
		case s.starting <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("the server was starting %d other sessions all the time: %w", cap(s.starting), ctx.Err())
		}
	}
	end := sync.OnceFunc(func() { <-s.starting })
	late := time.AfterFunc(startTurn, end)
	return func() { late.Stop(); end() }, nil
}

// full returns the error of a client for whom there would be no place among the sessions. It takes none: a client that
// has proved nothing has no right to one.
func (c *client) full() *pgwire.Error {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	return c.noPlace()
}

// noPlace is full; the caller holds mu.
func (c *client) noPlace() *pgwire.Error {
	switch s, limits := c.srv, c.srv.cfg.Limits; {
	case c.counted:
	case s.open >= limits.Connections:
		return pgwire.Fatal("connection limit", pgwire.StateTooMany, "sorry, too many clients already")
	case limits.PerAddress > 0 && s.perAddress[c.from.Key] >= limits.PerAddress:
		return pgwire.Fatal("address limit", pgwire.StateTooMany, "too many connections from this address")
	}
	return nil
}

// count takes a place among the sessions for a client that is authenticated, if it has none yet. Cancel requests never
// need one, so a full server can still be helped.
func (c *client) count() *pgwire.Error {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if bad := c.noPlace(); bad != nil || c.counted {
		return bad
	}
	s.open++
	s.perAddress[c.from.Key]++
	c.counted = true
	return nil
}

// release gives back what the client was counted under.
func (c *client) release() {
	c.leavePreAuth()
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.counted {
		return
	}
	s.open--
	if s.perAddress[c.from.Key]--; s.perAddress[c.from.Key] <= 0 {
		delete(s.perAddress, c.from.Key)
	}
}

// maxAddresses is how many addresses are known at once; beyond that, the one that was not seen for longest is
// forgotten.
const maxAddresses = 4096

// eachFlush and allFlushes bound how often statements about databases empty the pool, by one role and by all:
// PostgreSQL refuses such a statement of most roles, but only after the pool has been emptied for it. Beyond the bound
// a pooled backend leaves by itself within poolIdle, for which PostgreSQL waits.
var (
	eachFlush  = admission.Rate{PerSecond: 0.2, Burst: 5}
	allFlushes = admission.Rate{PerSecond: 1, Burst: 20}
)

// maxFlushers is the number of roles that are remembered for that.
const maxFlushers = 256

// mayFlush reports whether a statement of that role about a database may empty the pool.
func (s *Server) mayFlush(user string) bool { return s.flushes.Spend(user, 1, boottime.Now()) }

// passwordFailure returns the one answer to every login whose user or password is wrong. The log has which. A login
// that no rule admits is answered by noRule.
func passwordFailure(user string) *pgwire.Error {
	return pgwire.Fatal("password", pgwire.StateInvalidPassword, "password authentication failed for user %q", user)
}

// authenticate runs the rule's method with the client. role is what the node that will run the session knows; it may
// be empty for methods that need none. AuthenticationOk is not sent.
func (c *client) authenticate(rule hba.Rule, role Role) error {
	a := auth.Client{
		User: c.start.User, TLS: c.tlsState, Binding: c.binding, Near: c.near(), Raw: c.raw, MockSecret: c.srv.cfg.MockSecret, AllowPlainMD5: c.srv.cfg.AllowPlainMD5,
		Send: c.send, Response: c.response, Failed: c.logFailure, Log: c.log,
	}
	last, why := a.Prove(rule, role)
	c.withNext = append(c.withNext, last...)
	if _, said := pgwire.AsError(why); said {
		return why
	}
	switch {
	case why == nil && (rule.Method == hba.MethodSCRAM || rule.Method == hba.MethodMD5):
		c.srv.failures.Succeeded(c.from, c.start.User)
	case errors.Is(why, scram.ErrBadProof):
		c.failedLogin(why.Error())
		return passwordFailure(c.start.User)
	}
	return why
}

// response reads the client's next authentication message. Any other message is refused, in particular a second
// startup packet.
func (c *client) response() ([]byte, error) {
	c.waits()
	typ, body, err := pgwire.ReadMessage(c.conn, pgwire.MaxResponse)
	c.heard()
	if errors.Is(err, pgwire.ErrProtocol) {
		return nil, pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "invalid authentication message")
	}
	if err != nil {
		return nil, err
	}
	if typ != 'p' {
		return nil, pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "expected an authentication message, got message type %d", typ)
	}
	return body, nil
}

// near reports whether the client's packets stay on this machine.
func (c *client) near() bool { return c.login.Local || c.login.Addr.IsLoopback() }

// awaitTurn delays an attempt to log in with a password, by what failed before from its address: with the same name, or
// with any. Failures of other names do not delay a name that has logged in from its address and has no failure of its
// own: the address may be that of a pooler or of a whole network. It delays the attempt and not the answer, so that a
// guesser who hangs up gains nothing. Another client may take the place of one that waits.
func (c *client) awaitTurn(ctx context.Context) error {
	wait, bad := c.srv.failures.Begin(c.from, c.start.User)
	if bad != nil {
		return bad
	}
	if wait == 0 {
		return nil
	}
	c.until = c.until.Add(wait) // not the client's own time
	c.waits()
	defer c.heard()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.slot.Taken():
		return tooManyEnter()
	case <-t.C:
		return nil
	}
}

// failedLogin counts a failed proof of a name, and logs it.
func (c *client) failedLogin(why string) {
	c.srv.failures.Failed(c.from, c.start.User)
	c.logFailure(why)
}

// logFailure logs why a login failed.
func (c *client) logFailure(why string) {
	c.srv.failures.Log(c.from, c.start.User, c.start.Database, why)
}

// ConsoleDatabase is the name of the administrators' console, a database without a PostgreSQL.
const ConsoleDatabase = "coterie"

// ConsoleHello describes an authenticated client of the console.
type ConsoleHello struct {
	User     string
	Role     Role
	Settings map[string]string // of its startup packet
	Key      cancelkey.Key     // for the client's BackendKeyData
	Cancel   <-chan struct{}   // receives requests to cancel its statement
	Client   string            // its address
}

// wantsConsole reports whether the client wants the console instead of PostgreSQL.
func (c *client) wantsConsole() bool {
	return c.srv.cfg.Console != nil && c.start.Database == ConsoleDatabase && c.start.Replication == pgwire.ReplicationNone
}

// console authenticates the client by its rule, and hands the connection over until the session ends.
func (c *client) console(ctx context.Context, rule hba.Rule) error {
	if err := c.spend(ctx); err != nil {
		return err
	}
	asking, done := c.asking(ctx)
	asking, cancel := context.WithTimeout(asking, c.srv.cfg.Limits.BackendHandshake)
	role, err := c.srv.cfg.ConsoleRole(asking, c.start.User)
	cancel()
	done()
	if err != nil {
		bad := pgwire.Fatal("console", pgwire.StateCannotConnect, "the role %q could not be looked up", c.start.User)
		bad.Hint = "The console needs one replica whose server runs to log in; \"coterie sql\" on a node needs none."
		return errors.Join(bad, fmt.Errorf("console: %w", err))
	}
	if err := c.admit(ctx, rule, role); err != nil {
		return err
	}
	switch {
	case !role.Found:
		return pgwire.Fatal("console", pgwire.StateInvalidAuth, "role %q does not exist", c.start.User)
	case !role.CanLogin:
		return pgwire.Fatal("console", pgwire.StateInvalidAuth, "role %q is not permitted to log in", c.start.User)
	}
	if err := c.send(nil); err != nil { // flushes AuthenticationOk: the console writes from here on
		return err
	}
	settings := map[string]string{}
	for _, s := range c.start.Settings {
		settings[s.Name] = s.Value
	}
	c.log.Info("console opened", "user", c.start.User, "client", c.address())
	key, ask := c.srv.consoles.Add(c.srv.cfg.Node)
	defer c.srv.consoles.Remove(key)
	c.srv.cfg.Console(ctx, c.conn, ConsoleHello{User: c.start.User, Role: role, Settings: settings, Key: key, Cancel: ask, Client: c.address()})
	return nil
}

// ConsoleFunc serves a console session on an authenticated connection. It returns when the session has ended.
type ConsoleFunc func(ctx context.Context, conn net.Conn, hello ConsoleHello)

// maxChecks is how many passwords are compared with verifiers at once, which takes processor time. An attempt that
// waits for its turn because earlier ones failed is not one of them: a guesser keeps nobody else out.
const maxChecks = 4

// PasswordLogin is an attempt to log in to the console by what came over TLS on another port.
type PasswordLogin = auth.PasswordLogin

// CheckPassword checks the password or the certificate of a user of the console. Rules, roles and verifiers are those
// of a login over TLS to the database coterie, and an attempt that fails delays the next one there and here. A rule by
// which nothing is asked for lets nobody in without the password. The error is a *pgwire.Error, or that of ctx.
func (s *Server) CheckPassword(ctx context.Context, l PasswordLogin) (Role, error) {
	from := guessing.From(l.Client)
	if !s.unproven.Spend(from.Key, 1, boottime.Now()) {
		return Role{}, tooManyEnter()
	}
	wait, bad := s.failures.Begin(from, l.User)
	if bad != nil {
		return Role{}, bad
	}
	if err := retry.Sleep(ctx, wait); err != nil {
		return Role{}, err
	}
	asking, cancel := context.WithTimeout(ctx, s.cfg.Limits.BackendHandshake)
	role, err := s.cfg.ConsoleRole(asking, l.User)
	cancel()
	if err != nil {
		bad := pgwire.Fatal("console", pgwire.StateCannotConnect, "the role %q could not be looked up", pgwire.Clip(l.User))
		bad.Hint = "The console needs one replica whose server runs to log in."
		return Role{}, errors.Join(bad, err)
	}
	select {
	case s.checks <- struct{}{}:
	case <-ctx.Done():
		return Role{}, ctx.Err()
	}
	why := l.Judge(role, ConsoleDatabase, *s.rules.Load(), s.cfg.MockSecret())
	<-s.checks
	if why == "" {
		s.failures.Succeeded(from, l.User)
		s.unproven.Succeeded(from.Key, 1)
		return role, nil
	}
	s.failures.Failed(from, l.User)
	s.failures.Log(from, l.User, ConsoleDatabase, why)
	if l.Password == "" && l.Certificate != nil {
		return Role{}, pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", pgwire.Clip(l.User))
	}
	return Role{}, passwordFailure(l.User)
}

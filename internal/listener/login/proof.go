package login

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

// open authenticates the client and has its session opened on a replica. Tries that fail for a
// temporary reason are repeated: the client sees latency.
func (c *Client) open(ctx context.Context, rule hba.Rule) error {
	p := c.newLoginBudget()
	l := proven{rule: rule, replication: c.Start.Replication != pgwire.ReplicationNone}
	if c.Start.Replication == pgwire.ReplicationLogical && c.Intent == ag.ReadOnly {
		return pgwire.Fatal("replication", pgwire.StateNotSupported, "logical replication runs on the primary: connect with READ_WRITE intent")
	}
	for {
		r, err := c.route(ctx, p)
		if err != nil {
			return err
		}
		again, err := c.openOn(ctx, r, &l)
		if !again {
			return err
		}
		if err := c.retry(ctx, p, r, err); err != nil {
			return err
		}
	}
}

// proven is what a client has proved in its login, over all its tries.
type proven struct {
	rule          hba.Rule
	replication   bool         // it requests replication, which needs a role with that right
	judge         ag.ReplicaID // the replica whose role facts were used
	asked         time.Time    // when it was asked
	role          Role
	authenticated bool
}

// RoleAge is how old role facts may be when a session is handed out: a login may have waited long since its proof.
const RoleAge = time.Second

// openOn is one try, on the replica of the route. It returns when the session is handed over, or with an error. again
// reports whether the error may be temporary.
func (c *Client) openOn(ctx context.Context, r routing.Route, l *proven) (again bool, err error) {
	needed := l.rule.NeedsRole() || l.replication
	if needed && (r.ID != l.judge || l.authenticated && time.Since(l.asked) > RoleAge) {
		asked := time.Now()
		fresh, err := c.judge(ctx, r)
		if err != nil {
			_, final := pgwire.AsError(err)
			return !final, err
		}
		if l.authenticated && !sameLogin(l.role, fresh) {
			return false, pgwire.Fatal("role changed", pgwire.StateCannotConnect, "the role changed while the session was being opened")
		}
		l.role, l.judge, l.asked = fresh, r.ID, asked
	}
	if !l.authenticated {
		if err := c.admit(ctx, l.rule, l.role); err != nil {
			return false, err
		}
		l.authenticated = true
		if needed && time.Since(l.asked) > RoleAge { // the client took its time
			return c.openOn(ctx, r, l)
		}
	}
	if l.replication && !l.role.Replication && !l.role.Super {
		return false, pgwire.Fatal("replication", "42501", "must be superuser or replication role to start walsender")
	}
	return c.srv.Open(ctx, c, r)
}

// admit authenticates the client and has AuthenticationOk sent.
func (c *Client) admit(ctx context.Context, rule hba.Rule, role Role) error {
	if rule.Method == hba.MethodSCRAM || rule.Method == hba.MethodMD5 {
		if err := c.awaitTurn(ctx); err != nil {
			return err
		}
	}
	c.arm(ctx)
	if err := c.authenticate(rule, role); err != nil {
		return err
	}
	if bad := c.count(); bad != nil {
		return bad
	}
	c.srv.unproven.Succeeded(c.from.Key, c.spent)
	c.spent = 0
	c.withNext = pgwire.AppendAuth(c.withNext, auth.OK, nil)
	c.leavePreAuth()
	_ = c.Raw.SetDeadline(time.Time{})
	return nil
}

// passwordFailure returns the one answer to every login whose user or password is wrong. The log has which. A login
// that no rule admits is answered by noRule.
func passwordFailure(user string) *pgwire.Error {
	return pgwire.Fatal("password", pgwire.StateInvalidPassword, "password authentication failed for user %q", user)
}

// authenticate runs the rule's method with the client. role is what the node that will run the session knows; it may
// be empty for methods that need none. AuthenticationOk is not sent.
func (c *Client) authenticate(rule hba.Rule, role Role) error {
	a := auth.Client{
		User: c.Start.User, TLS: c.TLS, Binding: c.binding, Near: c.near(), Raw: c.Raw, MockSecret: c.srv.MockSecret, AllowPlainMD5: c.srv.AllowPlainMD5,
		Send: c.Send, Response: c.response, Failed: c.logFailure, Log: c.srv.Log,
	}
	last, why := a.Prove(rule, role)
	c.withNext = append(c.withNext, last...)
	if _, said := pgwire.AsError(why); said {
		return why
	}
	switch {
	case why == nil && (rule.Method == hba.MethodSCRAM || rule.Method == hba.MethodMD5):
		c.srv.Failures.Succeeded(c.from, c.Start.User)
	case errors.Is(why, scram.ErrBadProof):
		c.failedLogin(why.Error())
		return passwordFailure(c.Start.User)
	}
	return why
}

// response reads the client's next authentication message. Any other message is refused, in particular a second
// startup packet.
func (c *Client) response() ([]byte, error) {
	c.waits()
	typ, body, err := pgwire.ReadMessage(c.Conn, pgwire.MaxResponse)
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
func (c *Client) near() bool { return c.login.Local || c.login.Addr.IsLoopback() }

// awaitTurn delays an attempt to log in with a password, by what failed before from its address: with the same name, or
// with any. Failures of other names do not delay a name that has logged in from its address and has no failure of its
// own: the address may be that of a pooler or of a whole network. It delays the attempt and not the answer, so that a
// guesser who hangs up gains nothing. Another client may take the place of one that waits.
func (c *Client) awaitTurn(ctx context.Context) error {
	wait, bad := c.srv.Failures.Begin(c.from, c.Start.User)
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
func (c *Client) failedLogin(why string) {
	c.srv.Failures.Failed(c.from, c.Start.User)
	c.logFailure(why)
}

// logFailure logs why a login failed.
func (c *Client) logFailure(why string) {
	c.srv.Failures.Log(c.from, c.Start.User, c.Start.Database, why)
}

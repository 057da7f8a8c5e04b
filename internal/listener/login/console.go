package login

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

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
func (c *Client) wantsConsole() bool {
	return c.srv.Console != nil && c.Start.Database == ConsoleDatabase && c.Start.Replication == pgwire.ReplicationNone
}

// console authenticates the client by its rule, and hands the connection over until the session ends.
func (c *Client) console(ctx context.Context, rule hba.Rule) error {
	if err := c.spend(ctx); err != nil {
		return err
	}
	asking, done := c.asking(ctx)
	asking, cancel := context.WithTimeout(asking, c.srv.Limits.BackendHandshake)
	role, err := c.srv.ConsoleRole(asking, c.Start.User)
	cancel()
	done()
	if err != nil {
		return errors.Join(c.srv.roleUnknown(c.Start.User), fmt.Errorf("console: %w", err))
	}
	if err := c.admit(ctx, rule, role); err != nil {
		return err
	}
	switch {
	case !role.Found:
		return pgwire.Fatal("console", pgwire.StateInvalidAuth, "role %q does not exist", c.Start.User)
	case !role.CanLogin:
		return pgwire.Fatal("console", pgwire.StateInvalidAuth, "role %q is not permitted to log in", c.Start.User)
	}
	if err := c.Send(nil); err != nil { // flushes AuthenticationOk: the console writes from here on
		return err
	}
	settings := map[string]string{}
	for _, s := range c.Start.Settings {
		settings[s.Name] = s.Value
	}
	c.srv.Log.Info("console opened", "user", c.Start.User, "client", c.Address())
	key, ask := c.srv.consoles.Add(c.srv.Node)
	defer c.srv.consoles.Remove(key)
	c.srv.Console(ctx, c.Conn, ConsoleHello{User: c.Start.User, Role: role, Settings: settings, Key: key, Cancel: ask, Client: c.Address()})
	return nil
}

// roleUnknown returns the error of a login to the console whose role no server could be asked for. On a node that was
// removed from its group it is that of a login to any other database: no server will be there later.
func (s *Logins) roleUnknown(user string) *pgwire.Error {
	if s.removed() {
		return routing.Removed()
	}
	bad := pgwire.Fatal("console", pgwire.StateCannotConnect, "the role %q could not be looked up", pgwire.Clip(user))
	bad.Hint = "The console needs one replica whose server runs to log in; \"coterie sql\" on a node needs none."
	return bad
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
func (s *Logins) CheckPassword(ctx context.Context, l PasswordLogin) (Role, error) {
	from := guessing.From(l.Client)
	if !s.unproven.Spend(from.Key, 1, boottime.Now()) {
		return Role{}, tooManyEnter()
	}
	wait, bad := s.Failures.Begin(from, l.User)
	if bad != nil {
		return Role{}, bad
	}
	if err := retry.Sleep(ctx, wait); err != nil {
		return Role{}, err
	}
	asking, cancel := context.WithTimeout(ctx, s.Limits.BackendHandshake)
	role, err := s.ConsoleRole(asking, l.User)
	cancel()
	if err != nil {
		return Role{}, errors.Join(s.roleUnknown(l.User), err)
	}
	select {
	case s.checks <- struct{}{}:
	case <-ctx.Done():
		return Role{}, ctx.Err()
	}
	why := l.Judge(role, ConsoleDatabase, *s.rules.Load(), s.MockSecret())
	<-s.checks
	if why == "" {
		s.Failures.Succeeded(from, l.User)
		s.unproven.Succeeded(from.Key, 1)
		return role, nil
	}
	s.Failures.Failed(from, l.User)
	s.Failures.Log(from, l.User, ConsoleDatabase, why)
	if l.Password == "" && l.Certificate != nil {
		return Role{}, pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", pgwire.Clip(l.User))
	}
	return Role{}, passwordFailure(l.User)
}

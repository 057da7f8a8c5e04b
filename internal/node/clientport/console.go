package clientport

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
)

// consoleRoles are the roles of the console, created by the primary once in an epoch. A viewer's rights are included in
// an operator's, and those in an administrator's.
var consoleRoles = []string{"coterie_viewer", "coterie_operator", "coterie_admin"}

// How often KeepRoles looks for a new epoch, and how long the server may take to create the roles.
const (
	rolesEvery   = 2 * time.Second
	rolesTimeout = 5 * time.Second
)

// serveConsole runs a session of the console on a connection that the listener has authenticated.
func (p *Port) serveConsole(ctx context.Context, conn net.Conn, hello listener.ConsoleHello) {
	who := principalOf(hello.User, hello.Role)
	who.Via, who.From = console.ViaSQL, hello.Client
	if err := console.Serve(ctx, conn, p.c.Console(), console.Hello{
		Who: who, Settings: hello.Settings, PID: hello.Key.PID, Secret: hello.Key.Secret, Cancel: hello.Cancel, Places: p.consoles,
		Look: func(ctx context.Context, last ddl.Privilege) (ddl.Privilege, error) {
			return p.mayNow(ctx, hello.User, last)
		},
		Logger: p.c.Logger.With("part", "console"),
	}); err != nil {
		p.c.Logger.Debug("console session ended", "user", hello.User, "err", err)
	}
}

// Account is a role at the console. Its verifier is told by a hash, which changes with the password.
type Account struct {
	console.Principal
	Verifier [sha256.Size]byte
}

// LogIn checks a password that came over TLS on another port of this node, as a login to the console does. An error is
// a *pgwire.Error, or that of ctx.
func (p *Port) LogIn(ctx context.Context, l listener.PasswordLogin) (Account, error) {
	if p.watch != nil {
		return p.logInToLook(ctx, l)
	}
	s := p.server.Load()
	if s == nil {
		return Account{}, pgwire.Fatal("console", pgwire.StateCannotConnect, "this node serves no clients: use the console of a replica")
	}
	role, err := s.CheckPassword(ctx, l)
	if err != nil {
		return Account{}, err
	}
	return Account{principalOf(l.User, role), sha256.Sum256([]byte(role.Password))}, nil
}

// Look returns the privilege and the verifier that a role has at the console now; MayNothing if it may not log in, also
// because its password has expired. An error means that no replica could be asked.
func (p *Port) Look(ctx context.Context, user string) (Account, error) {
	if p.watch != nil {
		return p.lookAt(ctx, user)
	}
	role, err := p.consoleRole(ctx, user)
	expired := !role.ValidUntil.IsZero() && time.Now().After(role.ValidUntil)
	if err != nil || !role.Found || !role.CanLogin || expired {
		return Account{Principal: console.Principal{User: user, May: ddl.MayNothing}}, err
	}
	return Account{principalOf(user, role), sha256.Sum256([]byte(role.Password))}, nil
}

// mayNow returns what a role of a session may do now, as console.Look. An expired password ends no session.
func (p *Port) mayNow(ctx context.Context, user string, last ddl.Privilege) (ddl.Privilege, error) {
	role, err := p.consoleRole(ctx, user)
	switch {
	case err != nil:
		if routes := p.routes.Load(); routes == nil || !routes.WriteOpen {
			return last, nil
		}
		return last, err
	case !role.Found || !role.CanLogin:
		return ddl.MayNothing, nil
	}
	return principalOf(user, role).May, nil
}

// ClientCAs returns the authorities of client certificates; nil: no client is asked for one.
func (p *Port) ClientCAs() *x509.CertPool { return p.authorities() }

// CheckClient returns an error if every one of the verified chains has a revoked certificate, or one that cannot be
// checked, or if the client's name is not plain text. There is at least one chain.
func (p *Port) CheckClient(chains [][]*x509.Certificate) error {
	_, err := clientcert.Name(chains[0][0])
	if err != nil && !errors.Is(err, clientcert.ErrManyNames) { // only a rule that compares the name minds those
		return err
	}
	return p.checkClient(chains)
}

// Certificate returns the certificate of the client ports; nil where there is none yet.
func (p *Port) Certificate() *tls.Certificate { return p.cert.Load() }

func principalOf(user string, role listener.Role) console.Principal {
	return console.Principal{User: user, May: console.PrivilegeOf(role.Super, user, role.MemberOf)}
}

// KeepRoles creates the console's roles wherever this node is the primary, until ctx is done.
func (p *Port) KeepRoles(ctx context.Context) error {
	server := p.c.Server()
	if server == nil {
		<-ctx.Done() // the end of a part ends the node
		return nil
	}
	var done ag.Epoch
	retry.Every(ctx, rolesEvery, func() {
		v, plan := p.c.View(), p.c.Plan()
		if v != nil && plan != nil && plan.Open && v.Record.Epoch.Epoch != done {
			c, cancel := context.WithTimeout(ctx, rolesTimeout)
			if err := server.EnsureRoles(c, consoleRoles); err == nil {
				done = v.Record.Epoch.Epoch
			} else {
				p.c.Logger.Debug("roles of the console not created yet", "err", err)
			}
			cancel()
		}
	})
	return nil
}

package auth

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

// PasswordLogin is an attempt to log in by what came over TLS on another port.
type PasswordLogin struct {
	User, Password string
	Client         *net.TCPAddr
	// Certificate is that of the client, nil without one. The handshake has verified its chain, and that it is not
	// revoked.
	Certificate *x509.Certificate
}

// certified returns why the certificate of a login is not what its rule asks for; "": it is, or the rule asks for none.
func certified(rule hba.Rule, l PasswordLogin) string {
	if rule.ClientCert == "" {
		return ""
	}
	if l.Certificate == nil {
		return "its rule asks for a certificate, and it has none"
	}
	if rule.ClientCert != "verify-full" {
		return ""
	}
	name, err := clientcert.Name(l.Certificate)
	switch {
	case err != nil:
		return err.Error()
	case name != l.User:
		return fmt.Sprintf("the certificate is for another name, %q", pgwire.Clip(name))
	}
	return ""
}

// Judge returns why a login to the database does not let its user in; "": it does. It takes as long for a role that
// does not exist.
func (l PasswordLogin) Judge(role Role, database string, rules []hba.Rule, mockSecret []byte) string {
	verifier, ok := scram.ParseVerifier(role.Password)
	if !ok || !role.Found || !role.CanLogin {
		verifier = scram.MockVerifier(mockSecret, l.User, role.Rounds)
	}
	proved := verifier.Matches(l.Password)
	rule, ok := hba.Match(rules, hba.Login{
		TLS: true, Addr: l.Client.AddrPort().Addr().Unmap().WithZone(""), User: l.User, Database: database, MemberOf: role.Memberships(l.User),
	})
	switch {
	case !ok:
		return "no rule admits it"
	case !slices.Contains([]hba.Method{hba.MethodSCRAM, hba.MethodMD5, hba.MethodTrust, hba.MethodCert}, rule.Method):
		return "its rule asks for something else, or rejects it"
	case certified(rule, l) != "":
		return certified(rule, l)
	case rule.Method == hba.MethodCert && role.Found && role.CanLogin && CheckValidUntil(role) == nil:
		return ""
	case verifier.Mock:
		return (&mockError{}).Error()
	case !proved:
		return scram.ErrBadProof.Error()
	case CheckValidUntil(role) != nil:
		return errExpired.Error()
	}
	return ""
}

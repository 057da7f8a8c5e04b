package posture

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// consoleLogins lists the roles that may log in to the console in the browser.
var consoleLogins = question{
	what: "roles that may log in to the console in the browser", good: "no role may log in to the console in the browser: GRANT coterie_viewer to one that has a password",
}

// loginsQuery selects the roles that may log in and have a privilege of the console. Each needs a password that is kept
// as SCRAM, unless certificates let in.
func loginsQuery(certificates bool) string {
	const privileged = `SELECT r.rolname FROM pg_authid r WHERE r.rolcanlogin AND (r.rolsuper OR EXISTS (SELECT 1 FROM pg_roles c
WHERE c.rolname IN ('coterie_viewer', 'coterie_operator', 'coterie_admin') AND pg_has_role(r.oid, c.oid, 'MEMBER')))`
	if certificates {
		return privileged + " ORDER BY 1"
	}
	return privileged + " AND r.rolpassword LIKE 'SCRAM-SHA-256$%' ORDER BY 1"
}

// findConsoleLogins returns which roles may log in to the console in the browser. Where a rule asks for a certificate,
// a role needs no password.
func findConsoleLogins(ctx context.Context, l config.Layout, c config.Config) check.Finding {
	all, _, _ := rules(l, c) // of rules that cannot be read, none asks for a certificate; another finding tells of them
	names, err := ask(ctx, l, c.PostgreSQL.Superuser, "postgres", loginsQuery(hba.AskForCertificates(all)))
	if err != nil {
		return failed("logins to the console in the browser", err)
	}
	return judgeConsoleLogins(names)
}

// judgeConsoleLogins lists the roles: that they may log in is what was asked for.
func judgeConsoleLogins(names []string) check.Finding {
	f := consoleLogins.judge(names)
	f.Level = check.OK
	return f
}

// judgeConsole returns the findings about the HTTPS port: where it is open, to whom, and by which certificate.
func judgeConsole(l config.Layout, c config.Config) []check.Finding {
	addresses, _ := c.HTTPS.Places()
	where := strings.Join(addresses, ", ")
	switch {
	case len(addresses) == 0:
		return []check.Finding{ok("https: switched off")}
	case inner(addresses):
		return []check.Finding{ok("https %s: TLS 1.3 and a login, and bound to an inner address", where), judgeConsoleName(l, c)}
	case !admitsStrangers(l, c):
		return []check.Finding{ok("https %s: TLS 1.3 and a login; no rule admits a password from a public address", where), judgeConsoleName(l, c)}
	}
	return []check.Finding{{
		Level: check.Warning, What: fmt.Sprintf("https %s: the console's login is open to everybody who reaches it", where),
		Why: "a password that is guessed or stolen shows the names, addresses and state of all members",
		Run: "set https.listen in coterie.yaml to an inner address, or have a rule of hba admit the database coterie from your addresses only; then coterie restart",
	}, judgeConsoleName(l, c)}
}

// admitsStrangers reports whether the rules admit a login to the console by a password from a public address. Rules
// that cannot be read count as such.
func admitsStrangers(l config.Layout, c config.Config) bool {
	all, _, err := rules(l, c)
	if err != nil {
		return true
	}
	for _, from := range []string{"192.0.2.1", "2001:db8::1"} {
		rule, found := hba.Match(all, hba.Login{TLS: true, Addr: netip.MustParseAddr(from), User: "viewer", Database: "coterie"})
		if found && rule.Method != hba.MethodReject && rule.Method != hba.MethodCert {
			return true
		}
	}
	return false
}

// judgeConsoleName returns whether the certificate of the client ports, which the console has too, is for the name by
// which others reach it. A witness has no client ports: its console has the certificate of the node.
func judgeConsoleName(l config.Layout, c config.Config) check.Finding {
	host, _, err := net.SplitHostPort(c.HTTPS.Advertise)
	if err != nil || host == "" {
		return ok("https: it has the certificate of the client ports")
	}
	path := filepath.Join(l.PKI(), "listener.crt")
	run := "set https.advertise in coterie.yaml to a name or an address of this node's other ports, or add a listener of that name; then coterie restart"
	if c.Kind == "witness" {
		path = filepath.Join(l.PKI(), "node.crt")
		run = "a witness keeps the names that it was admitted with, but for those at which clients reach the group: stop it, run coterie member replace " + c.Node +
			" on a replica, and here coterie destroy and what the first command prints"
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return failed("the certificate of https", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return failed(path, errors.New("it has no certificate"))
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return failed(path, err)
	}
	if cert.VerifyHostname(host) != nil {
		return check.Finding{
			Level: check.Warning, What: fmt.Sprintf("https: the certificate is not for %s, by which the console is reached", host),
			Why: "a browser warns, and people who are used to that do not see another's certificate",
			Run: run,
		}
	}
	return ok("https: the certificate is for %s; browsers believe it with the authority that coterie ca prints", host)
}

package listener

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// A verdict is what becomes of a login as far as rules decide it.
const (
	admitted = "admitted"          // whether the database and the role exist is another question
	rejected = "a rule rejects it" // explicitly
	ruleless = "no rule admits it" // at the end of the rules
	unproved = "proof failed"      // a rule asked for a proof that the client did not have
)

// attempt is one login.
type attempt struct {
	from                     netip.Addr // invalid: by Unix socket
	tls                      bool
	user, database, password string
	replication              pgwire.Replication
}

func (a attempt) String() string {
	return fmt.Sprintf("from %s, TLS %t, user %q, database %q, password %s, replication %d", a.from, a.tls, a.user, a.database, a.password, a.replication)
}

// attempt makes a login, of which some are meant for one of the rules.
func (g *rulesGrammar) attempt(x *rulesServer, rules []hba.Rule) attempt {
	a := attempt{user: g.pick(oddRoles...), database: g.pick(oddDatabases...), password: g.pick("right", "wrong")}
	if g.chance(4) {
		a.user = x.me
	}
	if g.chance(20) {
		a.database = a.user
	}
	switch n := g.r.IntN(100); {
	case n < 15:
	case n < 75:
		a.from = netip.AddrFrom4([4]byte{127, byte(g.r.IntN(3)), byte(g.r.IntN(2)), byte(1 + g.r.IntN(4))})
	case n < 92 && hasIPv6():
		a.from = netip.IPv6Loopback()
	default:
		a.from = x.own4
	}
	a.tls = x.tls && a.from.IsValid() && g.chance(30)
	a = a.replicating(g.r.IntN(100))
	if g.chance(80) {
		a = g.towards(a, x, rules[g.r.IntN(len(rules))])
	}
	return a
}

// towards makes the attempt more like those that the rule is for.
func (g *rulesGrammar) towards(a attempt, x *rulesServer, r hba.Rule) attempt {
	if n := r.Users[g.r.IntN(len(r.Users))].Text; n != "all" && n[0] != '/' {
		a.user = strings.TrimPrefix(n, "+")
		for name, role := range x.roles { // any member of it
			if n[0] == '+' && name > a.user && slices.Contains(role.MemberOf, n[1:]) {
				a.user = name
			}
		}
	}
	switch n := r.Databases[g.r.IntN(len(r.Databases))].Text; {
	case n == "sameuser":
		a.database = a.user
	case n == "replication" && g.chance(70):
		a.replication = pgwire.ReplicationPhysical
	case strings.HasPrefix(n, "same"):
		a.database = g.pick(append(x.roles[a.user].MemberOf, a.user)...)
	case n != "all" && n[0] != '/':
		a.database = n
	}
	switch at := r.Address.Addr(); {
	case r.Type == hba.TypeLocal:
		a.from, a.tls = netip.Addr{}, false
	case !at.IsValid() && !a.from.IsValid():
		a.from = x.own4
	case r.Address.Bits() == 0 && at.Is6(), at == netip.IPv6Loopback():
		a.from = netip.IPv6Loopback()
	case r.Address.Bits() >= 8 && at.Is4() && at.As4()[0] == 127 && at.As4()[3] != 0:
		a.from = at
	}
	if a.from.Is6() && !hasIPv6() {
		a.from = x.own4
	}
	a.tls = a.from.IsValid() && x.tls && (a.tls || r.Type == hba.TypeHostSSL)
	return a
}

func (a attempt) replicating(n int) attempt {
	switch {
	case n%20 == 0:
		a.replication = pgwire.ReplicationPhysical
	case n%20 == 1:
		a.replication = pgwire.ReplicationLogical
	}
	return a
}

// login is the attempt as rules are matched against it.
func (a attempt) login(x *rulesServer) hba.Login {
	return hba.Login{Local: !a.from.IsValid(), TLS: a.tls, Addr: a.from, User: a.user, Database: a.database, Replication: a.replication, MemberOf: memberships(x.roles[a.user], a.user)}
}

func memberships(r Role, name string) []string { return r.Memberships(name) }

// at makes the attempt where a server or a listener has a Unix socket in dir and its port on the loopback addresses.
func (a attempt) at(dir, port string) (string, error) {
	c, err := pgconn.ParseConfig("host=" + dir + " port=5432 user=x connect_timeout=60 sslmode=disable")
	if err != nil {
		return "", err
	}
	c.User, c.Database, c.Password, c.RuntimeParams = a.user, a.database, a.password, map[string]string{}
	switch a.replication {
	case pgwire.ReplicationPhysical:
		c.RuntimeParams["replication"] = "true"
	case pgwire.ReplicationLogical:
		c.RuntimeParams["replication"] = "database"
	default:
	}
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if !a.from.IsValid() {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, ".s.PGSQL."+port))
		}
		to := "127.0.0.1"
		if a.from.Is6() {
			to = "::1"
		}
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.from, 0))}
		return d.DialContext(ctx, "tcp", net.JoinHostPort(to, port))
	}
	if a.tls {
		c.TLSConfig = &tls.Config{InsecureSkipVerify: true}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err == nil {
		return admitted, conn.Close(ctx)
	}
	return verdictOf(err)
}

// verdictOf reads a verdict from the error of a login.
func verdictOf(err error) (string, error) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return "", err
	}
	has := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(e.Message, t) {
				return true
			}
		}
		return false
	}
	switch {
	case e.Code == pgwire.StateInvalidAuth && has("pg_hba.conf rejects"):
		return rejected, nil
	case e.Code == pgwire.StateInvalidAuth && has("no pg_hba.conf entry"):
		return ruleless, nil
	case e.Code == pgwire.StateInvalidPassword, has("authentication failed for user", "requires a valid client certificate", "can only be checked if"):
		return unproved, nil
	case e.Code == "3D000", e.Code == "42501", has("does not exist", "not currently accepting", "not permitted to log in"):
		return admitted, nil
	}
	return "", err
}

var lineInLog = regexp.MustCompile(`(?:matched pg_hba\.conf line |matched file "[^"]*" line |^LOG:  connection authenticated: .* \(/[^()]*:)(\d+)`)

// logged returns the number of the line of rules that the server's log tells of the last login; 0: it tells none.
func (x *rulesServer) logged() (line int) {
	for text := range strings.Lines(x.newLog()) {
		if m := lineInLog.FindStringSubmatch(text); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
	}
	return line
}

// newLog returns what the server has written since the last call.
func (x *rulesServer) newLog() string {
	st, err := x.s.log.Stat()
	if err != nil {
		x.t.Fatal(err)
	}
	text := make([]byte, st.Size()-x.read)
	if _, err := x.s.log.ReadAt(text, x.read); err != nil {
		x.t.Fatal(err)
	}
	x.read = st.Size()
	return string(text)
}

// use puts the rules with this text in force. The server reads them before it takes the next connection.
func (x *rulesServer) use(text string) {
	x.t.Helper()
	x.write(x.file, text)
	x.newLog()
	x.exec("select pg_reload_conf()")
	seen := ""
	waitFor(x.t, "the server reads its rules", func() bool {
		seen += x.newLog()
		return strings.Contains(seen, "received SIGHUP")
	})
	if v, err := (attempt{user: "alice", database: "absent"}).at(x.s.dir, x.s.port); err != nil {
		x.t.Fatalf("%s %v", v, err)
	}
	if seen += x.newLog(); strings.Contains(seen, "was not reloaded") {
		x.t.Fatalf("PostgreSQL does not take the rules: %s\n%q", seen, text)
	}
}

// check makes an attempt at the server, and holds that its verdict is that of the rules as they are read here.
func (x *rulesServer) check(t *testing.T, rules []hba.Rule, a attempt, text string) (verdict string) {
	t.Helper()
	verdict, err := a.at(x.s.dir, x.s.port)
	if err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	line := x.logged()
	rule, ok := hba.Match(rules, a.login(x))
	var possible []string
	switch {
	case !ok:
		possible = []string{ruleless}
	case rule.ClientCert != "": // of which the client has none
		possible, line = []string{unproved}, rule.Line
	case rule.Method == hba.MethodReject:
		possible = []string{rejected}
	case rule.Method == hba.MethodTrust:
		possible = []string{admitted}
	default:
		possible = []string{unproved, admitted}
	}
	if !strings.Contains(strings.Join(possible, "\n"), verdict) || ok && line != 0 && line != rule.Line {
		t.Errorf("%s: %s by line %d in PostgreSQL; here line %d: %s\nits line there: %q", a, verdict, line, rule.Line, written(rule), near(text, line))
	}
	if needsLine := rule.Method == hba.MethodMD5 || rule.Method == hba.MethodSCRAM || rule.Method == hba.MethodPeer; ok && needsLine && line == 0 {
		t.Errorf("%s: %s, and the log does not say by which line", a, verdict)
	}
	return verdict
}

// TestRealServerDecides compares which rule decides a login here with what real logins at every PostgreSQL that is
// installed meet: from addresses of this machine, by Unix socket, with and without TLS. A sample goes through the
// listener.
func TestRealServerDecides(t *testing.T) {
	const seed, perFile = 2028, 16
	files := 140
	if testing.Short() {
		files = 20
	}
	if longTests() {
		files = 1500
	}
	forEachPostgres(t, func(t *testing.T, x *rulesServer) {
		g := rulesGrammar{r: rand.New(rand.NewPCG(seed, uint64(x.major))), dir: filepath.Dir(x.file), plain: true, older: x.major < 16}
		edge := newRulesEdge(t, x)
		c := compared{reasons: make(map[string]int)}
		seen := make(map[string]int)
		for i := range files {
			text := c.compare(t, x, g.text())
			rules, err := hba.ParseFile(x.file)
			if err != nil { // there is none
				continue
			}
			x.use(text)
			for range perFile {
				a := g.attempt(x, rules)
				verdict := x.check(t, rules, a, text)
				seen[verdict]++
				rule, _ := hba.Match(rules, a.login(x))
				if asksFirst := rule.Method == hba.MethodReject && rule.ClientCert != ""; i%4 == 0 && !asksFirst { // PostgreSQL asks for the certificate, and rejects then
					edge.check(t, rules, a, verdict)
				}
			}
			if t.Failed() && os.Getenv("ALL") == "" {
				t.FailNow()
			}
		}
		if n := seen[admitted] + seen[rejected] + seen[unproved]; n < 4*files || seen[ruleless] < files {
			t.Errorf("too few cases: %v", seen)
		}
		t.Logf("%d files, %d rules, %v; %d of them through the listener", c.files, c.rules, seen, edge.n)
	})
}

// rulesEdge is a listener that judges by the same rules.
type rulesEdge struct {
	g    *group
	dir  string
	port string
	n    int
}

func newRulesEdge(t *testing.T, x *rulesServer) *rulesEdge {
	e := &rulesEdge{dir: filepath.Dir(x.file), port: freePort(t)}
	e.g = newGroup(t, func(c *Config) {
		c.ReadWrite = fmt.Sprintf("127.0.0.1:%s,%s/.s.PGSQL.%[1]s", e.port, e.dir)
		if hasIPv6() {
			c.ReadWrite += ",[::1]:" + e.port
		}
		c.Limits.FailureDelay, c.FingerprintSession = time.Nanosecond, nil
		c.Verifier = func(_ context.Context, _ ag.ReplicaID, name string) (Role, error) { return x.roles[name], nil }
		c.Backend = func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) { return noDatabase(), nil }
		if x.tls {
			cert, _ := certificate(t)
			c.Certificate = func() *tls.Certificate { return cert }
		}
	})
	return e
}

// noDatabase is a server to which every client is admitted, and that has no database.
func noDatabase() net.Conn {
	here, there := net.Pipe()
	go func() {
		defer func() { _ = there.Close() }()
		var length [4]byte
		if _, err := io.ReadFull(there, length[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, there, int64(binary.BigEndian.Uint32(length[:]))-4); err == nil {
			_, _ = there.Write(pgwire.Fatal("test", "3D000", "the database does not exist").Encode())
		}
	}()
	return here
}

// check holds that the listener's verdict is the server's. Replication has rules of its own here.
func (e *rulesEdge) check(t *testing.T, rules []hba.Rule, a attempt, want string) {
	t.Helper()
	if a.replication != pgwire.ReplicationNone {
		return
	}
	e.g.srv.SetRules(rules)
	e.n++
	if got, err := a.at(e.dir, e.port); err != nil || got != want {
		t.Errorf("%s: %s in PostgreSQL; the listener: %s %v", a, want, got, err)
	}
}

package listener

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// begin connects and sends raw bytes as the first ones.
func (g *group) begin(first ...[]byte) net.Conn {
	g.t.Helper()
	conn := g.rawDial(g.rw)
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(bytes.Join(first, nil)); err != nil {
		g.t.Fatal(err)
	}
	return conn
}

// startupMessage returns a StartupMessage with its length, with the parameters in that order.
func startupMessage(pairs ...string) []byte {
	body := startupBody(pairs...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// Of two users in one packet the last one logs in, as with PostgreSQL. No rule or password of the first one helps it.
func TestDuplicatedUser(t *testing.T) {
	rules, err := hba.Parse(strings.NewReader("host all alice 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) { c.Rules = rules })
	g.role("alice", "login password 'secret'")
	conn := g.begin(startupMessage("user", "postgres", "user", "alice", "database", "postgres"), pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select session_user")))
	readUntil(t, conn, 'T')
	if row := readUntil(t, conn, 'D'); !bytes.HasSuffix(row, []byte("alice")) {
		t.Errorf("logged in as %q", row)
	}
	_ = conn.Close()
	conn = g.begin(startupMessage("user", "alice", "user", "postgres", "database", "postgres"))
	if typ, body, err := pgwire.ReadMessage(conn, 1000); err != nil || typ != 'R' || binary.BigEndian.Uint32(body) != auth.SASL {
		t.Errorf("alice's rule let postgres in: %q %x %v", typ, body, err)
	}
	_ = conn.Close()
	conn = g.begin(startupMessage("user", "alice", "User", "postgres", "database", "postgres")) // in other letters it is a setting, and there is none
	if body := readUntil(t, conn, 'E'); pgwire.ErrorField(body, 'C') != pgwire.StateUndefinedObject {
		t.Errorf("User: %s", pgwire.ErrorField(body, 'M'))
	}
	_ = conn.Close()
}

// A name of 64 bytes is cut to 63, for rules, passwords and PostgreSQL alike; a character of several bytes is not
// split.
func TestNamesOf64Bytes(t *testing.T) {
	g := newGroup(t, nil)
	for _, name := range []string{strings.Repeat("n", 63), strings.Repeat("n", 61) + "é", strings.Repeat("m", 62) + "é"} {
		cut := pgwire.CutName(name)
		rules, err := hba.Parse(strings.NewReader("host all " + cut + " 127.0.0.1/32 scram-sha-256\n"))
		if err != nil {
			t.Fatal(err)
		}
		g.srv.SetRules(rules)
		g.role(pgx.Identifier{cut}.Sanitize(), "login password 'secret'")
		long := name + "x"
		if got := value[string](t, g.mustDial(g.rw, "user="+long+" password=secret"), "select session_user::text"); got != cut {
			t.Errorf("%d bytes: logged in as %q, want %q", len(long), got, cut)
		}
		if _, err := g.dial(g.rw, "user=x"+long+" password=secret"); sqlstate(err) != "28000" {
			t.Errorf("another name: %v", err)
		}
	}
}

// Bytes that a client sends right after its startup packet are not lost when the session is handed over.
func TestRequestsBehindTheStartup(t *testing.T) {
	g := newGroup(t, trusting)
	first := [][]byte{startupMessage("user", "postgres", "database", "postgres")}
	for range 100 {
		first = append(first, pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select 'answer'")))
	}
	conn := g.begin(first...)
	defer func() { _ = conn.Close() }()
	readUntil(t, conn, 'Z')
	for i := range 100 {
		if row := readUntil(t, conn, 'D'); !bytes.HasSuffix(row, []byte("answer")) {
			t.Fatalf("row %d is %q", i, row)
		}
		readUntil(t, conn, 'Z')
	}
}

// anEd25519 makes a certificate for the name by an authority, both with Ed25519 keys.
func anEd25519(t *testing.T, name string) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	caPublic, caKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ed25519 ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caRaw, err := x509.CreateCertificate(rand.Reader, ca, ca, caPublic, caKey)
	if err != nil {
		t.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	parsed, err := x509.ParseCertificate(caRaw)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, parsed, public, caKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pool
}

// An Ed25519 certificate has no hash to bind to (RFC 5929 takes it from the signature, which names none), so -PLUS is
// not offered. libpq, which would fail with it, logs in without, and refuses if channel binding is required. A client's
// Ed25519 certificate works as any other.
func TestEd25519Certificates(t *testing.T) {
	cert, pool := anEd25519(t, "localhost")
	client, clients := anEd25519(t, "alice")
	rules, err := hba.Parse(strings.NewReader("hostssl all bob all scram-sha-256\nhostssl all all all cert\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) {
		c.Certificate, c.ClientCAs, c.Rules = func() *tls.Certificate { return cert }, func() *x509.CertPool { return clients }, rules
	})
	g.role("alice", "login")
	g.role("bob", "login password 'secret'")
	cfg, err := pgx.ParseConfig(dsn(g.rw, "user=alice"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLSConfig = &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: []tls.Certificate{*client}}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("a client's Ed25519 certificate: %v", err)
	}
	if got := value[string](t, conn, "select session_user::text"); got != "alice" {
		t.Errorf("logged in as %s", got)
	}
	if x := g.srv.Sessions()[0]; x.Identity != "alice" || x.TLS != "TLSv1.3" {
		t.Errorf("known as %q by %s", x.Identity, x.TLS)
	}
	_ = conn.Close(t.Context())
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("SKIPPED: psql not found")
	}
	host, port, err := net.SplitHostPort(g.rw)
	if err != nil {
		t.Fatal(err)
	}
	run := func(rest string) (string, error) {
		cmd := exec.CommandContext(t.Context(), psql, "-XAtc", "select 40 + 2", "host="+host+" port="+port+" dbname=postgres user=bob sslmode=require "+rest)
		cmd.Env = append(os.Environ(), "PGPASSWORD=secret", "HOME="+filepath.Join(t.TempDir(), "none"))
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for _, rest := range []string{"", "channel_binding=prefer", "channel_binding=disable"} {
		if out, err := run(rest); err != nil || out != "42" {
			t.Errorf("psql %s: %s, %v", rest, out, err)
		}
	}
	if out, err := run("channel_binding=require"); err == nil || !strings.Contains(out, "channel binding") {
		t.Errorf("psql channel_binding=require: %s, %v", out, err)
	}
}

// startupBody builds a StartupMessage without its length from name, value, name, value ...
func startupBody(pairs ...string) []byte {
	b := binary.BigEndian.AppendUint32(nil, pgwire.Protocol3)
	for _, p := range pairs {
		b = pgwire.AppendCString(b, p)
	}
	return append(b, 0)
}

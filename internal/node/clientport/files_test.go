package clientport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// opened opens the ports of p, and closes them at the end of the test. It returns how many parts run.
func opened(t *testing.T, p *Port) {
	t.Helper()
	issue(t, p)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	err := p.Open(func(name string, part func(context.Context) error) {
		running.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	})
	if err != nil {
		t.Fatalf("the ports do not open: %v", err)
	}
}

// refusal returns the message with which a client is refused.
func refusal(t *testing.T, p *Port, name string) string {
	t.Helper()
	addresses, _ := p.Server().Addrs()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, "postgres://"+name+"@"+addresses[0].String()+"/x?sslmode=require")
	if err == nil {
		_ = conn.Close(ctx)
		return ""
	}
	var bad *pgconn.PgError
	if errors.As(err, &bad) {
		return bad.Message
	}
	return err.Error()
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); {
		if time.Now().After(end) {
			t.Fatalf("not within 2 min: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pemFiles returns an authority of client certificates and an empty list of what it revoked.
func pemFiles(t *testing.T) (authority, revoked string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	crl, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour),
	}, ca, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: crl}))
}

// TestRulesThatCannotBeRead holds that a node whose rules cannot be read starts and admits nobody from the network,
// says so, and takes the rules once they can be read. Rules that were read stay in force when they cannot be read
// again.
func TestRulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"absent":            func(string) error { return nil },
		"wrong":             func(path string) error { return os.WriteFile(path, []byte("host all\n"), 0o600) },
		"a directory":       func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":            func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"without client_ca": func(path string) error { return os.WriteFile(path, []byte("hostssl all all all cert\n"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "hba.conf")
			if err := spoil(file); err != nil {
				t.Fatal(err)
			}
			p := primary().port(t, func(c *config.Config) { c.HBA, c.ReadWrite.Listen = file, "127.0.0.1:0" })
			opened(t, p)
			if m := refusal(t, p, "alice"); !strings.HasPrefix(m, "pg_hba.conf rejects connection") {
				t.Errorf("a client is told %q", m)
			}
			said := p.LoginProblems()
			if len(said) != 1 || !strings.Contains(said[0], "a Unix socket of its machine is admitted: listener rules in "+file) {
				t.Errorf("the problems are %q", said)
			}
			if err := p.Restart(); err == nil {
				t.Error("a restart with the same file succeeds")
			}
			p.GroupChanged()
			if m := refusal(t, p, "alice"); !strings.HasPrefix(m, "pg_hba.conf rejects connection") {
				t.Errorf("after a change of the group a client is told %q", m)
			}
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			write(t, file, "host all bob all scram-sha-256\n")
			until(t, "the mended rules are in force", func() bool { return len(p.LoginProblems()) == 0 })
			if m := refusal(t, p, "alice"); !strings.HasPrefix(m, "no pg_hba.conf entry") {
				t.Errorf("by the mended rules a client is told %q", m)
			}
			write(t, file, "host all\n")
			if err := p.Restart(); err == nil {
				t.Error("a restart with wrong rules succeeds")
			}
			if m, said := refusal(t, p, "alice"), p.LoginProblems(); !strings.HasPrefix(m, "no pg_hba.conf entry") || len(said) != 1 || !strings.HasPrefix(said[0], "the rules that were read before stay in force: ") {
				t.Errorf("by the rules from before a client is told %q, and the problems are %q", m, said)
			}
		})
	}
}

// TestRestartWithHalfOfTheFiles holds that rules which were mended are in force, or named as a problem, after a restart
// that failed for another file: the node reads again only what it knows to be bad.
func TestRestartWithHalfOfTheFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules, ca := filepath.Join(dir, "hba.conf"), filepath.Join(dir, "ca.pem")
	p := primary().port(t, func(c *config.Config) { c.HBA, c.ClientCA, c.ReadWrite.Listen = rules, ca, "127.0.0.1:0" })
	issue(t, p)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	err := p.Open(func(name string, part func(context.Context) error) {
		if name != "files of the listener" { // it would mend the rules before the restart
			running.Go(func() { _ = part(ctx) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, rules, "host all bob all scram-sha-256\n")
	if err := p.Restart(); err == nil {
		t.Error("a restart without authorities succeeds")
	}
	if m := refusal(t, p, "alice"); strings.HasPrefix(m, "pg_hba.conf rejects connection") && !p.bad(settingHBA) {
		t.Errorf("nobody is admitted, and the problems are %q", p.LoginProblems())
	}
}

// TestGroupsRulesThatCannotBeRead holds the same of rules that came with the record.
func TestGroupsRulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := primary()
	n.group.HBA = "host all"
	p := n.port(t, func(c *config.Config) { c.ReadWrite.Listen = "127.0.0.1:0" })
	rules := p.firstRules()
	if said := p.LoginProblems(); len(said) != 1 || !strings.Contains(said[0], "listener rules in the group's record") || len(rules) < 2 {
		t.Errorf("%d rules, problems %q", len(rules), said)
	}
}

// TestGroupsRulesThatAskForCertificates holds that a node without authorities says that the group's rules for client
// certificates admit nobody, until the group has other rules, and that its other rules are in force.
func TestGroupsRulesThatAskForCertificates(t *testing.T) {
	t.Parallel()
	n := primary()
	n.group.HBA = "hostssl all carol all cert\nhost all bob all scram-sha-256\n"
	p := n.port(t, func(c *config.Config) { c.ReadWrite.Listen = "127.0.0.1:0" })
	opened(t, p)
	if said := p.LoginProblems(); len(said) != 1 || said[0] != "the rules that ask for client certificates admit nobody: client_ca in coterie.yaml names no authorities" {
		t.Errorf("the problems are %q", said)
	}
	if m := refusal(t, p, "alice"); !strings.HasPrefix(m, "no pg_hba.conf entry") {
		t.Errorf("by the other rules a client is told %q", m)
	}
	n.group.HBA = "host all bob all scram-sha-256\n"
	p.GroupChanged()
	if said := p.LoginProblems(); len(said) != 0 {
		t.Errorf("with other rules the problems are %q", said)
	}
}

// TestClosedRules holds whom the rules admit that stand in for those that cannot be read.
func TestClosedRules(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Skip("this user has no name: ", err)
	}
	rules, _ := closedRules()
	for name, tt := range map[string]struct {
		login hba.Login
		want  hba.Method
	}{
		"the node's user":                 {hba.Login{Local: true, User: me.Username, Database: "x"}, hba.MethodPeer},
		"another user":                    {hba.Login{Local: true, User: "no-" + me.Username, Database: "x"}, hba.MethodReject},
		"the node's user, by the network": {hba.Login{TLS: true, User: me.Username, Database: "x"}, hba.MethodReject},
		"anybody in clear":                {hba.Login{User: "x", Database: "x"}, hba.MethodReject},
	} {
		if r, ok := hba.Match(rules, tt.login); !ok || r.Method != tt.want {
			t.Errorf("%s: %v, method %s", name, ok, r.Method)
		}
	}
}

// TestClientCertificatesThatCannotBeChecked holds that a node starts whose authorities or revocation lists cannot be
// read, that no client is asked for a certificate until they can, and that other rules are as good as before.
func TestClientCertificatesThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	authority, revoked := pemFiles(t)
	for name, tt := range map[string]struct {
		ca, crl string // "": absent
		said    string
	}{
		"no authorities":                 {"", revoked, "client_ca"},
		"authorities that are none":      {"none", revoked, "client_ca"},
		"no revocation lists":            {authority, "", "client_crl"},
		"revocation lists that are none": {authority, "none", "client_crl"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ca, crl, rules := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "crl.pem"), filepath.Join(dir, "hba.conf")
			write(t, rules, "hostssl all carol all cert\nhost all bob all scram-sha-256\n")
			if tt.ca != "" {
				write(t, ca, tt.ca)
			}
			if tt.crl != "" {
				write(t, crl, tt.crl)
			}
			p := primary().port(t, func(c *config.Config) {
				c.HBA, c.ClientCA, c.ClientCRL, c.ReadWrite.Listen = rules, ca, crl, "127.0.0.1:0"
			})
			opened(t, p)
			if said := p.LoginProblems(); len(said) != 1 || !strings.HasPrefix(said[0], "no client is admitted by its certificate: ") || !strings.Contains(said[0], tt.said) {
				t.Errorf("the problems are %q", said)
			}
			if p.authorities() != nil {
				t.Error("clients are asked for certificates that cannot be checked")
			}
			if p.clientCRL.Load() == nil && p.checkClient(nil) == nil {
				t.Error("a certificate counts as not revoked, without a list")
			}
			if m := refusal(t, p, "alice"); !strings.HasPrefix(m, "no pg_hba.conf entry") {
				t.Errorf("by the other rules a client is told %q", m)
			}
			if err := p.Restart(); err == nil {
				t.Error("a restart with the same files succeeds")
			}
			write(t, ca, authority)
			write(t, crl, revoked)
			until(t, "the mended files are in force", func() bool { return len(p.LoginProblems()) == 0 })
			if p.authorities() == nil || p.clientCRL.Load() == nil {
				t.Error("clients are not asked for certificates")
			}
			write(t, crl, "none")
			if err := p.Restart(); err == nil {
				t.Error("a restart without a list succeeds")
			}
			if said := p.LoginProblems(); len(said) != 1 || !strings.HasPrefix(said[0], "client certificates are judged by what was read before: ") || p.authorities() == nil {
				t.Errorf("the problems are %q", said)
			}
		})
	}
}

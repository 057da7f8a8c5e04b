package posture

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
)

// TestJudgeConsole holds that the HTTPS port is judged by its address, by the rules for clients, and by the name in its
// certificate.
func TestJudgeConsole(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: t.TempDir()}
	saveCertificate(t, l, "db1")
	c := config.Config{HBA: filepath.Join(l.Dir, "rules")}
	expect(t, judgeConsole(l, c), "ok https: switched off")
	c.HTTPS = config.Address{Listen: ":8443", Advertise: "db1:8443"}
	for rules, want := range map[string]string{
		"host all all all scram-sha-256":                                         "warning https :8443: the console's login is open to everybody",
		"host all all 10.0.0.0/8 scram-sha-256":                                  "ok https :8443: TLS 1.3 and a login; no rule admits a password from a public address",
		"host coterie all 10.0.0.0/8 md5\nhost coterie all all reject":           "ok https :8443: TLS 1.3 and a login; no rule admits a password",
		"hostnossl all all all md5\nhostssl coterie all ::/0 scram-sha-256":      "warning https :8443: the console's login is open",
		"hostssl all all all cert":                                               "ok https :8443: TLS 1.3 and a login; no rule admits a password",
		"host orders all all trust\nhost coterie all 127.0.0.1/32 scram-sha-256": "ok https :8443: TLS 1.3 and a login; no rule admits a password",
		"this is no rule": "warning https :8443: the console's login is open",
	} {
		if err := os.WriteFile(c.HBA, []byte(rules+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, judgeConsole(l, c), want, "ok https: the certificate is for db1")
	}
	c.HTTPS = config.Address{Listen: "10.0.0.5:8443", Advertise: "console.example:8443"}
	expect(t, judgeConsole(l, c), "ok https 10.0.0.5:8443: TLS 1.3 and a login, and bound to an inner address", "warning https: the certificate is not for console.example")
	// a witness has no certificate but its own
	if err := os.Rename(filepath.Join(l.PKI(), "listener.crt"), filepath.Join(l.PKI(), "node.crt")); err != nil {
		t.Fatal(err)
	}
	w := c
	w.Kind, w.Node = "witness", "w1"
	found := judgeConsole(l, w)[1:]
	expect(t, found, "warning https: the certificate is not for console.example")
	if !strings.Contains(found[0].Run, "coterie member replace w1") {
		t.Errorf("%+v", found)
	}
	w.HTTPS.Advertise = "db1:8443"
	expect(t, judgeConsole(l, w)[1:], "ok https: the certificate is for db1")
	if err := os.WriteFile(filepath.Join(l.PKI(), "listener.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range judgeConsole(l, c)[1:] {
		if f.Level != check.Failed {
			t.Errorf("a file without a certificate: %+v", f)
		}
	}
	expect(t, []check.Finding{judgeConsoleLogins([]string{"vera"}), judgeConsoleLogins(nil)},
		"ok roles that may log in to the console in the browser: vera", "ok no role may log in to the console in the browser")
}

// saveCertificate writes a certificate of the client ports for a name.
func saveCertificate(t *testing.T, l config.Layout, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	it := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, it, it, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.PKI(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.PKI(), "listener.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

package listener

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/listener/hba"
)

// TestClientCertificates logs in with certificates: a good one, one that CheckClient refuses, and one with two common
// names, of which crypto/x509 would take the last and PostgreSQL the first.
func TestClientCertificates(t *testing.T) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca)
	client := func(serial int64, names ...string) tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
		for _, n := range names {
			leaf.Subject.ExtraNames = append(leaf.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
		}
		raw, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
	}
	cert, pool := certificate(t)
	rules, err := hba.Parse(strings.NewReader("hostssl all alice all cert\nhostssl all all all trust clientcert=verify-ca\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) {
		c.Certificate, c.ClientCAs, c.Rules = func() *tls.Certificate { return cert }, func() *x509.CertPool { return clients }, rules
		c.CheckClient = func(chains [][]*x509.Certificate) error {
			if chains[0][0].SerialNumber.Int64() == 66 {
				return errors.New("the certificate is revoked")
			}
			return nil
		}
	})
	g.role("alice", "login")
	g.role("other", "login")
	for name, tt := range map[string]struct {
		cert tls.Certificate
		user string
		in   bool
	}{
		"good":                             {client(2, "alice"), "alice", true},
		"of another":                       {client(3, "mallory"), "alice", false},
		"revoked":                          {client(66, "alice"), "alice", false},
		"revoked, where no name counts":    {client(66, "alice"), "other", false},
		"two names, the first matches":     {client(4, "alice", "mallory"), "alice", false},
		"two names, the last matches":      {client(5, "mallory", "alice"), "alice", false},
		"two names, where no name counts":  {client(6, "mallory", "alice"), "other", true},
		"a NUL byte, where no name counts": {client(7, "other\x00mallory"), "other", false},
	} {
		cfg, err := pgx.ParseConfig(dsn(g.rw, "user="+tt.user))
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLSConfig = &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: []tls.Certificate{tt.cert}}
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		if (err == nil) != tt.in {
			t.Errorf("%s: %v", name, err)
		}
	}
}

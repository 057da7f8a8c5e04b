package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func leafOf(t *testing.T, chain []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(chain)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCASaveAndLoad(t *testing.T) {
	ca, dir := newTestCA(t, groupA), t.TempDir()
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Group != groupA || got.Name() != "sales" || got.Pin() != ca.Pin() || !bytes.Equal(got.CertPEM, ca.CertPEM) {
		t.Fatalf("loaded %+v", got)
	}
	if got.Cert.SignatureAlgorithm != x509.ECDSAWithSHA256 || got.Cert.PublicKey.(*ecdsa.PublicKey).Curve != elliptic.P256() {
		t.Fatal("the authority is not ECDSA P-256 with SHA-256")
	}
	if left := time.Until(got.Cert.NotAfter); left < 9*365*24*time.Hour {
		t.Fatalf("valid for %v only", left)
	}
	st, err := os.Stat(filepath.Join(dir, fileCAKey))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("ca.key: %v, %v", st.Mode(), err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Fatalf("left behind: %v", entries)
	}
	if err := os.Chmod(filepath.Join(dir, fileCAKey), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Fatalf("a key that all may read was loaded: %v", err)
	}
}

func TestCARefuses(t *testing.T) {
	ca, other := newTestCA(t, groupA), newTestCA(t, groupA)
	if _, err := ParseCA(ca.CertPEM, other.KeyPEM()); err == nil {
		t.Error("a key of another authority was taken")
	}
	if _, err := NewCA("sales", "sales"); err == nil {
		t.Error("a group id that is no UUID was taken")
	}
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.IssueNode(Identity{groupA, KindReplica, "a"}, pub, nil); err == nil {
		t.Error("an Ed25519 key was certified")
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []Identity{{groupB, KindReplica, "a"}, {groupA, "admin", "a"}, {groupA, KindReplica, "A"}, {groupA, KindReplica, ""}, {groupA, KindReplica, "a/b"}} {
		if _, err := ca.IssueNode(id, key.Public(), nil); err == nil {
			t.Errorf("%v was certified", id)
		}
	}
	for _, host := range []string{"", "a b", "10.0.0.1:5022", "[::1]", "a..b", "-x", strings.Repeat("a", 64)} {
		if _, err := ca.IssueNode(Identity{groupA, KindReplica, "a"}, key.Public(), []string{host}); err == nil {
			t.Errorf("host %q was certified", host)
		}
	}
	node, err := ca.IssueNode(Identity{groupA, KindReplica, "a"}, key.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, _ := pemKey(key)
	if _, err := ParseCA(node, keyPEM); err == nil {
		t.Error("a node's certificate was taken for an authority")
	}
}

func TestNodeCertificate(t *testing.T) {
	ca, dir := newTestCA(t, groupA), t.TempDir()
	id := Identity{groupA, KindWitness, "w_1"}
	n, err := CreateNode(dir, ca, id, []string{"10.1.2.3", "db1.example.org", "fd00::5", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	if n.Identity != id || len(n.Pin) != 64 || time.Until(n.NotAfter()) < 89*24*time.Hour {
		t.Fatalf("got %+v", n)
	}
	cert, key, caFile := TLSFiles(dir)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(pair.Certificate) != 2 || !bytes.Equal(pair.Certificate[1], ca.Cert.Raw) {
		t.Fatal("node.crt is not the chain of node and authority")
	}
	pool := x509.NewCertPool()
	pemCA, err := os.ReadFile(caFile)
	if err != nil || !pool.AppendCertsFromPEM(pemCA) {
		t.Fatal(err)
	}
	for _, host := range []string{"10.1.2.3", "db1.example.org", "fd00::5", "localhost", "127.0.0.1", "::1"} {
		usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, KeyUsages: usages}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(pair.Leaf.IPAddresses) != 4 || len(pair.Leaf.DNSNames) != 2 {
		t.Errorf("names twice: %v %v", pair.Leaf.IPAddresses, pair.Leaf.DNSNames)
	}
}

func TestListenerCertificateIsNoIdentity(t *testing.T) {
	ca, dir := newTestCA(t, groupA), t.TempDir()
	certPEM, keyPEM, err := ca.IssueListener([]string{"db.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if err := SaveListener(dir, certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	if _, err := tls.LoadX509KeyPair(ListenerFiles(dir)); err != nil {
		t.Fatal(err)
	}
	leaf := leafOf(t, certPEM)
	if leaf.SignatureAlgorithm != x509.ECDSAWithSHA256 || len(leaf.URIs) != 0 {
		t.Fatalf("got %v %v", leaf.SignatureAlgorithm, leaf.URIs)
	}
	if _, err := parseNode(certPEM, keyPEM, ca.CertPEM, time.Now()); err == nil {
		t.Fatal("a listener's certificate was taken for a node's")
	}
}

func TestLoadNodeRefuses(t *testing.T) {
	ca, dir := newTestCA(t, groupA), t.TempDir()
	if _, err := LoadNode(dir); err == nil {
		t.Error("an empty directory was loaded")
	}
	if _, err := CreateNode(dir, ca, Identity{groupA, KindReplica, "a"}, nil); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	chain, key := read(fileNodeCert), read(fileNodeKey)
	if _, err := parseNode(chain, key, newTestCA(t, groupA).CertPEM, time.Now()); err == nil {
		t.Error("a node of another authority was loaded")
	}
	if _, err := parseNode(chain, key, ca.CertPEM, time.Now().Add(2*leafLifetime)); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired node was loaded: %v", err)
	}
	if _, err := parseNode(chain, key, ca.CertPEM, time.Now().Add(-48*time.Hour)); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("a node of the future was loaded: %v", err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	otherPEM, _ := pemKey(other)
	if _, err := parseNode(chain, otherPEM, ca.CertPEM, time.Now()); err == nil {
		t.Error("a foreign key was loaded")
	}
}

// TestJoinHosts holds that names are joined without repetition, the first ones first, and never more than a certificate
// may carry.
func TestJoinHosts(t *testing.T) {
	t.Parallel()
	if got := JoinHosts([]string{"a", "b"}, []string{"b", "c", "a"}); strings.Join(got, " ") != "a b c" {
		t.Error(got)
	}
	var many []string
	for i := range maxHosts {
		many = append(many, fmt.Sprintf("h%d", i))
	}
	if got := JoinHosts([]string{"new"}, many); len(got) != maxHosts || got[0] != "new" || ValidateHosts(got) != nil {
		t.Errorf("%d names: %v", len(got), got)
	}
}

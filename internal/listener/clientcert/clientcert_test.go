package clientcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// authority is a CA of the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate; by nil it signs itself.
func issue(t *testing.T, by *authority, template *x509.Certificate) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.NotAfter = time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func newAuthority(t *testing.T, by *authority, name string, serial int64) *authority {
	t.Helper()
	return issue(t, by, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	})
}

// revoke returns a list of an authority in PEM, changed by the last argument.
func (a *authority) revoke(t *testing.T, change func(*x509.RevocationList), serials ...int64) []byte {
	t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, s := range serials {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(s), RevocationTime: time.Now()})
	}
	if change != nil {
		change(l)
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// TestRevocation holds the judgement of each case against what OpenSSL does with X509_V_FLAG_CRL_CHECK_ALL.
func TestRevocation(t *testing.T) {
	t.Parallel()
	root := newAuthority(t, nil, "root", 1)
	middle := newAuthority(t, root, "middle", 2)
	leaf := issue(t, middle, &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "alice"}})
	imposter := newAuthority(t, nil, "middle", 9)
	chain := [][]*x509.Certificate{{leaf.cert, middle.cert, root.cert}}
	expired := func(l *x509.RevocationList) { l.NextUpdate = time.Now().Add(-time.Minute) }
	future := func(l *x509.RevocationList) { l.ThisUpdate = time.Now().Add(time.Minute) }
	fine := root.revoke(t, nil, 77)
	for name, tt := range map[string]struct {
		lists [][]byte
		want  error
	}{
		"good":                           {[][]byte{fine, middle.revoke(t, nil, 4)}, nil},
		"revoked":                        {[][]byte{fine, middle.revoke(t, nil, 4, 3)}, ErrRevoked},
		"its authority is revoked":       {[][]byte{root.revoke(t, nil, 2), middle.revoke(t, nil)}, ErrRevoked},
		"the same serial of another":     {[][]byte{root.revoke(t, nil, 3), middle.revoke(t, nil, 1)}, nil},
		"no list of the root":            {[][]byte{middle.revoke(t, nil)}, ErrNoList},
		"no list of the issuer":          {[][]byte{fine}, ErrNoList},
		"a list under the issuer's name": {[][]byte{fine, imposter.revoke(t, nil)}, ErrNoList},
		"expired":                        {[][]byte{fine, middle.revoke(t, expired)}, ErrExpired},
		"expired, and revoked by it":     {[][]byte{fine, middle.revoke(t, expired, 3), middle.revoke(t, nil)}, ErrRevoked},
		"not valid yet":                  {[][]byte{fine, middle.revoke(t, future)}, ErrExpired},
		"expired, and a new one":         {[][]byte{fine, middle.revoke(t, expired), middle.revoke(t, nil)}, nil},
		"a new one, and expired":         {[][]byte{fine, middle.revoke(t, nil), middle.revoke(t, expired)}, nil},
	} {
		file, dir := filepath.Join(t.TempDir(), "crl.pem"), t.TempDir()
		var all []byte
		for i, l := range tt.lists {
			all = append(all, l...)
			write(t, filepath.Join(dir, string(rune('a'+i))+".r0"), l)
		}
		write(t, file, all)
		write(t, filepath.Join(dir, "root.0"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.cert.Raw}))
		for _, path := range []string{file, dir} {
			c, err := Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Check(chain, time.Now()); !errors.Is(err, tt.want) {
				t.Errorf("%s, %s: %v, want %v", name, path, err, tt.want)
			}
		}
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestListsThatAreRefused holds that a list whose meaning depends on an extension is not read as a whole one.
func TestListsThatAreRefused(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, nil, "root", 1)
	delta := func(l *x509.RevocationList) {
		l.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}}}
	}
	indirect := func(l *x509.RevocationList) {
		l.RevokedCertificateEntries[0].ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 29}, Critical: true, Value: []byte{0x30, 0}}}
	}
	file := filepath.Join(t.TempDir(), "crl.pem")
	for name, text := range map[string][]byte{
		"empty": nil, "the second one cut": append(ca.revoke(t, nil, 3), ca.revoke(t, nil, 4)[:100]...), "a delta": ca.revoke(t, delta, 3), "indirect": ca.revoke(t, indirect, 3), "cut": []byte("-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"),
	} {
		write(t, file, text)
		if _, err := Open(file, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("absent: no error")
	}
	if _, err := Open(t.TempDir(), nil); err == nil {
		t.Error("a directory without a list: no error")
	}
}

// TestChangedLists reads lists again when their file changes. If it cannot, those read before stay in force.
func TestChangedLists(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, nil, "root", 1)
	chain := [][]*x509.Certificate{{issue(t, ca, &x509.Certificate{SerialNumber: big.NewInt(3)}).cert, ca.cert}}
	file := filepath.Join(t.TempDir(), "crl.pem")
	write(t, file, ca.revoke(t, nil))
	var warned []error
	c, err := Open(file, func(err error) { warned = append(warned, err) })
	if err != nil {
		t.Fatal(err)
	}
	judge := func() error {
		c.looked = time.Time{} // as if a while had passed
		return c.Check(chain, time.Now())
	}
	if err := judge(); err != nil || len(warned) != 0 {
		t.Fatalf("%v, warned %v", err, warned)
	}
	write(t, file, ca.revoke(t, nil, 3, 4, 5))
	if err := judge(); !errors.Is(err, ErrRevoked) {
		t.Errorf("after the change: %v", err)
	}
	write(t, file, []byte("half"))
	for range 2 {
		if err := judge(); !errors.Is(err, ErrRevoked) || len(warned) != 1 {
			t.Errorf("after an unusable change: %v, warned %v", err, warned)
		}
	}
	if c.Read() == nil {
		t.Error("an unusable file is read")
	}
	write(t, file, ca.revoke(t, nil))
	if err := judge(); err != nil || len(warned) != 1 {
		t.Errorf("after the repair: %v, warned %v", err, warned)
	}
}

// TestName holds which names of certificates are read.
func TestName(t *testing.T) {
	t.Parallel()
	type value struct {
		Type  asn1.ObjectIdentifier
		Value any
	}
	cn := func(v any) value { return value{commonName, v} }
	raw := func(tag int, b string) any { return asn1.RawValue{Tag: tag, Bytes: []byte(b)} }
	for name, tt := range map[string]struct {
		subject []value
		want    string
		err     error
	}{
		"none":      {[]value{{asn1.ObjectIdentifier{2, 5, 4, 10}, "acme"}}, "", nil},
		"one":       {[]value{{asn1.ObjectIdentifier{2, 5, 4, 10}, "acme"}, cn("alice")}, "alice", nil},
		"UTF-8":     {[]value{cn(raw(asn1.TagUTF8String, "älice"))}, "älice", nil},
		"two":       {[]value{cn("alice"), cn("postgres")}, "", ErrManyNames},
		"the same":  {[]value{cn("alice"), cn("alice")}, "", ErrManyNames},
		"NUL":       {[]value{cn(raw(asn1.TagUTF8String, "postgres\x00.evil"))}, "", ErrBadName},
		"BMPString": {[]value{cn(raw(asn1.TagBMPString, "\x00a"))}, "", ErrBadName},
		"T61String": {[]value{cn(raw(asn1.TagT61String, "\xe9"))}, "", ErrBadName},
	} {
		var sets []asn1.RawValue
		for _, v := range tt.subject {
			b, err := asn1.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			sets = append(sets, asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: b})
		}
		subject, err := asn1.Marshal(sets)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Name(&x509.Certificate{RawSubject: subject}); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tt.want, tt.err)
		}
	}
}

// TestListsThatBecomeReadable reads lists again that could not be read before, although neither their size nor the time
// of their last change has changed.
func TestListsThatBecomeReadable(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, nil, "root", 1)
	chain := [][]*x509.Certificate{{issue(t, ca, &x509.Certificate{SerialNumber: big.NewInt(3)}).cert, ca.cert}}
	file := filepath.Join(t.TempDir(), "crl.pem")
	write(t, file, ca.revoke(t, nil))
	warned := 0
	c, err := Open(file, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	judge := func() error {
		c.looked = time.Time{} // as if a while had passed
		return c.Check(chain, time.Now())
	}
	text := ca.revoke(t, nil, 3)
	write(t, file, bytes.Repeat([]byte("x"), len(text)))
	changed := time.Now()
	if err := os.Chtimes(file, changed, changed); err != nil {
		t.Fatal(err)
	}
	if err := judge(); err != nil || warned != 1 {
		t.Fatalf("unusable: %v, %d warnings", err, warned)
	}
	write(t, file, text)
	if err := os.Chtimes(file, changed, changed); err != nil {
		t.Fatal(err)
	}
	if err := judge(); !errors.Is(err, ErrRevoked) || warned != 1 {
		t.Errorf("repaired: %v, %d warnings", err, warned)
	}
}

// TestPipeIsNoList holds that a named pipe in the place of the lists or the authorities is refused at once: a node that
// starts would wait for somebody to write to it.
func TestPipeIsNoList(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan [2]error, 1)
	go func() {
		_, lists := Open(pipe, nil)
		_, authorities := Authorities(pipe)
		refused <- [2]error{lists, authorities}
	}()
	select {
	case errs := <-refused:
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "is not a file") {
				t.Error(err)
			}
		}
	case <-time.After(time.Minute):
		t.Error("it is waited for")
	}
}

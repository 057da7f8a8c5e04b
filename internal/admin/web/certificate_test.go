package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// issuer issues certificates of clients.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	made := i.issue("authority", time.Hour)
	i.cert, i.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return i
}

// issue returns a certificate; the first one is the authority's own.
func (i *issuer) issue(name string, life time.Duration) tls.Certificate {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		i.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	parent, by := i.cert, i.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage, template.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		i.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// certifiedPort is a port that takes the certificates of an authority, on which the certificate alone logs its user in.
type certifiedPort struct {
	*browser
	group   *group
	issuer  *issuer
	mu      sync.Mutex // guards the fields below
	revoked bool
	pool    *x509.CertPool
}

func serveCertified(t *testing.T) *certifiedPort {
	t.Helper()
	p := &certifiedPort{group: newGroup(), issuer: newIssuer(t)}
	p.browser = serve(t, p.group)
	c := &p.s.c
	own := httptest.NewUnstartedServer(p.s.handler)
	p.pool = x509.NewCertPool()
	p.pool.AddCert(p.issuer.cert)
	c.ClientCAs = func() *x509.CertPool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.pool
	}
	c.CheckClient = func([][]*x509.Certificate) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.revoked {
			return errors.New("it is revoked")
		}
		return nil
	}
	c.LogIn = func(ctx context.Context, a Attempt) (Account, error) {
		if a.Password != "" {
			return p.group.logIn(ctx, a)
		}
		if a.Certificate == nil || a.Certificate.Subject.CommonName != a.User {
			return Account{}, pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", a.User)
		}
		return p.group.look(ctx, a.User)
	}
	own.TLS = p.s.tlsConfig()
	own.TLS.Certificates = []tls.Certificate{p.issuer.issue("127.0.0.1", time.Hour)}
	own.TLS.GetCertificate = nil
	certificate := own.TLS.Certificates[0]
	c.Certificate = func() *tls.Certificate { return &certificate }
	own.StartTLS()
	t.Cleanup(func() { own.CloseClientConnections(); own.Close() })
	p.at = own.URL
	return p
}

// as gives the browser a certificate; nil: none.
func (p *certifiedPort) as(c *tls.Certificate) {
	config := &tls.Config{InsecureSkipVerify: true}
	if c != nil {
		config.Certificates = []tls.Certificate{*c}
	}
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// TestCertificateRoles holds that a certificate gives its user the rights of the role and no others, for every change,
// and that the audit has the user.
func TestCertificateRoles(t *testing.T) {
	t.Parallel()
	for user, may := range map[string]ddl.Privilege{"nina": ddl.MayNothing, "vera": ddl.MayLook, "olaf": ddl.MayOperate, "anna": ddl.MayAdminister} {
		for name, x := range examples {
			p := serveCertified(t)
			c := p.issuer.issue(user, time.Hour)
			p.as(&c)
			code, text, _ := p.do("POST", "/api/v1/session", `{"user": "`+user+`"}`)
			if want := map[bool]int{true: 200, false: 403}[may >= ddl.MayLook]; code != want {
				t.Fatalf("login of %s: %d, want %d: %s", user, code, want, text)
			}
			if may < ddl.MayLook {
				continue
			}
			if code, text, _ = p.do("POST", "/api/v1/"+name, x.body); code != x.want(user) {
				t.Errorf("%s by the certificate of %q: %d, want %d: %s", name, user, code, x.want(user), text)
			}
			var want []string
			if code == http.StatusOK {
				want = []string{x.text() + " by API " + user + " 127.0.0.1"}
			}
			if ran := p.group.statements(); !slices.Equal(ran, want) {
				t.Errorf("by the certificate of %q ran %q, want %q", user, ran, want)
			}
		}
	}
}

// TestCertificateLogins holds that nobody is let in by another's certificate, by one that is revoked or expired, by one
// of another authority, or without one, and that a session is of no use without the certificate that it began with.
func TestCertificateLogins(t *testing.T) {
	t.Parallel()
	p := serveCertified(t)
	vera, olaf, old, other := p.issuer.issue("vera", time.Hour), p.issuer.issue("olaf", time.Hour), p.issuer.issue("vera", -time.Minute), newIssuer(t).issue("vera", time.Hour)
	login := `{"user": "vera"}`
	for name, c := range map[string]*tls.Certificate{"no certificate": nil, "another user's": &olaf} {
		p.as(c)
		if code, text, _ := p.do("POST", "/api/v1/session", login); code != 401 {
			t.Errorf("%s: %d: %s", name, code, text)
		}
	}
	refused := func(name string, c *tls.Certificate) {
		t.Helper()
		p.as(c)
		resp, err := p.client.Do(p.request("POST", "/api/v1/session", login))
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	refused("an expired one", &old)
	refused("one of another authority", &other)

	p.as(&vera)
	if code, text, _ := p.do("POST", "/api/v1/session", login); code != 200 {
		t.Fatalf("login: %d: %s", code, text)
	}
	for name, tt := range map[string]struct {
		c    *tls.Certificate
		want int
	}{"without the certificate": {nil, 401}, "with another": {&olaf, 401}, "with its own": {&vera, 200}} {
		p.as(tt.c)
		if code, text, _ := p.do("GET", "/api/v1/status", ""); code != tt.want {
			t.Errorf("the session %s: %d, want %d: %s", name, code, tt.want, text)
		}
	}
	p.as(&vera)
	if code, text, _ := p.do("POST", "/api/v1/session/proof", `{"password": ""}`); code != 200 {
		t.Errorf("a proof by the certificate: %d: %s", code, text)
	}
	p.mu.Lock()
	p.revoked = true
	p.mu.Unlock()
	refused("a revoked one", &vera)
	n := p.s.sessions.find(p.cookie.Value)
	if n == nil || p.s.certified(n.chains) {
		t.Fatal("the session's certificate counts as good after it was revoked")
	}
	n.mu.Lock()
	n.looked = time.Time{} // a minute later
	n.mu.Unlock()
	if p.s.mayStay(t.Context(), n) || p.s.sessions.find(p.cookie.Value) != nil {
		t.Error("the session outlives its certificate")
	}
}

// TestNoCertificateIsAskedFor holds that a browser is asked for no certificate where the node has no authorities.
func TestNoCertificateIsAskedFor(t *testing.T) {
	t.Parallel()
	p := serveCertified(t)
	p.s.c.ClientCAs = func() *x509.CertPool { return nil }
	asked := false
	p.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		},
	}}}
	if code, _, _ := p.do("POST", "/api/v1/session", `{"user": "vera", "password": "right"}`); code != 200 || asked {
		t.Errorf("code %d, asked for a certificate: %t", code, asked)
	}
}

// TestCertificateOfAnOldConnection holds that a connection that is older than a revocation, or than a change of the
// authorities, logs nobody in, proves nothing and keeps no session.
func TestCertificateOfAnOldConnection(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(p *certifiedPort){
		"revoked": func(p *certifiedPort) { p.revoked = true },
		"its authority is none any more": func(p *certifiedPort) {
			p.pool = x509.NewCertPool()
			p.pool.AddCert(newIssuer(t).cert)
		},
		"no certificate can be judged any more": func(p *certifiedPort) { p.pool = nil },
	} {
		for _, ask := range [][3]string{{"GET", "status", ""}, {"POST", "session", `{"user": "vera"}`}, {"POST", "session/proof", `{"password": ""}`}} {
			p := serveCertified(t)
			vera := p.issuer.issue("vera", time.Hour)
			dials := p.keepOne(&vera)
			if code, text, _ := p.do("POST", "/api/v1/session", `{"user": "vera"}`); code != 200 {
				t.Fatalf("%s: login: %d: %s", name, code, text)
			}
			p.mu.Lock()
			lose(p)
			p.mu.Unlock()
			if ask[1] == "status" {
				n := p.s.sessions.find(p.cookie.Value)
				n.mu.Lock()
				n.looked = time.Time{} // a minute later
				n.mu.Unlock()
			}
			if code, text, _ := p.do(ask[0], "/api/v1/"+ask[1], ask[2]); code != 401 {
				t.Errorf("%s: %s: %d: %s", name, ask[1], code, text)
			}
			if n := dials.Load(); n != 1 {
				t.Errorf("%s: %s: %d connections", name, ask[1], n)
			}
			p.client.CloseIdleConnections()
		}
	}
}

// keepOne gives the browser a certificate and one connection, which it keeps; it counts the connections that it opens.
func (p *certifiedPort) keepOne(c *tls.Certificate) *atomic.Int32 {
	dials := &atomic.Int32{}
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*c}}}
	p.client = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return d.DialContext(ctx, network, addr)
	}}}
	return dials
}

// TestCertificatesAreNotResumed holds that each connection proves the certificate anew.
func TestCertificatesAreNotResumed(t *testing.T) {
	t.Parallel()
	p := serveCertified(t)
	vera := p.issuer.issue("vera", time.Hour)
	p.as(&vera)
	p.client.Transport.(*http.Transport).TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 3 {
		resp, err := p.client.Do(p.request("GET", "/api/v1/session", ""))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.TLS.DidResume {
			t.Error("a connection resumes the TLS session of another")
		}
	}
}

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestConsoleOfAWitness looks at a group by the console of its witness, as a user with a client certificate: with all
// replicas, and with none and no quorum. Nobody is let in without a certificate, and nothing can be changed.
func TestConsoleOfAWitness(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{Replicas: 2, Witness: true})
	s := g.ready(t)
	g.execute(t, "CREATE ROLE vera LOGIN", "GRANT coterie_admin TO vera", "CREATE ROLE nina LOGIN")
	vera, nina, at := g.witnessConsole(t)
	stranger := g.visitor(t, at, nil)
	if code, text := stranger.ask("POST", "session", `{"user":"vera","password":"x"}`); code != 401 || !strings.Contains(text, "client certificate") {
		t.Errorf("without a certificate: %d %s", code, text)
	}
	if code, text := nina.ask("POST", "session", `{"user":"nina"}`); code != 401 {
		t.Errorf("a role without coterie_viewer: %d %s", code, text)
	}
	if code, text := vera.ask("POST", "session", `{"user":"vera"}`); code != 200 || !strings.Contains(text, `"looks_only":true`) || !strings.Contains(text, `"coterie_viewer"`) {
		t.Fatalf("login: %d %s", code, text)
	}
	for _, view := range []string{"replicas", "members", "events", "decisions", "sessions", "continuity", "settings", "certificates"} {
		if code, text := vera.ask("GET", "views/coterie."+view, ""); code != 200 && code != 404 {
			t.Errorf("coterie.%s: %d %s", view, code, text)
		}
	}
	if code, text := vera.ask("GET", "status", ""); code != 200 || !strings.Contains(text, `"primary":"`+*s.Primary+`"`) {
		t.Errorf("the status: %d %s", code, text)
	}
	for _, change := range []string{"failover", "suspend", "token"} {
		if code, text := vera.ask("POST", change, `{"to":"n2","replica":"n2"}`); code != 403 || !strings.Contains(text, "witness") {
			t.Errorf("%s: %d %s", change, code, text)
		}
	}
	for _, r := range s.Replicas {
		g.kill(t, r.Name)
	}
	alone := g.visitor(t, at, vera.certificate)
	until := time.Now().Add(2 * time.Minute)
	for ; ; time.Sleep(time.Second) {
		if code, text := alone.ask("POST", "session", `{"user":"vera"}`); code == 200 {
			break
		} else if time.Now().After(until) {
			t.Fatalf("with no replica left: %d %s", code, text)
		}
	}
	for ; ; time.Sleep(time.Second) {
		code, text := alone.ask("GET", "status", "")
		var st struct {
			Quorum    bool `json:"quorum"`
			WriteOpen bool `json:"write_open"`
		}
		if err := json.Unmarshal([]byte(text), &st); code == 200 && err == nil && !st.Quorum && !st.WriteOpen {
			break
		} else if time.Now().After(until) {
			t.Fatalf("with no replica left the status is %d %s", code, text)
		}
	}
	if code, text := alone.ask("GET", "views/coterie.replicas", ""); code != 200 || !strings.Contains(text, "n2") {
		t.Errorf("with no replica left the replicas are %d %s", code, text)
	}
	if code, text := vera.ask("GET", "status", ""); code != 200 {
		t.Errorf("the session from before: %d %s", code, text)
	}
	for _, r := range s.Replicas {
		g.start(t, r.Name)
	}
	g.ready(t)
	g.down(t)
}

// visitor is a client of the console of a witness.
type visitor struct {
	t           *testing.T
	at          string
	certificate *tls.Certificate
	client      *http.Client
}

func (g *group) visitor(t *testing.T, at string, c *tls.Certificate) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM([]byte(must(t, "ca", "--node", g.node("n1")).out)) {
		t.Fatal("the group's authority cannot be read")
	}
	tc := &tls.Config{RootCAs: trusted}
	if c != nil {
		tc.Certificates = []tls.Certificate{*c}
	}
	return &visitor{t, at, c, &http.Client{Jar: jar, Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: tc}}}
}

func (v *visitor) ask(method, path, body string) (int, string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.at+"/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", method+path)
	resp, err := v.client.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// witnessConsole switches the console of the witness on, for vera and nina with certificates of an authority that it
// makes, and returns both and where the console is.
func (g *group) witnessConsole(t *testing.T) (vera, nina *visitor, at string) {
	t.Helper()
	nodes := g.Nodes()
	w := nodes[len(nodes)-1]
	made, authority := certificatesOf(t, "vera", "nina")
	dir := filepath.Dir(g.Dir())
	ca, rules := filepath.Join(dir, "clients.crt"), filepath.Join(dir, "witness.hba")
	c, err := config.Load(w.Dir)
	if err != nil {
		t.Fatal(err)
	}
	address := w.HTTPS()
	c.HTTPS.Listen, c.ClientCA, c.HBA = address, ca, rules
	l, err := config.NewLayout(w.Dir)
	if err == nil {
		err = errors.Join(
			os.WriteFile(ca, authority, 0o644), os.WriteFile(rules, []byte("hostssl coterie all all cert\n"), 0o644),
			c.Save(w.Dir), os.Chown(filepath.Join(w.Dir, config.File), l.Owner(), -1))
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, "config", "check", "--node", w.Dir)
	must(t, "restart", "--node", w.Dir)
	at = "https://" + address
	vera, nina = g.visitor(t, at, &made[0]), g.visitor(t, at, &made[1])
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resp, err := vera.client.Get(at + "/")
		if err == nil {
			_ = resp.Body.Close()
			return vera, nina, at
		}
		if time.Now().After(end) {
			t.Fatalf("the witness serves no console: %v", err)
		}
	}
}

// certificatesOf returns client certificates for the names, and their authority in PEM.
func certificatesOf(t *testing.T, names ...string) (made []tls.Certificate, authority []byte) {
	t.Helper()
	var by *x509.Certificate
	var byKey *ecdsa.PrivateKey
	for i, name := range append([]string{"clients"}, names...) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if by == nil {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
			by, byKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), byKey)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if by, err = x509.ParseCertificate(der); err != nil {
				t.Fatal(err)
			}
			authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			continue
		}
		made = append(made, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	}
	return made, authority
}

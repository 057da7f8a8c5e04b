package auth

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

const rounds = 4096

func hmacOf(key []byte, data string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(data))
	return m.Sum(nil)
}

// verifierOf is what PostgreSQL stores of a password.
func verifierOf(password string) string {
	salt := []byte("sixteen bytes ok")
	salted, _ := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	stored := sha256.Sum256(hmacOf(salted, "Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, b64(salt), b64(stored[:]), b64(hmacOf(salted, "Server Key")))
}

func md5Of(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// person is a client with a password, which answers what it is asked.
type person struct {
	user, password string
	first          string // mechanism of its first message; "": SCRAM-SHA-256
	mute           bool   // it has the server speak first
	asked          []uint32
	answers        [][]byte
}

func (p *person) send(b []byte) error {
	kind, data := binary.BigEndian.Uint32(b[5:]), string(b[9:])
	p.asked = append(p.asked, kind)
	const bare = "n=,r=nonce"
	switch {
	case kind == MD5:
		p.answers = append(p.answers, []byte("md5"+md5Of(md5Of(p.password+p.user)+data)+"\x00"))
	case kind == SASL:
		mechanism := p.first
		if mechanism == "" {
			mechanism = scram.Mechanism
		}
		body := binary.BigEndian.AppendUint32([]byte(mechanism+"\x00"), uint32(len("n,,"+bare)))
		if p.mute {
			body = binary.BigEndian.AppendUint32([]byte(mechanism+"\x00"), 1<<32-1)
			p.answers = append(p.answers, body)
			return nil
		}
		p.answers = append(p.answers, append(body, "n,,"+bare...))
	case kind == SASLMore && data == "":
		p.answers = append(p.answers, []byte("n,,"+bare))
	case kind == SASLMore:
		fields := strings.Split(data, ",")
		salt, _ := base64.StdEncoding.DecodeString(fields[1][2:])
		n := 0
		_, _ = fmt.Sscan(fields[2][2:], &n)
		salted, _ := pbkdf2.Key(sha256.New, p.password, salt, n, sha256.Size)
		key := hmacOf(salted, "Client Key")
		stored := sha256.Sum256(key)
		without := "c=biws," + fields[0]
		for i, b := range hmacOf(stored[:], bare+","+data+","+without) {
			key[i] ^= b
		}
		p.answers = append(p.answers, []byte(without+",p="+base64.StdEncoding.EncodeToString(key)))
	}
	return nil
}

func (p *person) response() ([]byte, error) {
	if len(p.answers) == 0 {
		return nil, errors.New("it has left")
	}
	b := p.answers[0]
	p.answers = p.answers[1:]
	return b, nil
}

// client returns the other end of a person's login.
func (p *person) client() *Client {
	return &Client{
		User: p.user, MockSecret: func() []byte { return []byte("secret") }, Send: p.send, Response: p.response, Failed: func(string) {}, Log: slog.New(slog.DiscardHandler),
	}
}

var yesterday = time.Now().Add(-24 * time.Hour)

// A password is right if the role has it, may log in and it has not expired. Everything else looks like a wrong one.
func TestPassword(t *testing.T) {
	shadow := "md5" + md5Of("right"+"alice")
	for _, c := range []struct {
		name   string
		method hba.Method
		role   Role
		typed  string
		plain  bool // md5 is allowed without TLS
		right  bool
		asks   uint32 // first
	}{
		{"right", hba.MethodSCRAM, Role{Found: true, CanLogin: true, Password: verifierOf("right")}, "right", false, true, SASL},
		{"wrong", hba.MethodSCRAM, Role{Found: true, CanLogin: true, Password: verifierOf("right")}, "wrong", false, false, SASL},
		{"expired", hba.MethodSCRAM, Role{Found: true, CanLogin: true, Password: verifierOf("right"), ValidUntil: yesterday}, "right", false, false, SASL},
		{"may not log in", hba.MethodSCRAM, Role{Found: true, Password: verifierOf("right")}, "right", false, false, SASL},
		{"no password", hba.MethodSCRAM, Role{Found: true, CanLogin: true}, "", false, false, SASL},
		{"no such role", hba.MethodSCRAM, Role{}, "right", false, false, SASL},
		{"an old verifier for a rule with scram", hba.MethodSCRAM, Role{Found: true, CanLogin: true, Password: shadow}, "right", true, false, SASL},
		{"md5", hba.MethodMD5, Role{Found: true, CanLogin: true, Password: shadow}, "right", true, true, MD5},
		{"md5, wrong", hba.MethodMD5, Role{Found: true, CanLogin: true, Password: shadow}, "wrong", true, false, MD5},
		{"md5, expired", hba.MethodMD5, Role{Found: true, CanLogin: true, Password: shadow, ValidUntil: yesterday}, "right", true, false, MD5},
		{"md5, may not log in", hba.MethodMD5, Role{Found: true, Password: shadow}, "right", true, false, MD5},
		{"md5 over an open network", hba.MethodMD5, Role{Found: true, CanLogin: true, Password: shadow}, "right", false, false, SASL},
		{"scram for a rule with md5", hba.MethodMD5, Role{Found: true, CanLogin: true, Password: verifierOf("right")}, "right", false, true, SASL},
	} {
		p := &person{user: "alice", password: c.typed}
		login := p.client()
		login.AllowPlainMD5 = c.plain
		last, err := login.Prove(hba.Rule{Method: c.method}, c.role)
		if c.right != (err == nil) || !c.right && !errors.Is(err, scram.ErrBadProof) {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(p.asked) == 0 || p.asked[0] != c.asks {
			t.Errorf("%s: asked for %v", c.name, p.asked)
		}
		if final := len(last) > 0; final != (c.right && c.asks == SASL) {
			t.Errorf("%s: the server's proof is %q", c.name, last)
		}
	}
}

// A client that violates the exchange is told so; one that has the server speak first is asked.
func TestExchange(t *testing.T) {
	role := Role{Found: true, CanLogin: true, Password: verifierOf("right")}
	for name, first := range map[string]string{"another mechanism": "PLAIN", "channel binding without a channel": scram.MechanismPlus} {
		_, err := (&person{user: "alice", password: "right", first: first}).client().Prove(hba.Rule{Method: hba.MethodSCRAM}, role)
		if bad, is := pgwire.AsError(err); !is || bad.Code != pgwire.StateProtocolViolation {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (&person{user: "alice", password: "right", mute: true}).client().Prove(hba.Rule{Method: hba.MethodSCRAM}, role); err != nil {
		t.Errorf("a client that has the server speak first: %v", err)
	}
	gone := (&person{}).client()
	gone.Send = func([]byte) error { return errors.New("it has left") }
	if _, err := gone.Prove(hba.Rule{Method: hba.MethodSCRAM}, role); err == nil || errors.Is(err, scram.ErrBadProof) {
		t.Errorf("a client that has left: %v", err)
	}
	for _, body := range []string{"", "SCRAM-SHA-256", "SCRAM-SHA-256\x00", "SCRAM-SHA-256\x00\x00\x00\x00\x05n,,", "SCRAM-SHA-256\x00\xff\xff\xff\xffmore"} {
		if _, _, _, ok := splitInitial([]byte(body)); ok {
			t.Errorf("%q is taken", body)
		}
	}
}

// certifiedAs returns the state of a connection whose client has a certificate for that name.
func certifiedAs(name string) *tls.ConnectionState {
	subject := pkix.Name{CommonName: name}
	raw, _ := asn1.Marshal(subject.ToRDNSequence())
	c := &x509.Certificate{Subject: subject, RawSubject: raw}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
}

// A rule that asks for a certificate asks before anything else, and by its own name if it says so.
func TestCertificate(t *testing.T) {
	for _, c := range []struct {
		name string
		rule hba.Rule
		tls  *tls.ConnectionState
		lets bool
	}{
		{"none", hba.Rule{Method: hba.MethodTrust, ClientCert: "verify-ca"}, nil, false},
		{"not verified", hba.Rule{Method: hba.MethodTrust, ClientCert: "verify-ca"}, &tls.ConnectionState{}, false},
		{"of anybody", hba.Rule{Method: hba.MethodTrust, ClientCert: "verify-ca"}, certifiedAs("bob"), true},
		{"of another", hba.Rule{Method: hba.MethodCert, ClientCert: "verify-full"}, certifiedAs("bob"), false},
		{"its own", hba.Rule{Method: hba.MethodCert, ClientCert: "verify-full"}, certifiedAs("alice"), true},
		{"a method that does not exist", hba.Rule{Method: "gss"}, nil, false},
		{"peer over a network", hba.Rule{Method: hba.MethodPeer}, nil, false},
		{"trust", hba.Rule{Method: hba.MethodTrust}, nil, true},
	} {
		p := &person{user: "alice"}
		login := p.client()
		login.TLS, login.Raw = c.tls, &net.TCPConn{}
		if _, err := login.Prove(c.rule, Role{}); c.lets != (err == nil) || len(p.asked) > 0 {
			t.Errorf("%s: %v, asked %v", c.name, err, p.asked)
		}
	}
}

// A login over another port is judged as one that comes here.
func TestPasswordLogin(t *testing.T) {
	scramOnly := []hba.Rule{{Type: "hostssl", Databases: []hba.Name{{Text: "all"}}, Users: []hba.Name{{Text: "all"}}, AnyAddress: true, Method: hba.MethodSCRAM}}
	role := Role{Found: true, CanLogin: true, Password: verifierOf("right")}
	expired := role
	expired.ValidUntil = yesterday
	barred := role
	barred.CanLogin = false
	with := func(method hba.Method, certificate string) []hba.Rule {
		r := scramOnly[0]
		r.Method, r.ClientCert = method, certificate
		return []hba.Rule{r}
	}
	own, other := certifiedAs("alice").PeerCertificates[0], certifiedAs("bob").PeerCertificates[0]
	for _, c := range []struct {
		name     string
		typed    string
		role     Role
		rules    []hba.Rule
		of       *x509.Certificate
		lets     bool
		password bool // the reason is the password
	}{
		{"right", "right", role, scramOnly, nil, true, false},
		{"wrong", "wrong", role, scramOnly, nil, false, true},
		{"expired", "right", expired, scramOnly, nil, false, false},
		{"may not log in", "right", barred, scramOnly, nil, false, false},
		{"no such role", "right", Role{}, scramOnly, nil, false, false},
		{"no rule", "right", role, nil, nil, false, false},
		{"a rule that rejects", "right", role, with(hba.MethodReject, ""), nil, false, false},
		{"a rule for processes", "right", role, with(hba.MethodPeer, ""), nil, false, false},
		{"no certificate", "right", role, with(hba.MethodSCRAM, "verify-ca"), nil, false, false},
		{"a certificate of another", "right", role, with(hba.MethodSCRAM, "verify-full"), other, false, false},
		{"a certificate and a password", "right", role, with(hba.MethodSCRAM, "verify-full"), own, true, false},
		{"a certificate alone", "", role, with(hba.MethodCert, "verify-full"), own, true, false},
		{"a certificate alone, of a role that may not log in", "", barred, with(hba.MethodCert, "verify-full"), own, false, false},
	} {
		l := PasswordLogin{User: "alice", Password: c.typed, Client: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, Certificate: c.of}
		why := l.Judge(c.role, "postgres", c.rules, []byte("secret"))
		if c.lets != (why == "") || c.password != (why == scram.ErrBadProof.Error()) {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}

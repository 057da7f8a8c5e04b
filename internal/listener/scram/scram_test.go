package scram

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// verifierOf returns what PostgreSQL would store of the password.
func verifierOf(password string, iterations int) string {
	salt := []byte("sixteen bytes ok")
	salted, _ := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	clientKey := hmacSHA256(salted, []byte("Client Key"))
	stored := sha256.Sum256(clientKey)
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64(salt), b64(stored[:]), b64(hmacSHA256(salted, []byte("Server Key"))))
}

// proof answers a server-first-message as a client that knows the password.
func proof(password, gs2, binding, bare, serverFirst string) string {
	fields := strings.Split(serverFirst, ",")
	salt, _ := base64.StdEncoding.DecodeString(fields[1][2:])
	var iterations int
	_, _ = fmt.Sscan(fields[2][2:], &iterations)
	salted, _ := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	clientKey := hmacSHA256(salted, []byte("Client Key"))
	stored := sha256.Sum256(clientKey)
	without := "c=" + base64.StdEncoding.EncodeToString([]byte(gs2+binding)) + "," + fields[0]
	signature := hmacSHA256(stored[:], []byte(bare+","+serverFirst+","+without))
	for i := range clientKey {
		clientKey[i] ^= signature[i]
	}
	return without + ",p=" + base64.StdEncoding.EncodeToString(clientKey)
}

func TestSCRAM(t *testing.T) {
	v, ok := ParseVerifier(verifierOf("secret", 4096))
	if !ok {
		t.Fatal("verifier not read")
	}
	run := func(s *Exchange, password, gs2, binding string) error {
		bare := "n=,r=clientnonce"
		reply, err := s.First(gs2 + bare)
		if err != nil {
			return err
		}
		last, err := s.Final(proof(password, gs2, binding, bare, reply))
		if err == nil && !strings.HasPrefix(last, "v=") {
			return errors.New("no server signature")
		}
		return err
	}
	cases := []struct {
		name          string
		s             Exchange
		password, gs2 string
		binding       string
		want          error
	}{
		{"plain", Exchange{Verifier: v}, "secret", "n,,", "", nil},
		{"client supports binding, we do not", Exchange{Verifier: v}, "secret", "y,,", "", nil},
		{"plus", Exchange{Verifier: v, Binding: []byte("hash"), Plus: true}, "secret", "p=tls-server-end-point,,", "hash", nil},
		{"binding offered, not chosen", Exchange{Verifier: v, Binding: []byte("hash")}, "secret", "n,,", "", nil},
		{"wrong password", Exchange{Verifier: v}, "Secret", "n,,", "", ErrBadProof},
		{"downgrade", Exchange{Verifier: v, Binding: []byte("hash")}, "secret", "y,,", "", ErrMalformed},
		{"other certificate", Exchange{Verifier: v, Binding: []byte("hash"), Plus: true}, "secret", "p=tls-server-end-point,,", "evil", ErrMalformed},
		{"other binding type", Exchange{Verifier: v, Binding: []byte("hash"), Plus: true}, "secret", "p=tls-unique,,", "hash", ErrMalformed},
		{"plus without p", Exchange{Verifier: v, Binding: []byte("hash"), Plus: true}, "secret", "n,,", "", ErrMalformed},
		{"p without plus", Exchange{Verifier: v}, "secret", "p=tls-server-end-point,,", "hash", ErrMalformed},
		{"authorization identity", Exchange{Verifier: v}, "secret", "n,a=x,", "", ErrMalformed},
		{"mock", Exchange{Verifier: MockVerifier([]byte("k"), "u", 0)}, "secret", "n,,", "", ErrBadProof},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := run(&c.s, c.password, c.gs2, c.binding); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestMockSaltIsStable(t *testing.T) {
	a, b := MockVerifier([]byte("k"), "u", 0), MockVerifier([]byte("k"), "u", 0)
	other := MockVerifier([]byte("k"), "v", 0)
	if string(a.salt) != string(b.salt) || string(a.salt) == string(other.salt) || len(a.salt) != 16 || a.iterations != 4096 {
		t.Error("a mock salt must be the same for a name and differ between names")
	}
	if more := MockVerifier([]byte("k"), "u", 20000); string(a.salt) != string(more.salt) || more.iterations != 20000 {
		t.Error("the rounds of a mock verifier are those of other roles, with the same salt")
	}
}

func TestParseVerifierRefuses(t *testing.T) {
	good := verifierOf("x", 10)
	for _, s := range []string{
		"", "md5abc", "SCRAM-SHA-256$", "SCRAM-SHA-256$0:QQ==$QQ==:QQ==", good[:len(good)-4], good + "AAAA",
		strings.Replace(good, "$10:", "$x:", 1), strings.Replace(good, "$10:", "$-1:", 1), strings.Replace(good, ":", "", 1),
	} {
		if _, ok := ParseVerifier(s); ok {
			t.Errorf("%q was read", s)
		}
	}
}

func FuzzSCRAM(f *testing.F) {
	f.Add("n,,n=,r=abc", "c=biws,r=abc,p=AAAA", false)
	f.Add("p=tls-server-end-point,,n=x,r=%", "c=,r=,p=", true)
	f.Add("y,,m=1,n=,r=a,x", ",p=", false)
	v, _ := ParseVerifier(verifierOf("secret", 1))
	f.Fuzz(func(t *testing.T, first, final string, plus bool) {
		s := &Exchange{Verifier: v, Plus: plus}
		if plus {
			s.Binding = []byte("hash")
		}
		if _, err := s.First(first); err != nil {
			return
		}
		if _, err := s.Final(final); err == nil {
			t.Fatalf("%q, %q logged in", first, final)
		}
		if _, err := s.Final(strings.Replace(final, "r=", "r="+s.nonce, 1)); err == nil {
			t.Fatalf("%q, %q logged in", first, final)
		}
	})
}

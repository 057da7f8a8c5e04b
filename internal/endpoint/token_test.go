package endpoint

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// TestTokenOfASuccessor holds that a token carries the name of the member that its node replaces, and its kind.
func TestTokenOfASuccessor(t *testing.T) {
	ca := newTestCA(t, groupA)
	for _, quorum := range []TokenQuorum{{}, {Endpoints: []string{"https://10.0.0.7:2379"}, CA: "/ca.crt"}} {
		text, stored, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Member: "n3", Addresses: []string{"10.0.0.1:5022"}, Quorum: quorum}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseToken(text)
		if err != nil || got.Member != "n3" || got.Role != certs.KindReplica || stored.Role != certs.KindReplica || !reflect.DeepEqual(got.Quorum, quorum) {
			t.Errorf("%+v of %s, %v", got.Quorum, got.Member, err)
		}
	}
	if _, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Member: "n:3", Addresses: []string{"10.0.0.1:5022"}}, time.Hour); err == nil {
		t.Error("a token for a name that no node can have")
	}
}

func TestTokenRoundTrip(t *testing.T) {
	ca := newTestCA(t, groupA)
	addrs := []string{"10.0.0.1:5022", "[fd00::1]:5022", "db1.example.org:5022"}
	text, stored, err := NewToken(ca, TokenOptions{Role: certs.KindWitness, Addresses: addrs}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseToken("  " + text[:70] + "\r\n" + text[70:] + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if got.Group != groupA || got.Name != "sales" || got.CAPin != ca.Pin() || got.ID != stored.ID || got.Role != certs.KindWitness ||
		!reflect.DeepEqual(got.Addresses, addrs) || !got.Expires.Equal(stored.Expires) {
		t.Errorf("got %#v", got)
	}
	if len(text) > 320 {
		t.Errorf("a token of %d characters: %s", len(text), text)
	}
	if s := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(s, fmt.Sprint(got.Secret[0], got.Secret[1])) {
		t.Errorf("printing shows the secret: %s", s)
	}
}

func TestTokenErrors(t *testing.T) {
	ca := newTestCA(t, groupA)
	text, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022"}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	mistyped := []byte(text)
	mistyped[40] ^= 1
	for name, bad := range map[string]string{
		"empty": "", "prefix only": tokenPrefix, "no prefix": text[len(tokenPrefix):], "other version": "coterie2" + text[len("coterie1"):],
		"cut": text[:len(text)-1], "cut more": text[:len(text)-9], "longer": text + "AAAA", "mistyped": string(mistyped),
		"foreign character": text[:20] + "!" + text[21:], "huge": tokenPrefix + strings.Repeat("A", 1<<20),
	} {
		if _, err := ParseToken(bad); !errors.Is(err, ErrTokenMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022"}}, -time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if tok, err := ParseToken(old); !errors.Is(err, ErrTokenExpired) || tok.Group != groupA {
		t.Errorf("got %v, %v", tok, err)
	}
	for _, bad := range [][]string{nil, {"10.0.0.1"}, {":5022"}, {"a b:1"}, make([]string, 17)} {
		if _, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: bad}, time.Hour); err == nil {
			t.Errorf("a token for %q was made", bad)
		}
	}
	if _, _, err := NewToken(ca, TokenOptions{Role: "admin", Addresses: []string{"10.0.0.1:5022"}}, time.Hour); err == nil {
		t.Error("a token of an unknown role was made")
	}
}

// TestTokenOfExternalQuorum holds that the token of a group with an external quorum names its address, and only the
// paths of the files that open it.
func TestTokenOfExternalQuorum(t *testing.T) {
	ca, err := certs.NewCA(groupA, "sales")
	if err != nil {
		t.Fatal(err)
	}
	q := TokenQuorum{Endpoints: []string{"https://10.0.0.8:2379", "https://10.0.0.9:2379"}, CA: "/etc/etcd/ca.crt", Cert: "/etc/etcd/c.crt", Key: "/etc/etcd/c.key"}
	text, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022"}, Quorum: q}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if tok, err := ParseToken(text); err != nil || !reflect.DeepEqual(tok.Quorum, q) || len(tok.Addresses) != 1 {
		t.Errorf("%+v %v", tok.Quorum, err)
	}
	for _, bad := range []TokenQuorum{{Endpoints: []string{""}}, {Endpoints: make([]string, 17)}, {Endpoints: []string{"x"}, CA: strings.Repeat("x", 256)}} {
		if _, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022"}, Quorum: bad}, time.Hour); err == nil {
			t.Errorf("%+v is in a token", bad)
		}
	}
}

// FuzzParseToken holds that no text makes ParseToken panic, and that every accepted text is the only one of its token.
func FuzzParseToken(f *testing.F) {
	ca, err := certs.NewCA(groupA, "sales")
	if err != nil {
		f.Fatal(err)
	}
	text, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022", "[fd00::1]:5022"}}, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	external, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{"10.0.0.1:5022"}, Quorum: TokenQuorum{Endpoints: []string{"https://10.0.0.9:2379"}, CA: "/etc/ca.crt"}}, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{text, external, text[:50], "", tokenPrefix, "coterie1.AAAA", tokenPrefix + strings.Repeat("A", 200)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil && !errors.Is(err, ErrTokenExpired) {
			return
		}
		if again, err := tok.encode(); err != nil || again != strings.Join(strings.Fields(s), "") {
			t.Errorf("%q is %q again, %v", s, again, err)
		}
	})
}

// FuzzDecodeToken gets past the checksum.
func FuzzDecodeToken(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 96))
	f.Add(append(make([]byte, 96), "\x07replica\x05sales\x01\x0d10.0.0.1:5022"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		tok, err := decodeToken(b)
		if err != nil {
			return
		}
		text, err := tok.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseToken(text)
		if err != nil && !errors.Is(err, ErrTokenExpired) || !reflect.DeepEqual(again, tok) {
			t.Errorf("%#v became %#v, %v", tok, again, err)
		}
	})
}

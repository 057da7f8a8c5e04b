package certs

import (
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestEndorsed holds that a signature is good for its value, its purpose and its group, and for as long as its
// authority is trusted.
func TestEndorsed(t *testing.T) {
	authority := func(group ag.GroupID) *CA {
		t.Helper()
		ca, err := NewCA(group, "sales")
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	const group, other = "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b12"
	ca, next, foreign := authority(group), authority(group), authority(other)
	dir := t.TempDir()
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	sign := func(ca *CA, purpose, value string) []byte {
		t.Helper()
		s, err := ca.Endorse(purpose, []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := sign(ca, "token", "v")
	for name, c := range map[string]struct {
		purpose, value string
		signature      []byte
		want           error
	}{
		"as signed":        {"token", "v", good, nil},
		"another value":    {"token", "w", good, ErrNotEndorsed},
		"another purpose":  {"authority", "v", good, ErrNotEndorsed},
		"parts moved":      {"toke", "nv", good, ErrNotEndorsed},
		"none":             {"token", "v", nil, ErrNotEndorsed},
		"not trusted yet":  {"token", "v", sign(next, "token", "v"), ErrNotEndorsed},
		"of another group": {"token", "v", sign(foreign, "token", "v"), ErrNotEndorsed},
		"no signature":     {"token", "v", []byte("x"), ErrNotEndorsed},
	} {
		if err := Endorsed(dir, c.purpose, []byte(c.value), c.signature); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := TrustAuthority(dir, next.CertPEM); err != nil {
		t.Fatal(err)
	}
	if err := Endorsed(dir, "token", []byte("v"), sign(next, "token", "v")); err != nil {
		t.Errorf("of the next authority, once it is trusted: %v", err)
	}
}

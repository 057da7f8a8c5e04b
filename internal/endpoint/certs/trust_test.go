package certs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A crash leaves any of a step's files replaced and the others not. The node starts from that state, and the step can
// be repeated.
func TestRotationSurvivesCrashes(t *testing.T) {
	t.Parallel()
	ca, next := newTestCA(t, groupA), newTestCA(t, groupA)
	dir, _ := aNodeDir(t, ca, KindReplica)
	steps := []func(dir string) error{
		func(dir string) error { return SaveAuthorityKey(dir, next.KeyPEM()) },
		func(dir string) error { return TrustAuthority(dir, next.CertPEM) },
		func(dir string) error { return PreferAuthority(dir, next.Pin()) },
		func(dir string) error { _, err := RenewOwn(dir); return err },
		ForgetAuthorities,
	}
	for i, step := range steps {
		before := filesIn(t, dir)
		if err := step(dir); err != nil {
			t.Fatal(err)
		}
		after := filesIn(t, dir)
		var changed []string
		for name := range after {
			if before[name] != after[name] {
				changed = append(changed, name)
			}
		}
		if len(changed) == 0 {
			t.Errorf("step %d changes nothing", i)
		}
		for set := range 1 << len(changed) {
			crashed := t.TempDir()
			for name, data := range before {
				if at := slices.Index(changed, name); at >= 0 && set>>at&1 == 1 {
					data = after[name]
				}
				if err := os.WriteFile(filepath.Join(crashed, name), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := LoadNode(crashed); err != nil {
				t.Errorf("step %d, %b of %v: %v", i, set, changed, err)
			}
			if _, err := LoadCA(crashed); err != nil {
				t.Errorf("step %d, %b of %v: %v", i, set, changed, err)
			}
			for _, again := range steps[i:] {
				if err := again(crashed); err != nil {
					t.Errorf("step %d, %b of %v, then again: %v", i, set, changed, err)
				}
			}
			n, err := LoadNode(crashed)
			if err != nil || n.Authority() != next.Pin() || !slices.Equal(n.TrustedPins(), []string{next.Pin()}) {
				t.Errorf("step %d, %b of %v, at the end: %v", i, set, changed, err)
			}
		}
	}
}

func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

// Bundles that must not be believed or preferred; and an abandoned rotation makes room for another one.
func TestAuthorityRefusals(t *testing.T) {
	ca, next, other := newTestCA(t, groupA), newTestCA(t, groupA), newTestCA(t, groupB)
	dir, _ := aNodeDir(t, ca, KindReplica)
	if err := TrustAuthority(dir, other.CertPEM); err == nil {
		if _, err = LoadNode(dir); err == nil {
			t.Error("another group's authority was believed")
		}
	}
	dir, _ = aNodeDir(t, ca, KindReplica)
	if err := PreferAuthority(dir, next.Pin()); err == nil {
		t.Error("preferred what is not believed")
	}
	if err := TrustAuthority(dir, next.CertPEM); err != nil {
		t.Fatal(err)
	}
	if err := PreferAuthority(dir, next.Pin()); err == nil {
		t.Error("preferred an authority without its key")
	}
	again := newTestCA(t, groupA)
	if err := TrustAuthority(dir, again.CertPEM); err != nil {
		t.Fatal(err)
	}
	if n, err := LoadNode(dir); err != nil || !slices.Equal(n.TrustedPins(), []string{ca.Pin(), again.Pin()}) {
		t.Errorf("believed: %v, %v", n.TrustedPins(), err)
	}
	if _, err := PinOfAuthority(other.CertPEM, groupA); err == nil {
		t.Error("another group's authority was taken for one of this")
	}
}

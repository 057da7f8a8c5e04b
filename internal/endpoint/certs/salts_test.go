package certs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSaltsStay holds that the secret of salts is the same on every replica, after a rotation too, also for one that
// joins later, and that it is no other secret of the group.
func TestSaltsStay(t *testing.T) {
	t.Parallel()
	ca, err := NewCA("8f6d7a52-64d5-4d63-9f5e-7c0f5ad0a001", "group")
	if err != nil {
		t.Fatal(err)
	}
	first, second, joiner, witness := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	salts := func(dir string) []byte {
		t.Helper()
		s, err := Salts(dir)
		if err != nil || len(s) != saltsSize {
			t.Fatalf("%d bytes, %v", len(s), err)
		}
		return s
	}
	for _, dir := range []string{first, second} {
		if err := ca.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	was := salts(first)
	keys, err := NewSecret(first, "listener")
	if err != nil || !bytes.Equal(was, salts(second)) || bytes.Equal(was, keys.Get()) {
		t.Errorf("replicas differ, or the secret of cancel keys is the same; %v", err)
	}
	next, err := NewCA("8f6d7a52-64d5-4d63-9f5e-7c0f5ad0a001", "group")
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Save(first); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(first, fileCACert), later, later); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(was, salts(first)) {
		t.Error("a rotation changes it")
	}
	install(t, next, joiner, KindReplica, was)
	if !bytes.Equal(was, salts(joiner)) {
		t.Error("a joiner has another one")
	}
	install(t, next, witness, KindWitness, nil)
	if _, err := Salts(witness); err == nil {
		t.Error("a witness has it")
	}
	if st, err := os.Stat(filepath.Join(joiner, fileSalts)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", st, err)
	}
	if err := os.WriteFile(filepath.Join(joiner, fileSalts), []byte("12"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Salts(joiner); err == nil {
		t.Error("a file that is cut off is used")
	}
}

// install installs an admitted node in dir.
func install(t *testing.T, ca *CA, dir, kind string, salts []byte) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := ca.Admit(Identity{Group: ca.Group, Kind: kind, ID: "n2"}, csr, []string{"n2.example"})
	if err != nil {
		t.Fatal(err)
	}
	grant.Salts = salts
	if _, err := InstallNode(dir, grant, key); err != nil {
		t.Fatal(err)
	}
}

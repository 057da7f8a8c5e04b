package certs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Replicas of a group have the same secrets, one for each purpose, which change with the authority; a witness has none.
func TestSecret(t *testing.T) {
	ca, err := NewCA("8f6d7a52-64d5-4d63-9f5e-7c0f5ad0a001", "group")
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	get := func(dir, purpose string) []byte {
		t.Helper()
		s, err := NewSecret(dir, purpose)
		if err != nil {
			t.Fatal(err)
		}
		return s.Get()
	}
	for _, dir := range dirs {
		if err := ca.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	first := get(dirs[0], "a")
	if len(first) != 32 || !bytes.Equal(first, get(dirs[1], "a")) || bytes.Equal(first, get(dirs[0], "b")) {
		t.Error("secrets differ between nodes, or are the same for two purposes")
	}
	held, err := NewSecret(dirs[0], "a")
	if err != nil {
		t.Fatal(err)
	}
	next, err := NewCA("8f6d7a52-64d5-4d63-9f5e-7c0f5ad0a001", "group")
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Save(dirs[0]); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dirs[0], fileCACert), later, later); err != nil {
		t.Fatal(err)
	}
	if now := held.Get(); bytes.Equal(now, first) || !bytes.Equal(now, get(dirs[0], "a")) {
		t.Error("it did not change with the authority")
	}
	was := held.Get()
	if err := os.Remove(filepath.Join(dirs[0], fileCACert)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(held.Get(), was) {
		t.Error("it was lost with the file")
	}
	if err := os.Remove(filepath.Join(dirs[1], fileCAKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSecret(dirs[1], "a"); err == nil {
		t.Error("a witness has it")
	}
}

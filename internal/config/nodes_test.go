package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestNodesBelow checks that node directories are found by their run directories, and only those that hold a node and
// have that run directory.
func TestNodesBelow(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	var want []string
	for name, holds := range map[string]bool{"a": true, "b": true, "removed": false} {
		dir := filepath.Join(t.TempDir(), name)
		l, err := NewLayout(dir)
		if err != nil {
			t.Fatal(err)
		}
		if holds {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "coterie.yaml"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			want = append(want, l.Dir)
		}
		run := filepath.Join(parent, filepath.Base(l.Run))
		if err := os.MkdirAll(run, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(run, ownerFile), []byte(l.Dir), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(parent, "00000000") // names a node whose run directory it is not
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, ownerFile), []byte(want[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	got := nodesBelow(parent)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

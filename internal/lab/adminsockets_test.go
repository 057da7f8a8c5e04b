package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoorsLieInTheLab, so that whoever removes a lab removes its doors, unless a socket's path would be longer than the kernel takes.
func TestDoorsLieInTheLab(t *testing.T) {
	lab := t.TempDir()
	short, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	if dir, err := doorsDir(short); err != nil || dir != filepath.Join(short, "doors") {
		t.Errorf("the doors of %s are in %s, %v", short, dir, err)
	}
	long := filepath.Join(lab, strings.Repeat("x", longestSocket))
	dir, err := doorsDir(long)
	if err != nil || strings.HasPrefix(dir, long) || len(dir) > longestSocket {
		t.Errorf("the doors of a lab with a long name are in %s, %v", dir, err)
	}
	_ = os.RemoveAll(dir)
}

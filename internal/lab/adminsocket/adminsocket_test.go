package adminsocket

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sockets are in the directory of the lab, so that they are removed with it, unless the path of a socket would be
// too long for the kernel.
func TestSocketsAreInTheLab(t *testing.T) {
	lab := t.TempDir()
	short, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	if dir, err := socketsDir(short); err != nil || dir != filepath.Join(short, "doors") {
		t.Errorf("the sockets of %s are in %s, %v", short, dir, err)
	}
	long := filepath.Join(lab, strings.Repeat("x", longestSocket))
	dir, err := socketsDir(long)
	if err != nil || strings.HasPrefix(dir, long) || len(dir) > longestSocket {
		t.Errorf("the sockets of a lab with a long name are in %s, %v", dir, err)
	}
	_ = os.RemoveAll(dir)
}

package nodecmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
)

// ownerEnv makes this test binary tell which user runs it.
const ownerEnv = "COTERIE_NODECMD_OWNER"

// TestOwnerChild is that user's process.
func TestOwnerChild(t *testing.T) {
	if os.Getenv(ownerEnv) == "" {
		t.Skip("it is a part of TestAsOwner")
	}
	exe, err := os.Executable()
	fmt.Printf("ran as %d %d from %s %v\n", os.Getuid(), os.Getgid(), exe, err)
}

// TestAsOwner checks that root has what it leaves to the user of a node done as the owner of that node directory, and
// not as the user that runs a node which root has made.
func TestAsOwner(t *testing.T) {
	const uid, gid = 54321, 54322 // of nobody here
	dir := t.TempDir()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: only root runs programs as another user")
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(ownerEnv, "1")
	var out strings.Builder
	err = AsOwner(t.Context(), l, &out, &out, []string{"-test.run", "^TestOwnerChild$", "-test.v"})
	_, said, _ := strings.Cut(out.String(), "ran as ")
	var gotUID, gotGID int
	var exe string
	if n, _ := fmt.Sscanf(said, "%d %d from %s", &gotUID, &gotGID, &exe); err != nil || n != 3 || gotUID != uid || gotGID != gid {
		t.Errorf("error %v: %s", err, out.String())
	}
	if copied := filepath.Dir(exe); filepath.Dir(copied) == "/var/cache/coterie" {
		_ = os.RemoveAll(copied)
	}
}

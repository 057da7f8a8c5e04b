package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestNodeOfAnotherUser holds that root does not take an ordinary user's node away by naming it.
func TestNodeOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a node of another user")
	}
	dir, err := os.MkdirTemp("/tmp", "coterie-daemon-test") // every user may enter its parents
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, config.File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const theirs, servers = 65534, 65533
	if err := os.Chown(dir, theirs, theirs); err != nil {
		t.Fatal(err)
	}
	err = prepareFor(dir, servers, servers)
	if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "is the node of user") {
		t.Errorf("%v", err)
	}
	st, err := os.Stat(dir)
	if err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != theirs {
		t.Errorf("the directory belongs to another user now: %+v, %v", st, err)
	}
}

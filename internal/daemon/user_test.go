package daemon

import (
	"errors"
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
	_, err = prepareFor(dir, servers, servers)
	if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "is the node of user") {
		t.Errorf("%v", err)
	}
	st, err := os.Stat(dir)
	if err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != theirs {
		t.Errorf("the directory belongs to another user now: %+v, %v", st, err)
	}
}

// TestGiveLooksAtWhatItGives puts a link to a directory of root in the place of one that is given to a user, as that
// user can where it owns the parent. Only an empty directory, a node's, and the user's own are given.
func TestGiveLooksAtWhatItGives(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: only root gives directories away")
	}
	const to = 54321
	for name, c := range map[string]struct {
		file  string // in the directory
		owner int
		given bool
	}{
		"empty": {"", 0, true}, "a node": {config.File, 0, true}, "root's": {"passwd", 0, false}, "its own": {"file", to, true}, "another user's": {"", to + 1, false},
	} {
		real, link := t.TempDir(), filepath.Join(t.TempDir(), "node")
		if c.file != "" {
			if err := os.WriteFile(filepath.Join(real, c.file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Chown(real, c.owner, 0), os.Symlink(real, link)); err != nil {
			t.Fatal(err)
		}
		err := give(link, to, to)
		st, serr := os.Stat(real)
		if serr != nil {
			t.Fatal(serr)
		}
		if uid := int(st.Sys().(*syscall.Stat_t).Uid); (err == nil) != c.given || c.given && uid != to || !c.given && uid != c.owner {
			t.Errorf("%s: it belongs to %d, %v", name, uid, err)
		}
	}
}

// TestTheNodeIsNamedOnce holds that the command line of an agent names its directory once, which process lists show.
func TestTheNodeIsNamedOnce(t *testing.T) {
	for given, want := range map[string]string{
		"coterie agent":                         "coterie agent --node /n",
		"coterie agent --node n":                "coterie agent --node /n",
		"coterie --node=n agent -v":             "coterie agent -v --node /n",
		"coterie --node a agent --node b":       "coterie agent --node /n",
		"coterie join --name n1 --node n tok":   "coterie join --name n1 tok --node /n",
		"coterie join --node n --name n1 -- -x": "coterie join --name n1 --node /n -- -x",
	} {
		if got := strings.Join(withNode(strings.Fields(given), "/n"), " "); got != want {
			t.Errorf("%s: %s", given, got)
		}
	}
}

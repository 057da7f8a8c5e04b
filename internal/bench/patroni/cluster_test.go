package patroni

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
)

// TestCluster makes a real cluster, kills its primary and starts it again. No process and no file remains.
func TestCluster(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes two minutes; COTERIE_LONG=1 runs it")
	}
	programs, err := Find(t.Context())
	if err != nil {
		t.Skip(err)
	}
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		t.Skip("no PostgreSQL of the distribution is installed")
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skip(err)
		}
		uid, _ = strconv.Atoi(u.Uid)
		gid, _ = strconv.Atoi(u.Gid)
	}
	dir, err := os.MkdirTemp("/var/tmp", "cotpatroni")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, err := Start(t.Context(), Options{Programs: programs, Dir: dir, Bin: bins[0], UID: uid, GID: gid})
	if c != nil {
		t.Cleanup(func() {
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
			left, err := filepath.Glob("/proc/[0-9]*/cwd")
			for _, l := range left {
				if cwd, err := os.Readlink(l); err == nil && (cwd == dir || filepath.Dir(filepath.Dir(cwd)) == dir) {
					t.Errorf("%s works in %s", l, cwd)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Use(t.Context(), Floor); err != nil {
		t.Fatal(err)
	}
	old, err := c.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(old); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(old); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

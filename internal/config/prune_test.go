package config

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPruneRuns(t *testing.T) {
	parent, err := os.MkdirTemp("/tmp", "cotrun")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	old := time.Now().Add(-2 * runLife)
	home := t.TempDir()
	run := func(name, owner string, at time.Time) string {
		dir := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Join(dir, "pg"), 0o700); err != nil {
			t.Fatal(err)
		}
		if owner != "" {
			if err := os.WriteFile(filepath.Join(dir, ownerFile), []byte(owner), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	stays := map[string]bool{
		run("00000001", home, old):                               true,  // its node exists
		run("00000002", filepath.Join(home, "gone"), time.Now()): false, // its node does not exist
		run("00000003", "", old):                                 false, // empty and old: of a version that did not name the node
		run("00000004", "", time.Now()):                          true,  // its node may be about to start
		run("something", filepath.Join(home, "gone"), old):       true,  // not ours
		run("00000005", "", old):                                 true,  // has a file
		run("00000006", filepath.Join(home, "gone"), old):        true,  // a process listens
	}
	being := run("00000007", "", time.Now())
	stays[being] = true // its node is writing the name at this moment
	for _, empty := range []string{filepath.Join(parent, "00000005", "pg", "file"), filepath.Join(being, ownerFile)} {
		if err := os.WriteFile(empty, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(parent, "00000006", "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for dir := range stays { // writing into a directory has changed its time
		if at := old; filepath.Base(dir) == "00000005" || filepath.Base(dir) == "00000006" {
			if err := os.Chtimes(dir, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	pruneRuns(parent, time.Now().Add(-runLife))
	for dir, want := range stays {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it to stay: %v", filepath.Base(dir), err, want)
		}
	}
}

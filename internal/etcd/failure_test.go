package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// TestMemberOnFullDisk holds that only a member whose disk is full gives up: this process continues, and so do the
// other members without it.
func TestMemberOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts a file system, which takes root")
	}
	c := &cluster{t: t, dir: shortDir(t), nodes: map[string]*node{}}
	c.pki = newPKI(t, c.dir)
	initial := map[string]string{}
	for _, name := range []string{"n1", "n2", "n3"} {
		initial[name] = c.add(name, true, nil).config.AdvertisePeer
	}
	disk := c.nodes["n1"].config.Dir
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	for _, n := range c.nodes {
		n.config.Initial = initial
		n.start()
	}
	for _, n := range c.nodes {
		n.ready()
	}
	full := c.nodes["n1"].member
	s := c.store("a", "n2", "n3")
	ok(t, s.Bootstrap(testContext(t), firstGroup(testGroup), firstEpoch, firstState))

	f, err := os.Create(filepath.Join(disk, "ballast"))
	ok(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	_ = f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	report, err := json.Marshal(strings.Repeat("x", 30<<10))
	ok(t, err)
	eventually(t, "the member gives up", func() bool {
		_ = s.PutStatus(testContext(t), ag.ReplicaID("n1"), report) // while the lead moves it may have to be repeated
		return full.Err() != nil
	})
	if err := full.Err(); !errors.Is(err, embedded.ErrFailed) || !errors.Is(err, embedded.ErrNoSpace) {
		t.Errorf("it gave up with %v", err)
	}
	eventually(t, "the others go on", func() bool { return s.PutStatus(testContext(t), "n2", report) == nil })
	if _, err := full.DialClient(testContext(t)); err == nil {
		t.Error("it still takes clients")
	}
	began := time.Now()
	if err := full.Close(); !errors.Is(err, embedded.ErrFailed) || time.Since(began) > 5*time.Second {
		t.Errorf("closing it: %v after %v", err, time.Since(began))
	}
}

// TestDamagedFilesEndNoProcess: damage that etcd meets in a goroutine of its own is found before etcd looks, and is
// told from a torn end of the log and from a database that is not made yet.
func TestDamagedFilesEndNoProcess(t *testing.T) {
	rewrite := func(pattern string, change func([]byte) []byte) func(dir string) error {
		return func(dir string) error {
			found, err := filepath.Glob(filepath.Join(dir, "member", pattern))
			if err != nil || len(found) == 0 {
				return fmt.Errorf("no %s: %w", pattern, err)
			}
			b, err := os.ReadFile(found[0])
			if err != nil {
				return err
			}
			return os.WriteFile(found[0], change(b), 0o600)
		}
	}
	overwrite := func(from, to int) func([]byte) []byte {
		return func(b []byte) []byte {
			if to == 0 {
				to = len(b)
			}
			copy(b[from:to], strings.Repeat("damaged ", to/8+1))
			return b
		}
	}
	shorten := func(to int) func([]byte) []byte { return func(b []byte) []byte { return b[:to] } }
	for name, c := range map[string]struct {
		spoil   func(dir string) error
		corrupt bool
	}{
		"a record of the log":   {rewrite("wal/*.wal", overwrite(100, 400)), true},
		"an empty log":          {rewrite("wal/*.wal", shorten(0)), true},
		"pages of the database": {rewrite("snap/db", overwrite(8192, 0)), true},
		"all of the database":   {rewrite("snap/db", overwrite(0, 0)), true},
		"half a database":       {rewrite("snap/db", shorten(5000)), true},
		"a database not made":   {rewrite("snap/db", shorten(0)), false},
		"nothing":               {func(string) error { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newCluster(t, "n1").nodes["n1"]
			n.stop()
			ok(t, c.spoil(n.config.Dir))
			m, err := embedded.Start(testContext(t), n.config)
			if err == nil {
				ok(t, m.Ready(testContext(t)))
				ok(t, m.Close())
			}
			if errors.Is(err, embedded.ErrCorrupt) != c.corrupt || errors.Is(err, embedded.ErrFailed) != c.corrupt || (err != nil) != c.corrupt {
				t.Errorf("it starts with %v", err)
			}
		})
	}
}

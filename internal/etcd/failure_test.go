package etcd

import (
	"encoding/json"
	"errors"
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

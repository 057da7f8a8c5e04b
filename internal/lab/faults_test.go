package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// emptyLab is a lab without a group.
func emptyLab(t *testing.T, o Options) *Lab {
	t.Helper()
	o.Dir, o.Port, o.Empty, o.Exe = newDir(t), freePort(t), true, program(t)
	o.Bound = true
	l, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.Dir()); err == nil {
			t.Error("down left the lab's directory")
		}
	})
	return l
}

func TestDisks(t *testing.T) {
	if err := faultfs.Possible(); err != nil {
		t.Skip(err)
	}
	l := emptyLab(t, Options{Disks: true})
	n := l.Nodes()[0]
	write := func(name string) error { return os.WriteFile(filepath.Join(n.Dir, name), []byte("x"), 0o600) }
	if err := write("one"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Disk(t.Context(), n.Name, faultfs.Fault{Kind: faultfs.Full}); err != nil {
		t.Fatal(err)
	}
	if write("two") == nil {
		t.Error("a full disk took a file")
	}
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Replicas[0].Disk; d == nil || !d.Served || d.Kind != faultfs.Full || s.Replicas[1].Disk.Kind != faultfs.Healthy {
		t.Errorf("status: %+v", d)
	}

	// The disk's server is killed: the next start mounts the disk again, healed and with its files.
	if err := l.endDiskServer(n); err != nil {
		t.Fatal(err)
	}
	if s, err = l.Status(t.Context()); err != nil || s.Replicas[0].Disk.Served {
		t.Errorf("status of a dead disk: %+v %v", s.Replicas[0].Disk, err)
	}
	if err := l.mountDisks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "one")); err != nil {
		t.Error(err)
	}
	if err := write("two"); err != nil {
		t.Error(err)
	}
	// Down must be able to end a lab whose disk hangs.
	if _, err := l.Disk(t.Context(), n.Name, faultfs.Fault{Kind: faultfs.Stalled}); err != nil {
		t.Fatal(err)
	}
}

func TestNoDisks(t *testing.T) {
	l := emptyLab(t, Options{})
	_, err := l.Disk(t.Context(), "n1", faultfs.Fault{Kind: faultfs.Full})
	if err == nil || !strings.Contains(err.Error(), "--disk-faults") {
		t.Errorf("a lab without such disks: %v", err)
	}
	if _, err := l.Disk(t.Context(), "n9", faultfs.Fault{}); err == nil {
		t.Error("a node that is not there has a disk")
	}
	if _, err := l.Clock("n1", 1500*time.Millisecond); err == nil {
		t.Error("half a second was accepted")
	}
}

// TestClockIsReadUnderItsLock holds that the keeper of clocks sets no offset that a command has changed since it was
// read: it would shift the processes again that were put right, and nothing would put them right a second time.
func TestClockIsReadUnderItsLock(t *testing.T) {
	l := emptyLab(t, Options{})
	n, err := l.node("n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.ReplaceJSON(l.clocksFile(), map[string]time.Duration{"n1": -3 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	release, err := l.lockClocks()
	if err != nil {
		t.Fatal(err)
	}
	kept := make(chan time.Duration)
	go func() {
		offset, err := l.keepClock(n)
		if err != nil {
			t.Error(err)
		}
		kept <- offset
	}()
	select {
	case <-kept:
		t.Error("the keeper of clocks did not wait")
	case <-time.After(100 * time.Millisecond): // it waits, or has not begun
	}
	if err := durable.ReplaceJSON(l.clocksFile(), map[string]time.Duration{"n1": 0}); err != nil {
		t.Fatal(err)
	}
	release()
	if offset := <-kept; offset != 0 {
		t.Errorf("the keeper of clocks set %v, which was changed", offset)
	}
}

func TestCapsRefused(t *testing.T) {
	dir := newDir(t)
	_, err := Up(t.Context(), Options{Dir: dir, Port: freePort(t), Exe: "/bin/false", Caps: cgroup.Limits{CPU: 0.0001}})
	if err == nil || !strings.Contains(err.Error(), "choose") {
		t.Errorf("a share that nothing can live on: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the refusal left a directory")
	}
}

func TestPowerLoss(t *testing.T) {
	if err := faultfs.Possible(); err != nil {
		t.Skip(err)
	}
	l := emptyLab(t, Options{Disks: true})
	n := l.Nodes()[0]
	path := filepath.Join(n.Dir, "one")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PowerLoss(t.Context(), faultfs.Loss{Kept: 2}, n.Name); err == nil {
		t.Error("more is kept than there was")
	}
	if _, err := l.PowerLoss(t.Context(), faultfs.Loss{}, n.Name, "x"); err == nil {
		t.Error("the power of a node that does not exist was taken")
	}
	lost, err := l.PowerLoss(t.Context(), faultfs.Loss{}, n.Name)
	if err != nil || lost[n.Name].Names != 1 {
		t.Fatalf("%+v %v", lost, err)
	}
	if err := l.mountDisk(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file that nobody synced has outlived a loss of power")
	}
}

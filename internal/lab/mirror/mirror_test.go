package mirror

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/storage"
)

// inside is set in the environment of the process in which a test runs that mounts something.
const inside = "COTERIE_MIRROR_INSIDE"

// alone runs the test again in a process with mounts of its own, and reports whether this is that process: however it
// ends, its mounts and its devices go with it.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	if err := Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	c.Env = append(os.Environ(), inside+"=1", "TMPDIR="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// made makes a mirror, which goes with the test.
func made(t *testing.T) Disk {
	t.Helper()
	dir := t.TempDir()
	d := Disk{Files: filepath.Join(dir, "files"), At: filepath.Join(dir, "at")}
	t.Cleanup(func() {
		if err := d.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := d.Mount(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, path string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, _ = rand.Read(b)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func look(t *testing.T, d Disk) storage.Volume {
	t.Helper()
	return (&storage.Reader{}).Look(t.Context(), filepath.Join(d.At, "sub"))[0]
}

// TestMirror holds on a real file system that package storage tells its states: a side that is lost, one that has come
// back and lacks writes, blocks that were repaired, and a mirror that was healed; and that nothing that was synced is
// lost as long as one side is there.
func TestMirror(t *testing.T) {
	if !alone(t) {
		return
	}
	d := made(t)
	expect := func(when string, want storage.State, says string) {
		t.Helper()
		v := look(t, d)
		found := v.Findings()
		if v.Kind != storage.Btrfs || v.Level != "raid1" || v.State != want || len(v.Devices) != 2 {
			t.Fatalf("%s: %+v", when, v)
		}
		if says == "" && len(found) > 0 || says != "" && (len(found) == 0 || !strings.Contains(found[0].What, says)) {
			t.Fatalf("%s: found %+v, want %q", when, found, says)
		}
	}
	first := filepath.Join(d.At, "first")
	want := map[string][]byte{first: write(t, first, 1<<20)}
	expect("new", storage.Whole, "")
	second, err := deviceOf(d.side(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Break("second"); err != nil {
		t.Fatal(err)
	}
	while := filepath.Join(d.At, "while")
	want[while] = write(t, while, 1<<20)
	expect("one side lost", storage.Degraded, second+" lacks writes that failed; the other side serves")
	if s := d.State(t.Context()); s.String() != "mirror without its second side" {
		t.Errorf("%+v", s)
	}
	if err := d.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("healed", storage.Whole, "")
	// The side that was away has the later writes, too: the other one can go.
	if err := errors.Join(d.Unmount(t.Context()), d.Mount(t.Context()), d.Break("first")); err != nil {
		t.Fatal(err)
	}
	for path, b := range want {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s by the second side: %v, %d bytes", path, err, len(got))
		}
	}
	if err := d.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := d.Flip(first, 8)
	if err != nil || n < 8 {
		t.Fatalf("flipped %d blocks: %v", n, err)
	}
	if got, err := os.ReadFile(first); err != nil || !bytes.Equal(got, want[first]) {
		t.Errorf("after blocks were flipped: %v", err)
	}
	expect("flipped", storage.Errors, "the other side had the data")
	if err := d.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("repaired", storage.Whole, "")
	if err := d.Break(Sides...); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(d.At, "third"))
	if err == nil {
		_, err = f.Write(make([]byte, 8192))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		t.Error("a write was synced with both sides lost")
	}
	if err := d.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Unmount(t.Context()), d.Mount(t.Context())); err != nil {
		t.Fatal(err)
	}
	for path, b := range want {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s after both sides came back: %v", path, err)
		}
	}
}

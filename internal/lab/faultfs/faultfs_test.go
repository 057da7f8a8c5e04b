package faultfs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test program is the disk's server when it is given what to serve.
const serveEnv = "FAULTFS_TEST_SERVE"

func TestMain(m *testing.M) {
	if spec := os.Getenv(serveEnv); spec != "" {
		var o Options
		err := json.Unmarshal([]byte(spec), &o)
		if err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			err = Serve(ctx, o)
			stop()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type disk struct {
	Options
	server *exec.Cmd
}

// newDisk mounts a disk that is unmounted when the test ends.
func newDisk(t *testing.T) *disk {
	t.Helper()
	if err := Possible(); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/tmp", "cotdisk")
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{Options: Options{Below: filepath.Join(dir, "below"), Mount: filepath.Join(dir, "shown"), Socket: filepath.Join(dir, strings.Repeat("long", 40), "sock"), UID: os.Getuid(), GID: os.Getgid()}}
	t.Cleanup(func() {
		_, _ = Set(context.Background(), d.Socket, Fault{})
		if err := Unmount(d.Mount); err != nil {
			t.Error(err)
		}
		_ = d.server.Process.Kill()
		_ = d.server.Wait()
		_ = os.RemoveAll(dir)
	})
	for _, p := range []string{d.Below, d.Mount, filepath.Dir(d.Socket)} {
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.start(t)
	return d
}

func (d *disk) start(t *testing.T) {
	t.Helper()
	spec, err := json.Marshal(d.Options)
	if err != nil {
		t.Fatal(err)
	}
	d.server = exec.Command(os.Args[0])
	d.server.Env = append(os.Environ(), serveEnv+"="+string(spec))
	d.server.Stderr = os.Stderr
	if err := d.server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk is served", func() bool { _, err := Ask(t.Context(), d.Socket); return err == nil })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 2 minutes: %s", what)
		}
	}
}

func (d *disk) set(t *testing.T, f Fault) {
	t.Helper()
	if s, err := Set(t.Context(), d.Socket, f); err != nil || s.Fault != f {
		t.Fatalf("set %v: %+v, %v", f, s, err)
	}
}

func (d *disk) path(name string) string { return filepath.Join(d.Mount, name) }

func TestFilesGoThrough(t *testing.T) {
	d := newDisk(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	for _, step := range []error{
		os.MkdirAll(d.path("a/b"), 0o700), os.WriteFile(d.path("a/b/c"), want, 0o600), os.Rename(d.path("a/b/c"), d.path("a/d")),
		os.Symlink("d", d.path("a/link")), os.Link(d.path("a/d"), d.path("a/hard")), os.Truncate(d.path("a/hard"), int64(len(want)-5)),
		os.Chmod(d.path("a/d"), 0o640),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	got, err := os.ReadFile(d.path("a/link"))
	if err != nil || !bytes.Equal(got, want[:len(want)-5]) {
		t.Errorf("read %d bytes: %v", len(got), err)
	}
	st, err := os.Stat(d.path("a/d"))
	if err != nil || st.Mode() != 0o640 {
		t.Errorf("mode: %v %v", st, err)
	}
	f, err := os.Open(d.path("a/d"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.RemoveAll(d.path("a")); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(want)-5) { // open, and in no directory any more
		t.Errorf("an open file that was removed: %v", err)
	}
}

func TestFull(t *testing.T) {
	d := newDisk(t)
	if err := os.WriteFile(d.path("old"), make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Create(d.path("holes")); err != nil || f.Truncate(1<<16) != nil || f.Close() != nil {
		t.Fatal(err)
	}
	d.set(t, Fault{Kind: Full})
	if err := os.WriteFile(d.path("new"), []byte("x"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new file: %v", err)
	}
	if err := os.Mkdir(d.path("dir"), 0o700); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new directory: %v", err)
	}
	write := func(name string, off int64) error {
		f, err := os.OpenFile(d.path(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		_, err = f.WriteAt([]byte("yyyy"), off)
		return errors.Join(err, f.Sync())
	}
	if err := write("old", 100); err != nil {
		t.Errorf("overwrite: %v", err)
	}
	if err := write("old", 1<<16-2); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("extend: %v", err)
	}
	if err := write("holes", 100); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write into a hole: %v", err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.Mount, &st); err != nil || st.Bavail != 0 {
		t.Errorf("free blocks %d, %v", st.Bavail, err)
	}
	if s, err := Ask(t.Context(), d.Socket); err != nil || s.Refused < 4 {
		t.Errorf("state: %+v %v", s, err)
	}
	d.set(t, Fault{})
	if err := os.WriteFile(d.path("new"), []byte("x"), 0o600); err != nil {
		t.Errorf("healed: %v", err)
	}
}

func TestSlow(t *testing.T) {
	d := newDisk(t)
	f, err := os.Create(d.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	d.set(t, Fault{Kind: Slow, Delay: 150 * time.Millisecond})
	for what, do := range map[string]func() error{"write": func() error { _, err := f.WriteString("x"); return err }, "sync": f.Sync} {
		began := time.Now()
		if err := do(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 150*time.Millisecond {
			t.Errorf("%s took %v", what, took)
		}
	}
	d.set(t, Fault{Kind: Slow, Delay: MaxDelay})
	done := make(chan error, 1)
	go func() { _, err := f.WriteString("x"); done <- err }()
	eventually(t, "the write waits", func() bool { s, err := Ask(t.Context(), d.Socket); return err == nil && s.Waiting == 1 })
	d.set(t, Fault{})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFailing(t *testing.T) {
	d := newDisk(t)
	f, err := os.Create(d.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	dir, err := os.Open(d.Mount)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	d.set(t, Fault{Kind: Failing})
	if _, err := f.WriteString("x"); err != nil {
		t.Errorf("write: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	if err := dir.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync of a directory: %v", err)
	}
	d.set(t, Fault{})
	if err := f.Sync(); err != nil {
		t.Errorf("healed: %v", err)
	}
}

// A stalled disk holds a process where not even SIGKILL reaches it, as a dead device does. Healed, it releases the
// process.
func TestStalled(t *testing.T) {
	d := newDisk(t)
	if err := os.WriteFile(d.path("readable"), []byte("still"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.set(t, Fault{Kind: Stalled})
	dd := exec.Command("dd", "if=/dev/zero", "of="+d.path("f"), "count=1")
	if err := dd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = dd.Wait(); close(ended) }()
	eventually(t, "somebody waits", func() bool { s, err := Ask(t.Context(), d.Socket); return err == nil && s.Waiting == 1 })
	if err := dd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process waits in state D", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", dd.Process.Pid))
		return err == nil && strings.Contains(string(b), ") D ")
	})
	if b, err := os.ReadFile(d.path("readable")); err != nil || string(b) != "still" {
		t.Errorf("read: %q %v", b, err)
	}
	select {
	case <-ended:
		t.Error("it ended before the disk was healed")
	default:
	}
	d.set(t, Fault{})
	<-ended
}

// The server's death ends the operations it holds up; the dead mount is taken away and the files are accessible again.
func TestServerKilled(t *testing.T) {
	d := newDisk(t)
	if err := os.WriteFile(d.path("kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.set(t, Fault{Kind: Stalled})
	dd := exec.Command("dd", "if=/dev/zero", "of="+d.path("f"), "count=1")
	if err := dd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "somebody waits", func() bool { s, err := Ask(t.Context(), d.Socket); return err == nil && s.Waiting == 1 })
	_ = d.server.Process.Kill()
	_ = d.server.Wait()
	_ = dd.Wait()
	if is, err := Mounted(d.Mount); err != nil || !is {
		t.Errorf("mounted: %v %v", is, err)
	}
	if _, err := os.Stat(d.path("kept")); err == nil {
		t.Error("a dead disk answers")
	}
	if err := Unmount(d.Mount); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	if _, err := os.Stat(d.path("kept")); err != nil {
		t.Error(err)
	}
}

func TestFaultCheck(t *testing.T) {
	for _, f := range []Fault{{Kind: "odd"}, {Kind: Slow}, {Kind: Slow, Delay: -1}, {Kind: Slow, Delay: time.Hour}, {Kind: Full, Delay: 1}} {
		if f.Check() == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

// Unmount touches only disks of this package.
func TestUnmountElsewhere(t *testing.T) {
	for _, dir := range []string{"/proc", "/", t.TempDir()} {
		if err := Unmount(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Error(err)
	}
}

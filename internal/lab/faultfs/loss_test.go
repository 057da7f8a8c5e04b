package faultfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
)

// cutPower takes the power of the disk, ends its server, and mounts the disk again.
func (d *disk) cutPower(t *testing.T, l Loss) Lost {
	t.Helper()
	lost, err := LosePower(t.Context(), d.Socket, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path("late"), []byte("x"), 0o600); !errors.Is(err, syscall.EIO) {
		t.Errorf("a disk without power took a file: %v", err)
	}
	if err := Unmount(d.Mount); err != nil {
		t.Fatal(err)
	}
	_ = d.server.Process.Kill()
	_ = d.server.Wait()
	d.start(t)
	return lost
}

func (d *disk) write(t *testing.T, name, text string, sync bool) {
	t.Helper()
	f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func (d *disk) syncDir(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(d.path(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// tree shows what is on the disk.
func (d *disk) tree(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(d.Mount, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == d.Mount {
			return err
		}
		rel, _ := filepath.Rel(d.Mount, path)
		switch {
		case e.IsDir():
			fmt.Fprintf(&b, "%s/ ", rel)
		default:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s=%s ", rel, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// Each change is lost that was not synced, and kept if it was.
func TestPowerLoss(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(*testing.T, *disk)
	}{
		{"a file that nobody synced", "old=was", func(t *testing.T, d *disk) { d.write(t, "new", "x", false) }},
		{"a synced file has its name", "new=x old=was", func(t *testing.T, d *disk) { d.write(t, "new", "x", true) }},
		{"an overwritten file", "old=was", func(t *testing.T, d *disk) { d.write(t, "old", "longer than before", false) }},
		{"a replaced file, directory not synced", "old=was tmp=new", func(t *testing.T, d *disk) {
			d.write(t, "tmp", "new", true)
			must(t, os.Rename(d.path("tmp"), d.path("old")))
			must(t, os.Chmod(d.path("old"), 0o640))
		}},
		{"a replaced file", "old=new", func(t *testing.T, d *disk) {
			d.write(t, "tmp", "new", true)
			must(t, os.Rename(d.path("tmp"), d.path("old")))
			d.syncDir(t, "")
		}},
		{"a replaced file whose contents were not synced", "old=", func(t *testing.T, d *disk) {
			d.write(t, "tmp", "new", false)
			must(t, os.Rename(d.path("tmp"), d.path("old")))
			d.syncDir(t, "")
		}},
		{"a removed file", "old=was", func(t *testing.T, d *disk) { must(t, os.Remove(d.path("old"))) }},
		{"a removed file, directory synced", "", func(t *testing.T, d *disk) {
			must(t, os.Remove(d.path("old")))
			d.syncDir(t, "")
		}},
		{"a removed file, and another one of its name", "old=was", func(t *testing.T, d *disk) {
			must(t, os.Remove(d.path("old")))
			d.write(t, "old", "another", false)
		}},
		{"a removed file, and a synced one of its name", "old=another", func(t *testing.T, d *disk) {
			must(t, os.Remove(d.path("old")))
			d.write(t, "old", "another", true)
		}},
		{"a directory that moves", "a/ a/b/ a/b/f=x old=was", func(t *testing.T, d *disk) {
			must(t, os.MkdirAll(d.path("a/b"), 0o700))
			d.write(t, "a/b/f", "x", true) // what it rests upon is durable, too
			must(t, os.Rename(d.path("a"), d.path("c")))
			d.write(t, "c/b/g", "y", false)
		}},
		{"a directory that has moved", "c/ c/b/ c/b/f=x old=was", func(t *testing.T, d *disk) {
			must(t, os.MkdirAll(d.path("a/b"), 0o700))
			d.write(t, "a/b/f", "x", true)
			must(t, os.Rename(d.path("a"), d.path("c")))
			must(t, os.Remove(d.path("c/b/f")))
			d.syncDir(t, "")
		}},
		{"a directory that is removed", "a/ a/f=x old=was", func(t *testing.T, d *disk) {
			must(t, os.Mkdir(d.path("a"), 0o700))
			d.write(t, "a/f", "x", true)
			must(t, os.RemoveAll(d.path("a")))
		}},
		{"a file that is cut off, and grows", "old=was", func(t *testing.T, d *disk) {
			must(t, os.Truncate(d.path("old"), 1))
			must(t, os.Truncate(d.path("old"), 10000))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			d.write(t, "old", "was", true)
			c.do(t, d)
			d.cutPower(t, Loss{})
			if got := d.tree(t); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// After random changes and syncs a file holds in each block what was synced last, or, of a loss that keeps a part,
// that or what was written last.
func TestPowerLossOfBlocks(t *testing.T) {
	for _, kept := range []float64{0, 0.5} {
		t.Run(fmt.Sprint(kept), func(t *testing.T) {
			d := newDisk(t)
			const n = 64
			f, err := os.OpenFile(d.path("f"), os.O_CREATE|os.O_RDWR, 0o600)
			must(t, err)
			now := bytes.Repeat([]byte{1}, n*block)
			_, err = f.WriteAt(now, 0)
			must(t, errors.Join(err, f.Sync()))
			synced := bytes.Clone(now)
			for i := range 500 {
				at := rand.IntN(n * block)
				for k := at; k < min(at+rand.IntN(3*block), n*block); k++ {
					now[k] = byte(i)
				}
				_, err := f.WriteAt(now[at:], int64(at))
				must(t, err)
				if i%50 == 40 {
					must(t, f.Sync())
					copy(synced, now)
				}
			}
			must(t, f.Close())
			lost := d.cutPower(t, Loss{Kept: kept, Seed: 3})
			got, err := os.ReadFile(d.path("f"))
			must(t, err)
			old := 0
			for at := 0; at < n*block; at += block {
				switch is := got[at : at+block]; {
				case bytes.Equal(is, synced[at:at+block]):
					old++
				case kept == 0 || !bytes.Equal(is, now[at:at+block]):
					t.Errorf("block %d holds neither", at/block)
				}
			}
			if lost.Files != 1 || lost.Blocks == 0 || kept > 0 && old == n {
				t.Errorf("%+v, %d blocks as synced", lost, old)
			}
		})
	}
}

// Faults may be of some files only.
func TestFaultOfSomeFiles(t *testing.T) {
	d := newDisk(t)
	must(t, os.Mkdir(d.path("wal"), 0o700))
	sync := func(name string) error {
		f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		_, err = f.WriteString("x")
		return errors.Join(err, f.Sync(), f.Close())
	}
	for pattern, hit := range map[string]bool{"wal/0*": true, "0*": true, "data/*": false, "wal": false, "*.x": false} {
		for _, k := range []Kind{Failing, Broken} {
			d.set(t, Fault{Kind: k, Files: pattern})
			if err := sync("wal/01"); errors.Is(err, syscall.EIO) != hit {
				t.Errorf("%s %q: %v", k, pattern, err)
			}
			if err := sync("wal/10"); err != nil {
				t.Errorf("%s %q hits another file: %v", k, pattern, err)
			}
		}
	}
	if (Fault{Kind: Full, Files: "x"}).Check() == nil || (Fault{Kind: Broken, Files: "[x"}).Check() == nil {
		t.Error("a wrong pattern is taken")
	}
}

// A copy that a replica has got is on such a disk to stay, although the kernel does not pass syncfs on.
func TestSeededCopyOutlivesPowerLoss(t *testing.T) {
	d := newDisk(t)
	must(t, os.Mkdir(d.path("copy"), 0o700))
	d.syncDir(t, "")
	c, err := tree.Open(d.path("copy"), nil, 15)
	must(t, err)
	must(t, os.MkdirAll(d.path("copy/base/1"), 0o700))
	d.write(t, "copy/base/1/1", "page", false)
	must(t, c.Sync())
	c.Close()
	d.write(t, "copy/base/1/2", "late", false)
	d.cutPower(t, Loss{})
	if got := d.tree(t); !strings.HasPrefix(got, "copy/ copy/base/ copy/base/1/ copy/base/1/1=page") || strings.Contains(got, "late") {
		t.Errorf("%q", got)
	}
}

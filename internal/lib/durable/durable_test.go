package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var errInjected = errors.New("injected")

// faulty is the file system of the operating system. It records the operations and fails operation number at, counted
// from 1.
type faulty struct {
	disk
	at   int
	done []string
}

func (d *faulty) step(what, path string) error {
	d.done = append(d.done, what+" "+filepath.Base(path))
	if len(d.done) == d.at {
		return fmt.Errorf("%s %s: %w", what, path, errInjected)
	}
	return nil
}

func (d *faulty) create(path string, mode fs.FileMode) (file, error) {
	if err := d.step("create", path); err != nil {
		return nil, err
	}
	f, err := d.disk.create(path, mode)
	return &faultyFile{f, d, path}, err
}

func (d *faulty) open(path string) (file, error) {
	if err := d.step("open", path); err != nil {
		return nil, err
	}
	f, err := d.disk.open(path)
	return &faultyFile{f, d, path}, err
}

func (d *faulty) rename(from, to string) error {
	if err := d.step("rename", from); err != nil {
		return err
	}
	return d.disk.rename(from, to)
}

func (d *faulty) remove(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	return d.disk.remove(path)
}

type faultyFile struct {
	file
	d    *faulty
	path string
}

// Write writes half of the data when it fails, as a full disk does.
func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.d.step("write", f.path); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	return f.file.Write(b)
}

func (f *faultyFile) Chmod(mode fs.FileMode) error {
	return errors.Join(f.d.step("chmod", f.path), f.file.Chmod(mode))
}
func (f *faultyFile) Sync() error  { return errors.Join(f.d.step("sync", f.path), f.file.Sync()) }
func (f *faultyFile) Close() error { return errors.Join(f.file.Close(), f.d.step("close", f.path)) }

// TestReplaceSyncsInOrder checks that the content is on disk before the name, and the name before Replace returns.
func TestReplaceSyncsInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &faulty{}
	if err := replace(d, filepath.Join(dir, "x"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := filepath.Base(dir)
	tmp := "x" + Suffix
	want := []string{"create " + tmp, "write " + tmp, "chmod " + tmp, "sync " + tmp, "close " + tmp, "rename " + tmp, "open " + base, "sync " + base, "close " + base}
	if !slices.Equal(d.done, want) {
		t.Errorf("the order is %q, want %q", d.done, want)
	}
}

// TestReplaceFailsWhole fails every operation of a replacement in turn. The file is the old or the new one, and no
// other file remains.
func TestReplaceFailsWhole(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "x")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := &faulty{at: at}
		err := replace(d, path, []byte("new content"), 0o600)
		if len(d.done) < at {
			if err != nil || at != 10 {
				t.Fatalf("%d operations, error %v; want 9 and none", at-1, err)
			}
			return
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("%s fails, and Replace returns %v", d.done[at-1], err)
		}
		want := "old" // until the rename has succeeded
		if renamed := "rename x" + Suffix; slices.Contains(d.done, renamed) && d.done[at-1] != renamed {
			want = "new content"
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("after %s failed the file has %q, %v; want %q", d.done[at-1], b, err, want)
		}
		if names := list(t, dir); !slices.Equal(names, []string{"x"}) {
			t.Errorf("after %s failed there are %q", d.done[at-1], names)
		}
	}
}

// TestReplaceOverLeftover checks that a temporary file from a crash is overwritten, and that its mode is not kept.
func TestReplaceOverLeftover(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := os.WriteFile(path+Suffix, []byte("a longer half"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Size() != 3 {
		t.Errorf("the file is %v, %v; want 3 bytes of mode 0600", st, err)
	}
	if names := list(t, dir); !slices.Equal(names, []string{"x"}) {
		t.Errorf("there are %q", names)
	}
}

func TestReplaceJSON(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.json")
	if err := ReplaceJSON(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	var got map[string]int
	b, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(b, &got)); err != nil || got["a"] != 1 || b[len(b)-1] != '\n' {
		t.Errorf("the file has %q, %v", b, err)
	}
	if err := ReplaceJSON(path, func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
}

// TestRemove checks that an absent file is not an error, and that the directory is synced in either case.
func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	base := filepath.Base(dir)
	want := []string{"remove x", "open " + base, "sync " + base, "close " + base}
	for range 2 {
		d := &faulty{}
		if err := remove(d, path); err != nil || !slices.Equal(d.done, want) {
			t.Errorf("remove did %q, %v; want %q", d.done, err, want)
		}
	}
	if err := remove(&faulty{at: 1}, path); !errors.Is(err, errInjected) {
		t.Errorf("remove returns %v", err)
	}
	if err := Remove(filepath.Join(dir, "no", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove in a directory that does not exist returns %v", err)
	}
}

// TestRename checks that both directories are synced after the rename.
func TestRename(t *testing.T) {
	t.Parallel()
	from, to := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(from, 0o700); err != nil {
		t.Fatal(err)
	}
	d := &faulty{}
	if err := rename(d, from, to); err != nil {
		t.Fatal(err)
	}
	target, source := filepath.Base(filepath.Dir(to)), filepath.Base(filepath.Dir(from))
	want := []string{"rename a", "open " + target, "sync " + target, "close " + target, "open " + source, "sync " + source, "close " + source}
	if !slices.Equal(d.done, want) {
		t.Errorf("the order is %q, want %q", d.done, want)
	}
	if err := Rename(from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the rename of nothing returns %v", err)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Shape gives the target the directories of the list, empties those that are empty in a copy, and removes entries that
// the source lacks. It returns the present length of each listed file.
func (t *Tree) Shape(files []wire.File, keepConf bool) (had []int64, err error) {
	sh := &shaper{tree: t, files: files, keepConf: keepConf, had: make([]int64, len(files)), wanted: make(map[fileio.Entry]int, len(files))}
	for i, f := range files {
		if t.Root(f.Space) == nil {
			return nil, unnamed(f)
		}
		sh.wanted[fileio.Entry{Space: f.Space, Name: f.Name}] = i
	}
	if err := sh.walk(0, t.target); err != nil {
		return nil, err
	}
	for oid, dir := range t.places {
		if err := sh.walk(oid, dir); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		if !f.Dir {
			continue
		}
		if err := t.mkdir(f.Space, f.Name); err != nil {
			return nil, err
		}
	}
	return sh.had, nil
}

// shaper is one walk through the target, compared with the source's list.
type shaper struct {
	tree     *Tree
	files    []wire.File
	keepConf bool
	wanted   map[fileio.Entry]int
	had      []int64
}

func (sh *shaper) walk(oid uint32, root string) error {
	root, err := filepath.EvalSymlinks(root) // a tablespace may be behind a link, which a walk does not follow
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil || full == root {
			return fileio.IgnoreMissing(err)
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		return sh.entry(oid, filepath.ToSlash(rel), full, d)
	})
}

// entry keeps or removes one entry of the target.
func (sh *shaper) entry(oid uint32, name, full string, d fs.DirEntry) error {
	if sh.tree.Stays(oid, name, sh.keepConf) {
		return fileio.Skip(d)
	}
	if i, ok := sh.wanted[fileio.Entry{Space: oid, Name: name}]; ok {
		n, keep, err := sh.tree.compare(sh.files[i], name, full, d)
		sh.had[i] = n
		if keep || err != nil {
			return err
		}
	}
	return remove(full, d)
}

// Stays reports whether an entry of the target does not depend on the source.
func (t *Tree) Stays(oid uint32, name string, keepConf bool) bool {
	top, _, _ := strings.Cut(name, "/")
	if top == datadir.LostFound {
		return true
	}
	if oid != 0 {
		return !strings.HasPrefix(name, t.version)
	}
	return strings.HasPrefix(name, "coterie") || name == datadir.ControlOld || keepConf && name == datadir.AutoConf
}

// compare decides whether an entry that the source also has may stay: a file, to be compared, or a directory.
func (t *Tree) compare(f wire.File, name, full string, d fs.DirEntry) (have int64, keep bool, err error) {
	switch {
	case f.Space == 0 && slices.Contains(datadir.Emptied, name):
		if d.IsDir() {
			return 0, true, nil // its contents are not listed, and are removed
		}
		if name == "pg_wal" && d.Type()&fs.ModeSymlink != 0 { // WAL on another disk: the node's choice is kept
			return 0, true, clearDir(full)
		}
		return 0, false, nil
	case f.Dir:
		return 0, d.IsDir(), nil
	case !d.Type().IsRegular():
		return 0, false, nil
	}
	info, err := d.Info()
	if err != nil {
		return 0, false, err
	}
	return min(info.Size(), f.Size), true, nil
}

// remove removes an entry and all below it; a mount point stays, emptied.
func remove(full string, d fs.DirEntry) error {
	if err := removeTree(full); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fileio.Skip(d)
}

// Finish gives every file the length it has at the source and removes the files that no longer exist there.
func (t *Tree) Finish(files []wire.File, keepConf bool, cut map[int]int64, gone map[int]bool) error {
	for i, f := range files {
		if f.Dir || t.Stays(f.Space, f.Name, keepConf) {
			continue
		}
		if gone[i] {
			if err := fileio.IgnoreMissing(t.Root(f.Space).Remove(f.Name)); err != nil {
				return err
			}
			continue
		}
		want := f.Size
		if n, ok := cut[i]; ok {
			want = min(want, n)
		}
		if err := t.resize(f, want); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) resize(f wire.File, want int64) error {
	if st, err := t.Root(f.Space).Lstat(f.Name); err == nil && st.Size() == want && st.Mode().IsRegular() {
		return nil
	}
	var h fileio.LastOpen
	out, err := t.OpenFile(&h, f, 0)
	if err != nil {
		return err
	}
	return errors.Join(out.Truncate(want), h.Close())
}

// Package durable changes files so that the change survives a power loss once the function has returned.
//
// It owns the order of the system calls: write, fsync of the file, rename, fsync of the directory. It does not depend
// on the contents of the files. Start reading at Replace.
package durable

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Suffix is appended to the name of a file for the one that is written before it takes its place. A crash may leave
// such a file behind; the next Replace of the same path overwrites it. It is not ".tmp", which PostgreSQL uses for its
// own files in a data directory.
const Suffix = ".coterie-tmp"

// Replace replaces the file at path, or creates it, with exactly that mode. After a crash the file has either its old
// or its new content.
//
// When Replace returns nil, the new content is on disk. When it fails before the rename, the old file is untouched and
// no temporary file remains; when the directory cannot be synced, the new content is in place but may be lost with the
// power. Two calls for one path must not overlap.
func Replace(path string, data []byte, mode fs.FileMode) error {
	return replace(disk{}, path, data, mode)
}

// ReplaceJSON replaces the file at path by v as indented JSON, readable and writable by its owner only.
func ReplaceJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(b, '\n'), 0o600)
}

// Remove removes the file at path and syncs its directory. The file may be absent; the directory must exist.
func Remove(path string) error { return remove(disk{}, path) }

// Rename gives a file or directory another name and syncs the directories of both names.
func Rename(from, to string) error { return rename(disk{}, from, to) }

// SyncDir flushes a directory, so that created, renamed and removed names in it survive a power loss.
func SyncDir(dir string) error { return syncDir(disk{}, dir) }

func replace(d files, path string, data []byte, mode fs.FileMode) error {
	tmp := path + Suffix
	f, err := d.create(tmp, mode)
	if err != nil {
		return err
	}
	if err = write(f, data, mode); err == nil {
		err = d.rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(d.remove(tmp)))
	}
	return syncDir(d, filepath.Dir(path))
}

// write writes and flushes the whole content, and closes the file in any case.
func write(f file, data []byte, mode fs.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // the file may be left over from a crash, and the umask may have changed the mode
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func remove(d files, path string) error {
	if err := ignoreMissing(d.remove(path)); err != nil {
		return err
	}
	return syncDir(d, filepath.Dir(path))
}

func rename(d files, from, to string) error {
	if err := d.rename(from, to); err != nil {
		return err
	}
	err := syncDir(d, filepath.Dir(to))
	if filepath.Dir(from) != filepath.Dir(to) {
		err = errors.Join(err, syncDir(d, filepath.Dir(from)))
	}
	return err
}

func syncDir(d files, dir string) error {
	f, err := d.open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// files are the operations of the file system that this package uses. Tests record their order and make them fail.
type files interface {
	create(path string, mode fs.FileMode) (file, error)
	open(path string) (file, error)
	rename(from, to string) error
	remove(path string) error
}

type file interface {
	io.WriteCloser
	Chmod(mode fs.FileMode) error
	Sync() error
}

// disk is the file system of the operating system.
type disk struct{}

func (disk) create(path string, mode fs.FileMode) (file, error) {
	return opened(os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode))
}

func (disk) open(path string) (file, error) { return opened(os.Open(path)) }

func (disk) rename(from, to string) error { return os.Rename(from, to) }

func (disk) remove(path string) error { return os.Remove(path) }

// opened converts the result of opening a file. A nil *os.File becomes a nil file.
func opened(f *os.File, err error) (file, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

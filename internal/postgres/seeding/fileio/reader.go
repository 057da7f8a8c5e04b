package fileio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Reader reads consecutive chunks of files, for one goroutine.
type Reader struct {
	cached LastOpen // open through the page cache
	direct LastOpen // and past it
	refuse bool     // a file system does not do direct reads
}

// Read fills buf from off on, from a file of that place, which open opens with more flags of open(2). It returns how
// much the file has there. Pages in the page cache come from there. Other pages are read past it: filling the cache
// costs ten times the processor time of the read itself, and the cache belongs to the server's own reads. The kernel
// writes dirty pages of such a range to disk before it is read.
func (r *Reader) Read(of Entry, open func(flags int) (*os.File, error), buf []byte, off int64) (int, error) {
	in, err := r.cached.Open(of, 0, func() (*os.File, error) { return open(0) })
	if err != nil {
		return 0, err
	}
	if r.refuse || len(buf) < DirectLeast || off%DirectBlock != 0 || mostlyCached(in, off, len(buf)) {
		return ReadAt(in, buf, off)
	}
	raw, err := r.direct.Open(of, unix.O_DIRECT, func() (*os.File, error) { return open(unix.O_DIRECT) })
	n := 0
	if err == nil {
		n, err = readDirect(raw, buf, off)
	}
	if errors.Is(err, unix.EINVAL) { // other blocks are asked for, or none will do
		r.refuse, n, err = true, 0, nil
	}
	if err != nil || n == len(buf) {
		return n, err
	}
	rest, err := ReadAt(in, buf[n:], off+int64(n)) // nothing, at the end of the file
	return n + rest, err
}

// Last returns the file that was read last, open through the page cache.
func (r *Reader) Last() *os.File { return r.cached.f }

// Close closes the files that the reader holds open.
func (r *Reader) Close() error { return errors.Join(r.cached.Close(), r.direct.Close()) }

// mostlyCached reports whether at least half of the range is in the page cache. It is true if the kernel cannot tell,
// as before Linux 6.5.
func mostlyCached(in *os.File, off int64, n int) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(in.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return err != nil || st.Cache*uint64(os.Getpagesize()) >= uint64(n)/2
}

// readDirect is ReadAt of os.File past the page cache, and may end early. Whole blocks are read, the last into the room
// behind buf, which the caller must provide.
func readDirect(in *os.File, buf []byte, off int64) (int, error) {
	whole := (len(buf) + DirectBlock - 1) / DirectBlock * DirectBlock
	if whole > cap(buf) {
		return 0, unix.EINVAL
	}
	for n := 0; ; {
		got, err := unix.Pread(int(in.Fd()), buf[n:whole], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("read past the page cache: %w", err)
		}
		if n += got; n == whole || got == 0 || got%DirectBlock != 0 {
			return min(n, len(buf)), nil
		}
	}
}

// ReadAt reads as in.ReadAt does, except that the end of the file is not an error.
func ReadAt(in io.ReaderAt, buf []byte, off int64) (int, error) {
	n, err := in.ReadAt(buf, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Direct writes begin and end at blocks, which are a multiple of the sectors of all disks, and are long enough to be
// worth the wait for the disk.
const (
	DirectBlock = 4 << 10
	DirectLeast = 64 << 10
)

// FreeSpace returns the bytes that an ordinary user may still fill.
func FreeSpace(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("ask for free space of %s: %w", dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// IgnoreMissing turns "does not exist" into success.
func IgnoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Exists reports whether path exists; a symbolic link counts, whatever its target.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Within reports whether path is dir or lies below it.
func Within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}

// Skip is the result of a walk's function for an entry that is not visited: a directory is skipped with its contents.
func Skip(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

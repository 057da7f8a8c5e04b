package health

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeFile is written, synced and read in every place. Its blocks are reused, so a full file system does not matter to
// it.
const probeFile = "coterie.probe"

// maxPlaces bounds the directories that are probed. Further tablespaces are not.
const maxPlaces = 64

// walSegment is the size of a WAL file unless initdb was run with --wal-segsize.
const walSegment = 16 << 20

// block is what is written at a time: a page, as PostgreSQL does, and aligned for reading past the page cache.
const block = 8192

// place is a directory under watch.
type place struct {
	probe

	mu    sync.Mutex // guards what follows
	what  Place
	space Space
	dev   device

	count uint64 // of attempts; the probe's
	lost  atomic.Pointer[string]
}

func (p *place) set(w Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = w
	p.space.Place, p.space.Dir = w.Name, w.Dir
}

func (p *place) now() (Place, Space) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.what, p.space
}

// progress reports whether the disk under the place has completed anything lately.
func (p *place) progress(now, within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dev.look(now, within)
}

// leastUnusual returns after which time a hang is unusual at the soonest.
func (p *place) leastUnusual(floor time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dev.path == "" {
		return max(blindFloor, floor)
	}
	return floor
}

// try reads the free space, then writes, syncs and reads a block. No context ends a system call: an attempt on a dead
// disk hangs.
func (p *place) try(context.Context) error {
	w, _ := p.now()
	var st unix.Statfs_t
	if err := unix.Statfs(w.Dir, &st); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", w.Dir, err)
	}
	var id unix.Stat_t
	_ = unix.Stat(w.Dir, &id) // statfs could
	p.mu.Lock()
	p.dev.open(id.Dev)
	p.space.Free, p.space.Total = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	p.mu.Unlock()
	if !holds(w.Dir, w.Has) {
		return fmt.Errorf("%s is not what it was: there is no %s in it; is a file system not mounted? %w", w.Dir, w.Has, os.ErrNotExist)
	}
	p.count++
	err := roundTrip(filepath.Join(w.Dir, probeFile), p.count)
	if errors.Is(err, errWriteLost) {
		s := fmt.Sprintf("%s: %v", w.Name, err)
		p.lost.Store(&s)
	}
	return err
}

// holds reports whether a directory has an entry of that name, which may be a pattern; "": any directory does. The name
// of the directory itself is no pattern, whatever is in it.
func holds(dir, name string) bool {
	if !strings.ContainsAny(name, "*?[") {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		is, err := filepath.Match(name, e.Name())
		return err == nil && is
	})
}

// errWriteLost is an error after which no earlier write is known to be on the disk.
var errWriteLost = errors.New("the storage lost a write")

// roundTrip writes a block, makes it durable, and reads it back from the disk.
func roundTrip(path string, count uint64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return lostWrite(err)
	}
	err = write(f, count)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return readBack(path, count)
}

func write(f *os.File, count uint64) error {
	want := pattern(count)
	if _, err := f.WriteAt(want, 0); err != nil {
		return lostWrite(err)
	}
	if err := f.Sync(); err != nil {
		return lostWrite(err)
	}
	return nil
}

// lostWrite wraps those errors that mean a lost write. A file system becomes read-only when it could not write what it
// had acknowledged.
func lostWrite(err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", errWriteLost, err)
	}
	return err
}

// readBack reads the block past the page cache, if the file system supports that.
func readBack(path string, count uint64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if errors.Is(err, syscall.EINVAL) {
		f, err = os.Open(path)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	got := alignedBlock()
	if _, err := f.ReadAt(got, 0); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if !bytes.Equal(got, pattern(count)) {
		return fmt.Errorf("%w: %s does not hold what was written to it and synced", errWriteLost, path)
	}
	return nil
}

func pattern(count uint64) []byte {
	b := make([]byte, block)
	for i := 0; i < block; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], count+uint64(i))
	}
	return b
}

// alignedBlock returns memory that is aligned for direct reads.
func alignedBlock() []byte {
	const align = 4096
	b := make([]byte, block+align)
	off := align - int(uintptr(unsafe.Pointer(&b[0]))%align) //nolint:gosec // only the address modulo the page size is used
	return b[off : off+block]
}

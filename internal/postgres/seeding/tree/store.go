package tree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Chunk is a chunk to be stored. Data lies at Off in the file, and the parts of it named by Runs (from and to) are
// written.
type Chunk struct {
	File wire.File
	Off  int64
	Data []byte
	Runs [][2]int
}

// Store writes those parts of a chunk. Long parts go directly to the disk. Filling the page cache costs more processor
// time than all other work on a chunk, and evicts pages that this machine needs. The other parts go through the page
// cache. If they are large, their writing begins at once (sync_file_range), so that the end is not one long flush.
// Neither is durable before disks.sync. h belongs to the caller and is kept from one call to the next.
func (t *Tree) Store(h *fileio.LastOpen, c Chunk) error {
	if direct(c.Off, c.Runs) && !t.cached.Load() {
		err := t.put(h, c, unix.O_DIRECT)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		t.cached.Store(true) // this file system needs other blocks, or does not support direct writes
	}
	return t.put(h, c, 0)
}

// direct reports whether all runs are long and consist of whole blocks. The chunk itself begins at a page of memory, as
// large allocations do.
func direct(off int64, runs [][2]int) bool {
	for _, r := range runs {
		if (off+int64(r[0]))%fileio.DirectBlock != 0 || r[0]%fileio.DirectBlock != 0 || r[1]%fileio.DirectBlock != 0 || r[1]-r[0] < fileio.DirectLeast {
			return false
		}
	}
	return len(runs) > 0
}

func (t *Tree) put(h *fileio.LastOpen, c Chunk, flag int) error {
	out, err := t.OpenFile(h, c.File, flag)
	if err != nil {
		return err
	}
	for _, r := range c.Runs {
		if _, err := out.WriteAt(c.Data[r[0]:r[1]], c.Off+int64(r[0])); err != nil {
			return fmt.Errorf("write %s: %w", c.File.Name, err)
		}
	}
	if flag == 0 && len(c.Data) >= fileio.DirectLeast {
		_ = unix.SyncFileRange(int(out.Fd()), c.Off, int64(len(c.Data)), unix.SYNC_FILE_RANGE_WRITE) // where it is unsupported, all writing happens at the end
	}
	return nil
}

// Reserve gives files of several chunks their length and their room on the disk before they are filled. File systems
// allow several concurrent direct writers in a file only if it need not grow and its blocks are allocated. Allocating
// them at once is also cheaper than chunk by chunk. A full disk shows now and not after hours.
func (t *Tree) Reserve(files []wire.File, had []int64) error {
	for i, f := range files {
		if f.Size <= wire.ChunkSize || had[i] == f.Size {
			continue
		}
		var h fileio.LastOpen
		out, err := t.OpenFile(&h, f, 0)
		if err == nil {
			err = unix.Fallocate(int(out.Fd()), 0, had[i], f.Size-had[i])
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) { // then the copy is made without it
				err = nil
			}
		}
		if err := errors.Join(err, h.Close()); err != nil {
			return fmt.Errorf("make room for %s: %w", f.Name, err)
		}
	}
	return nil
}

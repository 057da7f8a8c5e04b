package tree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Chunk is a chunk to be stored: data lies at off in the file, and the parts of it named by runs (from and to) are written.
type Chunk struct {
	File wire.File
	Off  int64
	Data []byte
	Runs [][2]int
}

// Store writes those parts of a chunk, b, which lies at off in the file. What is long goes to the disk directly: to fill the page cache
// costs more processor time than everything else that is done to a chunk, and pushes out what this machine needs. The rest is left to
// the kernel, which is told to begin at once, if it is much, so that the end is not one long flush. Neither is durable before disks.sync. h is the caller's
// own from one call to the next.
func (t *Tree) Store(h *fileio.LastOpen, c Chunk) error {
	if direct(c.Off, c.Runs) && !t.cached.Load() {
		err := t.put(h, c, unix.O_DIRECT)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		t.cached.Store(true) // this file system wants other blocks, or does not know direct writes
	}
	return t.put(h, c, 0)
}

// direct tells whether all runs are long and whole blocks. The chunk itself is in memory as large allocations are: at a page.
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
		_ = unix.SyncFileRange(int(out.Fd()), c.Off, int64(len(c.Data)), unix.SYNC_FILE_RANGE_WRITE) // where it cannot, all is left to the end
	}
	return nil
}

// Reserve gives files of several chunks their length and their room on the disk before they are filled. File systems let several write
// directly into a file at once only where it need not grow and its blocks have their places; to find these in one go is also cheaper than
// chunk by chunk. A full disk shows now and not after hours.
func (t *Tree) Reserve(files []wire.File, had []int64) error {
	for i, f := range files {
		if f.Size <= wire.ChunkSize || had[i] == f.Size {
			continue
		}
		var h fileio.LastOpen
		out, err := t.OpenFile(&h, f, 0)
		if err == nil {
			err = unix.Fallocate(int(out.Fd()), 0, had[i], f.Size-had[i])
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) { // then it is done without
				err = nil
			}
		}
		if err := errors.Join(err, h.Close()); err != nil {
			return fmt.Errorf("make room for %s: %w", f.Name, err)
		}
	}
	return nil
}

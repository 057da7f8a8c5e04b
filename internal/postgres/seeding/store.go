package seeding

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Direct writes begin and end at blocks, which are a multiple of the sectors of all disks, and are long enough to be worth the wait
// for the disk.
const (
	directBlock = 4 << 10
	directLeast = 64 << 10
)

// store writes those parts of a chunk, b, which lies at off in the file. What is long goes to the disk directly: to fill the page cache
// costs more processor time than everything else that is done to a chunk, and pushes out what this machine needs. The rest is left to
// the kernel, which is told to begin at once, if it is much, so that the end is not one long flush. Neither is durable before disks.sync. h is the caller's
// own from one call to the next.
func (t *tree) store(h *held, f file, off int64, runs [][2]int, b []byte) error {
	if direct(off, runs) && !t.cached.Load() {
		err := t.put(h, f, off, runs, b, unix.O_DIRECT)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		t.cached.Store(true) // this file system wants other blocks, or does not know direct writes
	}
	return t.put(h, f, off, runs, b, 0)
}

// direct tells whether all runs are long and whole blocks. The chunk itself is in memory as large allocations are: at a page.
func direct(off int64, runs [][2]int) bool {
	for _, r := range runs {
		if (off+int64(r[0]))%directBlock != 0 || r[0]%directBlock != 0 || r[1]%directBlock != 0 || r[1]-r[0] < directLeast {
			return false
		}
	}
	return len(runs) > 0
}

func (t *tree) put(h *held, f file, off int64, runs [][2]int, b []byte, flag int) error {
	out, err := t.open(h, f, flag)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if _, err := out.WriteAt(b[r[0]:r[1]], off+int64(r[0])); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	if flag == 0 && len(b) >= directLeast {
		_ = unix.SyncFileRange(int(out.Fd()), off, int64(len(b)), unix.SYNC_FILE_RANGE_WRITE) // where it cannot, all is left to the end
	}
	return nil
}

// reserve gives files of several chunks their length and their room on the disk before they are filled. File systems let several write
// directly into a file at once only where it need not grow and its blocks have their places; to find these in one go is also cheaper than
// chunk by chunk. A full disk shows now and not after hours.
func (t *tree) reserve(files []file, had []int64) error {
	for i, f := range files {
		if f.Size <= chunkSize || had[i] == f.Size {
			continue
		}
		var h held
		out, err := t.open(&h, f, 0)
		if err == nil {
			err = unix.Fallocate(int(out.Fd()), 0, had[i], f.Size-had[i])
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) { // then it is done without
				err = nil
			}
		}
		if err := errors.Join(err, h.close()); err != nil {
			return fmt.Errorf("make room for %s: %w", f.Name, err)
		}
	}
	return nil
}

package bed

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// LabNeeds is the disk space, in bytes, of three replicas of a lab before anything is loaded: their clusters and the
// WAL that they keep.
const LabNeeds = 4 << 30

// EnoughDisk refuses to continue if the file system of dir has fewer free bytes than that. dir need not exist yet. A
// file system that does not report its free space passes.
func EnoughDisk(dir string, bytes uint64) error {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil //nolint:nilerr // the write itself reports a full disk
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < bytes {
		return fail.Refusedf("what is made here needs about %.1f GiB, and %s has %.1f GiB free: make room, choose smaller sizes, or another place with --dir",
			float64(bytes)/(1<<30), dir, float64(free)/(1<<30))
	}
	return nil
}

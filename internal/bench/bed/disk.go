package bed

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// LabNeeds is what three replicas of a lab take before anything is loaded: their clusters, and the WAL that is kept.
const LabNeeds = 4 << 30

func EnoughDisk(dir string, bytes uint64) error {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil //nolint:nilerr // who cannot be asked will say so when it is full
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < bytes {
		return fail.Refusedf("what is made here needs about %.1f GiB, and %s has %.1f GiB free: make room, choose smaller sizes, or another place with --dir",
			float64(bytes)/(1<<30), dir, float64(free)/(1<<30))
	}
	return nil
}

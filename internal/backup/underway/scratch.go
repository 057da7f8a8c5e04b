package underway

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// scratchLock is the file of a temporary directory that its process holds.
const scratchLock = "holder"

// Scratch makes a private temporary directory whose name begins with the prefix, and removes those of earlier processes
// of this user that are gone: they may have secrets in them. remove removes the new one, and may be called twice.
func Scratch(prefix string) (dir string, remove func() error, err error) {
	Sweep(prefix)
	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, err
	}
	lock := filepath.Join(dir, scratchLock)
	f, err := os.OpenFile(lock+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(hold(f), os.Rename(lock+".new", lock)) // nobody sees it without its holder
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() error {
		err := os.RemoveAll(dir)
		_ = f.Close() // nothing was written
		return err
	}, nil
}

// Sweep removes the temporary directories with the prefix that belong to this user and whose process is gone.
func Sweep(prefix string) {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // the pattern is sound
	for _, dir := range all {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
			continue
		}
		lock := filepath.Join(dir, scratchLock)
		if _, err := os.Lstat(lock); err == nil && !held(lock) {
			_ = os.RemoveAll(dir) // the next one tries again
		}
	}
}

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// exeCache is the directory of root's copies of this program for the server's user, if that user cannot enter the
// program's directory.
const exeCache = "/var/cache/coterie"

// ReachableExe returns a path at which the user with that uid can execute this program: its own path, or that of a copy
// in exeCache.
func ReachableExe(uid int) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	for p := filepath.Dir(exe); p != "/"; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err != nil || !mayEnter(st, uid, -1) {
			to, err := copyExe(exe)
			if err != nil {
				return "", fail.Refusedf("user %s cannot enter %s, where this program is, and no copy could be made (%w): install it with: install -m 755 %s /usr/local/bin/coterie",
					ServerUserName, p, err, exe)
			}
			return to, nil
		}
	}
	return exe, nil
}

// copyLife is the time for which an unused copy of the program is kept after its last request. A stopped lab still
// refers to one.
const copyLife = 24 * time.Hour

// pruneExes removes the copies that were last requested before since and that no process runs. Removal is best-effort.
func pruneExes(cache string, since time.Time) {
	copies, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	running := map[string]bool{}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil {
			running[filepath.Dir(exe)] = true
		}
	}
	for _, c := range copies {
		dir := filepath.Join(cache, c.Name())
		if st, err := c.Info(); err == nil && st.IsDir() && st.ModTime().Before(since) && !running[dir] {
			_ = os.RemoveAll(dir)
		}
	}
}

// copyExe copies the program to exeCache and returns the path of the copy. The path is unique to this file's inode and
// modification time.
func copyExe(exe string) (string, error) {
	in, err := os.Open(exe)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(exeCache, fmt.Sprintf("%x-%x", st.ModTime().UnixNano(), st.Sys().(*syscall.Stat_t).Ino))
	to := filepath.Join(dir, "coterie")
	if have, err := os.Stat(to); err == nil && have.Size() == st.Size() {
		now := time.Now()
		return to, os.Chtimes(dir, now, now) // marks the copy as requested, so that it is not pruned
	}
	pruneExes(exeCache, time.Now().Add(-copyLife))
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the server's user must be able to read it
		return "", err
	}
	out, err := os.CreateTemp(dir, "new")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return to, os.Rename(out.Name(), to)
}

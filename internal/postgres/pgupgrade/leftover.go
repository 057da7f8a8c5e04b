package pgupgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// The waits for processes of an interrupted run: for a server that writes its last checkpoint, and for any other.
const (
	serverEnds = time.Minute
	toolEnds   = 10 * time.Second
)

// End ends the processes that an interrupted run has left behind: pg_upgrade and its tools, then the servers, in order,
// so that the old cluster can be upgraded all the same. No server of the node may run on either directory.
func (j Job) End(ctx context.Context) error {
	if err := endIn(ctx, j.Work, syscall.SIGKILL, toolEnds); err != nil {
		return err
	}
	sides := []Side{j.Old}
	if owned, err := j.Owns(j.New.Data); err == nil && owned { // else the processes there are of somebody else
		sides = append(sides, j.New)
	}
	for _, s := range sides {
		if err := endIn(ctx, s.Data, syscall.SIGINT, serverEnds); err == nil {
			continue
		}
		if err := endIn(ctx, s.Data, syscall.SIGKILL, toolEnds); err != nil {
			return err
		}
	}
	return nil
}

// endIn signals the processes of this user whose working directory is dir, and waits until there are none.
func endIn(ctx context.Context, dir string, sig syscall.Signal, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	told := map[int]bool{}
	for {
		left := within(dir)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			if sig == syscall.SIGINT && !isPostmaster(dir, pid) { // its children end with it
				continue
			}
			if !told[pid] {
				told[pid] = true
				_ = syscall.Kill(pid, sig)
			}
		}
		if err := retry.Sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("processes %v of an interrupted pg_upgrade in %s do not end: %w", left, dir, err)
		}
	}
}

// within lists the processes of this user whose working directory is dir.
func within(dir string) (pids []int) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if at, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); err == nil && at == real {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// isPostmaster reports whether a process is the one that the directory's postmaster.pid names, or its parent does not
// run there.
func isPostmaster(dir string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	var named int
	_, err = fmt.Sscan(string(b), &named)
	return err != nil || named == pid
}

// Running lists the processes whose working directory is that of the old cluster: its server.
func (j Job) Running() []int { return within(j.Old.Data) }

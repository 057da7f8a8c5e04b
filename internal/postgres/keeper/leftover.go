package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// leftover is a live PostgreSQL process of a data directory that is not a descendant of this keeper: its keeper was
// killed, or it was started by hand. The pidfd prevents its number from naming another process.
type leftover struct {
	pid   int
	pidfd int
	start uint64
}

// endLeftovers ends every PostgreSQL process that works in pgdata, and returns when none is alive. A process is one of
// them if its executable is postgres (or the binary about to be started) and its working directory is pgdata. That
// holds for the postmaster and all it forks, and also for backends whose postmaster is dead. The pid in postmaster.pid
// is only a hint which process to signal first; an unrelated process with that pid is not touched.
func endLeftovers(ctx context.Context, log *slog.Logger, pgdata, binary string) error {
	lock := datadir.ReadPIDFile(pgdata)
	quit := time.Time{}
	for {
		found := findServers(pgdata, binary)
		if len(found) == 0 {
			return dropForeignPidFile(log, pgdata, lock)
		}
		if quit.IsZero() {
			quit = time.Now()
			log.Warn("ending a server that an earlier keeper left behind", "pgdata", pgdata, "processes", len(found), "postmaster", lock.PID)
			for _, p := range found {
				if p.pid == lock.PID {
					p.signal(unix.SIGQUIT)
				}
			}
		}
		if time.Since(quit) >= KillAfter || !names(found, lock.PID) {
			for _, p := range found {
				p.kill()
			}
		}
		pids := closeAll(found)
		if retry.Sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("end the server that was left behind in %s: processes %v are still alive: %w", pgdata, pids, ctx.Err())
		}
	}
}

func names(found []leftover, pid int) bool {
	for _, p := range found {
		if p.pid == pid {
			return true
		}
	}
	return false
}

func closeAll(found []leftover) (pids []int) {
	for _, p := range found {
		pids = append(pids, p.pid)
		_ = unix.Close(p.pidfd)
	}
	return pids
}

func (p leftover) signal(sig unix.Signal) { _ = unix.PidfdSendSignal(p.pidfd, sig, nil, 0) }

// kill ends the process and the programs it started (of archive_command or COPY TO PROGRAM), which are not postgres.
func (p leftover) kill() {
	below := proc.Descendants(p.pid)
	p.signal(unix.SIGKILL)
	for _, c := range below {
		_ = syscall.Kill(c, syscall.SIGKILL)
	}
}

// findServers returns the live PostgreSQL processes that work in pgdata, with open pidfds.
func findServers(pgdata, binary string) []leftover {
	var dir unix.Stat_t
	if err := unix.Stat(pgdata, &dir); err != nil {
		return nil
	}
	var found []leftover
	for _, pid := range proc.Processes() {
		if pid == os.Getpid() || !isServer(pid, binary, &dir) {
			continue
		}
		st, err := proc.ReadStat(pid)
		if err != nil || st.State == 'Z' {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Check again with the pidfd open: from here on the pid cannot name another process between check and signal.
		again, err := proc.ReadStat(pid)
		if err != nil || again.Start != st.Start || !isServer(pid, binary, &dir) {
			_ = unix.Close(fd)
			continue
		}
		found = append(found, leftover{pid: pid, pidfd: fd, start: st.Start})
	}
	return found
}

func isServer(pid int, binary string, dir *unix.Stat_t) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	exe = filepath.Base(strings.TrimSuffix(exe, " (deleted)")) // a package upgrade replaces the file under a running server
	if exe != "postgres" && (binary == "" || exe != filepath.Base(binary)) {
		return false
	}
	var cwd unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/cwd", pid), &cwd); err != nil {
		return false
	}
	return cwd.Dev == dir.Dev && cwd.Ino == dir.Ino
}

// dropForeignPidFile removes a postmaster.pid whose process is alive and provably of another program: PostgreSQL would
// refuse to start while that process lives. Any other postmaster.pid stays; PostgreSQL then checks the shared memory
// segment that it names.
func dropForeignPidFile(log *slog.Logger, pgdata string, lock datadir.PIDFile) error {
	if lock.PID <= 0 || syscall.Kill(lock.PID, 0) != nil {
		return nil
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(lock.PID) + "/exe")
	if err != nil {
		// A process that may not be inspected proves nothing. A zombie that its parent does not collect proves enough.
		if st, err := proc.ReadStat(lock.PID); err != nil || st.State != 'Z' {
			return nil
		}
		exe = "(zombie)"
	}
	if now := datadir.ReadPIDFile(pgdata); now != lock {
		return nil
	}
	log.Warn("removing a stale postmaster.pid that names a process of another program", "pgdata", pgdata, "pid", lock.PID, "program", exe)
	if err := os.Remove(filepath.Join(pgdata, "postmaster.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale postmaster.pid: %w", err)
	}
	return dropSocketLock(lock)
}

// dropSocketLock removes the lock of the socket of the same process. PostgreSQL would refuse to start because of it as
// long as init has not collected the dead process, which can take time in a container.
func dropSocketLock(of datadir.PIDFile) error {
	path := of.Socket + ".lock"
	if of.Socket == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil // either it does not exist, or PostgreSQL will report the problem
	}
	b := make([]byte, 64)
	n, _ := io.ReadFull(f, b)
	_ = f.Close()
	first, _, _ := strings.Cut(string(b[:n]), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(first)); err != nil || pid != of.PID {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the stale lock of a socket: %w", err)
	}
	return nil
}

// dropTornLocks removes locks without a process: PostgreSQL, or the machine, has ended between making such a file and
// writing it. PostgreSQL refuses to start while one is there, whatever runs. It MUST be called only when no server
// works in pgdata (endLeftovers), and run is the run directory of the node, below which its server has its sockets.
func dropTornLocks(log *slog.Logger, pgdata, run string) error {
	locks, err := filepath.Glob(filepath.Join(run, "*", ".s.PGSQL.*.lock"))
	if err != nil {
		return err
	}
	for _, path := range append(locks, filepath.Join(pgdata, "postmaster.pid")) {
		if !isTorn(path) {
			continue
		}
		log.Warn("removing a lock of PostgreSQL that names no process", "file", path)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a lock that names no process: %w", err)
		}
	}
	return nil
}

// isTorn reports whether a lock does not begin with the number of a process. Single-user servers write a negative one.
func isTorn(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 64)
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false // PostgreSQL will report the problem
	}
	first, _, _ := strings.Cut(string(b[:n]), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	return err != nil || pid == 0
}

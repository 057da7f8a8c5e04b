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

	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// leftover is a live PostgreSQL process of a data directory that is no descendant of ours: its keeper was killed, or
// somebody started it by hand. The pidfd keeps its number from naming another process.
type leftover struct {
	pid   int
	pidfd int
	start uint64
}

// endLeftovers ends every PostgreSQL process that works in pgdata, and returns when none is left. A process is one of them
// when its executable is postgres (or the binary about to be started) and its working directory is pgdata: that holds for the
// postmaster and for all it forks, and still holds when the postmaster is dead and its backends are not. The pid in
// postmaster.pid is only a hint about which one to ask first; a process it names by accident is left alone.
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
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the server that was left behind in %s: processes %v are still alive: %w", pgdata, pids, ctx.Err())
		case <-time.After(10 * time.Millisecond):
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

// kill ends the process and what it started (commands of archive_command or COPY TO PROGRAM), which is not postgres itself.
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
		// Look again with the pidfd open: now it cannot become another process between check and signal.
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

// dropForeignPidFile removes a postmaster.pid whose process is alive and provably something else: PostgreSQL would refuse to
// start as long as that stranger lives. Any other postmaster.pid stays; PostgreSQL itself then checks the shared memory
// segment that it names.
func dropForeignPidFile(log *slog.Logger, pgdata string, lock datadir.PIDFile) error {
	if lock.PID <= 0 || syscall.Kill(lock.PID, 0) != nil {
		return nil
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(lock.PID) + "/exe")
	if err != nil {
		// Not ours to look into proves nothing; dead, and never collected by a parent that does not care, proves enough.
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

// dropSocketLock removes the lock of the socket that the same process had: PostgreSQL refuses to start for it all the same, as long as
// init, which in a container may take its time, has not collected the dead.
func dropSocketLock(of datadir.PIDFile) error {
	path := of.Socket + ".lock"
	if of.Socket == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil // there is none, or PostgreSQL will say what is wrong with it
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

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// BecomeReaper makes orphaned descendants children of this process instead of init's. Backends call setsid, so neither
// a process group nor the postmaster's own children cover them all once the postmaster is dead.
func BecomeReaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// Forker starts processes from one thread that never ends. The parent-death signal belongs to the forking thread, not
// to the process (golang/go#27505): from an ordinary goroutine the postmaster would be killed when the runtime drops a
// thread.
type Forker chan forkRequest

type forkRequest struct {
	path  string
	argv  []string
	attr  *syscall.ProcAttr
	reply chan forkReply
}

type forkReply struct {
	pid int
	err error
}

// StartForker starts the thread. It is never stopped: its end is the end of the process, and the signal to the
// postmaster.
func StartForker() Forker {
	f := make(Forker)
	go func() {
		runtime.LockOSThread()
		for r := range f {
			pid, err := syscall.ForkExec(r.path, r.argv, r.attr)
			r.reply <- forkReply{pid, err}
		}
		select {}
	}()
	return f
}

// Fork starts path in a session of its own, so that a Ctrl-C on the agent's terminal does not reach it. It must not run
// while another goroutine reaps: ForkExec itself waits for a child whose exec failed.
func (f Forker) Fork(path string, argv, env []string, files []uintptr) (int, error) {
	attr := &syscall.ProcAttr{
		Dir: "/", Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGQUIT},
	}
	r := forkRequest{path: path, argv: argv, attr: attr, reply: make(chan forkReply, 1)}
	f <- r
	reply := <-r.reply
	if reply.err != nil {
		return 0, fmt.Errorf("start %s: %w", path, reply.err)
	}
	return reply.pid, nil
}

// Reap collects every dead child. none reports whether no child remains, dead or alive. Orphans become our children
// before their parent can be collected, so none proves that no descendant remains.
func Reap(died func(pid int, ws syscall.WaitStatus)) (none bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return true
		case err != nil || pid == 0:
			return false
		default:
			died(pid, ws)
		}
	}
}

// Describe formats a wait status as package os does.
func Describe(ws syscall.WaitStatus) string {
	switch {
	case ws.Signaled() && ws.CoreDump():
		return fmt.Sprintf("signal: %s (core dumped)", ws.Signal())
	case ws.Signaled():
		return fmt.Sprintf("signal: %s", ws.Signal())
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}

// Descendants lists all processes below pid, nearest first. It is a snapshot: the list of children may miss some while
// others exit. A caller that kills by this list repeats until Reap reports none.
func Descendants(pid int) []int {
	var all []int
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, c := range children(queue[0]) {
			if !seen[c] {
				seen[c] = true
				all = append(all, c)
				queue = append(queue, c)
			}
		}
	}
	return all
}

func children(pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(lists) == 0 {
		return childrenByStat(pid)
	}
	var all []int
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue // the thread has ended; its children have moved to another one
		}
		for _, f := range strings.Fields(string(b)) {
			if c, err := strconv.Atoi(f); err == nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// childrenByStat finds children on kernels without CONFIG_PROC_CHILDREN.
func childrenByStat(pid int) []int {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/children"); err == nil {
		return nil // the kernel has lists; this process has just ended
	}
	var all []int
	for _, p := range Processes() {
		if st, err := ReadStat(p); err == nil && st.parent == pid {
			all = append(all, p)
		}
	}
	return all
}

// KillDescendants sends SIGKILL to everything below this process and returns how many it found.
func KillDescendants() int {
	all := Descendants(os.Getpid())
	for _, p := range all {
		// Only we can collect a child of ours, and we do it on this goroutine: a direct child's pid cannot have been
		// reused. A grandchild's pid can, if its parent has collected it since the listing. The new process would have
		// to be forked in these microseconds, after the whole pid space has wrapped around.
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	return len(all)
}

// Stat is the part of /proc/<pid>/stat that the keeper needs.
type Stat struct {
	State  byte
	parent int
	Start  uint64 // in ticks since boot: with the pid, the identity of a process
}

// ReadStat reads /proc/<pid>/stat.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	// The name, in parentheses, may contain any character; the fields start after the last parenthesis.
	_, rest, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") "))
	f := strings.Fields(string(rest))
	if !ok || len(f) < 20 {
		return Stat{}, fmt.Errorf("read /proc/%d/stat: unknown format", pid)
	}
	parent, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return Stat{f[0][0], parent, start}, errors.Join(err1, err2)
}

// Processes lists all process ids that /proc shows.
func Processes() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(-1)
	var all []int
	for _, n := range names {
		if p, err := strconv.Atoi(n); err == nil {
			all = append(all, p)
		}
	}
	return all
}

package patroni

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that was started, with a log of its own.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended and was collected
}

// start runs a program in a session of its own, as the user of the servers.
func (c *Cluster) start(name, log, program string, args ...string) (*process, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(program, args...) //nolint:noctx // Stop ends it
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "LC_ALL=C.UTF-8", "LANG=C.UTF-8"}
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.gid)}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }() // ends when the program does, which Stop sees to
	return p, nil
}

// kill ends programs and everything that they started, and waits for the end: all of it is stopped first, so that none
// sees another's death.
func kill(roots ...int) error {
	var all []int
	for still := 0; still < 2; { // until nothing new is found twice
		found, err := descendants(roots)
		if err != nil {
			return err
		}
		if len(found) == len(all) {
			still++
		} else {
			still = 0
		}
		all = found
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // gone is as good
		}
	}
	var errs []error
	for _, pid := range all {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, vanish(all))...)
}

// vanish waits until none of the killed processes runs: a signal that was sent takes effect later, on a loaded machine
// much later.
func vanish(killed []int) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left, err := descendants(killed)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v have not ended 20 s after they were killed", left)
		}
	}
}

// descendants lists the living processes and their living descendants.
func descendants(roots []int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" && f[0] != "X" {
			parents[pid], _ = strconv.Atoi(f[1]) // the kernel wrote it
		}
	}
	in := map[int]bool{}
	for _, r := range roots {
		if _, runs := parents[r]; runs {
			in[r] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, parent := range parents {
			if in[parent] && !in[pid] {
				in[pid], grown = true, true
			}
		}
	}
	var out []int
	for pid := range in {
		out = append(out, pid)
	}
	return out, nil
}

// Sweep ends every process that works in dir, such as those of a killed benchmark. The directory must be the caller's
// own.
func Sweep(dir string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var roots []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err == nil && (cwd == dir || strings.HasPrefix(cwd, dir+"/")) {
			roots = append(roots, pid)
		}
	}
	return kill(roots...)
}

// postmaster reads the process number of the node's server; 0: it does not run.
func (n *node) postmaster() int {
	b, err := os.ReadFile(filepath.Join(n.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid < 2 {
		return 0
	}
	// A number in a file may be another process by now: this one works in the data directory.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || cwd != filepath.Join(n.dir, "data") {
		return 0
	}
	return pid
}

// roots returns the processes from which all processes of the node descend.
func (n *node) roots() []int {
	var out []int
	if n.container != nil {
		out = append(out, n.container.cmd.Process.Pid)
	}
	if pid := n.postmaster(); pid != 0 {
		out = append(out, pid)
	}
	return out
}

// gone waits until the killed processes have ended.
func (p *process) gone() error {
	select {
	case <-p.done:
		return nil
	case <-time.After(20 * time.Second):
		return fmt.Errorf("process %d has not ended", p.cmd.Process.Pid)
	}
}

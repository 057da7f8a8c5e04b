package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Where this run keeps everything, and the program it tests.
var (
	root string
	exe  string
)

// reaper is the environment variable that makes this program the process that removes what the tests left: see reap.
const reaper = "COTERIE_E2E_REAPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(reaper); dir != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the tests do, however they end
		reap(dir)
		return
	}
	if text := os.Getenv(attackers); text != "" {
		if err := attackMain(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	// Not the test's own directory for temporary files: another user's servers must be able to enter it, and its name
	// be short.
	if root, err = os.MkdirTemp("/tmp", "cote2e"); err != nil {
		return 1, err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return 1, err
	}
	end, err := startReaper(root)
	if err != nil {
		return 1, err
	}
	defer end()
	exe = os.Getenv("COTERIE_TEST_EXE")
	if exe == "" {
		exe = filepath.Join(root, "coterie")
		build := exec.Command("go", "build", "-o", exe, "../../../cmd/coterie")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released: with C, the servers would inherit the agents' capabilities
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}

// startReaper starts a process that outlives this one by a moment: a test run that panics or is killed takes no lab
// down.
func startReaper(dir string) (end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), reaper+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}, nil
}

// reap kills every process that works in dir or was started with it, and removes dir.
func reap(dir string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left := processesOf(dir)
		if len(left) == 0 {
			break
		}
		for pid, line := range left {
			if machine := firstChild(pid); machine != 0 && strings.HasPrefix(line, "systemd-nspawn ") {
				pid = machine // ends with all of its processes; systemd-nspawn then takes its network away and ends
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			if _, run, ok := strings.Cut(line, " --run "); ok { // a keeper's; it holds the agent's sockets, too
				run, _, _ = strings.Cut(run, " ")
				defer func() { _ = os.RemoveAll(run) }()
			}
		}
	}
	for _, line := range strings.Split(read("/proc/self/mounts"), "\n") {
		if f := strings.Fields(line); len(f) > 1 && within(f[1], dir) {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	_ = os.RemoveAll(dir)
}

// firstChild returns a process that pid has started, or 0.
func firstChild(pid int) int {
	child, _, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid)), " ")
	n, _ := strconv.Atoi(child)
	return n
}

// read returns a file's content, or nothing.
func read(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

// processesOf finds the processes that name dir in what they were started with, or work in it.
func processesOf(dir string) map[int]string {
	out := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // of a zombie: empty
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if within(cwd, dir) || strings.Contains(string(line), dir+"/") {
			out[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return out
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

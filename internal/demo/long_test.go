package demo_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/demo"
)

// program builds coterie where the user of the servers can run it.
func program(t *testing.T) (exe, dir string) {
	t.Helper()
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("the demo takes minutes: make test-long")
	}
	root, err := os.MkdirTemp("/tmp", "cotdemo") // not t.TempDir: another user's servers must be able to enter it, by a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(root, "tmp") // where the program's temporary files are its own
	if err := errors.Join(os.Mkdir(tmp, 0o700), os.Chmod(tmp, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	exe = os.Getenv("COTERIE_TEST_EXE")
	if exe == "" {
		exe = filepath.Join(root, "coterie")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "../../cmd/coterie").CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	return exe, filepath.Join(root, "lab")
}

// port finds the first of the 40 that a lab of three uses.
func port(t *testing.T) string {
	t.Helper()
	for base := 21000; base < 31000; base += 100 {
		free := true
		for p := base; p < base+40 && free; p++ {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return strconv.Itoa(base)
		}
	}
	t.Fatal("no free ports")
	return ""
}

// temporary is where a program with that lab has its temporary files.
func temporary(lab string) string { return filepath.Join(filepath.Dir(lab), "tmp") }

// nothingLeft fails if a process names the lab's directory, or if that is still there.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(dir)) {
			t.Errorf("still running: %s", bytes.ReplaceAll(b, []byte{0}, []byte(" ")))
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s was left behind", dir)
	}
	if left, err := os.ReadDir(temporary(dir)); err != nil || len(left) > 0 {
		t.Errorf("left behind in %s: %v, %v", temporary(dir), left, err)
	}
}

// run runs the demo to its end. Its story goes to the test's log, too.
func run(t *testing.T, exe, dir string, more ...string) (r demo.Report, story string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, append([]string{"demo", "--json", "--dir", dir, "--port", port(t)}, more...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary(dir))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	t.Logf("%s", &said)
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("exit code %d, and not JSON: %v", cmd.ProcessState.ExitCode(), err)
	}
	return r, said.String(), cmd.ProcessState.ExitCode()
}

func TestDemo(t *testing.T) { //nolint:paralleltest // one group at a time on this machine
	exe, dir := program(t)
	r, story, code := run(t, exe, dir)
	nothingLeft(t, dir)
	if code != 0 || !r.Sound || r.Lost != 0 || r.Acknowledged == 0 || !r.SameContents {
		t.Errorf("exit code %d, lost %d of %d, wrong: %v", code, r.Lost, r.Acknowledged, r.Wrong)
	}
	if r.Promoted == r.Killed || r.Planned.To == r.Planned.From || r.OutageMS == 0 {
		t.Errorf("no failover: %+v", r)
	}
	if r.Rejoin.How == "reseeded" {
		t.Error("the old primary was copied anew where a rewind was possible")
	}
	if (r.Rejoin.How == "rewound") != (r.Rejoin.Forked != "") {
		t.Errorf("the old primary came back %s, and the tail kept is %q", r.Rejoin.How, r.Rejoin.Forked)
	}
	for _, step := range []string{"claims epoch", " SEAL", " PROMOTE", " LEAD", "hands over"} {
		if !strings.Contains(story, step) {
			t.Errorf("the failover is not shown as it happens: no %q", step)
		}
	}
	for _, one := range r.Replicas {
		if one.Conditions != 12 {
			t.Errorf("%s holds %d conditions", one.Name, one.Conditions)
		}
	}
}

// The demo must be able to fail: without protection it finds the lost rows.
func TestDemoBroken(t *testing.T) { //nolint:paralleltest // the same
	exe, dir := program(t)
	r, _, code := run(t, exe, dir, "--broken")
	nothingLeft(t, dir)
	if code != 1 || r.Sound || r.Lost == 0 {
		t.Errorf("exit code %d, lost %d, wrong: %v", code, r.Lost, r.Wrong)
	}
}

// Ctrl-C in the middle of the load leaves nothing behind.
func TestDemoInterrupted(t *testing.T) { //nolint:paralleltest // the same
	exe, dir := program(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "demo", "--dir", dir, "--port", port(t))
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary(dir))
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if strings.HasPrefix(lines.Text(), "[4/6]") {
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	nothingLeft(t, dir)
}

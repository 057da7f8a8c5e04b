package programs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestBoundEndsWithItsProcess kills a process in the midst of a tool, as a watchdog kills an agent: the tool ends, too.
func TestBoundEndsWithItsProcess(t *testing.T) {
	const script, child = "echo $$; exec sleep 60", "COTERIE_TEST_BOUND"
	if os.Getenv(child) != "" {
		_, err := RunLines(t.Context(), "/bin/sh", []string{"-c", script}, func(line string) { fmt.Println("tool", line) })
		t.Fatalf("the tool ended: %v", err)
	}
	parent := exec.Command(os.Args[0], "-test.run=^TestBoundEndsWithItsProcess$")
	parent.Env = append(os.Environ(), child+"=1")
	out, err := parent.StdoutPipe()
	if err == nil {
		err = parent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Process.Kill() }()
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		if word, ok := strings.CutPrefix(lines.Text(), "tool "); ok {
			pid, _ = strconv.Atoi(word)
		}
	}
	if pid == 0 {
		t.Fatal("the tool did not begin")
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || len(b) == 0 { // a zombie has none
			return
		}
		if time.Now().After(until) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d goes on after its parent was killed", pid)
		}
	}
}

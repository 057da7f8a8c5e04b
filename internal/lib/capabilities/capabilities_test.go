package capabilities

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inheritEnv makes this test binary play a process that has ambient capabilities.
const inheritEnv = "COTERIE_TEST_INHERIT"

func TestMain(m *testing.M) {
	if os.Getenv(inheritEnv) != "" {
		playInheritance()
		return
	}
	os.Exit(m.Run())
}

// playInheritance prints the capabilities of a program that it runs, and then those of one that replaces it.
func playInheritance() {
	err := Withhold()
	out, catErr := exec.Command("cat", "/proc/self/status").Output()
	fmt.Printf("withhold: %v, run: %v\n%s\n-- exec --\n", err, catErr, out)
	cat, _ := exec.LookPath("cat")
	fmt.Println(Exec(cat, []string{"cat", "/proc/self/status"}, os.Environ()))
}

// TestNoProgramInheritsCapabilities checks that programs which a node runs have no capability, and that the node's own
// successor has them.
func TestNoProgramInheritsCapabilities(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a process of another user with ambient capabilities")
	}
	exe := withoutC(t)
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), inheritEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: []uintptr{unix.CAP_NET_RAW, unix.CAP_NET_ADMIN}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Skipf("this machine gives no ambient capabilities: %v\n%s", err, out)
	}
	child, successor, found := strings.Cut(string(out), "-- exec --")
	if !found {
		t.Fatalf("the process said:\n%s", out)
	}
	const none, net = "0000000000000000", "0000000000003000"
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		if got := capability(child, set); got != none {
			t.Errorf("%s of a program that the process runs: %s, want %s", set, got, none)
		}
		if got := capability(successor, set); got != net {
			t.Errorf("%s of the program that replaces the process: %s, want %s", set, got, net)
		}
	}
}

// withoutC builds this package's test binary without C, as released binaries are built, where every user may execute
// it.
func withoutC(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "coterie-capabilities-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe := filepath.Join(dir, "capabilities.test")
	build := exec.Command("go", "test", "-c", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test binary: %v\n%s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

// capability returns the value of a set of capabilities in a file /proc/PID/status.
func capability(status, set string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, set+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

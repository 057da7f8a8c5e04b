package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// childEnv makes this program the process that comes to a point.
const childEnv = "COTERIE_FAULT_TEST_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		if how == "linked" {
			linked = "for-tests"
		}
		Point("one")
		Point("two")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child runs a process that comes to the points one and two, and reports whether it was killed.
func child(t *testing.T, how string, env ...string) (killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+how), env...)
	err := cmd.Run()
	if err == nil {
		return false
	}
	st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !st.Signaled() || st.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v", err)
	}
	return true
}

func directory(t *testing.T) Directory {
	t.Helper()
	d, err := NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPoint checks that one process ends at the point that is armed, and that the next one passes it.
func TestPoint(t *testing.T) {
	t.Parallel()
	d := directory(t)
	if child(t, "linked", d.Env()) {
		t.Error("killed at a point that nobody has armed")
	}
	if err := d.Arm("two"); err != nil {
		t.Fatal(err)
	}
	if !child(t, "linked", d.Env()) || !d.Fired() {
		t.Error("not killed at a point that was armed")
	}
	if child(t, "linked", d.Env()) {
		t.Error("killed a second time")
	}
	got, err := d.Reached()
	if err != nil || !got["one"] || !got["two"] || len(got) != 2 {
		t.Errorf("reached %v: %v", got, err)
	}
}

// TestReleasedProgramCannotBeArmed checks that a program that is not linked for tests ignores the environment.
func TestReleasedProgramCannotBeArmed(t *testing.T) {
	t.Parallel()
	if linked != "" {
		t.Fatal("the tests themselves are linked with " + LinkFlag)
	}
	d := directory(t)
	if err := d.Arm("one"); err != nil {
		t.Fatal(err)
	}
	if child(t, "as released", d.Env()) || d.Fired() {
		t.Error("a program that is not linked for tests was killed")
	}
	if got, err := d.Reached(); err != nil || len(got) > 0 {
		t.Errorf("it noted %v: %v", got, err)
	}
}

// TestNothingIsReleasedArmed checks that no target or script that makes a program for users links it for tests.
func TestNothingIsReleasedArmed(t *testing.T) {
	t.Parallel()
	_, name, _ := strings.Cut(LinkFlag, " ")
	name, _, _ = strings.Cut(name, "=")
	root := filepath.Join("..", "..", "..")
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() && (e.Name() == ".git" || e.Name() == "docs") {
			if e != nil && e.IsDir() && err == nil {
				return filepath.SkipDir
			}
			return err
		}
		if !e.Type().IsRegular() || strings.HasSuffix(path, ".go") {
			return nil
		}
		if st, err := e.Info(); err != nil || st.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), name) {
			t.Errorf("%s links a program for tests", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

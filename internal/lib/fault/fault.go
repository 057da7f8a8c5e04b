package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// DirEnv names the environment variable with the directory through which a test arms the points of the processes that
// it starts.
const DirEnv = "COTERIE_FAULT_DIR"

// LinkFlag is the flag of the Go linker that makes a program in which points can be armed. No program that is released
// is linked so.
const LinkFlag = "-X github.com/coteriedb/coterie/internal/lib/fault.linked=for-tests"

// The files of the directory.
const (
	armedFile   = "armed"   // the name of the point at which the next process that comes there ends
	reachedFile = "reached" // a line for each point that a process has come to
	firedFile   = "fired"   // takes the place of armedFile when a process ends
)

// linked is set by the linker only.
var linked string

// Point is a place at which the program has written one thing and not yet the other. In a program of a test it ends
// the process as a power loss would, by SIGKILL, if the test has armed this name. Everywhere else it does nothing.
func Point(name string) {
	if linked != "" {
		reach(name)
	}
}

// reached are the points that this process has come to.
var reached sync.Map

func reach(name string) {
	dir := os.Getenv(DirEnv)
	if dir == "" {
		return
	}
	if _, again := reached.LoadOrStore(name, true); !again {
		note(dir, name)
	}
	armed, err := os.ReadFile(filepath.Join(dir, armedFile))
	if err != nil || strings.TrimSpace(string(armed)) != name {
		return
	}
	if os.Rename(filepath.Join(dir, armedFile), filepath.Join(dir, firedFile)) != nil {
		return // another process came first
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// note adds a line to the points that were reached. A single write to a file that is only appended to is one line.
func note(dir, name string) {
	f, err := os.OpenFile(filepath.Join(dir, reachedFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666) //nolint:gosec // processes of two users write it
	if err != nil {
		return
	}
	_, _ = f.WriteString(name + "\n")
	_ = f.Close()
}

// Directory is the test's side: the directory through which it arms its processes.
type Directory string

// NewDirectory prepares dir, which must exist, for processes of any user.
func NewDirectory(dir string) (Directory, error) {
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // servers run as another user than the test
		return "", fmt.Errorf("prepare %s for faults: %w", dir, err)
	}
	path := filepath.Join(dir, reachedFile)
	if err := os.WriteFile(path, nil, 0o666); err != nil { //nolint:gosec // the same
		return "", fmt.Errorf("prepare %s for faults: %w", dir, err)
	}
	return Directory(dir), os.Chmod(path, 0o666) //nolint:gosec // whatever the umask
}

// Env returns the environment variable for the processes that can be armed.
func (d Directory) Env() string { return DirEnv + "=" + string(d) }

// Arm lets the next process that comes to the point end there. Another point that was armed is not any more.
func (d Directory) Arm(name string) error {
	if err := d.Disarm(); err != nil {
		return err
	}
	tmp := d.file("arming")
	if err := os.WriteFile(tmp, []byte(name), 0o644); err != nil { //nolint:gosec // read by other users
		return fmt.Errorf("arm %s: %w", name, err)
	}
	return errors.Join(os.Chmod(tmp, 0o644), os.Rename(tmp, d.file(armedFile))) //nolint:gosec // whatever the umask
}

// Disarm lets no process end, and forgets that one did.
func (d Directory) Disarm() error {
	for _, name := range []string{armedFile, firedFile} {
		if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("disarm: %w", err)
		}
	}
	return nil
}

// Fired reports whether a process has ended at the point that was armed last.
func (d Directory) Fired() bool {
	_, err := os.Stat(d.file(firedFile))
	return err == nil
}

// Reached returns the points that any process has come to.
func (d Directory) Reached() (map[string]bool, error) {
	b, err := os.ReadFile(d.file(reachedFile))
	if err != nil {
		return nil, fmt.Errorf("read the points that were reached: %w", err)
	}
	all := map[string]bool{}
	for _, name := range strings.Fields(string(b)) {
		all[name] = true
	}
	return all, nil
}

func (d Directory) file(name string) string { return filepath.Join(string(d), name) }

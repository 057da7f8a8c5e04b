package lab

import (
	"os"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// DemoDir is a directory that holds nothing yet.
func DemoDir(dir, what string) (string, error) {
	if dir == "" {
		dir = DefaultDir() + "-" + what
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		return dir, nil
	}
	if pid, command, ok := Maker(dir); ok {
		return "", fail.Refusedf("%s holds the lab of a command that still runs, process %d (%s): wait for its end, or give this one a place of its own with --dir%s", dir, pid, command, orPort(dir))
	}
	if _, err := Open(dir); err != nil {
		return "", fail.Refusedf("%s is not empty and holds no lab: choose another directory with --dir", dir)
	}
	return "", fail.Refusedf("%s holds a lab of an earlier command; see it with: coterie lab status --dir %[1]s, end and remove it with: coterie lab down --dir %[1]s", dir)
}

// orPort is what a second lab beside the one in dir needs besides a directory: those on the loopback interface share its ports.
func orPort(dir string) string {
	if l, err := Open(dir); err == nil && !l.Namespaced() {
		return ", and ports with --port"
	}
	return ""
}

package postgres

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SystemID reads the cluster's system identifier from pg_control, with no program started.
func (i *Instance) SystemID() (string, error) {
	f, err := os.Open(i.path("global", "pg_control"))
	if err != nil {
		return "", fmt.Errorf("read the system identifier: %w", err)
	}
	defer func() { _ = f.Close() }()
	var b [8]byte // the first member of ControlFileData, in the machine's order
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return "", fmt.Errorf("read the system identifier: %w", err)
	}
	return strconv.FormatUint(binary.NativeEndian.Uint64(b[:]), 10), nil
}

// mountMark says which file system a copy was put on.
type mountMark struct {
	Point string `json:"mount_point"`
}

func (i *Instance) mountFile() string { return filepath.Join(i.cfg.StateDir, "data-mount.json") }

// RememberMount notes where the file system of the data directory is mounted, when a copy is made.
func (i *Instance) RememberMount() error {
	point, err := mountOf(i.cfg.PGData)
	if err != nil {
		return err
	}
	b, err := json.Marshal(mountMark{point})
	if err != nil {
		return err
	}
	return writeDurably(i.mountFile(), append(b, '\n'), 0o600)
}

// MountLost says, of a data directory without a copy in it, that the file system which a copy was put on is not
// mounted: then the copy is not lost, and none must be made in its place. "" when it is, or when none was noted.
func (i *Instance) MountLost() string {
	b, err := os.ReadFile(i.mountFile())
	if err != nil {
		return ""
	}
	var m mountMark
	if json.Unmarshal(b, &m) != nil || m.Point == "" {
		return ""
	}
	now, err := mountOf(i.cfg.PGData)
	if err != nil || now == m.Point {
		return ""
	}
	return fmt.Sprintf("the copy is on the file system that was mounted on %s, and it is not mounted now; mount it, or remove %s to have a new copy made on %s",
		m.Point, i.mountFile(), now)
}

// mountOf returns the mount point of the file system that a path is, or would be, on.
func mountOf(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			path = real
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || path == "/" {
			return "", fmt.Errorf("find the file system of %s: %w", path, err)
		}
		path = filepath.Dir(path)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", path, err)
	}
	return longestMount(string(b), path), nil
}

// longestMount finds the mount point that is nearest above a path in the text of a mountinfo file.
func longestMount(mountinfo, path string) string {
	best := "/"
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		point := unescapeMount(f[4])
		under := path == point || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if under && len(point) > len(best) {
			best = point
		}
	}
	return best
}

// unescapeMount reads the octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

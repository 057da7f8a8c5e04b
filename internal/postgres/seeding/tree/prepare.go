package tree

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
)

// unfinishedName is the name of the mark's file, in the state directory.
const unfinishedName = "seeding.json"

// Unfinished is the mark of a seeding under way. It is on disk, outside the data directory, from before anything is
// removed until the new copy is installed.
type Unfinished struct {
	Target      string                 `json:"target"`
	Started     time.Time              `json:"started"`
	Fresh       bool                   `json:"fresh,omitempty"` // no older copy existed
	Tablespaces []UnfinishedTablespace `json:"tablespaces,omitempty"`
	Codec       string                 `json:"codec,omitempty"` // the best one for this link according to AUTO
	// Unwritten means that the disk has failed to write a part of the files. The page cache may have more of them than
	// the disk.
	Unwritten bool `json:"unwritten,omitempty"`
}

// UnfinishedTablespace names the entries that may be removed beside the data directory: those of Location that begin
// with Prefix.
type UnfinishedTablespace struct {
	Location string `json:"location"`
	Prefix   string `json:"prefix"` // PG_<major>_, so that clusters of other versions that share the place are kept
}

// HalfSeeded reports whether target was being filled, or its old copy being removed, and the seeding never completed.
// Such a directory cannot be started and must be seeded again.
func HalfSeeded(target, stateDir string) bool {
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	}
	if fileio.Exists(filepath.Join(target, datadir.ControlFile)) {
		return false // after the commit point, or the old copy is still whole
	}
	m, err := ReadUnfinished(stateDir)
	return (err == nil && m.Target == target) || fileio.Exists(filepath.Join(target, datadir.ControlNew)) || fileio.Exists(filepath.Join(target, datadir.ControlOld))
}

// CheckPlaces refuses places that cannot be right, and returns the real path of the target.
func CheckPlaces(target, stateDir string) (string, error) {
	if !filepath.IsAbs(target) || !filepath.IsAbs(stateDir) {
		return target, fmt.Errorf("the data directory %q and the state directory %q must be absolute paths", target, stateDir)
	}
	target = filepath.Clean(target)
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	} else if !errors.Is(err, os.ErrNotExist) {
		return target, err
	}
	if target == "/" || fileio.Within(stateDir, target) {
		return target, fmt.Errorf("the state directory %s must not lie inside the data directory", stateDir)
	}
	return target, nil
}

// Prepare makes a checked target ready to be filled, and reports whether it holds nothing of an older copy. An older
// copy cannot be started from the first step on; its files stay, to be compared. A missing or empty directory is
// accepted. A directory with other contents than a PostgreSQL cluster is refused untouched. The caller must have
// stopped the server, and saved the files of the old copy that are still needed. spaces are the places beside the
// target that will be filled.
func Prepare(target, stateDir string, spaces map[uint32]string, major int) (fresh bool, err error) {
	if err := makeDir(target); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		return false, err
	}
	if err := Tidy(target, stateDir); err != nil {
		return false, err
	}
	old, err := ReadUnfinished(stateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	resumed := old.Target == target
	if err := refuseForeign(target, entries, resumed); err != nil {
		return false, err
	}
	if err := refuseRunning(target); err != nil {
		return false, err
	}
	ours := linkedTablespaces(target)
	m := Unfinished{Target: target, Started: time.Now().UTC(), Fresh: !fileio.Exists(filepath.Join(target, "PG_VERSION"))}
	if resumed {
		ours = append(ours, old.Tablespaces...)
		m.Fresh, m.Codec, m.Unwritten = old.Fresh, old.Codec, old.Unwritten
	}
	m.Tablespaces = slices.Clone(ours)
	for _, place := range spaces {
		if err := refuseOccupied(place, datadir.VersionPrefix(major), ours); err != nil {
			return false, err
		}
		if t := (UnfinishedTablespace{Location: place, Prefix: datadir.VersionPrefix(major)}); !slices.Contains(m.Tablespaces, t) {
			m.Tablespaces = append(m.Tablespaces, t)
		}
	}
	// From here on the copy cannot be started.
	if err := disable(target); err != nil {
		return false, err
	}
	fault.Point("seed.disabled") // the old copy cannot be started; no mark says why
	if err := WriteUnfinished(stateDir, m); err != nil {
		return false, err
	}
	fault.Point("seed.unfinished") // the mark of an unfinished copy is on disk; no byte has come
	if m, err = removeUnused(stateDir, m, spaces, major); err != nil || !m.Unwritten {
		return m.Fresh, err
	}
	return m.Fresh, discard(stateDir, m, major)
}

// Tidy removes what a kill has left of the seeding of a copy that was installed: the mark, which names places that may
// have become somebody else's, and the pg_control of the copy before. A copy that is not installed keeps both.
func Tidy(target, stateDir string) error {
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	}
	if !fileio.Exists(filepath.Join(target, datadir.ControlFile)) {
		return nil
	}
	if m, err := ReadUnfinished(stateDir); err != nil || m.Target != target {
		return fileio.IgnoreMissing(err)
	}
	return errors.Join(fileio.IgnoreMissing(os.Remove(filepath.Join(target, datadir.ControlOld))), durable.Remove(filepath.Join(stateDir, unfinishedName)))
}

// MarkUnwritten notes in the mark, durably, that the disk has failed to write a part of the files.
func MarkUnwritten(stateDir string) error {
	m, err := ReadUnfinished(stateDir)
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	m.Unwritten = true
	return WriteUnfinished(stateDir, m)
}

// discard removes the files that would be compared, of a copy of which the disk has failed to write a part. The page
// cache may still have that part, so that a comparison would find it equal, and no later sync writes it.
func discard(stateDir string, m Unfinished, major int) error {
	entries, err := os.ReadDir(m.Target)
	if err != nil {
		return err
	}
	t := &Tree{version: datadir.VersionPrefix(major)}
	for _, e := range entries {
		if e.Name() == "pg_wal" || t.Stays(0, e.Name(), !m.Fresh) { // what is in pg_wal is never compared
			continue
		}
		if e.Name() == "global" {
			err = clearDirBut(filepath.Join(m.Target, e.Name()), filepath.Base(datadir.ControlOld))
		} else {
			err = removeTree(filepath.Join(m.Target, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	for _, s := range m.Tablespaces {
		if err := removePrefixed(s.Location, s.Prefix); err != nil {
			return err
		}
	}
	m.Unwritten = false
	return WriteUnfinished(stateDir, m)
}

// removeUnused removes the old copy's part of tablespaces that the new one does not have, and takes them out of the
// mark: once they are empty, their places may become somebody else's.
func removeUnused(stateDir string, m Unfinished, spaces map[uint32]string, major int) (Unfinished, error) {
	var used []UnfinishedTablespace
	for _, t := range m.Tablespaces {
		if t.Prefix == datadir.VersionPrefix(major) && slices.Contains(slices.Collect(maps.Values(spaces)), t.Location) {
			used = append(used, t)
		} else if err := removePrefixed(t.Location, t.Prefix); err != nil {
			return m, err
		}
	}
	if len(used) == len(m.Tablespaces) {
		return m, nil
	}
	m.Tablespaces = used
	return m, WriteUnfinished(stateDir, m)
}

// makeDir creates the data directory if it is missing, durably, with the mode that PostgreSQL demands.
func makeDir(target string) error {
	st, err := os.Stat(target)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		return durable.SyncDir(filepath.Dir(target))
	case err != nil:
		return err
	case !st.IsDir():
		return errors.New("is not a directory")
	case st.Mode().Perm() != 0o700 && st.Mode().Perm() != 0o750:
		return os.Chmod(target, 0o700) //nolint:gosec // a directory
	}
	return nil
}

// refuseForeign refuses a directory whose contents are not known to be a PostgreSQL cluster, so that a mistyped path
// costs nothing.
func refuseForeign(target string, entries []os.DirEntry, marked bool) error {
	if marked || fileio.Exists(filepath.Join(target, "PG_VERSION")) || fileio.Exists(filepath.Join(target, datadir.ControlNew)) || fileio.Exists(filepath.Join(target, datadir.ControlOld)) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != datadir.LostFound {
			return fmt.Errorf("is not empty (%s) and holds no PostgreSQL cluster; nothing was changed: name an empty directory", e.Name())
		}
	}
	return nil
}

// refuseRunning refuses a directory whose server lives: the keeper stops it before Prepare. A process that merely has
// the same id as a former server has another working directory.
func refuseRunning(target string) error {
	text, err := os.ReadFile(filepath.Join(target, "postmaster.pid"))
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "-")) // a single-user server writes it negative
	if err != nil {
		return nil // torn by a crash; no server runs under it
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd == target {
		return fmt.Errorf("a PostgreSQL server runs there (pid %d); stop it first", pid)
	}
	return nil
}

// refuseOccupied refuses a place for a tablespace that holds another cluster's tablespace of the same version.
func refuseOccupied(place, prefix string, ours []UnfinishedTablespace) error {
	if slices.ContainsFunc(ours, func(t UnfinishedTablespace) bool { return t.Location == place && t.Prefix == prefix }) {
		return nil // left by an earlier attempt, or part of the old copy: removed below
	}
	entries, err := os.ReadDir(place)
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			return fmt.Errorf("tablespace directory %s is in use (%s); name an empty one", place, e.Name())
		}
	}
	return nil
}

// disable renames pg_control, without which a directory cannot be started.
func disable(target string) error {
	err := durable.Rename(filepath.Join(target, datadir.ControlFile), filepath.Join(target, datadir.ControlOld))
	return fileio.IgnoreMissing(err)
}

// linkedTablespaces lists the tablespaces of the old copy, with its version.
func linkedTablespaces(target string) []UnfinishedTablespace {
	version, err := os.ReadFile(filepath.Join(target, "PG_VERSION"))
	if err != nil {
		return nil // a copy half removed: its tablespaces are in the mark already
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil {
		return nil
	}
	dir := filepath.Join(target, "pg_tblspc")
	links, _ := os.ReadDir(dir)
	var found []UnfinishedTablespace
	for _, l := range links {
		if c := l.Name()[0]; c < '0' || c > '9' {
			continue
		}
		if place, err := os.Readlink(filepath.Join(dir, l.Name())); err == nil && filepath.IsAbs(place) {
			found = append(found, UnfinishedTablespace{Location: filepath.Clean(place), Prefix: datadir.VersionPrefix(major)})
		}
	}
	return found
}

// removeTree removes path and all below it; mount points stay, emptied.
func removeTree(path string) error {
	err := os.RemoveAll(path)
	if errors.Is(err, unix.EBUSY) {
		return clearDir(path)
	}
	return err
}

func clearDir(dir string) error { return clearDirBut(dir, datadir.LostFound) }

func clearDirBut(dir, stays string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	for _, e := range entries {
		if e.Name() == stays {
			continue
		}
		if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func removePrefixed(dir, prefix string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadUnfinished returns the mark; the error wraps os.ErrNotExist if there is none.
func ReadUnfinished(stateDir string) (Unfinished, error) {
	var m Unfinished
	text, err := os.ReadFile(filepath.Join(stateDir, unfinishedName))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", filepath.Join(stateDir, unfinishedName), err)
	}
	return m, nil
}

// WriteUnfinished replaces the mark durably.
func WriteUnfinished(stateDir string, m Unfinished) error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	return durable.ReplaceJSON(filepath.Join(stateDir, unfinishedName), m)
}

// RemoveUnfinished forgets a finished seeding. It need not be durable: with pg_control installed the mark means
// nothing.
func RemoveUnfinished(stateDir string) error {
	return fileio.IgnoreMissing(os.Remove(filepath.Join(stateDir, unfinishedName)))
}

// CheckOldCopy refuses to replace a copy of something else.
func CheckOldCopy(target, systemID string, major int) error {
	if v, err := os.ReadFile(filepath.Join(target, "PG_VERSION")); err == nil {
		if have := strings.TrimSpace(string(v)); have != strconv.Itoa(major) && have != "" {
			return fmt.Errorf("the directory %w: a cluster of PostgreSQL %s, the source runs %d; empty it yourself if it is not needed", ErrOther, have, major)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range []string{datadir.ControlFile, datadir.ControlOld} {
		have, err := datadir.ReadSystemID(filepath.Join(target, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if have != systemID {
			return fmt.Errorf("the directory %w: another cluster (system identifier %s, the source has %s); empty it yourself if it is not needed", ErrOther, have, systemID)
		}
	}
	return nil
}

// ErrOther is returned when the data directory holds something other than an older copy of the same cluster.
var ErrOther = errors.New("holds something else")

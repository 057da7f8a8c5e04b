package seeding

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names below the data directory. Only controlName makes a directory startable.
const (
	controlName  = "global/pg_control"
	controlNew   = "global/pg_control.coterie-tmp" // received, not installed yet
	controlOld   = "global/pg_control.reseeding"   // of a copy that is being replaced
	autoConfName = "postgresql.auto.conf"
	markName     = "seeding.json" // below StateDir
)

// mark is on disk, outside the data directory, from before anything is removed until the new copy is installed.
type mark struct {
	Target      string           `json:"target"`
	Started     time.Time        `json:"started"`
	Fresh       bool             `json:"fresh,omitempty"` // nothing of an older copy was there
	Tablespaces []markTablespace `json:"tablespaces,omitempty"`
	Codec       string           `json:"codec,omitempty"` // that AUTO found to be best over this link
}

// markTablespace names what may be removed beside the data directory: the entries of Location that begin with Prefix.
type markTablespace struct {
	Location string `json:"location"`
	Prefix   string `json:"prefix"` // PG_<major>_, so that clusters of other versions that share the place are left alone
}

// HalfSeeded reports whether target was being filled, or its old copy being removed, and never completed: it cannot be
// started and must be seeded again.
func HalfSeeded(target, stateDir string) bool {
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	}
	if exists(filepath.Join(target, controlName)) {
		return false // the commit point is behind it, or the old copy is still whole
	}
	m, err := readMark(stateDir)
	return (err == nil && m.Target == target) || exists(filepath.Join(target, controlNew)) || exists(filepath.Join(target, controlOld))
}

// checkPlaces returns the real path of the target after refusing places that cannot be right.
func checkPlaces(target, stateDir string) (string, error) {
	if !filepath.IsAbs(target) || !filepath.IsAbs(stateDir) {
		return target, fmt.Errorf("the data directory %q and the state directory %q must be absolute paths", target, stateDir)
	}
	target = filepath.Clean(target)
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	} else if !errors.Is(err, os.ErrNotExist) {
		return target, err
	}
	if target == "/" || within(stateDir, target) {
		return target, fmt.Errorf("the state directory %s must not lie inside the data directory", stateDir)
	}
	return target, nil
}

// prepare makes a checked target ready to be filled and returns whether it holds nothing of an older copy. A copy that is there
// cannot be started from the first step on; its files stay, to be compared. A missing or empty directory is fine; one that
// holds anything but a PostgreSQL cluster is refused untouched. The server must have been stopped, and what is to be kept of
// the old copy must have been kept. spaces are the places beside the target that are going to be filled.
func prepare(target, stateDir string, spaces map[uint32]string, major int) (fresh bool, err error) {
	if err := makeDir(target); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		return false, err
	}
	old, err := readMark(stateDir)
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
	m := mark{Target: target, Started: time.Now().UTC(), Fresh: !exists(filepath.Join(target, "PG_VERSION"))}
	if resumed {
		ours = append(ours, old.Tablespaces...)
		m.Fresh, m.Codec = old.Fresh, old.Codec
	}
	m.Tablespaces = slices.Clone(ours)
	for _, place := range spaces {
		if err := refuseOccupied(place, versionPrefix(major), ours); err != nil {
			return false, err
		}
		if t := (markTablespace{Location: place, Prefix: versionPrefix(major)}); !slices.Contains(m.Tablespaces, t) {
			m.Tablespaces = append(m.Tablespaces, t)
		}
	}
	// From here on nobody can start what is there.
	if err := disable(target); err != nil {
		return false, err
	}
	if err := writeMark(stateDir, m); err != nil {
		return false, err
	}
	return m.Fresh, removeUnused(ours, spaces, major)
}

// removeUnused removes the old copy's part of tablespaces that the new one does not have.
func removeUnused(ours []markTablespace, spaces map[uint32]string, major int) error {
	for _, t := range ours {
		used := false
		for _, place := range spaces {
			used = used || t == markTablespace{Location: place, Prefix: versionPrefix(major)}
		}
		if used {
			continue
		}
		if err := removePrefixed(t.Location, t.Prefix); err != nil {
			return err
		}
	}
	return nil
}

// makeDir creates the data directory if it is missing, durably, with the mode that PostgreSQL demands.
func makeDir(target string) error {
	st, err := os.Stat(target)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		return syncDir(filepath.Dir(target))
	case err != nil:
		return err
	case !st.IsDir():
		return errors.New("is not a directory")
	case st.Mode().Perm() != 0o700 && st.Mode().Perm() != 0o750:
		return os.Chmod(target, 0o700) //nolint:gosec // a directory
	}
	return nil
}

// refuseForeign refuses a directory whose contents are not known to be a PostgreSQL cluster, so that a mistyped path costs
// nothing.
func refuseForeign(target string, entries []os.DirEntry, marked bool) error {
	if marked || exists(filepath.Join(target, "PG_VERSION")) || exists(filepath.Join(target, controlNew)) || exists(filepath.Join(target, controlOld)) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != lostFound {
			return fmt.Errorf("is not empty (%s) and holds no PostgreSQL cluster; nothing was changed: name an empty directory", e.Name())
		}
	}
	return nil
}

// refuseRunning refuses a directory whose postmaster lives: the keeper stops it before anybody prepares. A process that only
// has the same id as a server of the past works elsewhere.
func refuseRunning(target string) error {
	text, err := os.ReadFile(filepath.Join(target, "postmaster.pid"))
	if err != nil {
		return ignoreMissing(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return nil // torn by a crash; nobody runs under it
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd == target {
		return fmt.Errorf("a PostgreSQL server runs there (pid %d); stop it first", pid)
	}
	return nil
}

// refuseOccupied refuses a place for a tablespace that holds another cluster's tablespace of the same version.
func refuseOccupied(place, prefix string, ours []markTablespace) error {
	if slices.ContainsFunc(ours, func(t markTablespace) bool { return t.Location == place && t.Prefix == prefix }) {
		return nil // left by an earlier attempt, or the old copy's: removed below
	}
	entries, err := os.ReadDir(place)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			return fmt.Errorf("tablespace directory %s is in use (%s); name an empty one", place, e.Name())
		}
	}
	return nil
}

// disable takes pg_control away, which is what makes a directory startable.
func disable(target string) error {
	err := os.Rename(filepath.Join(target, controlName), filepath.Join(target, controlOld))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Join(target, "global"))
}

// linkedTablespaces lists the tablespaces of the copy that is there, with the version it is of.
func linkedTablespaces(target string) []markTablespace {
	version, err := os.ReadFile(filepath.Join(target, "PG_VERSION"))
	if err != nil {
		return nil // a copy half removed: its tablespaces are in the mark already
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil {
		return nil
	}
	links, _ := filepath.Glob(filepath.Join(target, "pg_tblspc", "[0-9]*"))
	var found []markTablespace
	for _, l := range links {
		if place, err := os.Readlink(l); err == nil && filepath.IsAbs(place) {
			found = append(found, markTablespace{Location: filepath.Clean(place), Prefix: versionPrefix(major)})
		}
	}
	return found
}

func versionPrefix(major int) string { return "PG_" + strconv.Itoa(major) + "_" }

const lostFound = "lost+found" // of the file system whose mount point the directory is

// removeTree removes path and all below it; mount points stay, emptied.
func removeTree(path string) error {
	err := os.RemoveAll(path)
	if errors.Is(err, unix.EBUSY) {
		return clearDir(path)
	}
	return err
}

func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, e := range entries {
		if e.Name() == lostFound {
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
		return ignoreMissing(err)
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

func readMark(stateDir string) (mark, error) {
	var m mark
	text, err := os.ReadFile(filepath.Join(stateDir, markName))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", filepath.Join(stateDir, markName), err)
	}
	return m, nil
}

func writeMark(stateDir string, m mark) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(stateDir, markName)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(stateDir)
}

// removeMark forgets a finished seeding. It need not be durable: with pg_control installed the mark means nothing.
func removeMark(stateDir string) error {
	return ignoreMissing(os.Remove(filepath.Join(stateDir, markName)))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ignoreMissing turns "does not exist" into success.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

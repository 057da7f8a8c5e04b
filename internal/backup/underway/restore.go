package underway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// MarkFile is the name of the file that a directory has for as long as something is restored into it.
const MarkFile = "restoring.json"

// restoresDir is the directory of a node's directory of backups with a file for each restore that was begun there.
const restoresDir = "restores"

// mostRestores bounds the restores of a node that are told.
const mostRestores = 50

// mark is the content of the file of a restore.
type mark struct {
	backup.Restore
	At string `json:"at,omitempty"` // the node's directory of backups that has a file of it, too; "": none has
}

// Mark is the note of a restore by this process. Make it with BeginRestore, and End it.
type Mark struct {
	files []*os.File // held
	paths []string   // of each
}

// BeginRestore notes a restore in the directory that it fills, which exists, and in the directory of backups of the
// node from which it was begun; "": there is none.
func BeginRestore(at string, r backup.Restore) (_ *Mark, err error) {
	m := &Mark{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("note the restore: %w", err), m.End())
		}
	}()
	var paths []string // the node's first: its word of a directory without a mark is forgotten, a mark that no node knows stays
	if at != "" {
		if err := os.Mkdir(filepath.Join(at, restoresDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		paths = append(paths, nodeFile(at, r.ID))
	}
	paths = append(paths, filepath.Join(r.Dir, MarkFile))
	b, err := json.Marshal(mark{r, at})
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := m.write(path, b); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// write makes a file that this process holds. A node that looks at its own finds it held, or not at all.
func (m *Mark) write(path string, b []byte) error {
	name := path
	if filepath.Base(path) != MarkFile { // it has a new id in its name; another process may have made the mark
		name += ".new"
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	m.files, m.paths = append(m.files, f), append(m.paths, name)
	if err := hold(f); err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	if name != path {
		if err := os.Rename(name, path); err != nil {
			return err
		}
		m.paths[len(m.paths)-1] = path
	}
	return errors.Join(f.Sync(), durable.SyncDir(filepath.Dir(path)))
}

func nodeFile(at, id string) string { return filepath.Join(at, restoresDir, id+".json") }

// End removes what BeginRestore has written: the restore is over, and nothing of it is left that should not be there.
func (m *Mark) End() (err error) {
	for i, f := range slices.Backward(m.files) {
		if bad := os.Remove(m.paths[i]); bad != nil && !errors.Is(bad, fs.ErrNotExist) {
			err = errors.Join(err, bad)
		}
		_ = f.Close() // nothing more is written
	}
	m.files, m.paths = nil, nil
	return err
}

// Restores returns the restores that were begun from a node with this directory of backups and are not over, the oldest
// first. One that was interrupted and whose directory is gone, or has no mark, is forgotten.
func Restores(at string) (out []backup.Restore) {
	paths, _ := filepath.Glob(nodeFile(at, "*")) // the pattern is sound
	for _, path := range paths[:min(len(paths), mostRestores)] {
		runs := held(path)
		var m mark
		if readJSON(path, &m) != nil {
			if !runs {
				_ = os.Remove(path) // of a process that ended before it had written it
			}
			continue
		}
		if _, err := os.Lstat(filepath.Join(m.Dir, MarkFile)); !runs && errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path)
			continue
		}
		m.Interrupted = !runs
		out = append(out, m.Restore)
	}
	slices.SortFunc(out, func(a, b backup.Restore) int { return a.Started.Compare(b.Started) })
	return out
}

// id is what the id of a restore looks like.
var id = regexp.MustCompile(`^[[:alnum:]-]{1,64}$`)

// Undo removes what a restore that was interrupted has left in the directory, and for a drill the directory itself. It
// is refused if the directory has no such mark, while the restore or a server on what it has restored runs, and where
// the restore was whole already. It must run as the user of the directory.
func Undo(dir string) (backup.Restore, error) {
	path := filepath.Join(dir, MarkFile)
	var m mark
	if err := readJSON(path, &m); errors.Is(err, fs.ErrNotExist) || err == nil && !id.MatchString(m.ID) {
		return m.Restore, fail.Refusedf("%s has no mark of a restore that was interrupted (%s); nothing was changed", dir, MarkFile)
	} else if err != nil {
		return m.Restore, fail.Refusedf("the mark of a restore in %s cannot be read: %w; nothing was changed", dir, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return m.Restore, err
	}
	defer func() { _ = f.Close() }()
	if err := own(dir, f); err != nil {
		return m.Restore, err
	}
	if err := hold(f); err != nil {
		return m.Restore, fail.Refusedf("the restore into %s is under way, since %s; nothing was changed: end its process first", dir, m.Started.Local().Format(time.DateTime))
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		return m.Restore, err
	}
	if _, err := os.Lstat(filepath.Join(dir, config.File)); err == nil {
		return m.Restore, errors.Join(fail.Refusedf("the new group in %s was whole when its restore was interrupted; only the mark of the restore was removed: start it with coterie agent --node %[1]s, or remove it with coterie destroy", dir),
			m.forget(path))
	}
	if process, runs := l.Running(); runs {
		return m.Restore, fail.Refusedf("a process runs on %s%s; nothing was changed: end it first", dir, process)
	}
	for _, data := range []string{"pgdata", "data"} {
		if pid := postmaster(filepath.Join(dir, data)); pid > 0 {
			return m.Restore, fail.Refusedf("a PostgreSQL server runs on %s (process %d); nothing was changed: end it first", dir, pid)
		}
	}
	return m.Restore, errors.Join(m.clear(dir, l.Run), m.forget(path))
}

// own returns an error unless this user has made the mark, in a directory of its own. In /tmp, anybody can put a mark
// beside what others have there.
func own(dir string, mark *os.File) error {
	in, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, err := mark.Stat()
	if err != nil {
		return err
	}
	user := uint32(os.Getuid())
	if in.Sys().(*syscall.Stat_t).Uid != user || st.Sys().(*syscall.Stat_t).Uid != user {
		return fail.Refusedf("%s or the mark of a restore in it (%s) belongs to another user than %d; nothing was changed: look at what is there, and remove it yourself", dir, MarkFile, user)
	}
	return nil
}

// clear removes everything of the directory but the mark.
func (m mark) clear(dir, run string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if !m.Drill {
		err = os.RemoveAll(run)
	}
	for _, e := range entries {
		if e.Name() != MarkFile {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// forget removes the mark last, and for a drill its directory.
func (m mark) forget(path string) error {
	err := durable.Remove(path)
	if m.At != "" {
		err = errors.Join(err, ignoreMissing(os.Remove(nodeFile(m.At, m.ID))))
	}
	if m.Drill {
		err = errors.Join(err, os.Remove(filepath.Dir(path)))
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// postmaster returns the process of the server that runs on a data directory; 0: none does.
func postmaster(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	var pid int
	if _, bad := fmt.Sscan(string(b[:min(len(b), 32)]), &pid); err != nil || bad != nil || pid <= 1 || syscall.Kill(pid, 0) != nil {
		return 0
	}
	if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || at != data { // another process has the number by now
		return 0
	}
	return pid
}

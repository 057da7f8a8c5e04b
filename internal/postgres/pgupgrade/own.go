package pgupgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/durable"
)

// identity tells a directory from another one that somebody has put in its place.
type identity struct {
	Inode uint64 `json:"inode"`
	Born  int64  `json:"born,omitempty"` // in nanoseconds; 0: the file system does not say
}

// errForeign is returned for what is in the place of a directory, and was not made by this node.
var errForeign = errors.New("is there, and was not made by an upgrade of this node; move it away")

// identify returns the identity of a directory. A link to one is none.
func identify(dir string) (id identity, err error) {
	var st unix.Statx_t
	const want = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BTIME
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, want, &st); err != nil {
		return id, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return id, fmt.Errorf("%s %w", dir, errForeign)
	}
	id.Inode = st.Ino
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

// made returns the directories that the file Made names, by path. One that is damaged names none, and no directory is
// taken for this node's then.
func (j Job) made() map[string]identity {
	all := map[string]identity{}
	if b, err := os.ReadFile(j.Made); err != nil || json.Unmarshal(b, &all) != nil || all == nil {
		return map[string]identity{}
	}
	return all
}

// mkdir makes an empty directory and notes that it is of this node. A file or directory that is there is an error.
func (j Job) mkdir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s %w", dir, errForeign)
	}
	if err != nil {
		return err
	}
	id, err := identify(dir)
	if err == nil {
		all := j.made()
		all[dir] = id
		err = durable.ReplaceJSON(j.Made, all)
	}
	if err != nil {
		return errors.Join(err, unix.Rmdir(dir))
	}
	return nil
}

// Owns reports whether mkdir has made the directory that is there.
func (j Job) Owns(dir string) (bool, error) {
	id, err := identify(dir)
	if err != nil {
		return false, err
	}
	noted, ok := j.made()[dir]
	return ok && noted == id, nil
}

// remove removes a directory that mkdir has made, with what is in it. An empty one may be that of a mkdir that was
// interrupted, and is removed as well. Anything else stays, and the error is errForeign.
func (j Job) remove(dir string) error {
	owned, err := j.Owns(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !owned:
		if unix.Rmdir(dir) != nil {
			return fmt.Errorf("%s %w", dir, errForeign)
		}
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	all := j.made()
	delete(all, dir)
	_ = durable.ReplaceJSON(j.Made, all) // a full disk: the identity of the next directory there is another one
	return nil
}

// removeOwn is remove, and lets be what is not of this node.
func (j Job) removeOwn(dir string) error {
	err := j.remove(dir)
	if errors.Is(err, errForeign) {
		if j.Log != nil {
			j.Log.Warn("a directory in the place of the new cluster is left as it is", "err", err)
		}
		return nil
	}
	return err
}

// Keep notes that the new cluster is the group's. No Undo removes its directories from then on.
func (j Job) Keep() error {
	all := j.made()
	delete(all, j.New.Data)
	delete(all, j.New.WAL)
	return durable.ReplaceJSON(j.Made, all)
}

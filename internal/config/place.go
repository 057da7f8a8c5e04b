package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ServerUser is the name of the user that runs nodes if the administrator is root.
const ServerUser = "postgres"

// maxLinks is how many symbolic links a path may lead through.
const maxLinks = 40

// CheckPlace returns an error if another user could change a node directory that is to be made at path, or put
// something else in its place. That is so if a directory or a link on the way there belongs to a user other than root,
// this process's, the one that runs nodes, and the one that called sudo. It is also so if another user may write to
// one. A directory with the sticky bit, as /tmp, may be written to by everybody. CheckPlace looks at nothing that does
// not exist yet.
func CheckPlace(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	w := walk{node: abs, trusted: trustedUsers()}
	real, err := w.follow(abs)
	if err != nil || real == abs {
		return err
	}
	w.node = real // behind links
	if err := w.look(real); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// trustedUsers returns the ids of the users that may own what is above a node directory.
func trustedUsers() []int {
	ids := []int{0, os.Geteuid()}
	if u, err := user.Lookup(ServerUser); err == nil && os.Geteuid() == 0 {
		if id, err := strconv.Atoi(u.Uid); err == nil {
			ids = append(ids, id)
		}
	}
	if id, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil { // it has root's privileges
		ids = append(ids, id)
	}
	return ids
}

// walk looks at a path from the root on.
type walk struct {
	node    string // the path that was asked for
	trusted []int
	links   int
}

// follow looks at each part of an absolute path, and returns the path without links. The rest that does not exist is
// returned as it is.
func (w *walk) follow(abs string) (string, error) {
	at := "/"
	if err := w.look(at); err != nil {
		return "", err
	}
	parts := strings.Split(strings.Trim(filepath.Clean(abs), "/"), "/")
	for i, name := range parts {
		next := filepath.Join(at, name)
		st, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(append([]string{at}, parts[i:]...)...), nil
		}
		if err != nil {
			return "", err
		}
		if st.Mode()&fs.ModeSymlink != 0 {
			if next, err = w.link(at, next, st); err != nil {
				return "", err
			}
		} else if err := w.look(next); err != nil {
			return "", err
		}
		at = next
	}
	return at, nil
}

// link looks at a symbolic link in the directory at, and at what it leads to.
func (w *walk) link(at, path string, st os.FileInfo) (string, error) {
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); !slices.Contains(w.trusted, owner) {
		return "", fmt.Errorf("%s is a link of %s, who may lead it elsewhere: name the directory itself", path, nameOf(owner))
	}
	if w.links++; w.links > maxLinks {
		return "", fmt.Errorf("%s: too many links", path)
	}
	target, err := os.Readlink(path)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(at, target)
	}
	return w.follow(target)
}

// look judges one directory.
func (w *walk) look(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	sys := st.Sys().(*syscall.Stat_t)
	owner, mode := int(sys.Uid), st.Mode()
	sticky := mode&fs.ModeSticky != 0 && path != w.node
	switch {
	case !mode.IsDir():
		return nil // what comes next says so
	case !slices.Contains(w.trusted, owner):
		return fmt.Errorf("%s belongs to %s, who may put something else in its place: choose a directory below one of yours", path, nameOf(owner))
	case mode.Perm()&0o002 != 0 && !sticky:
		return fmt.Errorf("every user may write to %s: chmod o-w %[1]s first, or choose another directory", path)
	case mode.Perm()&0o020 != 0 && !sticky && !ownGroup(owner, int(sys.Gid)):
		return fmt.Errorf("the group %d may write to %s: chmod g-w %[2]s first, or choose another directory", sys.Gid, path)
	}
	return nil
}

// ownGroup reports whether a group is root's, or has nobody but its user: by convention it has the user's name then.
func ownGroup(uid, gid int) bool {
	if gid == 0 {
		return true
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil || u.Gid != strconv.Itoa(gid) {
		return false
	}
	g, err := user.LookupGroupId(u.Gid)
	return err == nil && g.Name == u.Username
}

func nameOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return "user " + strconv.Itoa(uid)
}

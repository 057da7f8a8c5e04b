package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
)

// maxCommands is how many files of a directory are commands.
const maxCommands = 16

// commandName is what a command is called. Other files, such as those that an editor leaves, are none.
var commandName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// File is a file in a directory of commands.
type File struct {
	Name string
	// Bad is why it is not run; "": it is.
	Bad string
}

// List returns the files of a directory of commands, in the order in which they are run. An error means that none of
// them is run; it is fs.ErrNotExist if there is no directory. owner is the user that runs them.
//
// The directory and each file that is run belong to root or to owner, and only those may write to them: nobody else can
// choose what is run.
func List(dir string, owner int) ([]File, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	if bad := unsafe(info, owner); bad != "" {
		return nil, errors.New(dir + " " + bad)
	}
	if !permits(info, owner, 0o5) {
		return nil, errors.New(dir + " may not be read by the node's user")
	}
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var out []File
	n := 0
	for _, e := range entries {
		f := File{Name: e.Name(), Bad: judge(filepath.Join(dir, e.Name()), owner)}
		if f.Bad == "" {
			if n++; n > maxCommands {
				f.Bad = fmt.Sprintf("is one of more than %d", maxCommands)
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// judge returns why a file is not run.
func judge(path string, owner int) string {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return "cannot be looked at"
	case !commandName.MatchString(filepath.Base(path)):
		return "has a name with other signs than letters, digits, _ and -"
	case !info.Mode().IsRegular():
		return "is no regular file"
	case info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return "changes its user"
	case info.Mode().Perm()&0o111 == 0:
		return "may not be executed"
	}
	if bad := unsafe(info, owner); bad != "" {
		return bad
	}
	if !permits(info, owner, 0o1) {
		return "may not be executed by the node's user"
	}
	return ""
}

// permits reports whether owner has those rights to a file of owner or of root. Of root's, the rights of its group
// count: whether owner is in it is not asked.
func permits(info fs.FileInfo, owner int, rights fs.FileMode) bool {
	perm := info.Mode().Perm()
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == owner {
		return perm>>6&rights == rights
	}
	return perm>>3&rights == rights || perm&rights == rights
}

// unsafe returns why others than root and the owner could change a file or a directory.
func unsafe(info fs.FileInfo, owner int) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !slices.Contains([]int{0, owner}, int(st.Uid)):
		return "belongs to another user"
	case info.Mode().Perm()&0o022 != 0:
		return "may be written by other users"
	}
	return ""
}

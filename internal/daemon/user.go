package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// ServerUserName is the name of the user that runs agent, keeper and servers if the administrator is root. PostgreSQL
// refuses to run as root.
const ServerUserName = config.ServerUser

// makeServerUser is the command that makes ServerUserName on a machine without PostgreSQL, as distributions make it.
const makeServerUser = "useradd --system --user-group --no-create-home --home-dir /var/lib/postgresql --shell /bin/bash " + ServerUserName

// User is a user of this host.
type User struct {
	UID, GID int
	Name     string
	Home     string
	account  *user.User // nil: the host knows only the number
}

// ServerUser looks up the user ServerUserName. Call it if this process is root.
func ServerUser() (User, error) {
	u, err := user.Lookup(ServerUserName)
	if err != nil {
		return User{}, fmt.Errorf("there is no user %s, as which a node runs: install PostgreSQL or Coterie's package, or make the user (a witness needs no more) by: %s; "+
			"or run this as an ordinary user, since PostgreSQL refuses to run as root", ServerUserName, makeServerUser)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return User{UID: uid, GID: gid, Name: u.Username, Home: u.HomeDir, account: u}, errors.Join(err1, err2)
}

// Owner returns the user that owns a directory, which this host need not know by a name.
func Owner(dir string) (User, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return User{}, err
	}
	own := st.Sys().(*syscall.Stat_t)
	u := User{UID: int(own.Uid), GID: int(own.Gid), Name: strconv.Itoa(int(own.Uid)), Home: "/"}
	account, err := user.LookupId(u.Name)
	if err != nil {
		return u, nil //nolint:nilerr // the number suffices
	}
	gid, err := strconv.Atoi(account.Gid)
	return User{UID: u.UID, GID: gid, Name: account.Username, Home: account.HomeDir, account: account}, err
}

// Groups returns the ids of all groups of the user.
func (u User) Groups() ([]int, error) {
	if u.account == nil {
		return []int{u.GID}, nil
	}
	ids, err := u.account.GroupIds()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, g := range ids {
		if id, err := strconv.Atoi(g); err == nil {
			out = append(out, id)
		}
	}
	return out, nil
}

// BecomeServerUser gives the node directory to ServerUser and becomes that user, if this process is root. It does not
// return then, except with an error: it executes the program again, which also makes the program's own files in /proc
// readable to it. The process that this becomes calls TakeBack once the node is made, or was not.
func BecomeServerUser(dir string) (err error) {
	if os.Getuid() != 0 {
		hideTaker()
		return nil
	}
	u, err := ServerUser()
	if err != nil {
		return err
	}
	was, err := prepareFor(dir, u.UID, u.GID)
	if err != nil {
		return err
	}
	defer was.takeBack() // not reached where this process becomes another
	taker, err := was.leave()
	if err != nil {
		return err
	}
	exe, err := ReachableExe(u.UID)
	if err != nil {
		return err
	}
	groups, err := u.Groups()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // capabilities belong to a thread: the thread that keeps them must also execute the program below
	defer runtime.UnlockOSThread()
	raise, err := keepNetworkCapabilities()
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(u.GID), syscall.Setuid(u.UID), raise()); err != nil {
		return fmt.Errorf("become user %s: %w", ServerUserName, err)
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, "USER=") && !strings.HasPrefix(e, "XDG_") {
			env = append(env, e)
		}
	}
	env = append(env, "HOME="+u.Home, "USER="+ServerUserName)
	env = append(env, taker...)
	if _, err := os.ReadDir("."); err != nil { // the server's user may be unable to read the administrator's working directory
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	argv := withNode(os.Args, abs) // an absolute path does not depend on the working directory
	return fmt.Errorf("as user %s: %w", ServerUserName, execute(exe, argv, env))
}

// withNode returns a command line that names the node directory once, where it named it in whatever way or not at all.
func withNode(args []string, dir string) []string {
	var out, rest []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			rest, i = args[i:], len(args)
		case a == "--node":
			i++
		case !strings.HasPrefix(a, "--node="):
			out = append(out, a)
		}
	}
	return append(append(out, "--node", dir), rest...)
}

// prepareFor gives the node directory and the parent of the run directories to the user. A path that the user cannot
// enter is refused. It returns what the disk was like before, which is as it was if this fails.
func prepareFor(dir string, uid, gid int) (was before, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return was, err
	}
	fresh := true
	if entries, err := os.ReadDir(abs); err == nil && len(entries) > 0 {
		fresh = false
		if _, err := os.Stat(filepath.Join(abs, config.File)); err != nil {
			return was, fail.Refusedf("%s is not a node directory and not empty: it is not given to user %s; choose another --node directory", abs, ServerUserName)
		}
		if err := ownNode(abs, uid); err != nil {
			return was, err
		}
	}
	if err := reachable(abs, uid, gid, "--node"); err != nil {
		return was, err
	}
	if was, err = lookBefore(abs); err != nil {
		return was, err
	}
	defer func() {
		if err != nil {
			was.takeBack()
		}
	}()
	if err := makePrivate(abs); err != nil {
		return was, err
	}
	if fresh { // also what was made on the way there is looked at; an existing node is as its administrator left it
		if err := config.CheckPlace(abs); err != nil {
			return was, fail.Refusedf("%s is not given to user %s: %w", abs, ServerUserName, err)
		}
	}
	if err := give(abs, uid, gid); err != nil {
		return was, fmt.Errorf("give %s to user %s: %w", abs, ServerUserName, err)
	}
	run := "/run/coterie"
	if err := os.MkdirAll(run, 0o755); err != nil { //nolint:gosec // private files are in directories below it
		return was, nil //nolint:nilerr // without /run, the run directory is in /tmp
	}
	return was, os.Lchown(run, uid, gid)
}

// reachable refuses a directory that the user cannot enter. flag is the one that names another.
func reachable(dir string, uid, gid int, flag string) error {
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		st, err := os.Stat(parent)
		if err == nil && !mayEnter(st, uid, gid) {
			return fail.Refusedf("user %s cannot enter %s, which %s is in: run chmod o+x %s, or choose another %s directory", ServerUserName, parent, dir, parent, flag)
		}
		if parent == "/" {
			return nil
		}
	}
}

// ownNode refuses the node directory of another user than that one and root: its node could not run any more.
func ownNode(dir string, uid int) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	if owner == uid || owner == 0 {
		return nil
	}
	name := strconv.Itoa(owner)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return fail.Refusedf("%s is the node of user %s and is not given to user %s: run this as %[2]s", dir, name, ServerUserName)
}

// openReal opens the directory to which a path leads. A link that takes its place meanwhile is not followed.
func openReal(dir string) (*os.File, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	return os.OpenFile(real, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
}

// give changes the owner of a directory, and of nothing that has taken its place since it was looked at: what is there
// belongs to the user already, or is root's and a node directory or empty. The user itself may be able to put a link
// there, to a directory of root that is neither.
func give(dir string, uid, gid int) error {
	f, err := openReal(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != uid {
		names, err := f.Readdirnames(-1)
		if err != nil {
			return err
		}
		if owner != 0 || len(names) > 0 && !slices.Contains(names, config.File) {
			return fail.Refusedf("another directory has taken its place, %s; who could do that? Nothing was given away", f.Name())
		}
	}
	return f.Chown(uid, gid)
}

// mayEnter reports whether the user with that uid and gid may enter a directory. A gid of -1 means that no group is
// considered.
func mayEnter(st os.FileInfo, uid, gid int) bool {
	owner := st.Sys().(*syscall.Stat_t)
	mode := st.Mode().Perm()
	switch {
	case int(owner.Uid) == uid:
		return mode&0o100 != 0
	case int(owner.Gid) == gid:
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}

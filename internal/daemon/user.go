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

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// ServerUser runs agent, keeper and servers where the administrator is root: PostgreSQL refuses to run as root.
const ServerUser = "postgres"

// BecomeServerUser gives the node directory to the user that runs servers and becomes that user, if this process is root. It does
// not return then: the program is executed again, which also makes its own files in /proc readable to itself.
func BecomeServerUser(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(ServerUser)
	if err != nil {
		return fmt.Errorf("there is no user %s, and PostgreSQL refuses to run as root: install PostgreSQL, or run this as an ordinary user", ServerUser)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := prepareFor(dir, uid, gid); err != nil {
		return err
	}
	exe, err := ReachableExe(uid)
	if err != nil {
		return err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return err
	}
	var gids []int
	for _, g := range groups {
		if id, err := strconv.Atoi(g); err == nil {
			gids = append(gids, id)
		}
	}
	runtime.LockOSThread() // capabilities are a thread's: what executes the program below has to be the one that kept them
	defer runtime.UnlockOSThread()
	raise, err := keepNetworkCapabilities()
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(gids), syscall.Setgid(gid), syscall.Setuid(uid), raise()); err != nil {
		return fmt.Errorf("become user %s: %w", ServerUser, err)
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, "USER=") && !strings.HasPrefix(e, "XDG_") {
			env = append(env, e)
		}
	}
	env = append(env, "HOME="+u.HomeDir, "USER="+ServerUser)
	if _, err := os.ReadDir("."); err != nil { // where the administrator stands may be closed to the server's user
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	argv := append(slices.Clone(os.Args), "--node", abs) // the last one wins, and it means the same from anywhere
	return fmt.Errorf("as user %s: %w", ServerUser, reexec(exe, argv, env))
}

// prepareFor makes the node directory and the parent of run directories the user's own, and refuses a path that the user could not
// enter.
func prepareFor(dir string, uid, gid int) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for parent := filepath.Dir(abs); ; parent = filepath.Dir(parent) {
		st, err := os.Stat(parent)
		if err == nil && !mayEnter(st, uid, gid) {
			return fail.Refusedf("user %s cannot enter %s, which %s is in: run chmod o+x %s, or choose another --node directory", ServerUser, parent, abs, parent)
		}
		if parent == "/" {
			break
		}
	}
	if err := os.MkdirAll(filepath.Dir(abs), 0o755); err != nil { //nolint:gosec // the user must get through it
		return err
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return err
	}
	if err := os.Lchown(abs, uid, gid); err != nil {
		return fmt.Errorf("give %s to user %s: %w", abs, ServerUser, err)
	}
	run := "/run/coterie"
	if err := os.MkdirAll(run, 0o755); err != nil { //nolint:gosec // what is private lies in directories below it
		return nil //nolint:nilerr // no /run: the run directory goes to /tmp
	}
	return os.Lchown(run, uid, gid)
}

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

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/config"
)

// serverUser runs agent, keeper and servers where the administrator is root: PostgreSQL refuses to run as root.
const serverUser = "postgres"

func agentCommand() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use:     "agent",
		GroupID: "node",
		Short:   "Run this node (what a service unit starts)",
		Long: `Runs the node of a node directory made by coterie init, join or witness: its part of the quorum, its PostgreSQL, its ports.
It logs to DIR/log/agent.log and, on a terminal, to the screen. SIGTERM or Ctrl-C stops the server in order, releases the leadership
and ends. Started as root it becomes user ` + serverUser + ` first.`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			if _, err := config.Load(dir); err != nil { // before the directory changes hands
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			if err := becomeServerUser(dir); err != nil {
				return err
			}
			if err := takeSlack(); err != nil {
				return err
			}
			return runAgent(c, dir, verbose)
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log debug messages too")
	return c
}

func runAgent(c *cobra.Command, dir string, verbose bool) error {
	if _, err := config.Load(dir); err != nil {
		return err
	}
	log, closeLog, err := openLog(dir, verbose)
	if err != nil {
		return err
	}
	defer closeLog()
	// A quiet agent holds some 20 MB; letting the heap grow fourfold, within a limit, halves what it spends on collecting garbage.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(100 << 20)
	err = runNode(c.Context(), dir, log)
	if err != nil {
		log.Error("agent ended", "err", err)
	} else {
		log.Info("agent ended")
	}
	return err
}

func openLog(dir string, verbose bool) (*slog.Logger, func(), error) {
	logDir := filepath.Join(dir, "log")
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(filepath.Join(logDir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	level := slog.LevelInfo
	if verbose || os.Getenv("COTERIE_DEBUG") != "" {
		level = slog.LevelDebug
	}
	w := io.Writer(f)
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		w = io.MultiWriter(f, os.Stderr)
	}
	log := newPatientLog(w)
	end := func() {
		log.Close()
		_ = f.Close()
	}
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})), end, nil
}

// becomeServerUser gives the node directory to the user that runs servers and becomes that user, if this process is root. It does
// not return then: the program is executed again, which also makes its own files in /proc readable to itself.
func becomeServerUser(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(serverUser)
	if err != nil {
		return fmt.Errorf("there is no user %s, and PostgreSQL refuses to run as root: install PostgreSQL, or run this as an ordinary user", serverUser)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := prepareFor(dir, uid, gid); err != nil {
		return err
	}
	exe, err := reachableExe(uid)
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
		return fmt.Errorf("become user %s: %w", serverUser, err)
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, "USER=") && !strings.HasPrefix(e, "XDG_") {
			env = append(env, e)
		}
	}
	env = append(env, "HOME="+u.HomeDir, "USER="+serverUser)
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
	return fmt.Errorf("as user %s: %w", serverUser, execAgain(exe, argv, env))
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
			return fail.Refusedf("user %s cannot enter %s, which %s is in: run chmod o+x %s, or choose another --node directory", serverUser, parent, abs, parent)
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
		return fmt.Errorf("give %s to user %s: %w", abs, serverUser, err)
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

// exeCache is where root keeps copies of this program for the server's user, when it lies where that user cannot go.
const exeCache = "/var/cache/coterie"

// reachableExe returns a path at which the user can execute this program: its own, or a copy that root makes where everybody may read.
func reachableExe(uid int) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	for p := filepath.Dir(exe); p != "/"; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err != nil || !mayEnter(st, uid, -1) {
			to, err := copyExe(exe)
			if err != nil {
				return "", fail.Refusedf("user %s cannot enter %s, where this program is, and no copy could be made (%w): install it with: install -m 755 %s /usr/local/bin/coterie",
					serverUser, p, err, exe)
			}
			return to, nil
		}
	}
	return exe, nil
}

// copyLife is how long a copy of the program that nothing runs is kept after it was last asked for: a lab that is down names one.
const copyLife = 24 * time.Hour

// pruneExes removes the copies that nobody asked for since, and that no process runs. What cannot be removed stays.
func pruneExes(cache string, since time.Time) {
	copies, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	running := map[string]bool{}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil {
			running[filepath.Dir(exe)] = true
		}
	}
	for _, c := range copies {
		dir := filepath.Join(cache, c.Name())
		if st, err := c.Info(); err == nil && st.IsDir() && st.ModTime().Before(since) && !running[dir] {
			_ = os.RemoveAll(dir)
		}
	}
}

// copyExe copies the program to exeCache under a name that only this very file has, and returns the copy's path.
func copyExe(exe string) (string, error) {
	in, err := os.Open(exe)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(exeCache, fmt.Sprintf("%x-%x", st.ModTime().UnixNano(), st.Sys().(*syscall.Stat_t).Ino))
	to := filepath.Join(dir, "coterie")
	if have, err := os.Stat(to); err == nil && have.Size() == st.Size() {
		now := time.Now()
		return to, os.Chtimes(dir, now, now) // in use: it is not pruned
	}
	pruneExes(exeCache, time.Now().Add(-copyLife))
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the server's user reads here
		return "", err
	}
	out, err := os.CreateTemp(dir, "new")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return to, os.Rename(out.Name(), to)
}

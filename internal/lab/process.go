package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// process is one process as /proc shows it. Its start time tells it from a later one with the same number.
type process struct {
	pid, ppid int
	start     string
	state     byte
	comm      string
	uid       int
	argv      []string
}

func (p process) stopped() bool { return p.state == 'T' || p.state == 't' }

// processes lists the running processes of this machine, without zombies.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// readProcess reads one process; ok is false if the process does not exist or is a zombie.
func readProcess(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return process{}, false
	}
	p := process{pid: pid, state: f[0][0], start: f[19], comm: string(b[open+1 : end])}
	p.ppid, _ = strconv.Atoi(f[1]) // the kernel wrote it
	st, err := os.Stat(dir)
	if err != nil {
		return process{}, false
	}
	p.uid = int(st.Sys().(*syscall.Stat_t).Uid)
	if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil {
		p.argv = strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	}
	return p, true
}

// alive reports whether this very process still runs.
func (p process) alive() bool {
	now, ok := readProcess(p.pid)
	return ok && now.start == p.start
}

// signal signals this very process and never a later one with its number. A process that has ended is not an error.
func (p process) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil { // a kernel before 5.3
		if !p.alive() {
			return nil
		}
		return ignoreGone(syscall.Kill(p.pid, sig))
	}
	defer func() { _ = unix.Close(fd) }()
	if !p.alive() { // the descriptor may be that of a successor; from here on it is of this one
		return nil
	}
	return ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// tree is every process of one node.
type tree struct {
	agent, keeper, postgres *process
	all                     []process
}

func (t tree) running() bool { return len(t.all) > 0 }

// paused reports whether every process of the node is stopped.
func (t tree) paused() bool { return t.running() && allStopped(t.all) }

func allStopped(ps []process) bool {
	return !slices.ContainsFunc(ps, func(p process) bool { return !p.stopped() })
}

// part returns the processes named by what: all processes of the node, its agent, its keeper, or its server with all of
// its forks.
func (t tree) part(what string) []process {
	switch {
	case what == WhatAgent && t.agent != nil:
		return []process{*t.agent}
	case what == WhatKeeper && t.keeper != nil:
		return []process{*t.keeper}
	case what == WhatPostgres:
		return slices.DeleteFunc(slices.Clone(t.all), func(p process) bool { return p.comm != "postgres" })
	case what == WhatNode:
		return t.all
	}
	return nil
}

// treeOf finds the processes of a node: its agent and its keeper by their command lines, its servers by their data
// directory, and all of their descendants. Processes of other users do not count, with any command line.
func treeOf(ps []process, n Node, uid int) tree {
	var t tree
	in := map[int]bool{}
	data := filepath.Join(n.Dir, "pgdata")
	for i, p := range ps {
		if p.pid == os.Getpid() || p.uid != uid && p.uid != os.Getuid() {
			continue
		}
		switch {
		case isAgent(p, n.Dir):
			t.agent, in[p.pid] = &ps[i], true
		case slices.Contains(p.argv, "keeper") && hasOption(p.argv, "--dir", n.Dir):
			t.keeper, in[p.pid] = &ps[i], true
		case isSetup(p, n.Dir), p.comm == "postgres" && (hasOption(p.argv, "-D", data) || runsIn(p, data)):
			in[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range ps {
			if in[p.ppid] && !in[p.pid] && p.pid != os.Getpid() {
				in[p.pid], grown = true, true
			}
		}
	}
	for i, p := range ps {
		if !in[p.pid] {
			continue
		}
		t.all = append(t.all, p)
		// A backend just forked looks like the postmaster, but its parent is one of the servers.
		parent := slices.IndexFunc(ps, func(q process) bool { return q.pid == p.ppid })
		if p.comm == "postgres" && hasOption(p.argv, "-D", data) && (parent < 0 || ps[parent].comm != "postgres") {
			t.postgres = &ps[i]
		}
	}
	return t
}

// isAgent reports whether a process runs an agent of the node directory: coterie agent, or a coterie init or join that
// continued as one.
func isAgent(p process, dir string) bool {
	return isCommand(p.argv, dir, "agent", "init", "join", "witness") && !slices.Contains(p.argv, "--no-start")
}

// isSetup recognizes a command that is making the node directory.
func isSetup(p process, dir string) bool {
	return isCommand(p.argv, dir, "init", "join", "witness") && slices.Contains(p.argv, "--no-start")
}

func isCommand(argv []string, dir string, names ...string) bool {
	return hasOption(argv, "--node", dir) && slices.ContainsFunc(names, func(s string) bool { return slices.Contains(argv, s) })
}

func hasOption(argv []string, name, value string) bool {
	for i, a := range argv {
		if a == name+"="+value || a == name && i+1 < len(argv) && filepath.Clean(argv[i+1]) == value {
			return true
		}
	}
	return false
}

// runsIn reports whether the process works in dir, as every process of a server does in its data directory.
func runsIn(p process, dir string) bool {
	cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.pid), "cwd"))
	return err == nil && cwd == dir
}

// find reads the processes of a node.
func (l *Lab) find(n Node) (tree, error) {
	ps, err := processes()
	if err != nil {
		return tree{}, err
	}
	uid, _, err := nodeUser()
	if err != nil {
		return tree{}, err
	}
	return treeOf(ps, n, uid), nil
}

// freeze stops what is named of a node and returns it. It is over when two looks in a row found the same processes, all
// of them stopped: then none of them can have started another unseen.
func (l *Lab) freeze(n Node, what string) ([]process, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var part []process
	size, still := -1, 0
	err := retry.Until(ctx, 2*time.Millisecond, func() (bool, error) {
		t, err := l.find(n)
		if err != nil {
			return false, err
		}
		part = t.part(what)
		if !allStopped(part) || len(part) != size {
			still = 0
		}
		size = len(part)
		if still++; still > 2 || size == 0 {
			return true, nil
		}
		var errs []error
		for _, p := range part {
			if !p.stopped() {
				errs = append(errs, p.signal(syscall.SIGSTOP))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return false, fmt.Errorf("stop the processes of %s: %w", n.Name, err)
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return part, fmt.Errorf("the processes of %s did not all stop within 5 s", n.Name)
	}
	return part, err
}

// awaitGone waits until the processes have ended.
func awaitGone(ps []process, budget time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	for _, p := range ps {
		if retry.Until(ctx, 5*time.Millisecond, func() (bool, error) { return !p.alive(), nil }) != nil {
			return fmt.Errorf("process %d (%s) has not ended after %v", p.pid, p.comm, budget)
		}
	}
	return nil
}

// portsFree names every port of the lab that another process uses, and that process.
func (l *Lab) portsFree() error {
	var taken []string
	var sockets []string
	for _, n := range l.Nodes() {
		for i := range n.ports {
			if n.Witness && (i < 2 || i == 4) {
				continue
			}
			s, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", n.address(i))
			if err != nil {
				taken = append(taken, strconv.Itoa(n.ports[i]))
				sockets = append(sockets, listening(n.ports[i])...)
				continue
			}
			_ = s.Close()
		}
	}
	if len(taken) == 0 {
		return nil
	}
	by := ""
	if who := holders(sockets); len(who) > 0 {
		by = " by " + strings.Join(who, ", ")
	}
	return fail.Refusedf("ports of 127.0.0.1 are in use: %s%s; nothing was made: stop what uses them (a lab: coterie lab down --dir DIR), or choose other ports with --port", strings.Join(taken, ", "), by)
}

// listening returns the sockets that listen on a TCP port, as links to them read in /proc/PID/fd.
func listening(port int) (sockets []string) {
	const local, state, inode, listen = 1, 3, 9, "0A" // of proc_net_tcp(5)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listen && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
				sockets = append(sockets, "socket:["+f[inode]+"]")
			}
		}
	}
	return sockets
}

// holders describes the processes that have such sockets, as far as this user may see: the first few, and how many
// more.
func holders(sockets []string) (who []string) {
	const most = 3
	all, err := processes()
	if err != nil || len(sockets) == 0 {
		return nil
	}
	more := 0
	for _, p := range all {
		links, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.pid), "fd", "*"))
		if err != nil || !slices.ContainsFunc(links, func(link string) bool {
			to, err := os.Readlink(link)
			return err == nil && slices.Contains(sockets, to)
		}) {
			continue
		}
		if len(who) == most {
			more++
			continue
		}
		who = append(who, fmt.Sprintf("process %d (%s)", p.pid, strings.Join(p.argv, " ")))
	}
	if more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	return who
}

// labDir is the configuration of a helper that serves a whole lab.
type labDir struct {
	Dir string `json:"dir"`
}

// serves reports whether the process is the helper of that name for the lab in dir.
func (p process) serves(name, dir string) bool {
	c, ok := reexec.Parse[labDir](p.argv, name)
	return ok && c.Dir == dir
}

// helper returns the command of a helper in a session of its own, which outlives this process. Its output goes to out;
// nil: nowhere.
func (l *Lab) helper(name string, config any, out *os.File) (*exec.Cmd, error) {
	cmd, err := reexec.Spec{Exe: l.d.Exe, Name: name, Config: config}.Command(context.Background())
	if err != nil {
		return nil, err
	}
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if out != nil {
		cmd.Stdout, cmd.Stderr = out, out
	}
	return cmd, nil
}

// Helpers returns the processes of labs by their names.
func Helpers() reexec.Helpers {
	return reexec.Helpers{
		networkName: reexec.Typed(func(ctx context.Context, c labDir, s reexec.Streams) error {
			return serveNetwork(ctx, c.Dir, slog.New(slog.NewTextHandler(s.Err, nil)))
		}),
		reaperName: reexec.Typed(func(ctx context.Context, c labDir, s reexec.Streams) error {
			signal.Ignore(os.Interrupt, syscall.SIGTERM) // the end of the pipe is the end
			return reap(context.WithoutCancel(ctx), c.Dir, s.In)
		}),
		diskName:  reexec.Typed(func(ctx context.Context, o faultfs.Options, _ reexec.Streams) error { return faultfs.Serve(ctx, o) }),
		clockName: reexec.Typed(func(ctx context.Context, c labDir, _ reexec.Streams) error { return keepWrongClocks(ctx, c.Dir) }),
		roleName: reexec.Typed(func(ctx context.Context, c roleConfig, s reexec.Streams) error {
			return makeRoleOn(context.WithoutCancel(ctx), c.Sockets, s.In)
		}),
	}
}

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Limits is what a group may use. The zero value limits nothing.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"`          // processors: 0.5 is half of one; 0: no limit
	Memory int64   `json:"memory_bytes,omitempty"` // with the pages of files that are in memory; 0: no limit
}

// The smallest limits with which a program does anything at all.
const (
	MinCPU    = 0.01
	MinMemory = 4 << 20
)

// period is the time over which the use of processors is counted, in µs: the kernel's own default. A group that has
// used its share is stopped for the rest of it.
const period = 100_000

// Check returns what is wrong with the limits.
func (l Limits) Check() error {
	switch {
	case l.CPU != 0 && (l.CPU < MinCPU || l.CPU > 1024):
		return fmt.Errorf("%v processors: choose %v to 1024", l.CPU, MinCPU)
	case l.Memory != 0 && l.Memory < MinMemory:
		return fmt.Errorf("%d bytes of memory: choose at least %d", l.Memory, MinMemory)
	}
	return nil
}

// Group is a control group with limits, one directory for each controller.
type Group struct {
	dirs map[string]directory
}

type directory struct {
	path string
	v2   bool
	home string // our own group
}

// Create makes the group of a name with its limits, or sets those of an existing one.
func Create(name string, l Limits) (*Group, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	all, err := find()
	if err != nil {
		return nil, err
	}
	places, err := needed(all, l)
	if err != nil {
		return nil, err
	}
	g := &Group{map[string]directory{}}
	for c, p := range places {
		dir, _ := p.locate(name)
		g.dirs[c] = directory{dir, p.v2, p.dir}
	}
	if err := g.create(l); err != nil {
		_ = Remove(name)
		return nil, explain(err)
	}
	return g, nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: limits need root and control groups that may be written: run this as root, or leave the limits out", err)
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: the top of the control groups has members of its own, as in a container: run this outside of it, or leave the limits out", err)
	}
	return err
}

func (g *Group) create(l Limits) error {
	for c, d := range g.dirs {
		if d.v2 {
			if err := set(filepath.Join(filepath.Dir(d.path), "cgroup.subtree_control"), "+"+c); err != nil {
				return err
			}
		}
		if err := os.Mkdir(d.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as every control group
			return err
		}
		for _, f := range settings(c, d.v2, l) {
			if err := set(filepath.Join(d.path, f[0]), f[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// settings are the files to write for a controller, and what into them.
func settings(controller string, v2 bool, l Limits) [][2]string {
	quota := strconv.Itoa(int(l.CPU * period))
	bytes := strconv.FormatInt(l.Memory, 10)
	switch {
	case controller == cpu && v2:
		return [][2]string{{"cpu.max", quota + " " + strconv.Itoa(period)}}
	case controller == cpu:
		return [][2]string{{"cpu.cfs_period_us", strconv.Itoa(period)}, {"cpu.cfs_quota_us", quota}}
	case v2:
		return [][2]string{{"memory.max", bytes}}
	default:
		return [][2]string{{"memory.limit_in_bytes", bytes}}
	}
}

func set(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Start starts the command in the group: it and everything it starts are in it from their first instruction. It does so
// on the caller's thread, which may be in a namespace of its own.
func (g *Group) Start(cmd *exec.Cmd) error {
	runtime.LockOSThread() // this thread joins the group, its child inherits that, and it returns; if it cannot, no other goroutine uses it
	err := g.startHere(cmd)
	if g.leave() == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func (g *Group) leave() error {
	for _, dir := range g.dirs {
		if dir.v2 {
			continue
		}
		if err := set(filepath.Join(dir.home, "tasks"), strconv.Itoa(syscall.Gettid())); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) startHere(cmd *exec.Cmd) error {
	for _, dir := range g.dirs {
		if !dir.v2 {
			if err := set(filepath.Join(dir.path, "tasks"), strconv.Itoa(syscall.Gettid())); err != nil {
				return err
			}
			continue
		}
		d, err := os.Open(dir.path)
		if err != nil {
			return err
		}
		defer func() { _ = d.Close() }()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
	}
	return cmd.Start()
}

// Remove removes the group of a name wherever it is. It must have no members. A group that does not exist is not an
// error.
func Remove(name string) error {
	all, err := find()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		for {
			dir, there := p.locate(name)
			if !there {
				break
			}
			if err := remove(dir); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// remove waits a moment for members that are dead and not quite gone.
func remove(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var err error
	ended := retry.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		err = syscall.Rmdir(dir)
		return !errors.Is(err, syscall.EBUSY), nil
	})
	if ended == nil && (err == nil || errors.Is(err, syscall.ENOENT)) {
		return nil
	}
	return fmt.Errorf("remove the control group %s: %w", dir, err)
}

// Usage is what a group has used and how often its limits were felt.
type Usage struct {
	Throttled   int64         `json:"cpu_throttled"`           // periods in which it had used its share before their end
	ThrottledNS time.Duration `json:"cpu_throttled_ns"`        // for how long it stood still
	Memory      int64         `json:"memory_used_bytes"`       // in use now
	OOMKills    int64         `json:"memory_processes_killed"` // for want of memory
}

// Read returns the usage of the group of a name. A limit that is not set is zero.
func Read(name string) Usage {
	all, err := find()
	if err != nil {
		return Usage{}
	}
	var u Usage
	for c, p := range all {
		dir, there := p.locate(name)
		switch {
		case !there:
		case c == cpu:
			s := table(filepath.Join(dir, "cpu.stat"))
			u.Throttled, u.ThrottledNS = s["nr_throttled"], time.Duration(s["throttled_time"]+1000*s["throttled_usec"])
		case p.v2:
			u.Memory, u.OOMKills = number(filepath.Join(dir, "memory.current")), table(filepath.Join(dir, "memory.events"))["oom_kill"]
		default:
			u.Memory, u.OOMKills = number(filepath.Join(dir, "memory.usage_in_bytes")), table(filepath.Join(dir, "memory.oom_control"))["oom_kill"]
		}
	}
	return u
}

// table reads a file of names and numbers; a missing name is zero.
func table(path string) map[string]int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 {
			out[f[0]], _ = strconv.ParseInt(f[1], 10, 64) // the kernel wrote it
		}
	}
	return out
}

func number(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // the kernel wrote it
	return n
}

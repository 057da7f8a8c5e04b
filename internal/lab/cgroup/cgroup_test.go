package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

func TestPlaces(t *testing.T) {
	const hybrid = `24 23 0:21 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
25 23 0:22 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
26 23 0:23 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
27 23 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	const unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	const joint = "24 23 0:21 /box /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	none := func(string) string { return "" }
	for _, c := range []struct {
		name, mounts, self string
		controllers        func(string) string
		want               map[string]place
	}{
		{"version 1 beside an empty version 2", hybrid, "4:memory:/box/a\n1:cpu:/\n0::/\n", none, map[string]place{
			cpu:    {top: "/sys/fs/cgroup/cpu", dir: "/sys/fs/cgroup/cpu"},
			memory: {top: "/sys/fs/cgroup/memory", dir: "/sys/fs/cgroup/memory/box/a"},
		}},
		{"version 2", unified, "0::/user.slice\n", func(string) string { return "cpuset cpu io memory pids\n" }, map[string]place{
			cpu: {"/sys/fs/cgroup", "/sys/fs/cgroup", true}, memory: {"/sys/fs/cgroup", "/sys/fs/cgroup", true},
		}},
		{"in a container", joint, "1:cpu,cpuacct:/box/inner\n", none, map[string]place{
			cpu: {top: "/sys/fs/cgroup/cpu,cpuacct", dir: "/sys/fs/cgroup/cpu,cpuacct/inner"},
		}},
		{"nothing", "1 2 0:3 / / rw - ext4 /dev/vda rw\n", "0::/\n", none, map[string]place{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, places(c.mounts, c.self, c.controllers), cmp.AllowUnexported(place{})); d != "" {
				t.Error(d)
			}
		})
	}
	if _, err := needed(map[string]place{}, Limits{CPU: 1}); err == nil || !strings.Contains(err.Error(), "controller cpu") {
		t.Errorf("a machine without the controller: %v", err)
	}
}

// The files of version 2, on directories that look like one: this is as much as a machine with version 1 can try.
func TestVersion2Files(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"cgroup.subtree_control", "g/cpu.max", "g/memory.max"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &Group{map[string]directory{cpu: {filepath.Join(dir, "g"), true, dir}, memory: {filepath.Join(dir, "g"), true, dir}}}
	if err := g.create(Limits{CPU: 0.5, Memory: 512 << 20}); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{"g/cpu.max": "50000 100000", "g/memory.max": "536870912"} {
		if b, err := os.ReadFile(filepath.Join(dir, f)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", f, b, err)
		}
	}
}

// group makes a group that is removed when the test ends. It skips the test where this user may not make one.
func group(t *testing.T, l Limits) (*Group, string) {
	t.Helper()
	name := fmt.Sprintf("coterie-test-%d-%s", os.Getpid(), t.Name())
	t.Cleanup(func() {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
	})
	g, err := Create(name, l)
	if err != nil {
		t.Skipf("no limits here: %v", err)
	}
	return g, name
}

func TestCPU(t *testing.T) {
	g, name := group(t, Limits{CPU: 0.2})
	cmd := exec.Command("sh", "-c", "while :; do :; done & while :; do :; done")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if err != nil || !strings.Contains(string(b), name) {
		t.Errorf("the child is in %s %v", b, err)
	}
	if own, err := os.ReadFile("/proc/self/cgroup"); err != nil || strings.Contains(string(own), name) {
		t.Errorf("we are in it ourselves: %s %v", own, err)
	}
	began := time.Now()
	limited := func() (bool, error) { // on a busy machine it has to come to a processor first
		u := Read(name)
		return u.Throttled >= 3 && u.ThrottledNS > 0, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := retry.Until(ctx, 100*time.Millisecond, limited); err != nil {
		t.Errorf("usage: %+v: %v", Read(name), err)
	}
	killAll(t, name)
	_ = cmd.Wait()
	const slack = 400 * time.Millisecond // of the ends
	if used, took := cmd.ProcessState.UserTime(), time.Since(began); used > took/5+slack {
		t.Errorf("it used %v of a processor in %v", used, took)
	}
}

func TestMemory(t *testing.T) {
	g, name := group(t, Limits{Memory: 32 << 20})
	cmd := exec.Command("sh", "-c", "head -c 200M /dev/zero | tail -c 150M | wc -c") // tail keeps it in memory
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if u := Read(name); u.OOMKills == 0 {
		t.Errorf("nothing was killed: %+v", u)
	}
}

func killAll(t *testing.T, name string) {
	t.Helper()
	all, err := find()
	if err != nil {
		t.Fatal(err)
	}
	dir, there := all[cpu].locate(name)
	if !there {
		t.Fatal("the group is not there")
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(b)) {
		_ = exec.Command("kill", "-9", pid).Run()
	}
}

func TestCheck(t *testing.T) {
	for _, l := range []Limits{{CPU: -1}, {CPU: 0.001}, {CPU: 5000}, {Memory: 1}, {Memory: -5}} {
		if l.Check() == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
	if err := explain(os.ErrPermission); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "run this as root") {
		t.Error(err)
	}
}

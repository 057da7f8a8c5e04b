package cgroup

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The controllers that are needed.
const (
	cpu    = "cpu"
	memory = "memory"
)

// place is where control groups of a controller are made.
type place struct {
	top string // of the hierarchy
	dir string // the parent of ours
	v2  bool
}

// locate finds the group of a name anywhere in the hierarchy: its maker may have been in another group than we are, as
// every login session has. It gives the place where it would be made if there is none.
func (p place) locate(name string) (dir string, there bool) {
	dir = filepath.Join(p.dir, name)
	err := filepath.WalkDir(p.top, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // it has gone meanwhile
		case e.IsDir() && e.Name() == name:
			dir, there = path, true
			return fs.SkipAll
		}
		return nil
	})
	return dir, there && err == nil
}

// find reads where this process may make control groups, by controller.
func find() (map[string]place, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return places(string(mounts), string(self), func(dir string) string {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return ""
		}
		return string(b)
	}), nil
}

// places understands mountinfo(5) and cgroups(7). A group of version 1 is made below our own, so that our own limits
// hold for it, too. In version 2 no group may have both members and children with limits, so there it is made at the
// top.
func places(mounts, self string, controllers func(dir string) string) map[string]place {
	own := map[string]string{}
	for line := range strings.Lines(self) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for c := range strings.SplitSeq(f[1], ",") {
				own[c] = f[2]
			}
		}
	}
	out := map[string]place{}
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		root, dir := f[3], f[4]
		for _, c := range []string{cpu, memory} {
			switch {
			case kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), c):
				out[c] = place{top: dir, dir: below(dir, root, own[c])}
			case kind[0] == "cgroup2" && slices.Contains(strings.Fields(controllers(dir)), c):
				out[c] = place{top: dir, dir: dir, v2: true}
			}
		}
	}
	return out
}

// below is the directory of the control group path, where the group root is mounted at dir.
func below(dir, root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil && rel != "." && !strings.HasPrefix(rel, "..") {
		return filepath.Join(dir, rel)
	}
	return dir
}

// needed gives the places of the controllers that the limits need, or returns an error that names what this machine
// lacks.
func needed(all map[string]place, l Limits) (map[string]place, error) {
	out := map[string]place{}
	for c, wanted := range map[string]bool{cpu: l.CPU > 0, memory: l.Memory > 0} {
		if !wanted {
			continue
		}
		p, ok := all[c]
		if !ok {
			return nil, fmt.Errorf("this machine has no control groups with the controller %s: leave that limit out, or mount them (mount -t cgroup2 cgroup2 /sys/fs/cgroup)", c)
		}
		out[c] = p
	}
	return out, nil
}

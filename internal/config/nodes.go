package config

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Nodes returns the node directories on this machine that this process's user may look for: those whose run directory
// is in a directory of that user, or, for root, in /run/coterie. It returns at most 100 of each, sorted. Directories of
// other users in /tmp are not read, since their owners could name a node of their own.
func Nodes() []string {
	parents := []string{runParent(os.Getuid())}
	if st, err := os.Stat("/run/coterie"); err == nil && os.Getuid() == 0 && !slices.Contains(parents, "/run/coterie") && st.IsDir() {
		parents = append(parents, "/run/coterie")
	}
	var found []string
	for _, parent := range parents {
		st, err := os.Lstat(parent)
		if err != nil || !st.IsDir() || parent != "/run/coterie" && int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			continue
		}
		found = append(found, nodesBelow(parent)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// nodesBelow returns the node directories of the run directories in parent that have a configuration.
func nodesBelow(parent string) (found []string) {
	const most = 100
	runs, err := os.ReadDir(parent)
	if err != nil {
		return nil
	}
	for _, r := range runs[:min(len(runs), most)] {
		if !r.IsDir() || !runName.MatchString(r.Name()) {
			continue
		}
		dir, err := os.ReadFile(filepath.Join(parent, r.Name(), ownerFile))
		if err != nil || !filepath.IsAbs(string(dir)) {
			continue
		}
		if l, err := NewLayout(string(dir)); err == nil && filepath.Base(l.Run) == r.Name() && holdsNode(l) {
			found = append(found, l.Dir)
		}
	}
	return found
}

// holdsNode reports whether there is a configuration in the node directory.
func holdsNode(l Layout) bool {
	_, err := os.Stat(filepath.Join(l.Dir, "coterie.yaml"))
	return err == nil
}

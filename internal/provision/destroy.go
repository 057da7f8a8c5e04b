package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
)

// Command returns the command that goes on with a departure, with the node directory where it is not the usual one: run
// as it is printed, it must not end another node of this machine.
func (d *Departure) Command(l config.Layout) string {
	text := "coterie leave"
	if d.Destroy {
		text = "coterie destroy"
	}
	if l.Dir != "" && l.Dir != config.DefaultDir {
		text += " --node " + l.Dir
	}
	return text
}

// keeps reports whether the departure keeps a path: the data directory is there, or below it, by whatever links.
func (d *Departure) keeps(path string) bool {
	return d.Data != "" && within(real(d.Data), real(path))
}

// real returns what a path leads to, and the path itself where that cannot be said.
func real(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	return filepath.Clean(path)
}

// within reports whether a path is a directory or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// OutsideData returns the places outside the data directory where the cluster has files: its tablespaces, and its WAL.
func OutsideData(data string) (places []string) {
	links := []string{filepath.Join(data, "pg_wal")}
	spaces, _ := os.ReadDir(filepath.Join(data, "pg_tblspc")) // none: no cluster, or one without tablespaces
	for _, s := range spaces {
		links = append(links, filepath.Join(data, "pg_tblspc", s.Name()))
	}
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && filepath.IsAbs(at) {
			places = append(places, at)
		}
	}
	return places
}

// Goes returns an error if the record of the departure is not on disk any more: another run has come to the end, and
// the node directory may be that of another node by now.
func (d *Departure) Goes(l config.Layout) error {
	if is, err := ReadDeparture(l); is != nil || err != nil {
		return err
	}
	return fail.Refusedf("another run of %s has done the rest for %s; nothing more was changed", d.Command(l), d.Node)
}

// Erase removes what a node that has departed for good left in its node directory, its keys first and the record of the
// departure last, so that it can be repeated after an interruption at any point. It removes only what nodes make there:
// it returns the names of other files, which stay, and so does the data directory if the departure keeps it. It is
// refused before Depart is done, after another run has done all, and while the data that is kept is among what is
// removed.
func Erase(l config.Layout, d *Departure, say func(string)) (left []string, err error) {
	if !d.Completed {
		return nil, fail.Unhealthyf("%s has not left yet; run %s again: it goes on", d.Node, d.Command(l))
	}
	unlock, err := config.Lock(l)
	if err != nil {
		return nil, fail.Unhealthyf("%w; stop it, and run %s again: it goes on", err, d.Command(l))
	}
	defer unlock()
	if err := d.Goes(l); err != nil {
		return nil, err
	}
	for _, path := range append(own(l), l.Run) {
		if path != l.Data() && d.keeps(path) {
			return nil, fail.Refusedf("the data that is kept, %s, is in %s, which is removed; nothing was removed: move it elsewhere, and run %s again", d.Data, path, d.Command(l))
		}
	}
	if pid := serverOf(l.Data()); pid != 0 && !d.keeps(l.Data()) {
		return nil, fail.Unhealthyf("PostgreSQL still runs on %s (process %d), although no agent does; stop it, and run %s again: it goes on", l.Data(), pid, d.Command(l))
	}
	if err := errors.Join(eraseAll(l.PKI()), eraseAll(l.Backup())); err != nil { // the latter has the key of the repository
		return nil, err
	}
	say("the keys and certificates of the node are removed")
	fault.Point("destroy.keyless") // no key is left; the data and everything else is
	if _, err := os.Lstat(l.Data()); err == nil && !d.keeps(l.Data()) {
		if err := eraseAll(l.Data()); err != nil {
			return nil, err
		}
		say("the data in " + l.Data() + " is removed")
	}
	fault.Point("destroy.dataless") // the data is removed; the quorum's files, the logs and the marks are there
	if left, err = eraseRest(l); err != nil {
		return left, err
	}
	say("what else the node had in " + l.Dir + " is removed")
	fault.Point("destroy.bare") // only the record of the departure is left
	if err := errors.Join(durable.Remove(l.LeavingFile()), eraseAll(l.State())); err != nil {
		return left, err
	}
	fault.Point("destroy.empty") // the record is removed; the empty node directory is there
	RemoveEmpty(l)
	return left, nil
}

// eraseRest removes everything of a node but its keys, its data and the record of its departure. It returns the names
// of entries that no node makes.
func eraseRest(l config.Layout) (left []string, err error) {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, e := range entries {
		path := filepath.Join(l.Dir, e.Name())
		switch {
		case path == l.State() || path == l.Data():
		case ofNode(l, e.Name()):
			failed = append(failed, eraseAll(path))
		default:
			left = append(left, path)
		}
	}
	marks, err := os.ReadDir(l.State())
	failed = append(failed, err, os.RemoveAll(l.Run))
	for _, m := range marks {
		if path := filepath.Join(l.State(), m.Name()); path != l.LeavingFile() {
			failed = append(failed, os.RemoveAll(path))
		}
	}
	return left, errors.Join(append(failed, durable.SyncDir(l.State()), durable.SyncDir(l.Dir))...)
}

// own returns what nodes make in their directories, beside their configuration.
func own(l config.Layout) []string {
	return []string{l.PKI(), l.State(), l.Log(), l.Etcd(), l.Forked(), l.Data(), l.Backup(), filepath.Join(l.Dir, "keeper"), filepath.Join(l.Dir, "pg_hba.conf")}
}

// ofNode reports whether nodes make an entry of that name in their directories.
func ofNode(l config.Layout, name string) bool {
	return slices.Contains(own(l), filepath.Join(l.Dir, name)) || name == config.File || strings.HasPrefix(name, config.File+".") || strings.HasPrefix(name, "etcd.lost-")
}

// eraseAll removes a directory or file and everything in it. Where it is a symbolic link, or a file system is mounted
// there, the contents are removed, then the link; an empty directory that cannot be removed stays.
func eraseAll(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	real := path
	if st.Mode()&fs.ModeSymlink != 0 {
		if real, err = filepath.EvalSymlinks(path); errors.Is(err, fs.ErrNotExist) {
			return durable.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("remove what %s leads to: %w", path, err)
		}
	}
	entries, err := os.ReadDir(real)
	if err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(real, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(real); err != nil && !errors.Is(err, fs.ErrNotExist) && !stays(err) {
		return err
	}
	if real == path {
		return durable.SyncDir(filepath.Dir(path))
	}
	return durable.Remove(path)
}

// stays reports whether an error is that of an empty directory that cannot be removed: a file system is mounted there,
// or its parent belongs to another user.
func stays(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// RemoveEmpty removes the empty directories of a node that was erased, as far as this user may. The node directory
// itself may be needed again, and stays where it cannot be removed. Root may call it for another user, who could have a
// path lead elsewhere meanwhile: nothing but an empty directory is ever removed.
func RemoveEmpty(l config.Layout) {
	_ = syscall.Rmdir(l.State())
	_ = syscall.Rmdir(l.Dir)
}

// Bare reports whether a node directory holds nothing but what an interrupted Erase may leave: an empty directory of
// marks.
func Bare(l config.Layout) bool {
	entries, err := os.ReadDir(l.Dir)
	if err != nil || len(entries) > 1 {
		return false
	}
	for _, e := range entries {
		inside, err := os.ReadDir(filepath.Join(l.Dir, e.Name()))
		if err != nil || filepath.Join(l.Dir, e.Name()) != l.State() || slices.ContainsFunc(inside, func(m os.DirEntry) bool { return m.Name() != "agent.lock" }) {
			return false
		}
	}
	return true
}

// OthersSeen returns the other members of the group as this node saw it last; none if it has seen none.
func OthersSeen(l config.Layout, self string) (names []string) {
	b, err := os.ReadFile(l.GroupFile())
	if err != nil {
		return nil
	}
	var g ag.Group
	if json.Unmarshal(b, &g) != nil {
		return nil
	}
	for _, r := range g.Replicas {
		if string(r.ID) != self {
			names = append(names, string(r.ID))
		}
	}
	return names
}

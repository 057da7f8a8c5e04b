package seeding

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is the directory being filled and the tablespaces beside it. Files are opened through os.Root, so that nothing the
// source names can lead out of them.
type tree struct {
	target  string
	version string // prefix of what a tablespace holds: PG_<major>_
	main    *os.Root
	spaces  map[uint32]*os.Root
	places  map[uint32]string
	disks   disks
}

// openTree opens the prepared target, creates the tablespaces' directories and makes sure that there is room.
func openTree(target string, places map[uint32]string, sizes []tablespace, major int) (*tree, error) {
	t := &tree{target: target, version: versionPrefix(major), places: places, spaces: map[uint32]*os.Root{}}
	for _, s := range sizes {
		dir := target
		if s.oid != 0 {
			dir = places[s.oid]
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.close()
				return nil, err
			}
		}
		root, err := os.OpenRoot(dir)
		if err == nil && s.oid == 0 {
			t.main = root
		} else if err == nil {
			t.spaces[s.oid] = root
		}
		if err = errors.Join(err, t.disks.add(dir), checkRoom(dir, s.size)); err != nil {
			t.close()
			return nil, err
		}
	}
	return t, nil
}

// checkRoom refuses what cannot fit, before hours of copying show it. It is a courtesy: sizes are estimates.
func checkRoom(dir string, need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("ask for free space of %s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < need {
		return fmt.Errorf("%s needs %d MiB and has %d MiB free; make room and run the seeding again", dir, need>>20, free>>20)
	}
	return nil
}

func (t *tree) close() {
	for _, r := range t.spaces {
		_ = r.Close()
	}
	if t.main != nil {
		_ = t.main.Close()
	}
	t.disks.close()
}

func (t *tree) root(oid uint32) *os.Root {
	if oid == 0 {
		return t.main
	}
	return t.spaces[oid]
}

// mkdir creates a directory of an archive. One that exists is a mount point that Prepare left, or one sent twice.
func (t *tree) mkdir(oid uint32, name string) error {
	if oid == 0 && (name == "pg_wal" || strings.HasPrefix(name, "pg_wal/")) {
		return t.mkdirWAL(name)
	}
	root := t.root(oid)
	if err := root.Mkdir(name, 0o700); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	st, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is a directory at the source and something else here", name)
	}
	dir := t.target
	if oid != 0 {
		dir = t.places[oid]
	}
	return t.disks.add(filepath.Join(dir, name))
}

// mkdirWAL creates pg_wal and the two directories PostgreSQL keeps in it, behind a link if the node has WAL on another disk.
// Nothing else is ever stored there.
func (t *tree) mkdirWAL(name string) error {
	if !slices.Contains([]string{"pg_wal", "pg_wal/archive_status", "pg_wal/summaries"}, name) {
		return nil
	}
	dir := filepath.Join(t.target, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return t.disks.add(dir)
}

// create creates a file that must not exist yet.
func (t *tree) create(oid uint32, name string) (*os.File, error) {
	return t.root(oid).OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// write stores a file of this node, in place of whatever the source sent under that name.
func (t *tree) write(name string, content []byte) error {
	if err := ignoreMissing(t.main.Remove(name)); err != nil {
		return err
	}
	f, err := t.create(0, name)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// writeNodeFiles stores what does not come from the source: standby.signal, so that any start is a standby's, this node's
// tablespace places, the source's ALTER SYSTEM settings without the node-bound ones, and the caller's files.
func (t *tree) writeNodeFiles(autoConf []byte, files map[string][]byte) error {
	all := map[string][]byte{"standby.signal": nil, autoConfName: stripAutoConf(autoConf)}
	var tmap strings.Builder
	for oid, place := range t.places {
		id := strconv.FormatUint(uint64(oid), 10)
		fmt.Fprintf(&tmap, "%s %s\n", id, mapEscapes.Replace(place))
		if err := t.main.Symlink(place, path.Join("pg_tblspc", id)); err != nil {
			return err
		}
	}
	if tmap.Len() > 0 {
		all["tablespace_map"] = []byte(tmap.String())
	}
	for name, content := range files {
		if name == controlName || name == controlNew || !filepath.IsLocal(name) {
			return fmt.Errorf("%q cannot be a file of this node", name)
		}
		all[name] = content
	}
	for name, content := range all {
		if err := t.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// mapEscapes writes a path as PostgreSQL reads it in tablespace_map.
var mapEscapes = strings.NewReplacer("\\", "\\\\", "\n", "\\\n", "\r", "\\\r")

var nodeSetting = regexp.MustCompile(`(?i)^\s*(primary_conninfo|primary_slot_name|restore_command|synchronous_standby_names|recovery_\w+)\s*[=\s]`)

// stripAutoConf drops the settings that say whom the source followed and who followed it. ALTER SYSTEM writes one per line.
func stripAutoConf(text []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if !nodeSetting.MatchString(line) {
			out.WriteString(line)
		}
	}
	return []byte(out.String())
}

// install makes the copy durable and then startable. The rename is the commit point.
func (t *tree) install() error {
	if err := t.disks.sync(); err != nil {
		return err
	}
	if err := t.main.Rename(controlNew, controlName); err != nil {
		return err
	}
	return syncDir(filepath.Join(t.target, "global"))
}

// disks are the file systems a copy lies on, each held open from before the first write: syncfs reports only the write errors
// that happened since its descriptor was opened (Linux 5.8; older kernels report none).
type disks struct {
	open map[uint64]*os.File
}

func (d *disks) add(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return errors.Join(fmt.Errorf("stat %s: %w", dir, err), f.Close())
	}
	if d.open == nil {
		d.open = map[uint64]*os.File{}
	}
	if _, have := d.open[st.Dev]; have {
		return f.Close()
	}
	d.open[st.Dev] = f
	return nil
}

func (d *disks) sync() error {
	for _, f := range d.open {
		if err := unix.Syncfs(int(f.Fd())); err != nil {
			return fmt.Errorf("sync the file system of %s: %w", f.Name(), err)
		}
	}
	return nil
}

func (d *disks) close() {
	for _, f := range d.open {
		_ = f.Close()
	}
}

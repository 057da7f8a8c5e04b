package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Tree is the directory being filled and the tablespaces beside it. Files are opened through os.Root, so that nothing
// the source names can lead out of them.
type Tree struct {
	target  string
	version string // prefix of what a tablespace holds: PG_<major>_
	main    *os.Root
	spaces  map[uint32]*os.Root
	places  map[uint32]string
	disks   disks
	cached  atomic.Bool // the file system does not support direct writes
}

// Open opens the prepared target and creates the tablespaces' directories.
func Open(target string, places map[uint32]string, major int) (*Tree, error) {
	t := &Tree{target: target, version: datadir.VersionPrefix(major), places: places, spaces: map[uint32]*os.Root{}}
	var err error
	if t.main, err = os.OpenRoot(target); err == nil {
		err = t.disks.add(target)
	}
	for oid, dir := range places {
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = t.disks.add(dir)
		}
		if err == nil {
			t.spaces[oid], err = os.OpenRoot(dir)
		}
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// ErrNoRoom is returned by CheckRoom when the file system has too little free space for the copy.
var ErrNoRoom = errors.New("not enough room")

// CheckRoom refuses a copy that cannot fit, before hours of copying show it. had are the lengths that the files have.
// The data directory and tablespaces on one file system need room for all of them.
func (t *Tree) CheckRoom(files []wire.File, had []int64) error {
	need := map[uint32]int64{}
	for i, f := range files {
		need[f.Space] += f.Size - had[i]
	}
	below := map[uint64]int64{} // by file system
	for _, oid := range slices.Sorted(maps.Keys(need)) {
		dir := t.Dir(oid)
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return fmt.Errorf("stat %s: %w", dir, err)
		}
		below[st.Dev] += need[oid]
		free, err := fileio.FreeSpace(dir)
		if err != nil {
			return err
		}
		if n := below[st.Dev]; free < n {
			return fmt.Errorf("%s: %w: %d MiB more are needed and %d MiB are free; make room and run the seeding again", dir, ErrNoRoom, n>>20, free>>20)
		}
	}
	return nil
}

// Close closes the directories that the tree holds open.
func (t *Tree) Close() {
	for _, r := range t.spaces {
		_ = r.Close()
	}
	if t.main != nil {
		_ = t.main.Close()
	}
	t.disks.close()
}

// Root returns the root of the data directory (0) or of a tablespace.
func (t *Tree) Root(oid uint32) *os.Root {
	if oid == 0 {
		return t.main
	}
	return t.spaces[oid]
}

// mkdir makes sure that a listed directory exists. pg_wal and its contents may be behind a link to another disk.
func (t *Tree) mkdir(oid uint32, name string) error {
	dir := filepath.Join(t.Dir(oid), filepath.FromSlash(name))
	if oid == 0 && (name == "pg_wal" || strings.HasPrefix(name, "pg_wal/")) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return t.disks.add(dir)
	}
	if err := t.Root(oid).Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return t.disks.add(dir)
}

// Dir returns the path of the data directory (0) or of a tablespace.
func (t *Tree) Dir(oid uint32) string {
	if oid == 0 {
		return t.target
	}
	return t.places[oid]
}

// OpenFile opens a listed file for change, with additional flags of open(2), and makes it if it is missing. h keeps the
// file and closes it.
func (t *Tree) OpenFile(h *fileio.LastOpen, f wire.File, flags int) (*os.File, error) {
	root := t.Root(f.Space)
	if root == nil {
		return nil, unnamed(f)
	}
	return h.Open(fileio.Entry{Space: f.Space, Name: f.Name}, flags, func() (*os.File, error) { return root.OpenFile(f.Name, os.O_RDWR|os.O_CREATE|flags, 0o600) })
}

// unnamed is the error about a file in a tablespace that is not one of the source's.
func unnamed(f wire.File) error {
	return fmt.Errorf("%s is in a tablespace that the source did not name", f.Name)
}

// write stores a file of this node in place of an entry of that name.
func (t *Tree) write(name string, content []byte) error {
	if err := fileio.IgnoreMissing(t.main.Remove(name)); err != nil {
		return err
	}
	f, err := t.main.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// WriteNodeFiles stores the files that do not come from the source unchanged. These are the label of the backup and
// standby.signal, which makes any start that of a standby. They are also this node's tablespace places, the ALTER
// SYSTEM settings without those that belong to one node, and the caller's files.
func (t *Tree) WriteNodeFiles(label []byte, files map[string][]byte) error {
	autoConf, err := t.main.ReadFile(datadir.AutoConf)
	if err = fileio.IgnoreMissing(err); err != nil {
		return err
	}
	all := map[string][]byte{"standby.signal": nil, "backup_label": label, datadir.AutoConf: stripAutoConf(autoConf)}
	var tmap strings.Builder
	for oid, place := range t.places {
		id := strconv.FormatUint(uint64(oid), 10)
		fmt.Fprintf(&tmap, "%s %s\n", id, mapEscapes.Replace(place))
		link := path.Join("pg_tblspc", id)
		if err := errors.Join(fileio.IgnoreMissing(t.main.Remove(link)), t.main.Symlink(place, link)); err != nil {
			return err
		}
	}
	if tmap.Len() > 0 {
		all["tablespace_map"] = []byte(tmap.String())
	}
	for name, content := range files {
		if name == datadir.ControlFile || name == datadir.ControlNew || !filepath.IsLocal(name) {
			return fmt.Errorf("%q cannot be a file of this node", name)
		}
		all[name] = content
	}
	fault.Point("seed.copied") // the source's files are there; this node's own are not
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

// stripAutoConf drops the settings that name the source's upstream and its standbys. ALTER SYSTEM writes one setting
// per line.
func stripAutoConf(text []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if !nodeSetting.MatchString(line) {
			out.WriteString(line)
		}
	}
	return []byte(out.String())
}

// Install makes the copy durable and then startable. The rename is the commit point.
func (t *Tree) Install(control []byte) error {
	fault.Point("seed.filled") // all files are there; none is flushed
	if err := t.write(datadir.ControlNew, control); err != nil {
		return err
	}
	if err := t.disks.sync(); err != nil {
		return err
	}
	fault.Point("seed.flushed") // all files are flushed; the copy cannot be started
	if err := t.main.Rename(datadir.ControlNew, datadir.ControlFile); err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Join(t.target, "global")); err != nil {
		return err
	}
	fault.Point("seed.installed") // the copy can be started; the old pg_control is still there
	return fileio.IgnoreMissing(t.main.Remove(datadir.ControlOld))
}

// Sync makes everything written so far durable.
func (t *Tree) Sync() error { return t.disks.sync() }

// disks are the file systems of a copy, each held open from before the first write. syncfs reports only the write
// errors that happened since its descriptor was opened (Linux 5.8; older kernels report none).
type disks struct {
	open map[uint64]*os.File
	dirs []string // of file systems that do not take part in syncfs
}

// fuseMagic is the type of a file system in user space. The kernel does not pass syncfs on to most of them.
const fuseMagic = 0x65735546

func (d *disks) add(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return errors.Join(fmt.Errorf("stat %s: %w", dir, err), f.Close())
	}
	var kind unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &kind); err == nil && kind.Type == fuseMagic {
		d.dirs = append(d.dirs, dir)
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

// ErrUnwritten is in the error of a sync: a part of what was written may not be on the disk, and never comes there.
// The kernel tells of it once.
var ErrUnwritten = errors.New("the disk has not taken what was written")

var syncfs = unix.Syncfs // tests make it fail

func (d *disks) sync() error {
	if err := d.syncEach(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnwritten, err)
	}
	return nil
}

func (d *disks) syncEach() error {
	for _, f := range d.open {
		if err := syncfs(int(f.Fd())); err != nil {
			return fmt.Errorf("sync the file system of %s: %w", f.Name(), err)
		}
	}
	for _, dir := range d.dirs {
		if err := syncAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// syncAll syncs every file and directory below a directory, one by one.
func syncAll(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // it may be behind a link, which a walk does not follow
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path) //nolint:gosec // a sync of another file, should somebody put one there, does no harm
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

func (d *disks) close() {
	for _, f := range d.open {
		_ = f.Close()
	}
}

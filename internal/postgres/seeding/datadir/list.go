package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Emptied are the directories that exist in a copy but hold none of the source's files.
var Emptied = []string{
	"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_subtrans",
}

// ofTheSource are the files of the data directory's top level that describe the source node or its run.
var ofTheSource = []string{
	"postmaster.pid", "postmaster.opts", "backup_label", "backup_label.old", "tablespace_map", "tablespace_map.old", "backup_manifest",
	"recovery.signal", "standby.signal", "postgresql.auto.conf.tmp", "current_logfiles", "current_logfiles.tmp",
	ControlFile, ControlOld, ControlNew,
}

// temporary are relations of sessions: t<backend>_<relation>.
var temporary = regexp.MustCompile(`^t\d+_\d+`)

// excluded reports whether a file of the data directory stays in its place. At the source such a file is not listed; at
// the target it is not removed when the source lacks it. Coterie's own files, all named coterie*, belong to their node.
func excluded(name, logDir string) bool {
	base := path.Base(name)
	return slices.Contains(ofTheSource, name) || strings.HasPrefix(name, "coterie") ||
		strings.HasPrefix(base, "pg_internal.init") || strings.HasPrefix(base, "pgsql_tmp") ||
		logDir != "" && (name == logDir || strings.HasPrefix(name, logDir+"/"))
}

// LogDir returns log_directory relative to the data directory, or "" if it is elsewhere or one of PostgreSQL's own
// directories.
func LogDir(dir string) string {
	d := path.Clean(dir)
	top, _, _ := strings.Cut(d, "/")
	if !filepath.IsLocal(d) || d == "." || top == "base" || top == "global" || strings.HasPrefix(top, "pg_") && top != "pg_log" {
		return ""
	}
	return d
}

// Lister lists the files of a copy.
type Lister struct {
	LogDir  string
	Version string // prefix of a tablespace's entries
	files   []wire.File
}

// List walks the data directory and the tablespaces. A file that disappears meanwhile is not listed: its removal is in
// the WAL.
func (l *Lister) List(data string, spaces []wire.Space) ([]wire.File, error) {
	if err := l.walk(data, 0); err != nil {
		return nil, err
	}
	for _, s := range spaces {
		if err := l.walk(s.Location, s.OID); err != nil {
			return nil, fmt.Errorf("tablespace %d: %w", s.OID, err)
		}
	}
	return l.files, nil
}

func (l *Lister) walk(root string, oid uint32) error {
	real, err := filepath.EvalSymlinks(root) // a tablespace may be behind a link, which a walk does not follow
	if err != nil {
		return fmt.Errorf("list %s: %w", root, err)
	}
	root = real
	err = filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) && full != root {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil || rel == "." {
			return err
		}
		return l.add(wire.File{Space: oid, Name: filepath.ToSlash(rel)}, full, d)
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", root, err)
	}
	l.dropUnlogged()
	return nil
}

// add lists the entry f of the directory, which is at the path full, unless it stays in its place.
func (l *Lister) add(f wire.File, full string, d fs.DirEntry) error {
	name, oid := f.Name, f.Space
	if len(l.files) >= wire.MaxList {
		return fmt.Errorf("more than %d files", wire.MaxList)
	}
	if oid != 0 && !strings.HasPrefix(name, l.Version) {
		return fileio.Skip(d) // another major version's, or foreign
	}
	if oid == 0 && excluded(name, l.LogDir) || strings.HasPrefix(path.Base(name), "pgsql_tmp") || temporary.MatchString(path.Base(name)) {
		return fileio.Skip(d)
	}
	isWAL := oid == 0 && name == "pg_wal" // often a link to another disk
	if d.IsDir() || isWAL {
		l.files = append(l.files, wire.File{Space: oid, Name: name, Dir: true})
		if oid == 0 && slices.Contains(Emptied, name) {
			return l.empty(name, d)
		}
		return nil
	}
	if d.Type()&fs.ModeSymlink != 0 {
		return l.link(f, full)
	}
	if !d.Type().IsRegular() {
		return nil // sockets and the like are not data
	}
	info, err := d.Info()
	if err != nil {
		return fileio.IgnoreMissing(err)
	}
	l.files = append(l.files, wire.File{Space: oid, Name: name, Size: info.Size()})
	return nil
}

// ofData are the directories of the data directory whose contents belong to a copy.
var ofData = []string{"base", "global", "pg_commit_ts", "pg_logical", "pg_multixact", "pg_twophase", "pg_xact"}

// link lists what a symbolic link leads to as what PostgreSQL takes it for. A linked directory of data is refused: its
// contents are not listed, and a copy without them would look whole. So is a linked file of data that cannot be read.
// Any other file behind a link that this process cannot read is left out, as pg_basebackup leaves out all that are
// behind links: the server, which has the same user, does not read it either.
func (l *Lister) link(f wire.File, full string) error {
	top, rest, _ := strings.Cut(f.Name, "/")
	tablespaces := f.Space == 0 && top == "pg_tblspc"
	if tablespaces && rest != "" {
		return nil // made anew
	}
	data := f.Space != 0 || slices.Contains(ofData, top)
	st, err := os.Stat(full)
	if err == nil && st.Mode().IsRegular() {
		err = unix.Access(full, unix.R_OK)
	}
	switch {
	case tablespaces, f.Space == 0 && slices.Contains(Emptied, f.Name):
		f.Dir = true
	case errors.Is(err, os.ErrNotExist), !data && unreachable(err):
		return nil
	case err != nil:
		return fmt.Errorf("%s is a symbolic link to something that cannot be read (%w); make that readable to the user of this node, or put it in the link's place", full, err)
	case st.Mode().IsRegular():
		f.Size = st.Size()
	case !st.IsDir():
		return nil
	case data:
		return fmt.Errorf("%s is a symbolic link to a directory, and what is behind it is not copied; put the directory in its place, or make it a tablespace", full)
	default:
		return nil // not PostgreSQL's
	}
	l.files = append(l.files, f)
	return nil
}

// unreachable reports whether an error is that of a path which this user cannot follow or open, whatever the disk.
func unreachable(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// empty lists the directories that PostgreSQL wants in an emptied one.
func (l *Lister) empty(name string, d fs.DirEntry) error {
	if name == "pg_wal" {
		l.files = append(l.files, wire.File{Name: "pg_wal/archive_status", Dir: true})
	}
	return fileio.Skip(d)
}

// dropUnlogged removes the forks of unlogged relations except the init fork, from which recovery makes the others anew.
func (l *Lister) dropUnlogged() {
	type relation struct {
		space uint32
		path  string
	}
	unlogged := map[relation]bool{}
	for _, f := range l.files {
		if rel, fork, ok := relationOf(f.Name); ok && fork == "init" {
			unlogged[relation{f.Space, rel}] = true
		}
	}
	if len(unlogged) == 0 {
		return
	}
	l.files = slices.DeleteFunc(l.files, func(f wire.File) bool {
		rel, fork, ok := relationOf(f.Name)
		return ok && !f.Dir && fork != "init" && unlogged[relation{f.Space, rel}]
	})
}

// relationOf splits a relation's file into its relation (with the directory) and its fork.
func relationOf(name string) (rel, fork string, ok bool) {
	dir, base := path.Split(name)
	base, _, _ = strings.Cut(base, ".")
	number, fork, _ := strings.Cut(base, "_")
	_, err := strconv.ParseUint(number, 10, 32)
	return dir + number, fork, err == nil
}

// tablespaceDir is the form of the directory in a tablespace that holds the files of one version of PostgreSQL.
var tablespaceDir = regexp.MustCompile(`^PG_[0-9]+_[0-9]+$`)

// CheckList refuses a list that is malformed or could lead out of its directories. The place of a tablespace comes from
// the source, so that nothing is written there but the directory of a version: the place may be that of something else.
func CheckList(files []wire.File) error {
	seen := make(map[fileio.Entry]bool, len(files))
	for _, f := range files {
		if !filepath.IsLocal(f.Name) || path.Clean(f.Name) != f.Name || f.Name == "." || strings.Contains(f.Name, "\x00") {
			return fmt.Errorf("the source listed %q, which is no name of a file in a data directory", f.Name)
		}
		if f.Size < 0 || f.Size > 1<<50 || f.Dir && f.Size != 0 {
			return fmt.Errorf("the source listed %q with %d bytes", f.Name, f.Size)
		}
		if f.Space == 0 && excluded(f.Name, "") {
			return fmt.Errorf("the source listed %q, which belongs to its node", f.Name)
		}
		top, rest, _ := strings.Cut(f.Name, "/")
		if f.Space == 0 && slices.Contains(Emptied, top) && rest != "" && f.Name != "pg_wal/archive_status" {
			return fmt.Errorf("the source listed %q, which does not belong to a copy", f.Name)
		}
		if f.Space != 0 && !tablespaceDir.MatchString(top) {
			return fmt.Errorf("the source listed %q in tablespace %d, where only the directory of a version of PostgreSQL belongs to a copy", f.Name, f.Space)
		}
		p := fileio.Entry{Space: f.Space, Name: f.Name}
		if seen[p] {
			return fmt.Errorf("the source listed %q twice", f.Name)
		}
		seen[p] = true
	}
	return nil
}

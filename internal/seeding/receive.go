package seeding

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

const (
	maxEntryName = 255     // a ustar name with its prefix; PostgreSQL itself keeps to 99
	maxAutoConf  = 1 << 20 // postgresql.auto.conf passes through memory
	controlSize  = 8192
)

// receiver writes what the source sends into the tree and remembers what it was, for the manifest.
type receiver struct {
	tree     *tree
	discard  func(name string) bool
	watch    *watcher
	got      map[string]fileSum // by the path the manifest uses
	autoConf []byte             // the source's postgresql.auto.conf
	label    bool               // backup_label has come: without it the copy would start from the wrong place
	control  bool
	buf      [256 << 10]byte
}

// receive reads every archive of the backup and then its manifest.
func (r *receiver) receive(p *parts) (*manifest, error) {
	var m *manifest
	seen := map[uint32]bool{}
	for {
		next, err := p.advance()
		switch {
		case err != nil:
			return nil, err
		case next == nil && m == nil:
			return nil, errors.New("the source sent no manifest")
		case next == nil && len(seen) != len(p.b.spaces):
			return nil, errors.New("the source did not send every tablespace")
		case next == nil:
			return m, nil
		case next.manifest && m != nil:
			return nil, errors.New("the source sent two manifests")
		case next.manifest:
			if m, err = readManifest(p); err != nil {
				return nil, err
			}
		case seen[next.space.oid]:
			return nil, fmt.Errorf("the source sent the archive of tablespace %d twice", next.space.oid)
		default:
			seen[next.space.oid] = true
			if err := r.archive(next.space.oid, p); err != nil {
				return nil, err
			}
		}
	}
}

// archive unpacks one tar archive.
func (r *receiver) archive(oid uint32, in io.Reader) error {
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name, err := entryName(h)
		if err != nil {
			return err
		}
		if oid != 0 && !strings.HasPrefix(name, r.tree.version) {
			return fmt.Errorf("archive of tablespace %d: %q does not belong there", oid, name)
		}
		if h.Typeflag == tar.TypeDir {
			err = r.dir(oid, name)
		} else {
			err = r.file(oid, name, h.Size, tr)
		}
		if err != nil {
			return err
		}
	}
}

// entryName returns the entry's path if it can only lie inside the directory it is unpacked into. Only plain files and
// directories are taken: with a tablespace map PostgreSQL sends nothing else.
func entryName(h *tar.Header) (string, error) {
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
		return "", fmt.Errorf("archive entry %.80q is neither a file nor a directory (type %q)", h.Name, h.Typeflag)
	}
	name := strings.TrimPrefix(h.Name, "./") // PostgreSQL's spelling of ./pg_wal/archive_status
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if len(name) > maxEntryName || len(h.PAXRecords) > 0 {
		return "", fmt.Errorf("archive entry %.80q… has a name or attributes that PostgreSQL does not send", name)
	}
	if name == "." || name == "" || !filepath.IsLocal(name) || path.Clean(name) != name {
		return "", fmt.Errorf("archive entry %q would lie outside the data directory", name)
	}
	return name, nil
}

// dir creates a directory, unless it lies in one whose contents are not taken.
func (r *receiver) dir(oid uint32, name string) error {
	if oid == 0 && r.discard(name) && !strings.HasPrefix(name, "pg_wal/") {
		return nil
	}
	return r.tree.mkdir(oid, name)
}

// file receives one file. What is not stored is read and summed all the same, since the manifest lists it.
func (r *receiver) file(oid uint32, name string, size int64, in io.Reader) error {
	listed := name
	if oid != 0 {
		listed = "pg_tblspc/" + strconv.FormatUint(uint64(oid), 10) + "/" + name
	}
	if _, twice := r.got[listed]; twice {
		return fmt.Errorf("the source sent %s twice", listed)
	}
	stored := name
	switch {
	case oid != 0:
	case name == controlName:
		if size != controlSize {
			return fmt.Errorf("%s has %d bytes, not %d", name, size, controlSize)
		}
		stored, r.control = controlNew, true
	case name == autoConfName:
		return r.keepAutoConf(size, in)
	case name == "backup_label":
		r.label = true
	case r.discard(name):
		return r.copy(listed, size, io.Discard, in)
	}
	f, err := r.tree.create(oid, stored)
	if err != nil {
		return err
	}
	err = r.copy(listed, size, f, in)
	return errors.Join(err, f.Close())
}

// copy moves one file's bytes and records what they were.
func (r *receiver) copy(listed string, size int64, to io.Writer, from io.Reader) error {
	sum := sha256.New()
	var done int64
	for {
		n, rerr := from.Read(r.buf[:])
		if n > 0 {
			sum.Write(r.buf[:n])
			if _, err := to.Write(r.buf[:n]); err != nil {
				return fmt.Errorf("write %s: %w", listed, err)
			}
			done += int64(n)
			r.watch.received(n)
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return fmt.Errorf("receive %s: %w", listed, rerr)
		}
	}
	if done != size {
		return fmt.Errorf("receive %s: %d of %d bytes came", listed, done, size)
	}
	r.got[listed] = fileSum{size: size, sum: [sha256.Size]byte(sum.Sum(nil))}
	r.watch.now.Files++
	return nil
}

// keepAutoConf holds postgresql.auto.conf back: it is stored without the settings that belong to the source node.
func (r *receiver) keepAutoConf(size int64, in io.Reader) error {
	if size > maxAutoConf {
		return fmt.Errorf("%s has %d bytes, at most %d are taken", autoConfName, size, maxAutoConf)
	}
	var text strings.Builder
	if err := r.copy(autoConfName, size, &text, in); err != nil {
		return err
	}
	r.autoConf = []byte(text.String())
	return nil
}

// check holds what arrived against the manifest and against what the source said of itself.
func (r *receiver) check(m *manifest, src source, end ag.LSN) error {
	if err := m.verify(r.got); err != nil {
		return err
	}
	if !r.control || !r.label {
		return errors.New("the backup has no pg_control or no backup_label")
	}
	if m.systemID != "" && m.systemID != src.systemID {
		return fmt.Errorf("the manifest is of another cluster (system identifier %s)", m.systemID)
	}
	if m.end != end {
		return fmt.Errorf("the manifest ends at %s, the backup at %s", m.end, end)
	}
	have, err := readSystemID(filepath.Join(r.tree.target, controlNew))
	if err != nil {
		return err
	}
	if have != src.systemID {
		return fmt.Errorf("the source's pg_control has system identifier %s instead of %s; source and target must have the same architecture", have, src.systemID)
	}
	return nil
}

// emptied are the directories that exist in a copy but hold nothing of the source's.
var emptied = []string{
	"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_subtrans",
}

// ofTheSource are the files of the data directory's top level that describe the source node or its run.
var ofTheSource = []string{
	"postmaster.pid", "postmaster.opts", "tablespace_map", "backup_manifest", "recovery.signal", "standby.signal",
	"postgresql.auto.conf.tmp", "current_logfiles",
}

// discards returns the rule for files of the data directory that are received but not stored. Coterie's own files, all named
// coterie*, belong to their node.
func discards(logDir string) func(name string) bool {
	skip := map[string]bool{controlOld: true}
	for _, f := range ofTheSource {
		skip[f] = true
	}
	dirs := make([]string, 0, len(emptied)+1)
	for _, d := range emptied {
		dirs = append(dirs, d+"/")
	}
	if d := path.Clean(logDir); filepath.IsLocal(d) && d != "." && !isPostgresDir(d) {
		dirs = append(dirs, d+"/")
	}
	return func(name string) bool {
		for _, d := range dirs {
			if strings.HasPrefix(name, d) {
				return true
			}
		}
		base := path.Base(name)
		return skip[name] || strings.HasPrefix(name, "coterie") ||
			strings.HasPrefix(base, "pg_internal.init") || strings.HasPrefix(base, "pgsql_tmp")
	}
}

// isPostgresDir reports whether a path lies in a directory of PostgreSQL's own, which no log_directory may hide.
func isPostgresDir(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return top == "base" || top == "global" || strings.HasPrefix(top, "pg_") && top != "pg_log"
}

// mapTablespaces asks where each tablespace of the source goes and refuses places that cannot be.
func mapTablespaces(o Options, spaces []tablespace) (map[uint32]string, error) {
	places := map[uint32]string{}
	used := map[string]uint32{}
	for _, t := range spaces {
		if t.oid == 0 {
			continue
		}
		if !filepath.IsAbs(t.location) {
			return nil, fmt.Errorf("tablespace %d lies inside the source's data directory (%s), which is not supported", t.oid, t.location)
		}
		if o.TablespaceMap == nil {
			return nil, fmt.Errorf("the source has tablespace %d at %s; say where it goes on this node", t.oid, t.location)
		}
		place, err := o.TablespaceMap(t.oid, t.location)
		if err != nil {
			return nil, fmt.Errorf("tablespace %d at %s: %w", t.oid, t.location, err)
		}
		place = filepath.Clean(place)
		if !filepath.IsAbs(place) || within(place, o.Target) || within(o.Target, place) {
			return nil, fmt.Errorf("tablespace %d cannot go to %s: an absolute path apart from the data directory is needed", t.oid, place)
		}
		if other, twice := used[place]; twice {
			return nil, fmt.Errorf("tablespaces %d and %d cannot both go to %s", other, t.oid, place)
		}
		used[place] = t.oid
		places[t.oid] = place
	}
	return places, nil
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}

// ignoreMissing turns "does not exist" into success.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

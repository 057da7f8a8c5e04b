package datadir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path"
	"strconv"
	"strings"
)

// Names below the data directory. Only ControlFile makes a directory startable.
const (
	ControlFile = "global/pg_control"
	ControlNew  = "global/pg_control.coterie-tmp" // received, not installed yet
	ControlOld  = "global/pg_control.reseeding"   // of a copy that is being replaced
	AutoConf    = "postgresql.auto.conf"
)

// controlLen is the length of pg_control, in every version.
const controlLen = 8192

// VersionPrefix begins the name of a tablespace's directory for a major version of PostgreSQL.
func VersionPrefix(major int) string { return "PG_" + strconv.Itoa(major) + "_" }

// LostFound is a directory that a file system has at its mount point.
const LostFound = "lost+found" // of the file system whose mount point the directory is

// RelationFile reports whether a name and its place are those of a file of pages, as PostgreSQL names them: a number, a
// fork, a segment. segment is the number of the segment.
func RelationFile(space uint32, name string) (segment uint32, ok bool) {
	dir, base := path.Split(name)
	if space == 0 && dir != "global/" && !strings.HasPrefix(dir, "base/") {
		return 0, false
	}
	if i := strings.IndexByte(base, '.'); i >= 0 {
		n, err := strconv.ParseUint(base[i+1:], 10, 20)
		if err != nil || n == 0 {
			return 0, false
		}
		segment, base = uint32(n), base[:i]
	}
	number, fork, has := strings.Cut(base, "_")
	if has && fork != "fsm" && fork != "vm" && fork != "init" {
		return 0, false
	}
	_, err := strconv.ParseUint(number, 10, 32)
	return segment, err == nil
}

// ReadSystemID reads the system identifier, which every version keeps in the first eight bytes of pg_control.
func ReadSystemID(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [8]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return "", fmt.Errorf("read the system identifier in %s: %w", path, err)
	}
	return strconv.FormatUint(binary.NativeEndian.Uint64(b[:]), 10), nil
}

// CheckControl reports whether b is a whole pg_control of that cluster, by its error. The checksum is the last field of
// a structure whose length differs by version, so its position is searched for.
func CheckControl(b []byte, systemID string) error {
	if len(b) != controlLen {
		return fmt.Errorf("pg_control has %d bytes", len(b))
	}
	if have := strconv.FormatUint(binary.NativeEndian.Uint64(b), 10); have != systemID {
		return fmt.Errorf("pg_control is of cluster %s and not of %s; both nodes must have the same architecture", have, systemID)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := 200; at+4 <= 512; at += 4 {
		if crc32.Checksum(b[:at], table) == binary.NativeEndian.Uint32(b[at:]) {
			return nil
		}
	}
	return errors.New("pg_control has a wrong checksum")
}

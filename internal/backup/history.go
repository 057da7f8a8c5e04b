package backup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// defaultSegment is the size of a WAL segment unless initdb was told otherwise.
const defaultSegment = 16 << 20

// segment is a file of WAL: its timeline and its number.
type segment struct {
	tli uint32
	no  uint64
}

// perID returns how many segments share the middle part of their names.
func perID(size int64) uint64 { return uint64(1) << 32 / uint64(size) }

// parseSegment reads the 24 digits of a segment's name; ok is false for any other file.
func parseSegment(name string, size int64) (s segment, ok bool) {
	if len(name) != 24 {
		return s, false
	}
	var part [3]uint64
	for i := range part {
		n, err := strconv.ParseUint(name[8*i:8*i+8], 16, 32)
		if err != nil {
			return s, false
		}
		part[i] = n
	}
	return segment{uint32(part[0]), part[1]*perID(size) + part[2]}, part[0] != 0
}

func (s segment) name(size int64) string {
	return fmt.Sprintf("%08X%08X%08X", s.tli, s.no/perID(size), s.no%perID(size))
}

// ParseLSN reads a position as PostgreSQL writes it, 0/3000050.
func ParseLSN(text string) (uint64, error) {
	hi, lo, ok := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no position in WAL, as 0/3000050", text)
	}
	return h<<32 | l, nil
}

// branch is a timeline with the position at which the next one leaves it.
type branch struct {
	tli uint32
	end uint64 // 0: of the last timeline
}

// pathTo returns the timelines that lead to tli, the oldest first, by its history file.
func pathTo(tli uint32, histories map[uint32]string) ([]branch, error) {
	text, ok := histories[tli]
	if !ok && tli != 1 {
		return nil, fmt.Errorf("the archive lacks %08X.history", tli)
	}
	var out []branch
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		parent, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil || len(f) < 2 || uint32(parent) >= tli {
			return nil, fmt.Errorf("%08X.history in the archive is damaged", tli)
		}
		at, err := ParseLSN(f[1])
		if err != nil {
			return nil, fmt.Errorf("%08X.history in the archive is damaged: %w", tli, err)
		}
		out = append(out, branch{uint32(parent), at})
	}
	return append(out, branch{tli: tli}), nil
}

// Newest returns the newest timeline that the archive has WAL or a history of; 0: none. PostgreSQL itself finds it only
// if no id before it is missing, and a group leaves ids out.
func (c Catalog) Newest() (newest uint32) {
	for tli := range c.Histories {
		newest = max(newest, tli)
	}
	for _, name := range c.WAL {
		if s, ok := parseSegment(strings.TrimSuffix(name, ".partial"), defaultSegment); ok {
			newest = max(newest, s.tli)
		}
	}
	return newest
}

// Reaches reports whether a history that leads to tli contains the whole backup.
func (b Backup) Reaches(tli uint32, histories map[uint32]string) bool {
	s, ok := parseSegment(b.EndWAL, defaultSegment)
	path, err := pathTo(tli, histories)
	if !ok || err != nil {
		return false
	}
	i := slices.IndexFunc(path, func(x branch) bool { return x.tli == s.tli })
	end, err := ParseLSN(b.End)
	return i >= 0 && err == nil && (path[i].end == 0 || end <= path[i].end)
}

// segmentSize returns the size of a segment with which the backup's positions are in the segments that it names.
func (b Backup) segmentSize() int64 {
	begin, err1 := ParseLSN(b.Begin)
	end, err2 := ParseLSN(b.End)
	for _, mb := range []int64{16, 1, 2, 4, 8, 32, 64, 128, 256, 512, 1024} { // the usual one first: a few positions fit several
		size := mb << 20
		first, ok1 := parseSegment(b.BeginWAL, size)
		last, ok2 := parseSegment(b.EndWAL, size)
		if err1 == nil && err2 == nil && ok1 && ok2 && first.no == begin/uint64(size) && last.no == (max(end, 1)-1)/uint64(size) { // a backup may end at the end of a segment
			return size
		}
	}
	return defaultSegment
}

// Gap is WAL between two segments of a history that the archive does not have. Nothing behind it can be restored from a
// backup before it.
type Gap struct {
	From, To string // names of its first and last segment
	Count    uint64
}

// mostSegments bounds the WAL that is looked through for gaps: 256 TiB.
const mostSegments = 1 << 24

// Gaps returns what the archive lacks of the WAL from the start of the backup to the newest segment of the timeline
// tli, the oldest first. size is that of a segment; 0: as the backup tells.
func (c Catalog) Gaps(b Backup, tli uint32, size int64) (out []Gap, err error) {
	if size <= 0 {
		size = b.segmentSize()
	}
	open := false
	err = c.walk(b, tli, size, func(s segment, has bool) {
		switch {
		case has:
			open = false
		case open:
			out[len(out)-1].To, out[len(out)-1].Count = s.name(size), out[len(out)-1].Count+1
		default:
			out, open = append(out, Gap{s.name(size), s.name(size), 1}), true
		}
	})
	return out, err
}

// Reach returns the last segment that the archive has from the start of the backup on without a gap, on the way to the
// timeline tli, and the position at which it begins; "": none is known.
func (c Catalog) Reach(b Backup, tli uint32) (name string, at uint64) {
	size, ended := b.segmentSize(), false
	_ = c.walk(b, tli, size, func(s segment, has bool) { // an error: none is known
		if ended = ended || !has; !ended {
			name, at = s.name(size), s.no*uint64(size)
		}
	})
	return name, at
}

// walk calls each with every segment from the start of the backup to the newest one of the timeline tli, and whether
// the archive has it.
func (c Catalog) walk(b Backup, tli uint32, size int64, each func(s segment, has bool)) error {
	path, err := pathTo(tli, c.Histories)
	if err != nil {
		return err
	}
	first, ok := parseSegment(b.BeginWAL, size)
	at := slices.IndexFunc(path, func(x branch) bool { return x.tli == first.tli })
	if !ok || at < 0 {
		return fmt.Errorf("the backup %s is not of the history of timeline %d", b.Label, tli)
	}
	has, last := map[segment]bool{}, uint64(0)
	for _, name := range c.WAL {
		if s, ok := parseSegment(name, size); ok {
			has[s] = true
			if s.tli == tli {
				last = max(last, s.no)
			}
		}
	}
	if newest := max(last, path[len(path)-1].end/uint64(size)); newest > first.no+mostSegments {
		return fmt.Errorf("from the backup %s to the newest WAL there are more than %d segments", b.Label, mostSegments)
	}
	no := first.no
	for i, x := range path[at:] {
		end := last + 1 // of the last timeline: what is there
		if at+i < len(path)-1 {
			end = min(x.end/uint64(size), first.no+mostSegments) // the next timeline has the segment in which it begins, from its start on
		}
		for ; no < end; no++ {
			s := segment{x.tli, no}
			each(s, has[s])
		}
	}
	return nil
}

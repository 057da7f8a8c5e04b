package pgfiles

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/coteriedb/coterie/internal/ag"
)

// The format of WAL pages and records, the same in PostgreSQL 14 to 18 except for the magic number. Numbers have the
// byte order of the machine that wrote them; Coterie runs on little-endian machines only.
const (
	shortPageHeader = 24
	LongPageHeader  = 40 // of the first page of each segment
	recordHeader    = 24
	recordMax       = 1020 << 20

	pageFirstIsContRecord          = 0x1
	pageLongHeader                 = 0x2
	pageFirstIsOverwriteContRecord = 0x8
	pageAllFlags                   = 0xF
)

// ErrNoWAL means that the WAL at a position is not here: no file exists, or other content is in its place. Every WAL
// ends this way.
var ErrNoWAL = errors.New("no WAL there")

// walPage is one page with its header read.
type walPage struct {
	data   []byte // the whole page
	header int    // length of its header
	magic  uint16
	flags  uint16
	tli    ag.Timeline
	remain int // bytes on this page and later ones that continue a record begun before
}

// WAL reads pages of pg_wal along a lineage. It keeps one segment open.
type WAL struct {
	dir     string
	SegSize ag.LSN
	page    ag.LSN
	along   Lineage

	file    *os.File
	tli     ag.Timeline // of the open file
	seg     ag.LSN      // number of the open segment
	limit   ag.LSN      // where the open file's timeline ends on the lineage
	chunk   []byte      // read ahead from the open file
	chunkAt ag.LSN
	buf     []byte
}

const walChunk = 256 << 10

// OpenWAL returns the WAL in a directory, read along a lineage. Close it.
func OpenWAL(dir string, c Control, along Lineage) *WAL {
	return &WAL{dir: dir, SegSize: ag.LSN(c.WalSegmentSize), page: ag.LSN(c.WalBlockSize), along: along, buf: make([]byte, walChunk)}
}

// Close closes the segment that was read last.
func (w *WAL) Close() {
	if w.file != nil {
		_ = w.file.Close() // only read from
		w.file = nil
	}
}

// SegmentName is the file of a segment, as in 000000010000000000000003.
func SegmentName(tli ag.Timeline, seg, segSize ag.LSN) string {
	perID := (ag.LSN(1) << 32) / segSize
	return fmt.Sprintf("%08X%08X%08X", uint32(tli), uint32(seg/perID), uint32(seg%perID))
}

// open opens the segment that contains addr. Like PostgreSQL's recovery it prefers the newest timeline of the lineage
// that had begun by the end of the segment: a promotion copies the begun segment into its own timeline.
func (w *WAL) open(addr ag.LSN) error {
	seg := addr / w.SegSize
	if w.file != nil && w.seg == seg {
		return nil
	}
	w.Close()
	for _, s := range slices.Backward(w.along) {
		if seg < s.begin/w.SegSize {
			continue
		}
		f, err := os.Open(w.dir + "/" + SegmentName(s.TLI, seg, w.SegSize))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		w.file, w.seg, w.tli, w.limit, w.chunk = f, seg, s.TLI, s.end, nil
		return nil
	}
	return ErrNoWAL
}

// at returns the page that begins at addr, valid until the next call.
func (w *WAL) at(addr ag.LSN) (walPage, error) {
	if err := w.open(addr); err != nil {
		return walPage{}, err
	}
	if w.chunk == nil || addr < w.chunkAt || addr+w.page > w.chunkAt+ag.LSN(len(w.chunk)) {
		offset := addr % w.SegSize
		n, err := w.file.ReadAt(w.buf[:min(walChunk, w.SegSize-offset)], int64(offset))
		if err != nil && !errors.Is(err, io.EOF) {
			return walPage{}, err
		}
		w.chunk, w.chunkAt = w.buf[:n], addr
		if ag.LSN(n) < w.page {
			return walPage{}, ErrNoWAL
		}
	}
	start := addr - w.chunkAt
	return parsePage(w.chunk[start:start+w.page], addr, w.SegSize)
}

// parsePage checks a page's header: a recycled segment still has the pages of its earlier use.
func parsePage(data []byte, addr, segSize ag.LSN) (walPage, error) {
	p := walPage{
		data:   data,
		header: shortPageHeader,
		magic:  binary.LittleEndian.Uint16(data),
		flags:  binary.LittleEndian.Uint16(data[2:]),
		tli:    ag.Timeline(binary.LittleEndian.Uint32(data[4:])),
		remain: int(binary.LittleEndian.Uint32(data[16:])),
	}
	first := addr%segSize == 0
	if p.magic>>8 != 0xD1 || p.flags&^pageAllFlags != 0 || ag.LSN(binary.LittleEndian.Uint64(data[8:])) != addr ||
		first != (p.flags&pageLongHeader != 0) {
		return walPage{}, ErrNoWAL
	}
	if first {
		p.header = LongPageHeader
		if binary.LittleEndian.Uint32(data[32:]) != uint32(segSize) || binary.LittleEndian.Uint32(data[36:]) != uint32(len(data)) {
			return walPage{}, ErrNoWAL
		}
	}
	return p, nil
}

var segmentPattern = regexp.MustCompile(`^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})(\.partial)?$`)

// SegmentNumber reads the number of a segment from its file's name.
func SegmentNumber(name string, segSize ag.LSN) (seg ag.LSN, ok bool) {
	m := segmentPattern.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	hi, err1 := strconv.ParseUint(m[2], 16, 32)
	lo, err2 := strconv.ParseUint(m[3], 16, 32)
	return ag.LSN(hi)*((1<<32)/segSize) + ag.LSN(lo), errors.Join(err1, err2) == nil
}

package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// The format of WAL pages and records, the same in PostgreSQL 14 to 18 but for the magic number. Numbers are in the byte
// order of the machine that wrote them; Coterie runs on little-endian ones only.
const (
	shortPageHeader = 24
	longPageHeader  = 40 // of the first page of each segment
	recordHeader    = 24
	recordMax       = 1020 << 20

	pageFirstIsContRecord          = 0x1
	pageLongHeader                 = 0x2
	pageFirstIsOverwriteContRecord = 0x8
	pageAllFlags                   = 0xF
)

// errNoWAL says that the WAL at a position is not here: no file, or one with something else in that place. It is how every
// WAL ends.
var errNoWAL = errors.New("no WAL there")

// walPage is one page with its header read.
type walPage struct {
	data   []byte // the whole page
	header int    // length of its header
	magic  uint16
	flags  uint16
	tli    ag.Timeline
	remain int // bytes on this page and later ones that continue a record begun before
}

// walFiles reads pages of pg_wal along a lineage. It keeps one segment open.
type walFiles struct {
	dir     string
	segSize ag.LSN
	page    ag.LSN
	along   lineage

	file    *os.File
	tli     ag.Timeline // of the open file
	seg     ag.LSN      // number of the open segment
	limit   ag.LSN      // where the open file's timeline ends on the lineage
	chunk   []byte      // read ahead from the open file
	chunkAt ag.LSN
	buf     []byte
}

const walChunk = 256 << 10

func newWALFiles(dir string, c Control, along lineage) *walFiles {
	return &walFiles{dir: dir, segSize: ag.LSN(c.WalSegmentSize), page: ag.LSN(c.WalBlockSize), along: along, buf: make([]byte, walChunk)}
}

func (w *walFiles) close() {
	if w.file != nil {
		_ = w.file.Close() // only read from
		w.file = nil
	}
}

// segmentName is the file of a segment, as in 000000010000000000000003.
func segmentName(tli ag.Timeline, seg, segSize ag.LSN) string {
	perID := (ag.LSN(1) << 32) / segSize
	return fmt.Sprintf("%08X%08X%08X", uint32(tli), uint32(seg/perID), uint32(seg%perID))
}

// open makes the segment that holds addr the open one. Like PostgreSQL's recovery it prefers the newest timeline of the
// lineage that had begun by the end of the segment: a promotion copies the begun segment into its own timeline.
func (w *walFiles) open(addr ag.LSN) error {
	seg := addr / w.segSize
	if w.file != nil && w.seg == seg {
		return nil
	}
	w.close()
	for _, s := range slices.Backward(w.along) {
		if seg < s.begin/w.segSize {
			continue
		}
		f, err := os.Open(w.dir + "/" + segmentName(s.tli, seg, w.segSize))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		w.file, w.seg, w.tli, w.limit, w.chunk = f, seg, s.tli, s.end, nil
		return nil
	}
	return errNoWAL
}

// at returns the page that begins at addr, valid until the next call.
func (w *walFiles) at(addr ag.LSN) (walPage, error) {
	if err := w.open(addr); err != nil {
		return walPage{}, err
	}
	if w.chunk == nil || addr < w.chunkAt || addr+w.page > w.chunkAt+ag.LSN(len(w.chunk)) {
		offset := addr % w.segSize
		n, err := w.file.ReadAt(w.buf[:min(walChunk, w.segSize-offset)], int64(offset))
		if err != nil && !errors.Is(err, io.EOF) {
			return walPage{}, err
		}
		w.chunk, w.chunkAt = w.buf[:n], addr
		if ag.LSN(n) < w.page {
			return walPage{}, errNoWAL
		}
	}
	start := addr - w.chunkAt
	return parsePage(w.chunk[start:start+w.page], addr, w.segSize)
}

// parsePage checks a page's header: a recycled segment still has the pages of its former life.
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
		return walPage{}, errNoWAL
	}
	if first {
		p.header = longPageHeader
		if binary.LittleEndian.Uint32(data[32:]) != uint32(segSize) || binary.LittleEndian.Uint32(data[36:]) != uint32(len(data)) {
			return walPage{}, errNoWAL
		}
	}
	return p, nil
}

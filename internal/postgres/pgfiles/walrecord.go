package pgfiles

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/coteriedb/coterie/internal/ag"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// End follows the records from start, where one begins, to the last whole one that ends at or before the limit. It
// returns the position after that record, which is the end of WAL that PostgreSQL's recovery would find. The timeline
// is that of the last record. found is false if not even the record at start exists here.
func End(ctx context.Context, w *WAL, start, limit ag.LSN) (end ag.Position, found bool, err error) {
	r := recordReader{files: w}
	at, prev := start, ag.LSN(0)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ag.Position{}, false, context.Cause(ctx)
		}
		rec, err := r.read(at, prev, n > 0)
		if errors.Is(err, ErrNoWAL) || err == nil && rec.next > limit {
			return end, found, nil
		}
		if err != nil {
			return ag.Position{}, false, err
		}
		end, found = ag.Position{Timeline: w.along.at(rec.start), LSN: rec.next}, true
		at, prev = rec.next, rec.start
	}
}

// record is where a whole and valid record lies.
type record struct {
	start, next ag.LSN
}

// recordReader reads one record after another. Its fields are what must agree between them.
type recordReader struct {
	files *WAL
	magic uint16
	tli   ag.Timeline // of the last page: pages never go back to an older timeline
	body  []byte
}

// read reads the record at the position. prev is the start of the one before it, if known.
func (r *recordReader) read(at, prev ag.LSN, known bool) (record, error) {
	size := r.files.page
	page, err := r.page(at - at%size)
	if err != nil {
		return record{}, err
	}
	if at%size == 0 {
		if page.flags&pageFirstIsContRecord != 0 {
			return record{}, ErrNoWAL
		}
		at += ag.LSN(page.header)
	}
	offset := at % size
	if at%8 != 0 || offset < ag.LSN(page.header) {
		return record{}, ErrNoWAL
	}
	total := int(binary.LittleEndian.Uint32(page.data[offset:]))
	if total < recordHeader || total > recordMax {
		return record{}, ErrNoWAL
	}
	r.body = append(r.body[:0], page.data[offset:min(int(size), int(offset)+total)]...)
	next := at + align8(len(r.body))
	for pageAt := at - offset + size; len(r.body) < total; pageAt += size {
		if page, err = r.page(pageAt); err != nil {
			return record{}, err
		}
		if page.flags&pageFirstIsOverwriteContRecord != 0 {
			// A crash cut the record short; later WAL begins on this page.
			return r.read(pageAt, prev, known)
		}
		left := total - len(r.body)
		if page.flags&pageFirstIsContRecord == 0 || page.remain != left {
			return record{}, ErrNoWAL
		}
		n := min(left, int(size)-page.header)
		r.body = append(r.body, page.data[page.header:page.header+n]...)
		next = pageAt + ag.LSN(page.header) + align8(n)
	}
	if at >= r.files.limit || !r.valid(at, prev, known) { // behind the limit the file is a branch that was left
		return record{}, ErrNoWAL
	}
	if isSwitch(r.body) { // the rest of the segment is unused
		next = (next + r.files.SegSize - 1) / r.files.SegSize * r.files.SegSize
	}
	return record{start: at, next: next}, nil
}

// page reads a page and checks that it fits those before it.
func (r *recordReader) page(addr ag.LSN) (walPage, error) {
	p, err := r.files.at(addr)
	if err != nil {
		return walPage{}, err
	}
	if r.magic != 0 && p.magic != r.magic || p.tli < r.tli || p.tli > r.files.tli {
		return walPage{}, ErrNoWAL
	}
	r.magic, r.tli = p.magic, p.tli
	return p, nil
}

// valid checks the record in body: its link to the previous record, and its CRC, which covers the data first and then
// the header up to the CRC itself.
func (r *recordReader) valid(at, prev ag.LSN, known bool) bool {
	link := ag.LSN(binary.LittleEndian.Uint64(r.body[8:]))
	if known && link != prev || !known && link >= at {
		return false
	}
	crc := crc32.Update(0, castagnoli, r.body[recordHeader:])
	crc = crc32.Update(crc, castagnoli, r.body[:20])
	return crc == binary.LittleEndian.Uint32(r.body[20:])
}

// isSwitch reports whether the record is the one that ends a segment early.
func isSwitch(body []byte) bool {
	const rmXLOG, switchInfo = 0, 0x40
	return body[17] == rmXLOG && body[16]&0xF0 == switchInfo
}

// SettingsChange reports whether the WAL from start on, where a record begins, has a record of changed settings that a
// standby must follow, as max_connections. Where not even the record at start is here, nobody knows, which is an error.
func SettingsChange(ctx context.Context, w *WAL, start ag.LSN) (bool, error) {
	r := recordReader{files: w}
	at, prev := start, ag.LSN(0)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		rec, err := r.read(at, prev, n > 0)
		switch {
		case errors.Is(err, ErrNoWAL) && n > 0:
			return false, nil
		case err != nil:
			return false, err
		case isSettings(r.body):
			return true, nil
		}
		at, prev = rec.next, rec.start
	}
}

// isSettings reports whether the record is XLOG_PARAMETER_CHANGE.
func isSettings(body []byte) bool {
	const rmXLOG, parameterChange = 0, 0x60
	return body[17] == rmXLOG && body[16]&0xF0 == parameterChange
}

func align8(n int) ag.LSN { return ag.LSN(n+7) &^ 7 }

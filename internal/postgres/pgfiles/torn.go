package pgfiles

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/coteriedb/coterie/internal/ag"
)

// Holds reports whether the files hold WAL up to a position: whole records from start, and then the beginning of the
// record in which the position lies, if it lies in one. A position that was received, flushed and reported before a
// crash is held, although recovery ends before it.
func Holds(ctx context.Context, w *WAL, start, to ag.LSN) (bool, error) {
	r := recordReader{files: w}
	at, prev, known := start, ag.LSN(0), false
	for n := 0; at < to; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		rec, err := r.read(at, prev, known)
		if errors.Is(err, ErrNoWAL) {
			if !known {
				return false, nil
			}
			return r.begun(at, prev, to)
		}
		if err != nil {
			return false, err
		}
		at, prev, known = rec.next, rec.start, true
	}
	return known || start == to, nil
}

// begun reports whether a record that follows the one at prev begins at the position, and is here up to the other one.
func (r *recordReader) begun(at, prev, to ag.LSN) (bool, error) {
	size := r.files.page
	page, err := r.page(at - at%size)
	if at%size == 0 && err == nil {
		at += ag.LSN(page.header)
	}
	if err != nil || at%8 != 0 {
		return held(err)
	}
	if to <= at+recordHeader && to-at < size { // not even its header came
		return to-at < 8 || binary.LittleEndian.Uint32(page.data[at%size:]) != 0, nil
	}
	body := page.data[at%size:]
	total := int(binary.LittleEndian.Uint32(body))
	if total < recordHeader || total > recordMax || len(body) >= 16 && ag.LSN(binary.LittleEndian.Uint64(body[8:])) != prev {
		return false, nil
	}
	left := total - len(body)
	for next := at - at%size + size; next < to && left > 0; next += size {
		if page, err = r.page(next); err != nil {
			return held(err)
		}
		if page.flags&pageFirstIsContRecord == 0 || page.remain != left {
			return false, nil
		}
		left -= int(size) - page.header
	}
	return true, nil
}

// held turns the absence of WAL into an answer.
func held(err error) (bool, error) {
	if errors.Is(err, ErrNoWAL) {
		err = nil
	}
	return false, err
}

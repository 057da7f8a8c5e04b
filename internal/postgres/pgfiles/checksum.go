package pgfiles

import (
	"errors"
	"hash/crc32"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Checksum computes the CRC-32C of the WAL in a directory along a lineage.
type Checksum struct {
	Dir     string
	Control Control
	Along   Lineage
}

// Of returns the CRC of the bytes from..to.
func (s Checksum) Of(from, to ag.LSN) (crc uint32, err error) {
	size := ag.LSN(s.Control.WalSegmentSize)
	for from < to {
		end := min(to, (from/size+1)*size)
		if crc, err = s.segment(from, end, crc); err != nil {
			return 0, err
		}
		from = end
	}
	return crc, nil
}

// segment adds the bytes from..to, which lie in one segment, to the CRC. Any file of the lineage serves whose timeline
// holds them: the parts that two of its files have in common are equal.
func (s Checksum) segment(from, to ag.LSN, crc uint32) (uint32, error) {
	for _, p := range slices.Backward(s.Along) {
		if to > p.end {
			continue
		}
		w := OpenWAL(s.Dir, s.Control, Lineage{p})
		sum, err := checksumPages(w, from, to, crc)
		w.Close()
		if !errors.Is(err, ErrNoWAL) {
			return sum, err
		}
	}
	return 0, ErrNoWAL
}

func checksumPages(w *WAL, from, to ag.LSN, crc uint32) (uint32, error) {
	for from < to {
		start := from - from%w.page
		p, err := w.at(start)
		if err != nil {
			return 0, err
		}
		end := min(to, start+w.page)
		crc = crc32.Update(crc, castagnoli, p.data[from-start:end-start])
		from = end
	}
	return crc, nil
}

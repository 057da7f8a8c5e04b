package pagesum

import (
	"encoding/binary"

	"github.com/coteriedb/coterie/internal/ag"
)

// Offsets in a page header (PageHeaderData in PostgreSQL's bufpage.h), in the byte order of the machine.
const (
	LSNOffset      = 0
	ChecksumOffset = 8
	UpperOffset    = 14
)

// State is the result of checking a page's header.
type State int

// The states of a page. Good is a page whose checksum fits.
const (
	Good  State = iota
	New         // never initialised
	Wrong       // the checksum does not fit
)

// Check verifies the checksum of the page with that block number, counted through all segments of the relation fork.
func Check(page []byte, block uint32) (State, ag.LSN) {
	lsn := ag.LSN(binary.NativeEndian.Uint32(page[LSNOffset:]))<<32 | ag.LSN(binary.NativeEndian.Uint32(page[LSNOffset+4:]))
	if binary.NativeEndian.Uint16(page[UpperOffset:]) == 0 && AllZero(page) {
		return New, lsn
	}
	if Checksum(page, block) != binary.NativeEndian.Uint16(page[ChecksumOffset:]) {
		return Wrong, lsn
	}
	return Good, lsn
}

// lanes is the number of partial sums in PostgreSQL's page checksum.
const lanes = 32

// offsets are the initial values of the lanes (checksum_impl.h of PostgreSQL).
var offsets = [lanes]uint32{
	0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C,
	0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB,
	0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4,
	0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756,
}

const (
	prime   = 16777619
	rowSize = 4 * lanes
)

// Checksum is PostgreSQL's page checksum: FNV-1a over 32 interleaved lanes with an extra mix, the block number folded
// in (described in checksum_impl.h). The checksum field itself counts as zero.
func Checksum(page []byte, block uint32) uint16 {
	var first [rowSize]byte
	copy(first[:], page)
	first[ChecksumOffset], first[ChecksumOffset+1] = 0, 0
	sums := offsets
	mix(&sums, first[:])
	mix(&sums, page[rowSize:])
	var zeros [2 * rowSize]byte
	mix(&sums, zeros[:])
	var all uint32
	for _, s := range sums {
		all ^= s
	}
	return uint16((all^block)%65535 + 1)
}

// mixAnywhere is mix without instructions that only some processors have.
func mixAnywhere(sums *[lanes]uint32, page []byte) {
	for ; len(page) >= rowSize; page = page[rowSize:] {
		row := page[:rowSize:rowSize]
		for i := range lanes {
			t := sums[i] ^ binary.NativeEndian.Uint32(row[4*i:])
			sums[i] = t*prime ^ t>>17
		}
	}
}

// AllZero reports whether all bytes of b are zero.
func AllZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

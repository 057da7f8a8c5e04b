package seeding

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/coteriedb/coterie/internal/ag"
)

// sum is SHA-256 cut to 128 bits, of the hashes of a chunk's pages.
func sum(b []byte) (h [hashSize]byte) {
	full := sha256.Sum256(b)
	copy(h[:], full[:])
	return h
}

// pageHash tells pages apart by AES-GMAC under a key that the source makes by chance for each window. It is no hash that anybody may compute,
// but of two pages that differ and were written without knowledge of the key, at most one key in 2^116 takes them for equal, which is proved
// and not assumed (the bound of a polynomial hash), and it takes a fifth of the time of SHA-256. The key travels as the hashes do, between the two nodes.
type pageHash struct{ mac cipher.AEAD }

// pageKeyLen is the length of its key.
const pageKeyLen = 16

func newPageHash(key []byte) (pageHash, error) {
	if len(key) != pageKeyLen {
		return pageHash{}, fmt.Errorf("a key of %d bytes for the hashes of pages", len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return pageHash{}, err
	}
	mac, err := cipher.NewGCM(block)
	return pageHash{mac}, err
}

// sums appends the hashes of the pages of b to dst, the last of which may be shorter. sum of them all stands for b: it says as much as
// a hash over b itself, which would read every byte once more where pages have to be told apart.
func (h pageHash) sums(dst, b []byte, size int) []byte {
	var nonce [12]byte // always the same: equal pages have equal hashes
	for at := 0; at < len(b); at += size {
		dst = h.mac.Seal(dst, nonce[:], nil, b[at:min(at+size, len(b))])
	}
	return dst
}

// guard is for bytes that are sent: they are not taken for equal to anything, but must arrive as they were read. The connection keeps
// others from changing them, so that this looks for accidents alone, such as memory that forgets, in a tenth of the time of sum.
func guard(b []byte) (h [hashSize]byte) {
	binary.BigEndian.PutUint64(h[:], xxhash.Sum64(b))
	return h
}

// Offsets in a page header (PageHeaderData in PostgreSQL's bufpage.h), in the byte order of the machine.
const (
	pageLSN      = 0
	pageChecksum = 8
	pageUpper    = 14
)

// pageState is what the header of a page says of its contents.
type pageState int

const (
	pageGood  pageState = iota
	pageNew             // never initialised
	pageWrong           // the checksum does not fit
)

// checkPage verifies the checksum of the page with that block number, counted through all segments of the relation fork.
func checkPage(page []byte, block uint32) (pageState, ag.LSN) {
	lsn := ag.LSN(binary.NativeEndian.Uint32(page[pageLSN:]))<<32 | ag.LSN(binary.NativeEndian.Uint32(page[pageLSN+4:]))
	if binary.NativeEndian.Uint16(page[pageUpper:]) == 0 && allZero(page) {
		return pageNew, lsn
	}
	if checksum(page, block) != binary.NativeEndian.Uint16(page[pageChecksum:]) {
		return pageWrong, lsn
	}
	return pageGood, lsn
}

// lanes is how many partial sums PostgreSQL's page checksum keeps.
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

// checksum is PostgreSQL's page checksum: FNV-1a over 32 interleaved lanes with an extra mix, the block number folded in
// (described in checksum_impl.h). The checksum field itself counts as zero.
func checksum(page []byte, block uint32) uint16 {
	var first [rowSize]byte
	copy(first[:], page)
	first[pageChecksum], first[pageChecksum+1] = 0, 0
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

// relationFile tells a file of pages by its name and place, as PostgreSQL names them: a number, a fork, a segment.
// segment is the number of the segment.
func relationFile(space uint32, name string) (segment uint32, ok bool) {
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

func allZero(b []byte) bool {
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

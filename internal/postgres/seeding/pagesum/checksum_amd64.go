package pagesum

import "golang.org/x/sys/cpu"

// mix256 mixes rows rows of a page into the lanes, with AVX2 (checksum_amd64.s).
//
//go:noescape
func mix256(sums *[lanes]uint32, page *byte, rows int)

// mix adds whole rows of a page to the lanes' sums.
func mix(sums *[lanes]uint32, page []byte) {
	if rows := len(page) / rowSize; rows > 0 && cpu.X86.HasAVX2 {
		mix256(sums, &page[0], rows)
		return
	}
	mixAnywhere(sums, page)
}

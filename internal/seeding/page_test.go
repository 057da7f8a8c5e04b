package seeding

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// plainChecksum is checksum_impl.h of PostgreSQL word for word.
func plainChecksum(page []byte, block uint32) uint16 {
	sums := offsets
	comp := func(sum *uint32, v uint32) { t := *sum ^ v; *sum = t*prime ^ t>>17 }
	for at := 0; at < len(page); at += 4 {
		v := binary.NativeEndian.Uint32(page[at:])
		if at == pageChecksum {
			v &= binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})
		}
		comp(&sums[at/4%lanes], v)
	}
	all := uint32(0)
	for i := range sums {
		comp(&sums[i], 0)
		comp(&sums[i], 0)
		all ^= sums[i]
	}
	return uint16((all^block)%65535 + 1)
}

// TestChecksumsAreThoseOfPostgreSQL compares pages of every size, by whatever instructions this processor has and by those that all have.
func TestChecksumsAreThoseOfPostgreSQL(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for size := 1024; size <= 32<<10; size *= 2 {
		for range 20 {
			room := make([]byte, size+1)
			for i := range room {
				room[i] = byte(r.Uint32())
			}
			page, block := room[:size], r.Uint32()
			if r.IntN(2) == 0 {
				page = room[1:] // not aligned
			}
			if got, want := checksum(page, block), plainChecksum(page, block); got != want {
				t.Fatalf("%d bytes: %#x, want %#x", size, got, want)
			}
			here, anywhere := offsets, offsets
			mix(&here, page)
			mixAnywhere(&anywhere, page)
			if here != anywhere {
				t.Fatalf("%d bytes: the lanes differ:\n%x\n%x", size, here, anywhere)
			}
		}
	}
}

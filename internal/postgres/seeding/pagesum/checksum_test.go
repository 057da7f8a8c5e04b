package pagesum

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// plainChecksum is checksum_impl.h of PostgreSQL word for word.
func plainChecksum(page []byte, block uint32) uint16 {
	sums := offsets
	comp := func(sum *uint32, v uint32) { t := *sum ^ v; *sum = t*prime ^ t>>17 }
	for at := 0; at < len(page); at += 4 {
		v := binary.NativeEndian.Uint32(page[at:])
		if at == ChecksumOffset {
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

// TestChecksumsAreThoseOfPostgreSQL compares pages of every size, with the instructions of this processor and with
// those that all processors have.
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
			if got, want := Checksum(page, block), plainChecksum(page, block); got != want {
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

// TestSumOfPages holds that the hash of a chunk changes with any byte of it and with its length, also when the last
// page is short.
func TestSumOfPages(t *testing.T) {
	t.Parallel()
	h, err := NewHash([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(b []byte) [Size]byte { return Sum(h.Sums(nil, b, 8192)) }
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 2000)
	seen := map[[Size]byte]string{of(chunk): "the chunk"}
	for what, b := range map[string][]byte{
		"nothing": nil, "a byte less": chunk[:len(chunk)-1], "a page less": chunk[:24576], "a byte more": append(bytes.Clone(chunk), 0),
		"pages exchanged": slices.Concat(chunk[8192:16384], chunk[:8191], []byte{'x'}, chunk[16384:]),
	} {
		if twin, ok := seen[of(b)]; ok {
			t.Errorf("%s has the hash of %s", what, twin)
		}
		seen[of(b)] = what
	}
	for _, at := range []int{0, 8191, 8192, 24576, len(chunk) - 1} {
		b := bytes.Clone(chunk)
		b[at] ^= 1
		if twin, ok := seen[of(b)]; ok {
			t.Errorf("with byte %d changed it has the hash of %s", at, twin)
		}
	}
	if of(bytes.Clone(chunk)) != of(chunk) {
		t.Error("equal chunks have different hashes")
	}
	if h, err = NewHash([]byte("0123456789abcdeg")); err != nil || seen[of(chunk)] != "" {
		t.Errorf("under another key a chunk has the hash of %q (%v)", seen[of(chunk)], err)
	}
	if _, err := NewHash(nil); err == nil {
		t.Error("no key is taken for one")
	}
}

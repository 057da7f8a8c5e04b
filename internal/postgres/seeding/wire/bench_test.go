package wire

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
)

// pgbenchChunk is a chunk as pgbench's tables fill it: short rows with a long filler.
func pgbenchChunk() []byte {
	b := make([]byte, ChunkSize)
	r := rand.New(rand.NewPCG(1, 2))
	for page := 0; page < len(b); page += 8192 {
		p := b[page : page+8192]
		copy(p, fmt.Sprintf("%08x\x00\x00\x00\x00", r.Uint32()))
		for at := 8192 - 128; at > 300; at -= 128 {
			copy(p[at:], fmt.Sprintf("%08d%08d%-84s", r.Uint32(), page, ""))
		}
	}
	return b
}

// BenchmarkChunk measures what is done to each chunk: on the source its pages' checksums, its hash and its compression,
// on the target the decompression and the hash.
func BenchmarkChunk(b *testing.B) {
	chunk := pgbenchChunk()
	pages, err := pagesum.NewHash(make([]byte, pagesum.KeyLen))
	if err != nil {
		b.Fatal(err)
	}
	out, empty := make([]byte, 0, 2*ChunkSize), make([]byte, ChunkSize)
	for name, f := range map[string]func(){
		"checksums": func() {
			for at := 0; at < len(chunk); at += 8192 {
				pagesum.Checksum(chunk[at:at+8192], 7)
			}
		},
		"hash":     func() { out = pages.Sums(out[:0], chunk, 8192) },
		"guard":    func() { pagesum.Guard(chunk) },
		"zero":     func() { pagesum.AllZero(empty) },
		"worth":    func() { worth(chunk) },
		"s2":       func() { Codec{Kind: CodecMinLZ}.Compress(out[:0], chunk) },
		"lz4":      func() { Codec{Kind: codecLZ4}.Compress(out[:0], chunk) },
		"zstd1":    func() { Codec{CodecZstd, 1}.Compress(out[:0], chunk) },
		"zstd3":    func() { Codec{CodecZstd, 2}.Compress(out[:0], chunk) },
		"unpack":   unpacker(b, Codec{Kind: CodecMinLZ}, chunk),
		"unpackZ1": unpacker(b, Codec{CodecZstd, 1}, chunk),
	} {
		b.Run(name, func(b *testing.B) {
			before := processorTime(b)
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(len(chunk))/1e6*float64(b.N)/(processorTime(b)-before).Seconds(), "MB/cpu-s")
		})
	}
}

func unpacker(b *testing.B, c Codec, chunk []byte) func() {
	packed, kind := c.Compress(nil, chunk)
	b.Logf("%s: ratio %.1f", c, float64(len(chunk))/float64(len(packed)))
	room := make([]byte, 0, ChunkSize)
	return func() {
		if _, err := kind.Decompress(room, packed, len(chunk)); err != nil {
			b.Fatal(err)
		}
	}
}

// processorTime is what this process used: on a busy machine the clock says little.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

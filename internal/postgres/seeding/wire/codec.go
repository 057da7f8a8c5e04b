package wire

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minlz"
	"github.com/pierrec/lz4/v4"

	compression "github.com/coteriedb/coterie/internal/lib/codec"
)

// Kind is the form in which the bytes of a chunk travel.
type Kind uint8

// The kinds. MinLZ is the cheapest and is chosen by AUTO alone.
const (
	CodecNone Kind = iota
	CodecMinLZ
	codecLZ4
	CodecZstd
)

// Codec is a kind with its level, which only zstd has: 1 fastest, 2 default, 3 better, 4 best.
type Codec struct {
	Kind  Kind
	Level int8
}

func (c Codec) check() error {
	if c.Kind > CodecZstd || c.Level < 0 || c.Level > 4 {
		return fmt.Errorf("unknown codec %d:%d", c.Kind, c.Level)
	}
	return nil
}

// String prints the codec as an option names it.
func (c Codec) String() string {
	switch c.Kind {
	case CodecMinLZ:
		return "MINLZ"
	case codecLZ4:
		return "LZ4"
	case CodecZstd:
		return "ZSTD:" + strconv.Itoa(zstdLevels[c.Level])
	default:
		return "OFF"
	}
}

// zstdLevels are the levels of zstd itself, by our level.
var zstdLevels = [...]int{1, 1, 3, 7, 11}

// ParseCompression reads SEED_COMPRESSION, which is spelled as LOG_COMPRESSION is. auto reports AUTO.
func ParseCompression(s string) (c Codec, auto bool, err error) {
	w, err := compression.Parse("SEED_COMPRESSION", s)
	switch w.Encoding.Codec {
	case compression.LZ4:
		c.Kind = codecLZ4
	case compression.Zstd:
		c = Codec{CodecZstd, int8(zstd.EncoderLevelFromZstd(w.Encoding.Level))}
	default:
	}
	return c, w.Auto, err
}

// encoders holds one stateless zstd encoder per level. An encoder is safe for concurrent use; its concurrency is the
// number of data connections.
var encoders [5]struct {
	once sync.Once
	enc  *zstd.Encoder
}

func encoder(level int8) *zstd.Encoder {
	e := &encoders[level]
	e.once.Do(func() {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevel(level)), zstd.WithEncoderConcurrency(MaxStreams),
			zstd.WithEncoderCRC(false), zstd.WithWindowSize(ChunkSize), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options are constants
		}
		e.enc = enc
	})
	return e.enc
}

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(MaxStreams), zstd.WithDecoderMaxMemory(2*ChunkSize), zstd.WithDecoderMaxWindow(2*ChunkSize))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
})

// Compress appends src in the codec to dst. Data that does not become a sixteenth smaller travels unchanged: the codec
// actually used is returned.
func (c Codec) Compress(dst, src []byte) ([]byte, Kind) {
	if c.Kind == CodecNone || len(src) < 64 || !worth(src) {
		return append(dst, src...), CodecNone
	}
	var out []byte
	switch c.Kind {
	case CodecMinLZ:
		var err error
		if out, err = minlz.Encode(dst[len(dst):cap(dst)], src, minlz.LevelFastest); err != nil {
			return append(dst, src...), CodecNone
		}
	case codecLZ4:
		need := lz4.CompressBlockBound(len(src))
		out = dst[len(dst):cap(dst)]
		if len(out) < need {
			out = make([]byte, need)
		} else {
			out = out[:need]
		}
		n, err := lz4.CompressBlock(src, out, nil)
		if err != nil || n == 0 {
			return append(dst, src...), CodecNone
		}
		out = out[:n]
	default:
		out = encoder(c.Level).EncodeAll(src, dst[len(dst):len(dst):cap(dst)])
	}
	if len(out) > len(src)-len(src)/16 {
		return append(dst, src...), CodecNone
	}
	return append(dst, out...), c.Kind
}

// worth reports whether a sample of src compresses at all, so that encrypted and compressed data cost little.
func worth(src []byte) bool {
	const piece = 4 << 10
	if len(src) < 16*piece {
		return true
	}
	var sample [4 * piece]byte
	for i := range 4 {
		copy(sample[i*piece:], src[i*(len(src)-piece)/3:][:piece])
	}
	return len(s2.Encode(nil, sample[:])) < len(sample)-len(sample)/32
}

// Decompress unpacks exactly want bytes into dst.
func (k Kind) Decompress(dst, src []byte, want int) ([]byte, error) {
	if want > cap(dst) {
		return nil, fmt.Errorf("%d bytes where %d have room", want, cap(dst))
	}
	var out []byte
	var err error
	switch k {
	case CodecNone:
		out = append(dst[:0], src...)
	case CodecMinLZ:
		if n, e := minlz.DecodedLen(src); e != nil || n != want {
			return nil, errors.New("a block of another length than said")
		}
		out, err = minlz.Decode(dst[:want], src)
	case codecLZ4:
		var n int
		n, err = lz4.UncompressBlock(src, dst[:want])
		out = dst[:max(n, 0)]
	case CodecZstd:
		out, err = decoder().DecodeAll(src, dst[:0:want])
	default:
		err = fmt.Errorf("unknown codec %d", k)
	}
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if len(out) != want {
		return nil, fmt.Errorf("decompressed to %d bytes, %d were said", len(out), want)
	}
	return out, nil
}

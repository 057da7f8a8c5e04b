package codec

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ID names a codec on the wire.
type ID byte

// The codecs. Zstd is one stream over all blocks between two restarts; LZ4 compresses each block separately.
const (
	Raw  ID = 0
	LZ4  ID = 1
	Zstd ID = 2
)

// String returns the name that LOG_COMPRESSION has for it.
func (id ID) String() string {
	switch id {
	case Raw:
		return "OFF"
	case LZ4:
		return "LZ4"
	case Zstd:
		return "ZSTD"
	}
	return fmt.Sprintf("codec %d", byte(id))
}

const (
	// MaxRaw is the longest block before it is encoded. A walsender's messages have up to 128 KiB.
	MaxRaw = 256 << 10
	// MaxBody is the longest encoded block. A block that does not shrink is sent raw, but zstd may end a block late.
	MaxBody = MaxRaw + 4<<10

	window    = 512 << 10 // of zstd, to encode with; a larger one gains nothing for WAL and exceeds the processor's cache
	maxWindow = 1 << 20   // to decode with: that of older versions

	// least is the shortest block worth a codec's 20 µs.
	least = 512
)

// Block is one encoded block as it is transmitted.
type Block struct {
	Codec ID
	First bool   // a new zstd stream begins with this block
	Size  int    // before encoding
	CRC   uint32 // Castagnoli, of the bytes before encoding; 0 for Raw
	Body  []byte
}

// Stats counts the work of an encoder.
type Stats struct {
	Raw     uint64        // bytes before encoding
	Encoded uint64        // bytes after it
	Busy    time.Duration // time spent; on a busy machine more than processor time
}

var table = crc32.MakeTable(crc32.Castagnoli)

// Encoder encodes one direction of a stream. It is for one goroutine.
type Encoder struct {
	now   Encoding
	w     *zstd.Encoder
	out   sink
	first bool
	lz    lz4.Compressor
	room  []byte
	idle  idle
	stats Stats
}

// sink collects the output of zstd.
type sink struct{ b []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}

// Use changes the codec from the next block on.
func (e *Encoder) Use(s Encoding) error {
	if s == e.now {
		return nil
	}
	e.idle = idle{}
	if s.Codec == Zstd {
		// Without WithLowerEncoderMem, which would move the whole window for each 128 KiB.
		w, err := zstd.NewWriter(&e.out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window), zstd.WithEncoderCRC(false),
			zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(s.level())))
		if err != nil {
			return fmt.Errorf("start zstd: %w", err)
		}
		e.w, e.first = w, true
	} else {
		e.w = nil
	}
	e.now = s
	return nil
}

// Encoding returns the codec in use.
func (e *Encoder) Encoding() Encoding { return e.now }

// Stats returns the counters so far.
func (e *Encoder) Stats() Stats { return e.stats }

// Encode encodes at most MaxRaw bytes. The body of the block is src itself or memory of the encoder, good until the
// next call.
func (e *Encoder) Encode(src []byte) (Block, error) {
	if len(src) > MaxRaw {
		return Block{}, fmt.Errorf("a block of %d bytes is longer than %d", len(src), MaxRaw)
	}
	e.stats.Raw += uint64(len(src))
	b := Block{Codec: Raw, Size: len(src), Body: src}
	if e.now.Codec != Raw && len(src) >= least && !e.idle.skip(len(src)) {
		began := time.Now()
		coded, err := e.encode(src)
		if err != nil {
			return Block{}, err
		}
		e.stats.Busy += time.Since(began)
		e.idle.note(len(src), len(coded.Body))
		if coded.Body != nil {
			b = coded
		}
	}
	e.stats.Encoded += uint64(len(b.Body))
	return b, nil
}

func (e *Encoder) encode(src []byte) (Block, error) {
	b := Block{Codec: e.now.Codec, Size: len(src), CRC: crc32.Checksum(src, table)}
	if e.now.Codec == LZ4 {
		if n := lz4.CompressBlockBound(len(src)); cap(e.room) < n {
			e.room = make([]byte, n)
		}
		n, err := e.lz.CompressBlock(src, e.room[:cap(e.room)])
		if err != nil {
			return Block{}, fmt.Errorf("lz4: %w", err)
		}
		if n > 0 && n < len(src) {
			b.Body = e.room[:n]
		}
		return b, nil
	}
	e.out.b = e.out.b[:0]
	if _, err := e.w.Write(src); err != nil {
		return Block{}, fmt.Errorf("zstd: %w", err)
	}
	if err := e.w.Flush(); err != nil {
		return Block{}, fmt.Errorf("zstd: %w", err)
	}
	b.Body, b.First, e.first = e.out.b, e.first, false // the other side's stream needs it even if it did not shrink
	return b, nil
}

// ErrCorrupt means that a block was damaged. None of its bytes may be used, and no later block can be decoded.
var ErrCorrupt = errors.New("corrupt block")

// Decoder decodes one direction of a stream. It is for one goroutine. Its memory is bounded by MaxRaw and maxWindow.
type Decoder struct {
	r    *zstd.Decoder
	in   source
	room []byte
}

// source gives zstd the body of one block and no more.
type source struct{ b []byte }

func (s *source) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

// Decode returns the bytes that were encoded: the body itself or memory of the decoder, good until the next call. An
// error is an ErrCorrupt, and final.
func (d *Decoder) Decode(b Block) ([]byte, error) {
	if b.Size < 0 || b.Size > MaxRaw || len(b.Body) > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes in %d", ErrCorrupt, b.Size, len(b.Body))
	}
	switch b.Codec {
	case Raw:
		if b.Size != len(b.Body) {
			return nil, fmt.Errorf("%w: %d bytes instead of %d", ErrCorrupt, len(b.Body), b.Size)
		}
		return b.Body, nil
	case LZ4, Zstd:
		if b.Size < least || len(b.Body) == 0 { // the assembly of lz4 writes through a nil slice
			return nil, fmt.Errorf("%w: %d bytes would have been sent raw", ErrCorrupt, b.Size)
		}
	default:
		return nil, fmt.Errorf("%w: unknown codec %d", ErrCorrupt, b.Codec)
	}
	if cap(d.room) < b.Size {
		d.room = make([]byte, max(b.Size, 16<<10))
	}
	out := d.room[:b.Size]
	if err := d.fill(out, b); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, b.Codec, err)
	}
	if crc32.Checksum(out, table) != b.CRC {
		return nil, fmt.Errorf("%w: the checksum differs", ErrCorrupt)
	}
	return out, nil
}

func (d *Decoder) fill(out []byte, b Block) error {
	if b.Codec == LZ4 {
		n, err := lz4.UncompressBlock(b.Body, out)
		if err == nil && n != len(out) {
			err = fmt.Errorf("%d bytes instead of %d", n, len(out))
		}
		return err
	}
	if d.r == nil {
		if !b.First {
			return errors.New("the stream has no beginning")
		}
		r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return err
		}
		d.r = r
	}
	d.in.b = b.Body
	if b.First {
		if err := d.r.Reset(&d.in); err != nil {
			return err
		}
	}
	if _, err := io.ReadFull(d.r, out); err != nil {
		return err
	}
	if len(d.in.b) > 0 {
		return fmt.Errorf("%d bytes too many", len(d.in.b))
	}
	return nil
}

// Close frees the decoder.
func (d *Decoder) Close() {
	if d.r != nil {
		d.r.Close()
	}
}

package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/codec"
)

// The types of frame. Numbered ones are delivered once and in order; the others concern the leg that they arrive on.
const (
	typeData  = 1 // numbered: a block
	typeEnd   = 2 // numbered: the end of this direction
	typeAck   = 3 // only the acknowledgement that every frame carries
	typePing  = 4 // number: the sender's time; payload: its counters
	typePong  = 5 // number: that of the ping
	typeMain  = 6 // this leg is the main one from now on
	typeReset = 7 // the link is over; payload: why
	typeShard = 9 // a part of a numbered frame, see shard.go; 8 is no longer sent
)

const (
	headerLen  = 32
	ackAt      = 16 // offset of the acknowledgement
	maxPayload = codec.MaxBody
	maxControl = 2 << 10 // payload of a frame that is not numbered
	pingLen    = 24      // round trip in nanoseconds, packets sent, packets lost
)

var errFrame = errors.New("malformed frame")

// header is what precedes the payload of a frame: type, codec, flags, a zero byte, then big-endian length, number,
// acknowledgement, size before encoding, checksum.
type header struct {
	kind   byte
	codec  codec.ID
	first  bool
	length int
	number uint64
	ack    uint64 // all numbered frames below it have arrived at the sender of this one
	size   int
	crc    uint32
}

func (h header) append(b []byte) []byte {
	first := byte(0)
	if h.first {
		first = 1
	}
	b = append(b, h.kind, byte(h.codec), first, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(h.length))
	b = binary.BigEndian.AppendUint64(b, h.number)
	b = binary.BigEndian.AppendUint64(b, h.ack)
	b = binary.BigEndian.AppendUint32(b, uint32(h.size))
	return binary.BigEndian.AppendUint32(b, h.crc)
}

// parseHeader reads the first headerLen bytes of b and refuses a header that no sender of this version sends.
func parseHeader(b []byte) (header, error) {
	h := header{
		kind: b[0], codec: codec.ID(b[1]), first: b[2] == 1, length: int(binary.BigEndian.Uint32(b[4:])),
		number: binary.BigEndian.Uint64(b[8:]), ack: binary.BigEndian.Uint64(b[16:]), size: int(binary.BigEndian.Uint32(b[24:])),
		crc: binary.BigEndian.Uint32(b[28:]),
	}
	limit := maxControl
	if h.kind == typeData {
		limit = maxPayload
	}
	switch {
	case h.kind < typeData || h.kind > typeShard || h.kind == 8 || b[2] > 1 || b[3] != 0:
		return h, fmt.Errorf("%w: type %d", errFrame, h.kind)
	case h.length > limit || h.kind == typeData && (h.length == 0 || h.size == 0 || h.size > codec.MaxRaw):
		return h, fmt.Errorf("%w: type %d with %d bytes for %d", errFrame, h.kind, h.length, h.size)
	}
	return h, nil
}

func (h header) block(body []byte) codec.Block {
	return codec.Block{Codec: h.codec, First: h.first, Size: h.size, CRC: h.crc, Body: body}
}

// frame is a numbered frame that the other side may not have yet. Its bytes do not change, but for the acknowledgement
// in the header, which is written again each time. A user of the bytes holds a reference.
type frame struct {
	number uint64
	buf    []byte
	leg    *leg // that it was sent on last; guarded by Conn.mu, as is sent
	sent   time.Duration
	refs   atomic.Int32
	class  int
}

var (
	frameSizes = [...]int{1536, 8 << 10, 40 << 10, 144 << 10, headerLen + maxPayload} // a hedged frame fits the first
	framePools [len(frameSizes)]sync.Pool
)

func newFrame(size int) *frame {
	class := 0
	for frameSizes[class] < size {
		class++
	}
	f, ok := framePools[class].Get().(*frame)
	if !ok {
		f = &frame{buf: make([]byte, 0, frameSizes[class]), class: class}
	}
	f.buf, f.leg = f.buf[:0], nil
	f.refs.Store(1)
	return f
}

func (f *frame) hold() { f.refs.Add(1) }

func (f *frame) release() {
	if f.refs.Add(-1) == 0 {
		framePools[f.class].Put(f)
	}
}

func (f *frame) cost() int { return frameSizes[f.class] }

// pingBody encodes what the sender of a ping measured on its leg.
func pingBody(rtt time.Duration, sent, lost uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, pingLen), uint64(rtt))
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, sent), lost)
}

func parsePing(b []byte) (rtt time.Duration, sent, lost uint64) {
	if len(b) != pingLen {
		return 0, 0, 0
	}
	return time.Duration(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
}

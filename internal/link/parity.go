package link

import (
	"encoding/binary"
	"hash/crc32"
)

// A short burst whose frames travel twice is followed by one more datagram, the exclusive or of its frames: a single one of them that
// was lost both as a datagram and, for now, on the other leg, is made again from the rest, and nobody waits for a retransmission.

const (
	parityMost = 8  // frames
	parityHead = 6  // bytes per frame: length and checksum
	cacheSize  = 64 // frames that are remembered for it
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// burst collects the frames of one write for its parity.
type burst struct{ frames []*frame }

func (b *burst) add(f *frame) {
	f.hold()
	b.frames = append(b.frames, f)
}

func (b *burst) release() {
	for _, f := range b.frames {
		f.release()
	}
	b.frames = nil
}

// parity builds the datagram over consecutive frames.
func parity(frames []*frame, ack uint64) []byte {
	longest := 0
	for _, f := range frames {
		longest = max(longest, len(f.buf))
	}
	h := header{kind: typeParity, number: frames[0].number, ack: ack, size: len(frames), length: parityHead*len(frames) + longest}
	b := h.append(make([]byte, 0, headerLen+h.length))
	for _, f := range frames {
		b = binary.BigEndian.AppendUint16(b, uint16(len(f.buf)))
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(f.buf, castagnoli))
	}
	sum := make([]byte, longest)
	for _, f := range frames {
		for i, x := range f.buf {
			sum[i] ^= x
		}
	}
	return append(b, sum...)
}

// recent remembers short frames as they came.
type recent struct {
	numbers [cacheSize]uint64
	bytes   [cacheSize][]byte
}

func (r *recent) put(h header, body []byte) {
	i := h.number % cacheSize
	r.numbers[i] = h.number
	r.bytes[i] = append(h.append(r.bytes[i][:0]), body...)
}

func (r *recent) get(number uint64) []byte {
	if i := number % cacheSize; r.numbers[i] == number && len(r.bytes[i]) > 0 {
		return r.bytes[i]
	}
	return nil
}

// recover makes the one frame that is missing of a burst, if it is one, and if what comes out is what was sent.
func (r *recent) recover(h header, body []byte) (missing []byte) {
	if h.size < 1 || h.size > parityMost || len(body) < parityHead*h.size {
		return nil
	}
	table, sum := body[:parityHead*h.size], append([]byte(nil), body[parityHead*h.size:]...)
	at := -1
	for i := range h.size {
		b := r.get(h.number + uint64(i))
		switch {
		case b == nil && at >= 0:
			return nil
		case b == nil:
			at = i
		case len(b) > len(sum):
			return nil
		default:
			for j, x := range b {
				sum[j] ^= x
			}
		}
	}
	if at < 0 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(table[parityHead*at:]))
	if n < headerLen || n > len(sum) || crc32.Checksum(sum[:n], castagnoli) != binary.BigEndian.Uint32(table[parityHead*at+2:]) {
		return nil
	}
	return sum[:n]
}

// repair uses the parity of a burst.
func (c *Conn) repair(h header, body []byte) error {
	c.in.mu.Lock()
	b := c.in.recent.recover(h, body)
	c.in.mu.Unlock()
	if b == nil {
		return nil
	}
	made, err := parseHeader(b)
	if err != nil || made.kind != typeData || made.length != len(b)-headerLen || made.number < h.number || made.number >= h.number+uint64(h.size) {
		return nil // not what was sent: the frame will come again
	}
	c.in.repaired.Add(1)
	return c.receive(made, b[headerLen:])
}

package link

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
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

// recent remembers short frames as they came, and parities from which nothing could be made yet: what overtakes, by another leg, may have
// come before its burst.
type recent struct {
	numbers [cacheSize]uint64
	bytes   [cacheSize][]byte
	open    []parked
}

const maxOpen = 8 // parities

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

// note takes a parity.
func (r *recent) note(h header, body []byte) {
	if h.size < 1 || h.size > parityMost || len(body) < parityHead*h.size {
		return
	}
	if len(r.open) >= maxOpen {
		r.open = slices.Delete(r.open, 0, 1)
	}
	r.open = append(r.open, parked{h, bytes.Clone(body)})
}

// mend makes a frame that is missing, nil if there is none that can be made now, and forgets the parities of bursts that are whole.
func (r *recent) mend() (made []byte) {
	for i := 0; i < len(r.open); {
		p := r.open[i]
		b, missing := r.recover(p.header, p.body)
		if missing > 1 {
			i++
			continue
		}
		r.open = slices.Delete(r.open, i, i+1)
		if b != nil {
			return b
		}
	}
	return nil
}

// recover makes the one frame that is missing of a burst, if it is one, and if what comes out is what was sent.
func (r *recent) recover(h header, body []byte) (made []byte, missing int) {
	at := 0
	for i := range h.size {
		if r.get(h.number+uint64(i)) == nil {
			at = i
			missing++
		}
	}
	if missing != 1 {
		return nil, missing
	}
	table, sum := body[:parityHead*h.size], bytes.Clone(body[parityHead*h.size:])
	for i := range h.size {
		b := r.get(h.number + uint64(i))
		if len(b) > len(sum) {
			return nil, 1
		}
		for j, x := range b {
			sum[j] ^= x
		}
	}
	n := int(binary.BigEndian.Uint16(table[parityHead*at:]))
	if n < headerLen || n > len(sum) || crc32.Checksum(sum[:n], castagnoli) != binary.BigEndian.Uint32(table[parityHead*at+2:]) {
		return nil, 1
	}
	made = sum[:n]
	f, err := parseHeader(made)
	if err != nil || f.kind != typeData || f.length != n-headerLen || f.number != h.number+uint64(at) {
		return nil, 1 // not what was sent: the frame will come again
	}
	return made, 1
}

// repair uses the parity of a burst.
func (c *Conn) repair(h header, body []byte) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.recent.note(h, body)
	return c.mend()
}

// mend delivers what can be made again; in.mu is held.
func (c *Conn) mend() error {
	for {
		b := c.in.recent.mend()
		if b == nil {
			return nil
		}
		c.in.repaired.Add(1)
		h, _ := parseHeader(b) // it was asked
		if err := c.order(h, b[headerLen:]); err != nil {
			return err
		}
	}
}

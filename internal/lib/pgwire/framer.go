package pgwire

import (
	"encoding/binary"
	"fmt"
)

// Framer follows message boundaries through a stream that is relayed in chunks, so that large messages are never held.
// It keeps the first bytes of a body, of a notice the last, because the few messages that matter to a relay are decided
// by them.
type Framer struct {
	head  [5]byte
	nhead int
	left  uint32 // bytes of the current body that are still to come
	keep  [64]byte
	nkeep int
}

// AtBoundary reports whether the stream is between two messages.
func (f *Framer) AtBoundary() bool { return f.nhead == 0 }

// HeaderLeft returns how many of the next bytes belong to a header.
func (f *Framer) HeaderLeft() int { return len(f.head) - f.nhead }

// Type returns the type of the current message, or of the last one at a boundary.
func (f *Framer) Type() byte { return f.head[0] }

// Kept returns the kept part of that message's body. It is valid until the next call of Next, Scan or ScanOne.
func (f *Framer) Kept() []byte { return f.keep[:f.nkeep] }

// HoldsBack reports whether the current message must be whole before any of it is passed on: a short CommandComplete or
// ReadyForQuery. Of a longer one it is false from the end of the header to the end of the message.
func (f *Framer) HoldsBack() bool {
	short := f.nhead < len(f.head) || binary.BigEndian.Uint32(f.head[1:])-4 <= uint32(len(f.keep))
	return f.nhead > 0 && short && (f.head[0] == 'C' || f.head[0] == 'Z')
}

// Next takes bytes of chunk up to the end of the current message. It returns how many, and whether the message has
// ended.
func (f *Framer) Next(chunk []byte) (used int, whole bool, err error) {
	if f.nhead < len(f.head) {
		used = copy(f.head[f.nhead:], chunk)
		f.nhead += used
		if f.nhead < len(f.head) {
			return used, false, nil
		}
		n := binary.BigEndian.Uint32(f.head[1:])
		if n < 4 || n > 1<<31-1 {
			return used, false, fmt.Errorf("%w: message %q of %d bytes", ErrProtocol, f.head[0], n)
		}
		f.left, f.nkeep = n-4, 0
	}
	n := int(min(uint64(len(chunk)-used), uint64(f.left)))
	f.note(chunk[used : used+n])
	f.left -= uint32(n)
	used += n
	if f.left == 0 {
		f.nhead = 0
	}
	return used, f.left == 0, nil
}

func (f *Framer) note(body []byte) {
	if f.head[0] != 'N' {
		f.nkeep += copy(f.keep[f.nkeep:], body)
		return
	}
	body = body[max(0, len(body)-len(f.keep)):]
	if over := f.nkeep + len(body) - len(f.keep); over > 0 {
		f.nkeep = copy(f.keep[:], f.keep[over:f.nkeep])
	}
	f.nkeep += copy(f.keep[f.nkeep:], body)
}

// Scan passes chunk through the framer. It calls done with the type and the kept part of the body of each message that
// ends in the chunk.
func (f *Framer) Scan(chunk []byte, done func(typ byte, body []byte)) error {
	for len(chunk) > 0 {
		used, err := f.ScanOne(chunk, done)
		if err != nil {
			return err
		}
		chunk = chunk[used:]
	}
	return nil
}

// ScanOne is Scan up to the end of one message or of the chunk; it returns how many bytes it took.
func (f *Framer) ScanOne(chunk []byte, done func(typ byte, body []byte)) (used int, err error) {
	used, whole, err := f.Next(chunk)
	if whole {
		done(f.Type(), f.Kept())
	}
	return used, err
}

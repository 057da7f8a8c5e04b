package listener

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Codes that stand in place of a protocol version in the first packet of a connection.
const (
	codeCancel  = 80877102
	codeSSL     = 80877103
	codeGSSENC  = 80877104
	protocol3   = 3 << 16
	firstTLS    = 0x16 // the first byte of a TLS ClientHello: no startup packet within the limit begins so
	maxControl  = 1 << 20
	maxResponse = 2048 // a password or SASL message; PostgreSQL allows 1,024 for SASL
)

var errProtocol = errors.New("protocol violation")

// readPacket reads one packet without a type byte: length, then a body of at most limit - 4 bytes. It never reads past it.
func readPacket(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 8 || n > uint32(limit) {
		return nil, fmt.Errorf("%w: first packet of %d bytes", errProtocol, n)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body, nil
}

// readMessage reads one typed message whose body is at most limit bytes. It never reads past it.
func readMessage(r io.Reader, limit int) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n-4 > uint32(limit) {
		return head[0], nil, fmt.Errorf("%w: message %q of %d bytes", errProtocol, head[0], n)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return head[0], nil, err
	}
	return head[0], body, nil
}

// appendMessage appends a typed message with that body.
func appendMessage(dst []byte, typ byte, body []byte) []byte {
	dst = append(dst, typ)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)+4))
	return append(dst, body...)
}

// appendAuth appends an authentication request of that kind.
func appendAuth(dst []byte, kind uint32, rest []byte) []byte {
	return appendMessage(dst, 'R', append(binary.BigEndian.AppendUint32(nil, kind), rest...))
}

// appendCString appends s and a zero byte.
func appendCString(dst []byte, s string) []byte { return append(append(dst, s...), 0) }

// framer follows message boundaries through a stream that is relayed in chunks, so that large messages are never held. It
// keeps the first bytes of a body, of a notice the last, because the few messages that matter to a relay are decided by them.
type framer struct {
	head  [5]byte
	nhead int
	left  uint32 // bytes of the current body still to come
	keep  [64]byte
	nkeep int
}

// atBoundary says that no message is half way through.
func (f *framer) atBoundary() bool { return f.nhead == 0 }

// headLeft is how many of the next bytes are not of a body.
func (f *framer) headLeft() int { return len(f.head) - f.nhead }

// at is the type of the message at hand, or of the last one.
func (f *framer) at() byte { return f.head[0] }

// kept is what is kept of its body.
func (f *framer) kept() []byte { return f.keep[:f.nkeep] }

// holdsBack says that the message at hand is one of the few that are judged before they are passed on: they are short.
func (f *framer) holdsBack() bool {
	short := f.nhead < len(f.head) || f.left <= uint32(len(f.keep))
	return f.nhead > 0 && short && (f.head[0] == 'C' || f.head[0] == 'Z')
}

// next takes bytes of chunk up to the end of the message at hand and returns how many; whole says that the message ended.
func (f *framer) next(chunk []byte) (used int, whole bool, err error) {
	if f.nhead < len(f.head) {
		used = copy(f.head[f.nhead:], chunk)
		f.nhead += used
		if f.nhead < len(f.head) {
			return used, false, nil
		}
		n := binary.BigEndian.Uint32(f.head[1:])
		if n < 4 || n > 1<<31-1 {
			return used, false, fmt.Errorf("%w: message %q of %d bytes", errProtocol, f.head[0], n)
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

func (f *framer) note(body []byte) {
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

// scan passes chunk through the framer; done is called with type and what is kept of the body of each message that ends in it.
func (f *framer) scan(chunk []byte, done func(typ byte, body []byte)) error {
	for len(chunk) > 0 {
		used, err := f.scanOne(chunk, done)
		if err != nil {
			return err
		}
		chunk = chunk[used:]
	}
	return nil
}

// scanOne is scan up to the end of one message, or of the chunk; it returns how many bytes it took.
func (f *framer) scanOne(chunk []byte, done func(typ byte, body []byte)) (used int, err error) {
	used, whole, err := f.next(chunk)
	if whole {
		done(f.at(), f.kept())
	}
	return used, err
}

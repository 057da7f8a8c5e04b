package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Codes that stand in the place of a protocol version in the first packet of a connection (src/include/libpq/pqcomm.h).
const (
	CancelRequest = 1234<<16 | 5678
	SSLRequest    = 1234<<16 | 5679
	GSSENCRequest = 1234<<16 | 5680
)

// Protocol3 is version 3.0 of the protocol, as a startup packet says it.
const Protocol3 = 3 << 16

// FirstTLSByte is the first byte of a TLS ClientHello. A startup packet within its limit of length cannot begin with
// it.
const FirstTLSByte = 0x16

// Limits of message bodies, in bytes.
const (
	MaxControl  = 1 << 20 // a message that is read whole
	MaxResponse = 2048    // a password or SASL message; PostgreSQL allows 1,024 for SASL
)

// ErrProtocol is a violation of the protocol by the peer.
var ErrProtocol = errors.New("protocol violation")

// ReadPacket reads one packet without a type byte and returns it without its length. The length may be at most limit
// bytes. Nothing behind the packet is read.
func ReadPacket(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 8 || n > uint32(limit) {
		return nil, fmt.Errorf("%w: first packet of %d bytes", ErrProtocol, n)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body, nil
}

// ReadMessage reads one typed message whose body is at most limit bytes. Nothing behind the message is read.
func ReadMessage(r io.Reader, limit int) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n-4 > uint32(limit) {
		return head[0], nil, fmt.Errorf("%w: message %q of %d bytes", ErrProtocol, head[0], n)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return head[0], nil, err
	}
	return head[0], body, nil
}

// AppendMessage appends a message of that type and body to dst.
func AppendMessage(dst []byte, typ byte, body []byte) []byte {
	dst = append(dst, typ)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)+4))
	return append(dst, body...)
}

// AppendAuth appends an authentication request of that kind, with the kind's own data, to dst.
func AppendAuth(dst []byte, kind uint32, data []byte) []byte {
	return AppendMessage(dst, 'R', append(binary.BigEndian.AppendUint32(nil, kind), data...))
}

// AppendCString appends s and a zero byte to dst.
func AppendCString(dst []byte, s string) []byte { return append(append(dst, s...), 0) }

// StartupMessage returns a startup packet of version 3.0 with these parameters, length included.
func StartupMessage(params ...Parameter) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 4, 256), Protocol3)
	for _, p := range params {
		b = AppendCString(AppendCString(b, p.Name), p.Value)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// NegotiateVersion returns the message that tells a client of a newer protocol which minor version is spoken, and which
// of its protocol options are not known.
func NegotiateVersion(minor uint16, unknown []string) []byte {
	b := binary.BigEndian.AppendUint32(nil, Protocol3|uint32(minor))
	b = binary.BigEndian.AppendUint32(b, uint32(len(unknown)))
	for _, name := range unknown {
		b = AppendCString(b, name)
	}
	return AppendMessage(nil, 'v', b)
}

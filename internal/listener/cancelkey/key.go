package cancelkey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// Key is what a client sends to cancel a query: the process id and the secret of BackendKeyData. The four
// highest bits of the secret are the number of the node that minted it. At protocol 3.2 the secret has 32 bytes:
// these four, and Long, a nonce and a code over all of it. By the code any node tells the group's keys from invented
// ones.
type Key struct {
	PID    uint32
	Secret uint32
	Long   [LongLength]byte // zero at protocol 3.0
}

const (
	// LongLength is that of Long in bytes.
	LongLength = 28
	longNonce  = 12
)

// Node returns the number of the node that minted the key.
func (k Key) Node() uint8 { return uint8(k.Secret >> 28) }

// Maker mints keys of one node, and knows those of all.
type Maker struct {
	Node   uint8         // from 0 to 15
	Secret func() []byte // by which nodes know the keys of each other
}

// Mint returns a random key.
func (m Maker) Mint(pid uint32, long bool) Key {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	k := Key{PID: pid, Secret: uint32(m.Node)<<28 | binary.BigEndian.Uint32(b[:])>>4}
	if long {
		k = m.extend(k)
	}
	return k
}

// extend returns the key with its long part.
func (m Maker) extend(k Key) Key {
	_, _ = rand.Read(k.Long[:longNonce]) // never fails
	copy(k.Long[longNonce:], m.code(k))
	return k
}

func (m Maker) code(k Key) []byte {
	h := hmac.New(sha256.New, m.Secret())
	h.Write([]byte("cancel key\x00"))
	h.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, k.PID), k.Secret))
	h.Write(k.Long[:longNonce])
	return h.Sum(nil)[:LongLength-longNonce]
}

// Read reads the body of a CancelRequest. The request has no protocol version: its length tells. Keys of up to 256
// bytes are legal, but none is ours. A key that belongs to an open session is valid even if Secret has changed since.
func (m Maker) Read(body []byte, open func(Key) bool) (k Key, ok bool) {
	if len(body) != 8 && len(body) != 8+LongLength {
		return k, false
	}
	k.PID, k.Secret = binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])
	if copy(k.Long[:], body[8:]) == 0 {
		return k, true
	}
	return k, open(k) || hmac.Equal(k.Long[longNonce:], m.code(k))
}

// Packet returns the CancelRequest with a key of PostgreSQL.
func Packet(key [8]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 16)
	b = binary.BigEndian.AppendUint32(b, pgwire.CancelRequest)
	return append(b, key[:]...)
}

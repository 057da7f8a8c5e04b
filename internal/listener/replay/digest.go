package replay

import (
	"crypto/sha256"
	"hash"
)

// Sum is the digest of a whole answer: of every byte of its messages, up to its ReadyForQuery.
type Sum [sha256.Size]byte

// Digest is made of an answer while it arrives. The messages that a server sends on its own, notifications and reported
// settings, do not belong to the answer.
type Digest struct {
	sum   hash.Hash // nil: nothing of an answer has arrived
	begun bool
}

// Piece adds a piece of a message of that type. whole means that the message ends with it. done reports whether the
// answer has ended, and status is then that of the session.
func (d *Digest) Piece(typ byte, piece []byte, whole bool) (status byte, done bool) {
	if typ == 'A' || typ == 'S' || len(piece) == 0 {
		return 0, false
	}
	if d.sum == nil {
		d.sum = sha256.New()
	}
	_, _ = d.sum.Write(piece) // never fails
	d.begun = true
	return piece[len(piece)-1], whole && typ == 'Z'
}

// Begun reports whether a part of an answer has arrived.
func (d *Digest) Begun() bool { return d.begun }

// Take returns the digest of the answer that has ended, and begins with the next one.
func (d *Digest) Take() (s Sum) {
	if d.begun {
		d.sum.Sum(s[:0])
		d.sum.Reset()
	}
	d.begun = false
	return s
}

package instead

import (
	"bytes"

	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Piece is a piece of a Query or a Parse.
type Piece struct {
	Type      byte
	B         []byte
	Begins    bool // it is the first of the message,
	Ends      bool // or the last
	HasHeader bool // the message begins in this chunk, so PostgreSQL has nothing of it
}

// Watch follows the statements of one session, and puts others in the place of those that are refused: a statement that
// arrives in one piece is replaced by one with which PostgreSQL reports the refusal, in its place among the answers.
// The session of any other is to be ended before PostgreSQL has all of it.
type Watch struct {
	// Last is the message in whose place another one went, at the end of what was released last; with one of the
	// listener behind it, in the place of nothing.
	Last    Message
	changes stmt.Changes
	follows bool   // changes follows the current message
	out     []byte // goes in place of the last message, which is refused; nil: none is
}

// Follow follows a piece of a message. It returns why the message is refused, once that is known and the piece is its
// last; else nil.
func (w *Watch) Follow(p Piece, refuse func(stmt.Change) *stmt.Refusal) *stmt.Refusal {
	if p.Begins {
		if w.follows = !p.Ends || stmt.MentionsAlter(p.B); w.follows {
			w.changes.Begin(p.Type)
		}
	}
	if !w.follows {
		return nil
	}
	w.changes.Piece(p.B, refuse)
	bad := w.changes.Refused()
	if !p.Ends || bad == nil {
		return nil
	}
	if p.HasHeader {
		name := []byte(nil)
		if p.Type == 'P' {
			name, _, _ = bytes.Cut(p.B, []byte{0})
		}
		w.out = Refusing(p.Type, name, bad)
	}
	return bad
}

// Begins notes that a chunk begins.
func (w *Watch) Begins() { w.Last = Message{} }

// Takes reports whether the last message of a chunk, of that length, is refused. Nothing behind it belongs to the chunk
// then.
func (w *Watch) Takes(chunk []byte, length int) bool {
	if w.out == nil {
		return false
	}
	w.Last = Message{Of: length, Out: len(w.out)}
	w.out = append(append([]byte(nil), chunk[:len(chunk)-length]...), w.out...)
	return true
}

// Behind has bytes go behind a chunk that are none of the client's.
func (w *Watch) Behind(chunk, b []byte) {
	if w.out == nil {
		w.out = append([]byte(nil), chunk...)
	}
	w.out = append(w.out, b...)
	w.Last.Out += len(b)
}

// Replaced returns what is written in place of a chunk whose last message is refused; else the chunk.
func (w *Watch) Replaced(chunk []byte) []byte {
	if w.out == nil {
		return chunk
	}
	chunk, w.out = w.out, nil
	return chunk
}

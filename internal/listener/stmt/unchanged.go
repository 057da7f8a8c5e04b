package stmt

import (
	"bytes"
	"unicode/utf8"
)

// Unchanged follows whether a state that was read from the server is still the session's: whether anything that the
// client has sent since may have changed it. It knows a few statements and functions that change nothing, and takes
// everything else for a change. Its zero value knows no state.
type Unchanged struct {
	Brief   bool                // texts are not looked at while no state is known
	asked   bool                // the state was read, or is being read
	changed bool                // something since may have changed it
	safe    map[string]struct{} // prepared statements whose execution changes nothing; nil until the answer is known
	bound   map[string]struct{} // those that were executed before it was
	unnamed bool                // the unnamed statement is one
	unicode bool                // the client's encoding is UTF-8; of others only ASCII is understood
	by      string              // the keywords of what may have changed it; "": nothing did, or it is not known
	partial bool                // a Query or Parse has arrived in part
	part    []byte              // that part
}

// A text up to maxText bytes is judged although it arrives in pieces. The memory of one up to keptText is kept for the
// next.
const (
	maxText  = 64 << 10
	keptText = 4 << 10
)

// Asked notes that the server is asked for the state. Requests of the client from then on are answered after that.
func (u *Unchanged) Asked() {
	u.asked, u.changed, u.safe, u.bound, u.by = true, false, nil, nil, ""
}

// Forget notes that messages passed that were not followed: they may have changed what was asked for.
func (u *Unchanged) Forget() { *u = Unchanged{Brief: u.Brief, asked: u.asked, changed: u.asked} }

// Doubt notes that something else shows a change.
func (u *Unchanged) Doubt() { u.changed = true }

// maxBound is how many prepared statements are remembered until the answer is known.
const maxBound = 64

// Known notes the answer: the texts of the prepared statements by their names, and whether the client's encoding is
// UTF-8.
func (u *Unchanged) Known(statements map[string]string, unicode bool) {
	u.safe, u.unicode = make(map[string]struct{}, len(statements)), unicode
	for name, text := range statements {
		if u.harmless([]byte(text)) {
			u.safe[name] = struct{}{}
		}
	}
	for name := range u.bound {
		if _, safe := u.safe[name]; !safe {
			u.changed, u.by = true, "EXECUTE"
		}
	}
	u.bound = nil
}

// Holds reports whether the state that was asked for last is that of the session, once its open transaction is rolled
// back.
func (u *Unchanged) Holds() bool { return u.asked && !u.changed && !u.partial }

// HeldBefore is Holds before the message of which a part has arrived: its server executes nothing of that.
func (u *Unchanged) HeldBefore() bool { return u.asked && !u.changed }

// WasAsked reports whether the server was ever asked.
func (u *Unchanged) WasAsked() bool { return u.asked }

// By returns the keywords of the statement that may have changed the state since the server was asked; "" if none did,
// or if it is not known.
func (u *Unchanged) By() string { return u.by }

// Message follows a piece of the body of a client's message. begun means that it is the beginning, whole that it
// reaches the end.
func (u *Unchanged) Message(typ byte, piece []byte, begun, whole bool) {
	held := u.asked && !u.changed
	if !held && (typ != 'P' || u.Brief) { // else the unnamed statement may be executed after the next question
		u.partial, u.unnamed = false, u.unnamed && typ != 'P'
		u.forget()
		return
	}
	if (typ == 'Q' || typ == 'P') && (begun && !whole || u.partial && !begun) {
		if piece, whole = u.gather(piece, begun, whole); u.partial {
			return
		}
		defer u.forget()
		begun = true
	}
	u.partial = false
	u.judge(typ, piece, begun, whole)
	if held && u.changed && begun {
		u.by = TagOf(typ, piece)
	}
}

// gather adds a piece to those that have arrived of a text, and returns them all. partial stays set until the message
// is whole or too long.
func (u *Unchanged) gather(piece []byte, begun, whole bool) (all []byte, ended bool) {
	if begun {
		u.part = u.part[:0]
	}
	room := maxText - len(u.part)
	u.part = append(u.part, piece[:min(room, len(piece))]...)
	u.partial = !whole && len(piece) <= room
	return u.part, whole && len(piece) <= room
}

// forget drops the pieces of a text that was judged.
func (u *Unchanged) forget() {
	if u.part = u.part[:0]; cap(u.part) > keptText {
		u.part = nil
	}
}

// judge takes a piece of a message into account.
func (u *Unchanged) judge(typ byte, piece []byte, begun, whole bool) {
	switch typ {
	case 'Q':
		u.changed = !begun || !whole || !u.harmless(piece)
	case 'P':
		if begun { // what follows a piece has been judged with it
			u.parsed(piece, whole)
		}
	case 'B':
		if begun && !u.bindsSafely(piece) {
			u.changed = true
		}
	case 'C': // of a statement or a portal
		u.changed = !begun || len(piece) == 0 || piece[0] != 'P'
	case 'D', 'E', 'H', 'S', 'X':
	default:
		u.changed = true
	}
}

// parsed judges a Parse by its first piece.
func (u *Unchanged) parsed(piece []byte, whole bool) {
	name, text, ok := bytes.Cut(piece, []byte{0})
	if ok && len(name) > 0 { // the session has one more
		u.changed = true
		return
	}
	u.unnamed = ok && whole && u.harmless(text)
	u.changed = u.changed || !u.unnamed
}

// bindsSafely reports whether a Bind is of a statement whose execution changes nothing.
func (u *Unchanged) bindsSafely(body []byte) bool {
	_, rest, ok := bytes.Cut(body, []byte{0})
	name, _, ok2 := bytes.Cut(rest, []byte{0})
	if !ok || !ok2 {
		return false
	}
	if len(name) == 0 {
		return u.unnamed
	}
	if u.safe == nil && len(u.bound) < maxBound {
		if u.bound == nil {
			u.bound = make(map[string]struct{})
		}
		u.bound[string(name)] = struct{}{}
		return true
	}
	_, safe := u.safe[string(name)]
	return safe
}

// harmless reports whether the execution of a text changes nothing in the session.
func (u *Unchanged) harmless(text []byte) bool {
	text, _, _ = bytes.Cut(text, []byte{0})
	if !u.unicode && bytes.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		return false
	}
	return KeepsSession(text)
}

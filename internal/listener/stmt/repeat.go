package stmt

import "bytes"

// Repeatable reports whether a text may be executed a second time in a transaction of another server, after the first
// one was lost: whether it has only queries, changes of rows, and statements that begin a transaction block or are
// about savepoints, and calls well-known functions that leave nothing behind which a rollback would not remove, but
// gaps in sequences. begins means that its first statement begins a block. Functions that a view, a trigger, a rule
// or an operator calls are not seen.
func Repeatable(text []byte) (begins, ok bool) {
	text, _, _ = bytes.Cut(text, []byte{0})
	q := queries{rest: text, first: true}
	for n := 0; len(q.rest) > 0; {
		if q.rest[0] == '(' && once[q.name] {
			return false, false
		}
		first := q.first
		if !q.token() {
			return false, false
		}
		if !first || q.first {
			continue
		}
		switch q.last {
		case "begin", "start":
			begins = begins || n == 0
		case "commit", "end", "abort":
			return false, false
		case "rollback":
			if !toSavepoint(q.rest) {
				return false, false
			}
		}
		n++
	}
	return begins, !q.makes
}

// once are functions that change more than a rollback removes, or return what the session did before.
var once = setOf("setval currval lastval")

// toSavepoint reports whether a ROLLBACK goes on as one to a savepoint.
func toSavepoint(rest []byte) bool {
	for range 2 {
		rest = pastComments(rest)
		n := 0
		for n < len(rest) && wordByte(rest[n]) {
			n++
		}
		switch w := string(bytes.ToLower(rest[:min(n, maxWord)])); w {
		case "to":
			return true
		case "work", "transaction":
			rest = rest[n:]
		default:
			return false
		}
	}
	return false
}

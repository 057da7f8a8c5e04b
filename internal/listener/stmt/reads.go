package stmt

import "bytes"

// OnlyReads reports whether a text has only queries that change nothing: no rows, no locks, no sequence, and nothing in
// the session. The functions that they call are well known, and read or compute. Functions that a view, a rule, a
// policy or an operator calls are not seen.
func OnlyReads(text []byte) bool {
	known, changes := plain(text)
	return known && !changes
}

// OnlyChange reports whether a text is one statement that changes rows, and nothing else that a rollback would not
// undo. Functions are called as in OnlyReads.
func OnlyChange(text []byte) bool {
	known, changes := plain(text)
	return known && changes && bytes.IndexByte(bytes.TrimRight(text, "; \t\r\n\x00"), ';') < 0
}

// ChangesRows reports whether a text that passes OnlyChange has a statement that changes rows. Else it only locks some,
// or advances a sequence.
func ChangesRows(text []byte) bool {
	text, _, _ = bytes.Cut(text, []byte{0})
	q := queries{rest: text, first: true}
	for begun := false; len(q.rest) > 0; {
		before := q.last
		if !q.token() {
			return false
		}
		switch {
		case q.last == before:
		case writing[q.last] && before != "for" && before != "key":
			return true
		case !begun && q.last != "" && q.last != "with": // only a WITH has others
			return false
		}
		begun = begun || q.last != ""
	}
	return false
}

// plain reports whether a text has only queries and changes of rows, and whether one changes or locks rows, or advances
// a sequence, which a rollback leaves with a gap.
func plain(text []byte) (known, changes bool) {
	text, _, _ = bytes.Cut(text, []byte{0})
	q := queries{rest: text, first: true}
	for len(q.rest) > 0 {
		if q.rest[0] == '(' {
			if once[q.name] {
				return false, false
			}
			changes = changes || q.name == "nextval"
		}
		first, before := q.first, q.last
		if !q.token() {
			return false, false
		}
		switch changes = changes || writing[q.last]; {
		case first && !q.first && !readsFirst[q.last] && !writing[q.last]:
			return false, false
		case before == "show" && (q.last == "all" || q.last == ""): // as pg_settings, which has the access mode of the transaction; "all", too
			return false, false
		case before == "for" && (q.last == "no" || q.last == "key" || q.last == "share"): // FOR UPDATE is in writing
			return false, false
		}
	}
	return !q.makes && !q.settings, changes
}

// readsFirst are the first words of queries.
var readsFirst = setOf("select values with table show")

// writing are words of statements that change rows, and of queries that lock some.
var writing = setOf("insert update delete merge")

package stmt

import (
	"bytes"
	"cmp"
)

// When a session ends by no will of its client, the client is told what has become of its last request: nothing was under way
// (57P01), it cannot have been committed and may be run again (40001), or nobody can tell (08007). This file follows the requests
// closely enough to say the second only where it is certain (docs/internals/safety.md, "Answers in doubt"). It knows no SQL but the first word of a
// statement, and takes what it does not know for a COMMIT.

// class is what a statement can do to a transaction. Within one request the later ones are added by then.
type class uint8

const (
	classNone     class = iota // nothing is executed
	classLocal                 // concerns the session alone: SET, SHOW
	classBegin                 // opens a block, if it does not fail
	classRollback              // closes one, if it does not fail, and commits nothing
	classWork                  // committed with the transaction it is in, its own if there is no block
	classOwn                   // as work in a block; outside one it may commit on its own, at any time
	classCommit                // commits, or may
)

// block is whether a transaction block is open.
type block uint8

const (
	blockNone block = iota
	blockOpen
	blockUnknown
)

// after is the state that a request of that class leaves behind, and whether a commit may have happened with it. Committing
// says that the end of the request was forwarded too: the Query, or the Sync.
func (b block) after(c class, committing bool) (next block, commits bool) {
	switch c {
	case classNone, classLocal:
		return b, false
	case classBegin: // anything can fail: there are cancel requests
		if b == blockOpen {
			return blockOpen, false
		}
		return blockUnknown, false
	case classRollback:
		return blockNone, false
	case classWork:
		return b, b != blockOpen && committing
	case classOwn:
		return b, b != blockOpen
	case classCommit:
	}
	return blockUnknown, true
}

// then is the class of a request that holds what is of class c, and after it what is of class d.
func (c class) then(d class) class {
	switch {
	case c <= classLocal:
		return max(c, d)
	case d <= classLocal, c == classBegin && (d == classBegin || d == classWork || d == classOwn):
		return c // in a block from its first statement on (if that fails the rest is skipped), or nothing new
	case c == classWork && d == classWork, c == classOwn && d == classOwn:
		return c
	}
	return classCommit
}

// Verdict is what a client is told of its last request.
type Verdict uint8

const (
	Idle    Verdict = iota // nothing was under way
	Aborted                // it cannot have been committed
	Unknown                // it may have been
)

// maxOutstanding is how many requests without an answer are told apart.
const maxOutstanding = 1024

// Requests are those that were forwarded and are not answered, in their order. They are guarded by draining.mu.
type Requests struct {
	status   byte             // of the last ReadyForQuery
	open     []class          // Query, Sync and FunctionCall without a ReadyForQuery
	crowded  bool             // there were too many: nothing is certain until all are answered
	batch    class            // extended messages behind the last Sync
	named    map[string]class // prepared statements that are more than work
	unknown  bool             // there were too many of those
	unnamed  class            // the unnamed statement, if it was parsed in this batch; else the worst it may be
	mixed    bool             // the unnamed statement was more than work once
	portal   class            // the unnamed portal, if it was bound in this batch
	portals  class            // of all named ones, until the end of the transaction
	multiple bool             // the Query at hand has more than one statement
	tail     bool             // its text so far has a semicolon
	Sealed   bool             // the verdict was spoken: nothing is forwarded any more
}

// QueryText follows the text of a Query through its pieces.
func (r *Requests) QueryText(piece []byte) {
	if r.tail {
		r.multiple = r.multiple || len(bytes.Trim(piece, "; \t\r\n\x00")) > 0
	}
	if i := bytes.IndexByte(piece, ';'); i >= 0 && !r.tail {
		r.tail = true
		r.multiple = len(bytes.Trim(piece[i:], "; \t\r\n\x00")) > 0
	}
}

// Forwarded takes note of a message that goes to PostgreSQL. kept is the beginning of its body.
func (r *Requests) Forwarded(typ byte, kept []byte) {
	switch typ {
	case 'Q':
		c := classify(kept)
		if r.multiple {
			c = classCommit
		}
		r.multiple, r.tail = false, false
		r.close(r.batch.then(c))
	case 'F':
		r.close(r.batch.then(classWork))
	case 'S':
		r.close(r.batch)
	case 'P':
		r.parsed(kept)
	case 'B':
		r.bound(kept)
	case 'E':
		if portal, _, ok := bytes.Cut(kept, []byte{0}); !ok || len(portal) > 0 {
			r.batch = r.batch.then(r.portals)
			return
		}
		r.batch = r.batch.then(r.portal)
	}
}

// close ends a batch. An error skips the rest of it, so what it would have prepared may not be what is there afterwards.
func (r *Requests) close(c class) {
	if r.mixed {
		r.unnamed = classCommit
	}
	r.batch, r.portal = classNone, classCommit
	if len(r.open) >= maxOutstanding {
		r.crowded = true
		return
	}
	r.open = append(r.open, c)
}

// parsed notes what a prepared statement is. A name may have been given before and keep its old meaning: then it is at least work,
// and nothing that is better than that is believed of it.
func (r *Requests) parsed(kept []byte) {
	name, text, ok := bytes.Cut(kept, []byte{0})
	c := classCommit
	if ok {
		c = classify(text)
	}
	old, known := r.named[string(name)]
	switch {
	case ok && len(name) == 0:
		r.unnamed, r.mixed = c, r.mixed || c != classWork
	case !ok || !known && len(r.named) >= maxOutstanding:
		r.unknown = true
	case c == classLocal, c == classWork, known && old == c:
	case known, c != classOwn:
		r.special(string(name), classCommit)
	default:
		r.special(string(name), c)
	}
}

func (r *Requests) special(name string, c class) {
	if r.named == nil {
		r.named = make(map[string]class)
	}
	r.named[name] = c
}

func (r *Requests) bound(kept []byte) {
	portal, rest, ok := bytes.Cut(kept, []byte{0})
	name, _, ok2 := bytes.Cut(rest, []byte{0})
	c := classWork
	if special, is := r.named[string(name)]; is {
		c = special
	}
	switch {
	case !ok || !ok2 || r.unknown:
		c = classCommit
	case len(name) == 0:
		c = r.unnamed
	}
	switch {
	case len(portal) == 0 && ok:
		r.portal = c
	case c == classBegin || c == classRollback:
		r.portals = classCommit // which of them is executed is not followed
	default:
		r.portals = max(r.portals, c)
	}
}

// ForgetUnnamed takes note that requests were forwarded and answered of which is known no more than that no statement and no portal of theirs has a
// name: the unnamed statement may be anything.
func (r *Requests) ForgetUnnamed() { r.unnamed, r.mixed = classCommit, true }

// SyncIgnored is for a Sync that PostgreSQL skipped because it came during COPY.
func (r *Requests) SyncIgnored() {
	r.open, r.batch = r.open[:0], classCommit
}

// Answered takes note of a ReadyForQuery; all says that nothing else is owed.
func (r *Requests) Answered(status byte, all bool) {
	r.status = status
	if status == 'I' {
		r.portals = classNone
	}
	switch {
	case all:
		r.open, r.crowded = r.open[:0], false
	case len(r.open) > 0:
		r.open = append(r.open[:0], r.open[1:]...)
	}
}

// Verdict says what has become of what was forwarded and not answered.
func (r *Requests) Verdict() Verdict {
	at, lost := blockNone, false
	if r.status == 'T' || r.status == 'E' {
		at, lost = blockOpen, true
	}
	if r.crowded {
		return Unknown
	}
	for _, c := range r.open {
		var commits bool
		if at, commits = at.after(c, true); commits {
			return Unknown
		}
		lost = lost || c != classNone
	}
	if _, commits := at.after(r.batch, false); commits {
		return Unknown
	}
	if lost || r.batch != classNone {
		return Aborted
	}
	return Idle
}

// classify looks at the beginning of a statement.
func classify(text []byte) class {
	text = bytes.TrimLeft(text, " \t\r\n")
	word := firstWord(text)
	known := classes[string(word)]
	if known == classBegin || known == classRollback {
		return withOptions(known, text[len(word):])
	}
	return cmp.Or(known, classCommit)
}

// firstWord returns the letters that text begins with, in lower case; none if there are too many.
func firstWord(text []byte) []byte {
	n := 0
	for n < len(text) && (text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z' || text[n] == '_') {
		n++
	}
	if n > 12 {
		return nil
	}
	return bytes.ToLower(text[:n])
}

// withOptions is the class of BEGIN or ROLLBACK with what follows.
func withOptions(c class, rest []byte) class {
	end := bytes.IndexByte(rest, 0)
	if end < 0 { // longer than what is kept
		end = len(rest)
	}
	words := bytes.Fields(bytes.ToLower(bytes.Trim(rest[:end], "; \t\r\n")))
	if len(words) > 0 && (string(words[0]) == "work" || string(words[0]) == "transaction") {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return c
	case c == classBegin:
		return c
	case string(words[0]) == "to":
		return classLocal
	}
	return classCommit // ROLLBACK PREPARED, AND CHAIN
}

// classes are those of the first words that are known. What is missing may commit: COMMIT, END, PREPARE TRANSACTION, and whatever
// comes with a later version.
var classes = map[string]class{
	"begin": classBegin, "start": classBegin, "rollback": classRollback, "abort": classRollback,
	"set": classLocal, "show": classLocal, "reset": classLocal,
	"select": classWork, "insert": classWork, "update": classWork, "delete": classWork, "merge": classWork, "with": classWork,
	"values": classWork, "table": classWork, "fetch": classWork, "move": classWork, "declare": classWork, "close": classWork,
	"lock": classWork, "savepoint": classWork, "release": classWork, "execute": classWork, "notify": classWork,
	"copy": classOwn, "truncate": classOwn, "create": classOwn, "alter": classOwn, "drop": classOwn, "grant": classOwn,
	"revoke": classOwn, "comment": classOwn, "explain": classOwn, "analyze": classOwn, "vacuum": classOwn, "refresh": classOwn,
	"reindex": classOwn, "cluster": classOwn, "call": classOwn, "do": classOwn, "listen": classOwn, "unlisten": classOwn,
	"deallocate": classLocal, "discard": classOwn, "checkpoint": classOwn,
}

package stmt

import (
	"bytes"
	"cmp"
)

// When the listener ends a session, the client's error has the outcome of its last request. Nothing was in progress
// (57P01), it cannot have been committed and may be run again (40001), or the outcome is unknown (08007). This file
// follows requests closely enough to report the second only where it is certain (docs/internals/safety.md, "Answers in
// doubt"). It knows no SQL but the first word of a statement, and takes an unknown word for a COMMIT.

// class is what a statement can do to a transaction. The classes of one request are combined by then.
type class uint8

const (
	classNone     class = iota // nothing is executed
	classLocal                 // affects the session only: SET, SHOW
	classBegin                 // opens a block, unless it fails
	classRollback              // closes a block, unless it fails, and commits nothing
	classChain                 // the same, and opens the next: ROLLBACK AND CHAIN
	classWork                  // is committed with its transaction, which is its own outside a block
	classOwn                   // as classWork in a block; outside one it may commit on its own, at any time
	classCommit                // commits, or may
)

// block is whether a transaction block is open.
type block uint8

const (
	blockNone block = iota
	blockOpen
	blockUnknown
)

// after returns the state that a request of that class leaves, and whether it may have committed. committing means
// that the end of the request was forwarded, too: the Query or the Sync.
func (b block) after(c class, committing bool) (next block, commits bool) {
	switch c {
	case classNone, classLocal:
		return b, false
	case classBegin: // any statement can fail: there are cancel requests
		if b == blockOpen {
			return blockOpen, false
		}
		return blockUnknown, false
	case classRollback:
		return blockNone, false
	case classChain: // outside a block it fails
		return blockUnknown, false
	case classWork:
		return b, b != blockOpen && committing
	case classOwn:
		return b, b != blockOpen
	case classCommit:
	}
	return blockUnknown, true
}

// then returns the class of a request that has a part of class c and after it one of class d.
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

// Verdict is the outcome of a client's last request, as its error states it.
type Verdict uint8

// The possible verdicts.
const (
	Idle    Verdict = iota // nothing was in progress
	Aborted                // it cannot have been committed
	Unknown                // it may have been
)

// maxOutstanding is how many unanswered requests are distinguished.
const maxOutstanding = 1024

// Requests are the requests that were forwarded and not answered, in order. The caller guards them by a lock.
type Requests struct {
	status   byte             // of the last ReadyForQuery
	open     []class          // Query, Sync and FunctionCall without a ReadyForQuery
	crowded  bool             // there were too many: nothing is certain until all are answered
	batch    class            // extended messages after the last Sync
	named    map[string]class // prepared statements of other classes than classWork and classLocal
	unknown  bool             // there were too many of those
	unnamed  class            // the unnamed statement, if it was parsed in this batch; else the worst that it may be
	mixed    bool             // the unnamed statement was of another class than classWork once
	waits    bool             // the unnamed statement was parsed, and not bound since
	portal   class            // the unnamed portal, if it was bound in this batch
	portals  class            // all named portals, until the end of the transaction
	multiple bool             // the current Query has several statements
	tail     bool             // its text so far has a semicolon
	sole     sole             // whether the batch does nothing but execute one prepared statement
	only     []byte           // the name of that
	alone    bool             // the last request of open did no more
	endings  uint64           // requests that were forwarded and may have ended a transaction block
	Sealed   bool             // the verdict was given: nothing is forwarded after it
	// Texts returns the text of a prepared statement as the server has it, if that is known for certain. Nil: of none.
	Texts func(name string) (text string, known bool)
}

// sole is how far a batch has come that binds and executes one prepared statement with a name.
type sole uint8

const (
	soleNothing sole = iota
	soleBound
	soleExecuted
	soleNot // it has done something else
)

// QueryText follows the text of a Query, piece by piece.
func (r *Requests) QueryText(piece []byte) {
	if r.tail {
		r.multiple = r.multiple || len(bytes.Trim(piece, "; \t\r\n\x00")) > 0
	}
	if i := bytes.IndexByte(piece, ';'); i >= 0 && !r.tail {
		r.tail = true
		r.multiple = len(bytes.Trim(piece[i:], "; \t\r\n\x00")) > 0
	}
}

// Forwarded notes a message that goes to PostgreSQL. kept is the beginning of its body.
func (r *Requests) Forwarded(typ byte, kept []byte) {
	switch typ {
	case 'Q':
		c := classify(kept)
		if r.multiple {
			c = classCommit
		}
		r.multiple, r.tail, r.waits, r.sole = false, false, false, soleNot
		r.close(r.batch.then(c))
	case 'F':
		r.sole = soleNot
		r.close(r.batch.then(classWork))
	case 'S':
		r.close(r.batch)
	case 'P':
		r.sole, r.alone = soleNot, false
		r.parsed(kept)
	case 'B':
		r.bound(kept)
	case 'E':
		r.executed(kept)
		if portal, _, ok := bytes.Cut(kept, []byte{0}); !ok || len(portal) > 0 {
			r.batch = r.batch.then(r.portals)
			return
		}
		r.batch = r.batch.then(r.portal)
	}
}

// executed follows sole through an Execute.
func (r *Requests) executed(kept []byte) {
	if portal, _, ok := bytes.Cut(kept, []byte{0}); ok && len(portal) == 0 && r.sole == soleBound {
		r.sole = soleExecuted
		return
	}
	r.sole = soleNot
}

// close ends a batch. An error skips the rest of a batch, so it is not known whether its statements were prepared.
func (r *Requests) close(c class) {
	if r.mixed {
		r.unnamed = classCommit
	}
	r.batch, r.portal = classNone, classCommit
	r.alone, r.sole = r.sole == soleExecuted, soleNothing
	if c.ends() {
		r.endings++
	}
	if len(r.open) >= maxOutstanding {
		r.crowded = true
		return
	}
	r.open = append(r.open, c)
}

// ends reports whether a request of that class may end the block that is open before it.
func (c class) ends() bool { return c == classRollback || c == classChain || c == classCommit }

// Endings returns a number that changes with each request that may end a transaction block, once the whole of it is
// forwarded. While it is the same, a session that is in a block is in the same one; the messages after the last Sync
// are not counted yet (OneTransaction).
func (r *Requests) Endings() uint64 { return r.endings }

// Works reports whether a text begins as one that reads or changes rows, and that fails in a transaction block that has
// failed.
func Works(text []byte) bool { return classify(text) == classWork }

// parsed notes the class of a prepared statement. A name may have been used before and keep its old meaning. So it is
// at least classWork, and no better class is assumed.
func (r *Requests) parsed(kept []byte) {
	name, text, ok := bytes.Cut(kept, []byte{0})
	c := classCommit
	if ok {
		c = classify(text)
	}
	old, known := r.named[string(name)]
	r.waits = r.waits || len(name) == 0
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

// special notes a prepared statement of that class.
func (r *Requests) special(name string, c class) {
	if r.named == nil {
		r.named = make(map[string]class)
	}
	r.named[name] = c
}

// bound notes the class of a portal.
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
	r.waits = r.waits && len(name) > 0
	if r.alone = false; r.sole == soleNothing && len(portal) == 0 && len(name) > 0 && ok && ok2 {
		r.sole, r.only = soleBound, append(r.only[:0], name...)
	} else {
		r.sole = soleNot
	}
	switch {
	case len(portal) == 0 && ok:
		r.portal = c
	case c == classBegin || c == classRollback || c == classChain:
		r.portals = classCommit // which portal is executed is not followed
	default:
		r.portals = max(r.portals, c)
	}
}

// ForgetUnnamed notes that the kernel relayed requests that were not seen here. They prepared no named statement, and
// used no named portal. The unnamed statement is unknown afterwards. waits is whether it was parsed and not bound
// since.
func (r *Requests) ForgetUnnamed(waits bool) {
	r.unnamed, r.mixed, r.waits = classCommit, true, waits
	r.endings++
}

// UnnamedWaits reports whether the unnamed statement was parsed, and was not bound since: a driver that describes it
// first binds it in its next request.
func (r *Requests) UnnamedWaits() bool { return r.waits }

// Continued returns the requests of an idle session that is continued by another backend, with the same prepared
// statements and no other trace.
func (r *Requests) Continued() Requests {
	return Requests{status: 'I', named: r.named, unknown: r.unknown, unnamed: classCommit, portal: classCommit}
}

// Resumed returns the requests of a session whose open transaction was executed again by another backend, with the same
// prepared statements. Of its portals nothing is known.
func (r *Requests) Resumed() Requests {
	return Requests{status: 'T', named: r.named, unknown: r.unknown, unnamed: classCommit, portal: classCommit, portals: classCommit}
}

// SyncsIgnored notes that PostgreSQL ignored the last n Sync messages because they arrived during COPY.
func (r *Requests) SyncsIgnored(n int) {
	r.open, r.batch = r.open[:max(0, len(r.open)-n)], classCommit
	r.endings++
}

// Answered notes a ReadyForQuery; all means that no other answer is owed.
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

// OneTransaction reports whether the messages after the last Sync, of which there are some, belong to one transaction
// block, which was open before them or begins with the first of them. None of them can end it. Nothing else is
// under way.
func (r *Requests) OneTransaction() bool {
	if len(r.open) > 0 || r.crowded {
		return false
	}
	switch r.batch {
	case classBegin:
		return r.status == 'I' || r.status == 0 // 0: nothing was answered since the login
	case classNone, classLocal, classWork, classOwn:
		return r.status == 'T'
	case classRollback, classChain, classCommit:
	}
	return false
}

// Verdict returns the outcome of the requests that were forwarded and not answered.
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

// Cut reports whether the one request that was forwarded and not answered can be cut: whether it has committed
// nothing. It is false for several. reads means that its server can commit nothing. inBlock is whether the session is
// in a transaction block then, or may be.
func (r *Requests) Cut(reads bool) (may, inBlock bool) {
	if len(r.open) != 1 || r.crowded || r.batch != classNone {
		return false, false
	}
	c := r.open[0]
	begins := c == classBegin || r.begins()
	return r.Verdict() == Aborted || begins || reads && c == classWork, r.status == 'T' || r.status == 'E' || begins
}

// begins reports whether the last request does nothing but execute a prepared BEGIN. By its name alone that is not
// certain: the name may have been given to another statement since.
func (r *Requests) begins() bool {
	if !r.alone || r.status != 'I' || r.Texts == nil {
		return false
	}
	text, known := r.Texts(string(r.only))
	return known && classify([]byte(text)) == classBegin
}

// classify returns the class of a statement by its beginning.
func classify(text []byte) class {
	text = bytes.TrimLeft(text, " \t\r\n")
	word := firstWord(text)
	known := classes[string(word)]
	if known == classBegin || known == classRollback {
		return withOptions(known, text[len(word):])
	}
	return cmp.Or(known, classCommit)
}

// firstWord returns the letters with which text begins, in lower case; none if there are too many.
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

// withOptions returns the class of BEGIN or ROLLBACK with its options.
func withOptions(c class, rest []byte) class {
	end := bytes.IndexByte(rest, 0)
	if end < 0 { // longer than the kept part
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
	case len(words) == 2 && string(words[0]) == "and" && string(words[1]) == "chain":
		return classChain
	}
	return classCommit // ROLLBACK PREPARED
}

// classes are the classes of known first words. Any other word may commit: COMMIT, END, PREPARE TRANSACTION, and the
// statements of later versions.
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

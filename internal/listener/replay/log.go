package replay

import (
	"bytes"
	"slices"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Bounds of what is kept, in bytes. Allocation may double them for a moment.
const (
	maxSession = 1 << 20  // of one transaction: its requests, and a digest of each answer
	maxAll     = 64 << 20 // of all
	maxSpare   = 4 << 10  // of the memory that a session keeps between two transactions
)

// Memory is what all logs of a listener use. Its zero value is used by none.
type Memory struct{ used atomic.Int64 }

// take takes n bytes, if there are so many.
func (m *Memory) take(n int) bool {
	if m.used.Add(int64(n)) > maxAll {
		m.used.Add(int64(-n))
		return false
	}
	return true
}

// Used returns how many bytes are in use.
func (m *Memory) Used() int64 { return m.used.Load() }

// Reasons why a transaction is not executed again.
const (
	TooLong     = "its requests were too long to be kept"
	TooMany     = "too many transactions were open to keep all their requests"
	NotTwice    = "it had a statement that is not executed twice"
	NotKept     = "its beginning was not kept"
	Reported    = "it had changed a setting"
	Answering   = "the answer had begun to arrive"
	Outstanding = "more than one request was under way"
	Repeated    = "it was executed again once already"
	Differs     = "it had other results on the new primary"
)

// Log keeps the requests of the open transaction of a session, and a digest of each answer. It begins with a request
// that begins a transaction block while nothing is under way, and ends with the block. The caller guards it by a lock.
type Log struct {
	memory *Memory
	text   func(name string) (text string, known bool)
	on     bool
	over   bool   // the session has ended
	why    string // why the transaction cannot be executed again; "": no reason was seen
	taken  int    // of memory

	sent   []byte // the requests
	begin  int    // where the current message begins in it
	ends   []int  // where each whole request ends in it
	commit int    // which of them is the COMMIT, from 1 on; 0: none
	sums   []Sum  // of the answers to the first of them
	digest Digest // of the next answer
	names  []string
}

// New returns the log of a session. text returns the text of a prepared statement by which a transaction may begin.
func New(m *Memory, text func(name string) (text string, known bool)) *Log {
	return &Log{memory: m, text: text}
}

// On reports whether requests and answers are being kept.
func (l *Log) On() bool { return l.on && l.why == "" }

// Sent notes a piece of a message that goes to the server, header included. begun means that it is the beginning, whole
// that it reaches the end. idle means that nothing is under way before it, and no transaction open.
func (l *Log) Sent(piece []byte, begun, whole, idle bool) {
	if begun && idle {
		l.clear()
		l.on = !l.over
	}
	if !l.On() || !l.takes(len(piece)) {
		return
	}
	if begun {
		l.begin = len(l.sent)
	}
	if l.sent = append(l.sent, piece...); whole {
		l.message()
	}
}

// Repeats notes that the open transaction is one that was executed again. It is not a second time.
func (l *Log) Repeats() {
	l.on = true
	l.void(Repeated)
}

// Commits notes that the next request is the COMMIT, alone, and that it will be proved whether it was executed if its
// answer is lost. It is kept behind the requests that are executed again, as the one without an answer.
func (l *Log) Commits() {
	if l.On() {
		l.commit = len(l.ends) + 1
	}
}

// message looks at the message that has just become whole.
func (l *Log) message() {
	const header = 5
	m := l.sent[l.begin:]
	if len(m) < header {
		l.void(NotTwice)
		return
	}
	typ, body := m[0], m[header:]
	begins, ok := false, l.commit == len(l.ends)+1
	if !ok {
		begins, ok = l.executes(typ, body)
	}
	switch {
	case l.begin == 0 && !(begins && ok):
		l.clear() // until the session is idle again
		return
	case !ok:
		l.void(NotTwice)
		return
	}
	if typ == 'Q' || typ == 'S' {
		l.ends = append(l.ends, len(l.sent))
	}
}

// executes looks at what a message executes.
func (l *Log) executes(typ byte, body []byte) (begins, ok bool) {
	name, rest, whole := bytes.Cut(body, []byte{0})
	switch typ {
	case 'Q':
		return stmt.Repeatable(body)
	case 'P':
		if !whole || len(name) > 0 { // a statement with a name outlives the transaction
			return false, false
		}
		return stmt.Repeatable(rest)
	case 'B':
		name, _, whole = bytes.Cut(rest, []byte{0})
		if len(name) > 0 && !slices.Contains(l.names, string(name)) {
			l.names = append(l.names, string(name))
		}
		if whole = whole && l.takes(len(name)); whole && l.begin == 0 { // drivers that name each statement prepare BEGIN, too
			text, _ := l.text(string(name))
			begins, _ = stmt.Repeatable([]byte(text))
		}
		return begins, whole
	case 'C':
		return false, len(body) > 0 && body[0] == 'P'
	case 'D', 'E', 'H', 'S':
		return false, true
	}
	return false, false // COPY, a function call
}

// Answered notes a piece of a message that goes to the client.
func (l *Log) Answered(typ byte, piece []byte, whole bool) {
	switch {
	case !l.On():
		return
	case typ == 'S':
		l.void(Reported)
		return
	}
	status, done := l.digest.Piece(typ, piece, whole)
	switch {
	case !done:
	case status == 'I' || len(l.sums) >= len(l.ends) || l.commit == len(l.sums)+1: // COMMIT AND CHAIN leaves a block, too
		l.clear()
	case l.takes(len(Sum{})):
		l.sums = append(l.sums, l.digest.Take())
	}
}

// takes takes n bytes of memory, or gives the transaction up.
func (l *Log) takes(n int) bool {
	switch {
	case l.taken+n > maxSession:
		l.void(TooLong)
		return false
	case !l.memory.take(n):
		l.void(TooMany)
		return false
	}
	l.taken += n
	return true
}

// void gives the transaction up.
func (l *Log) void(why string) {
	on := l.on
	l.clear()
	l.on, l.why = on, why
}

// clear forgets the transaction. Nothing is kept until the next one.
func (l *Log) clear() {
	l.memory.used.Add(int64(-l.taken))
	l.on, l.why, l.taken, l.begin, l.commit = false, "", 0, 0, 0
	l.sent, l.ends, l.sums, l.names = l.sent[:0], l.ends[:0], l.sums[:0], nil
	if cap(l.sent) > maxSpare {
		l.sent = nil
	}
	if cap(l.sums) > maxSpare/len(Sum{}) {
		l.ends, l.sums = nil, nil
	}
	l.digest.Take()
}

// Close forgets everything. Nothing is kept afterwards.
func (l *Log) Close() {
	l.clear()
	l.over, l.sent, l.ends, l.sums = true, nil, nil, nil
}

// Refusal returns why the open transaction cannot be executed again; "" if it can. texts are the prepared statements of
// the session by their names.
func (l *Log) Refusal(texts map[string]string) string {
	switch {
	case l.why != "":
		return l.why
	case !l.on:
		return NotKept
	case l.digest.Begun():
		return Answering
	case len(l.ends) > len(l.sums)+1 || l.end(len(l.ends)) != len(l.sent):
		return Outstanding
	}
	for _, n := range l.names {
		text, known := texts[n]
		if _, ok := stmt.Repeatable([]byte(text)); !known || !ok {
			return NotTwice
		}
	}
	return ""
}

// end returns where the first n requests end.
func (l *Log) end(n int) int {
	if n == 0 {
		return 0
	}
	return l.ends[n-1]
}

// Unanswered returns the request to which no answer has come; nil if there is none.
func (l *Log) Unanswered() []byte { return bytes.Clone(l.sent[l.end(len(l.sums)):]) }

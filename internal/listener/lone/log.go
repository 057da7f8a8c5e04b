package lone

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Bounds of what is kept, in bytes.
const (
	maxSession = 64 << 10 // of one session
	maxAll     = 64 << 20 // of all, beyond the first maxSpare of each
	maxSpare   = 1 << 10  // of a buffer that another request uses again
)

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// Memory is what the logs of a listener use beyond short requests. Its zero value is used by none.
type Memory struct{ used atomic.Int64 }

// spare are buffers for short requests: an idle session has none.
var spare = sync.Pool{New: func() any { return new([maxSpare]byte) }}

// Log keeps the requests that are under way outside a transaction block. It begins with one before which nothing was
// under way, and ends when all are answered, or when one of them has opened a block. The caller guards it by a lock.
// Its zero value keeps none.
type Log struct {
	memory   *Memory
	on       bool
	again    bool            // the requests are executed a second time
	begun    bool            // a part of the answer to the first of them has gone to the client
	sent     []byte          // the requests under way
	short    *[maxSpare]byte // sent is in it; nil: it was never short
	taken    int             // of memory
	ends     []int           // where each whole request ends in sent
	begin    int             // where the last message begins in it
	unsent   int             // bytes at its end that have not reached the server
	executed bool            // by Fate: the first request may have been executed to its end
	write    *Write          // the change under way whose number was asked for; nil: there is none
}

// On reports whether requests are being kept.
func (l *Log) On() bool { return l.on }

// Fresh reports whether the log was begun, and nothing was sent since.
func (l *Log) Fresh() bool { return l.on && len(l.sent) == 0 }

// Awaits reports whether requests are kept of whose answer the client has got nothing.
func (l *Log) Awaits() bool { return l.on && !l.begun }

// Begin begins with the next message, before which nothing is under way.
func (l *Log) Begin(m *Memory) {
	l.Forget()
	l.memory, l.on = m, true
}

// Again notes that the requests that come next are executed a second time. It is not a third time.
func (l *Log) Again(m *Memory) {
	l.Begin(m)
	l.again = true
}

// Sent notes a piece of a message that goes to the server, header included. begun means that it is the beginning, whole
// that it reaches the end.
func (l *Log) Sent(piece []byte, begun, whole bool) {
	if !l.on {
		return
	}
	if begun {
		l.begin = len(l.sent)
	}
	if !l.takes(len(piece)) {
		w := l.write // its answer goes on being followed
		l.Forget()
		l.write = w
		return
	}
	if l.sent = append(l.sent, piece...); whole && (l.sent[l.begin] == 'Q' || l.sent[l.begin] == 'S') {
		l.ends = append(l.ends, len(l.sent))
	}
}

// takes makes room for n bytes, if there may be so many.
func (l *Log) takes(n int) bool {
	all := len(l.sent) + n
	if more := max(0, all-maxSpare) - l.taken; more > 0 {
		if all > maxSession || l.memory.used.Add(int64(more)) > maxAll {
			if all <= maxSession {
				l.memory.used.Add(int64(-more))
			}
			return false
		}
		l.taken += more
	}
	if l.sent == nil {
		l.short = spare.Get().(*[maxSpare]byte) //nolint:forcetypeassert // nothing else is in the pool
		l.sent = l.short[:0]
	}
	return true
}

// Unsent notes that the last n bytes have not reached the server, and never will.
func (l *Log) Unsent(n int) { l.unsent = min(n, len(l.sent)) }

// Answering notes that the client gets a part of the answer to the first request.
func (l *Log) Answering() { l.begun = true }

// Answered notes the end of the answer to the first request, and the state of the transaction after it.
func (l *Log) Answered(status byte) {
	if !l.on {
		l.write = nil
		return
	}
	if status != 'I' || len(l.ends) == 0 || l.ends[0] == len(l.sent) {
		l.Forget()
		return
	}
	n := l.ends[0]
	l.write = nil
	l.sent, l.begin, l.begun = append(l.sent[:0], l.sent[n:]...), l.begin-n, false
	l.ends = append(l.ends[:0], l.ends[1:]...)
	for i := range l.ends {
		l.ends[i] -= n
	}
}

// Forget forgets the requests. Nothing is kept until the next Begin.
func (l *Log) Forget() {
	if l.taken > 0 {
		l.memory.used.Add(int64(-l.taken))
	}
	if l.short != nil {
		spare.Put(l.short)
	}
	*l = Log{ends: l.ends[:0]}
}

// Fate is what becomes of the requests under way when their server is lost.
type Fate int

// The fates.
const (
	Doubtful Fate = iota // they may have changed something, or were not kept
	Repeated             // they are executed on the next server, as if they came only now
	Failed               // they have changed nothing, and the first cannot be executed again
	InDoubt              // it is a change, and the next primary knows its status
)

// Fate returns what becomes of the requests. text returns the text of a prepared statement.
func (l *Log) Fate(text func(name string) (text string, known bool)) Fate {
	l.executed = false
	switch {
	case !l.on:
		return Doubtful
	case l.write != nil && len(l.sent) <= l.unsent && l.write.Untold(): // it was to be sent
		return Repeated
	case len(l.sent) == 0:
		return Doubtful
	case l.write != nil && l.write.Xid != 0 && len(l.ends) == 1 && len(l.sent) == l.ends[0]:
		return InDoubt
	}
	var unnamed bool // the unnamed statement is one that is executed again
	reached := 0     // bytes of messages that may have been executed
	for b, left := l.sent, len(l.sent)-l.unsent; ; {
		n, whole := length(b)
		if !whole || n > left {
			break // the server has not got it
		}
		reached += n
		if mentionsAccess(b[:n]) || !reads(b[0], b[headerLength:n], &unnamed, text) {
			return Doubtful
		}
		b, left = b[n:], left-n
	}
	l.executed = len(l.ends) > 0 && reached >= l.ends[0]
	spent := reached > 0 && (l.begun || l.again)
	switch {
	case len(l.ends) > 0 && reached > l.ends[0]:
		return Doubtful // several have reached it: the second execution is guarded up to the end of the first
	case spent && len(l.ends) == 0:
		return Doubtful // its end is still to come
	case spent:
		return Failed
	}
	return Repeated
}

// accessMode is in the names of the settings that Guard changes.
var accessMode = []byte("transaction_read_only")

// mentionsAccess reports whether a message or a text may return the access mode of the transaction.
func mentionsAccess(b []byte) bool { return bytes.Contains(bytes.ToLower(b), accessMode) }

// length returns the length of the first message of b, and whether b has all of it.
func length(b []byte) (n int, whole bool) {
	if len(b) < headerLength {
		return 0, false
	}
	n = int(binary.BigEndian.Uint32(b[1:])) + 1
	return n, n >= headerLength && n <= len(b)
}

// reads reports whether a message changes nothing on the server, but a statement or portal without a name.
func reads(typ byte, body []byte, unnamed *bool, text func(name string) (text string, known bool)) bool {
	switch typ {
	case 'Q':
		*unnamed = false
		return stmt.OnlyReads(body)
	case 'P':
		name, of, ok := bytes.Cut(body, []byte{0})
		*unnamed = ok && len(name) == 0 && stmt.OnlyReads(of)
		return *unnamed
	case 'B':
		_, rest, _ := bytes.Cut(body, []byte{0})
		name, _, ok := bytes.Cut(rest, []byte{0})
		if len(name) == 0 {
			return ok && *unnamed
		}
		of, known := text(string(name))
		return ok && known && !mentionsAccess([]byte(of)) && stmt.OnlyReads([]byte(of))
	case 'C':
		return len(body) > 0 && body[0] == 'P'
	case 'D', 'E', 'H', 'S':
		return true
	}
	return false // COPY, a function call, Terminate
}

// maxHeld bounds a message of an answer that is held until it is whole, in bytes.
const maxHeld = 4 << 10

// Holds reports whether a part of a message of an answer is held until the message is whole: the client of a query that
// fails can be told so only between two messages.
func Holds(part []byte) bool {
	return len(part) < headerLength || binary.BigEndian.Uint32(part[1:]) <= maxHeld
}

// Guard returns the messages that come before requests that are executed again, of which the first begins with a
// message of that type, and the type of the last message of their answer. They are in the transaction of the first
// request, which can write nothing then: not even by a function that was not seen (ReadOnly). The listener reads the
// answer. The messages behind go behind the first message, if it is a Query: it is in a block. From PostgreSQL 18 on
// neither a Query nor a Sync behind it would end a transaction that extended messages have begun. A statement sets the
// access mode, and not BEGIN: the snapshot comes first then, and DEFERRABLE waits for nothing that it did not before.
func Guard(typ byte) (b []byte, last byte, behind []byte) {
	const set = "select pg_catalog.set_config('transaction_read_only', 'on', true)"
	if typ == 'Q' {
		return pgwire.AppendMessage(nil, 'Q', []byte("BEGIN; "+set+"\x00")), 'Z', pgwire.AppendMessage(nil, 'Q', []byte("COMMIT\x00"))
	}
	b = pgwire.AppendMessage(nil, 'P', []byte("\x00"+set+"\x00\x00\x00"))
	b = pgwire.AppendMessage(b, 'B', make([]byte, 8))
	b = pgwire.AppendMessage(b, 'E', make([]byte, 5))
	b = pgwire.AppendMessage(b, 'C', []byte{'S', 0}) // the client has no unnamed statement
	return pgwire.AppendMessage(b, 'H', nil), '3', nil
}

// Guarding follows the answer to the first request behind Guard. Its zero value follows none.
type Guarding struct {
	on    bool
	block bool // it is in a block, which ends behind it
	ended bool // its own ReadyForQuery has come
}

// Begin begins with the answer to a request whose first message has that type.
func (g *Guarding) Begin(typ byte) { *g = Guarding{on: true, block: typ == 'Q'} }

// On reports whether the answer is not over.
func (g *Guarding) On() bool { return g.on }

// Holds reports whether a message with that beginning must be whole before it is passed on, or taken.
func (g *Guarding) Holds(part []byte) bool {
	return g.on && g.block && (part[0] == 'Z' || part[0] == 'C')
}

// Takes follows a message of the answer. It reports whether the client must not get it. Of a request in a block the
// client gets the ReadyForQuery of the block's end.
func (g *Guarding) Takes(typ byte) (swallow bool) {
	switch {
	case !g.on:
	case typ == 'Z' && g.block && !g.ended:
		g.ended = true
		return true
	case typ == 'Z':
		g.on = false
	case typ == 'C':
		return g.ended
	}
	return false
}

// StaysOpen reports whether a message of the answer tells that the block has not ended: a cancel request has ended its
// COMMIT. The client has begun no transaction.
func (g *Guarding) StaysOpen(typ byte, body []byte) bool {
	return g.on && g.ended && typ == 'Z' && !bytes.Equal(body, []byte{'I'})
}

// ReadOnly is the SQLSTATE of a statement that would have written behind Guard. It may have, at its first execution.
const ReadOnly = "25006"

// Guarded reports whether the requests of which Fate has said that they are repeated need Guard: without its end a
// request was not committed.
func (l *Log) Guarded() bool { return l.executed }

// Requests returns a copy of the requests under way that the next server gets, by what has become of the first.
func (l *Log) Requests(f Fate) []byte {
	if f != Repeated {
		return bytes.Clone(l.sent[l.ends[0]:])
	}
	return bytes.Clone(l.sent)
}

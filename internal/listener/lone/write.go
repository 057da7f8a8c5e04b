package lone

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// maxAnswer bounds the answer to a change that is held until its end, in bytes.
const maxAnswer = 16 << 10

// Write is a change outside a transaction block whose outcome can be proved. The number of its transaction is asked for
// first, and the change is sent once it is known. So a change that was not sent has not happened, and of one that was
// sent the next primary knows the status. Its answer is held until its end: the server sends it before it commits, and
// if it has committed the client still gets it.
type Write struct {
	Xid      uint64      // 0: not known
	Timeline ag.Timeline // on which it was given
	Done     chan struct{}

	simple   bool   // it is a Query, which is sent in other messages
	late     bool   // a Query that gives rows only when all are changed: if it fails, nothing comes before its error
	rows     bool   // one has come
	tag      []byte // of a Query that is not committed yet: if its commit fails, the client gets none
	told     bool   // the question was answered, well or not
	failed   bool   // it has failed: the server skips messages up to a Sync
	canceled bool   // by a cancel request or a timeout, which the client means for the change
	ended    bool   // that Sync was answered
	synced   bool   // and the one after it
	held     []byte // of the answer
	whole    bool   // the answer has come, but its ReadyForQuery
	passed   bool   // the client has got a part of it
}

// NewWrite returns a change whose number is asked for. simple means that it is a Query.
func NewWrite(simple bool) *Write { return &Write{Done: make(chan struct{}), simple: simple} }

// OwnStatement is the name of the prepared statement of the question, which exists for its duration.
const OwnStatement = "coterie.number"

// Question returns the messages that ask for the number of the transaction. There is no Sync after them: the change
// that follows is in that transaction.
func Question() []byte {
	text := "select pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()))"
	b := pgwire.AppendMessage(nil, 'P', []byte(OwnStatement+"\x00"+text+"\x00\x00\x00"))
	b = pgwire.AppendMessage(b, 'B', []byte("\x00"+OwnStatement+"\x00\x00\x00\x00\x00\x00\x00"))
	b = pgwire.AppendMessage(b, 'E', make([]byte, 5))
	b = pgwire.AppendMessage(b, 'C', []byte("S"+OwnStatement+"\x00"))
	return pgwire.AppendMessage(b, 'H', nil)
}

// Asked reports whether the question is not answered yet.
func (w *Write) Asked() bool { return !w.told }

// Synced returns the messages that must be sent if the question has failed, and has Done wait for the end of their
// answer; nil: it has not failed. The first Sync ends the transaction, and its statement is closed behind that.
func (w *Write) Synced() []byte {
	if !w.failed || w.synced {
		return nil
	}
	w.Done = make(chan struct{})
	return append(pgwire.AppendMessage(nil, 'S', nil), closed()...)
}

// closed returns the messages that close the statement of a question that has failed.
func closed() []byte {
	b := pgwire.AppendMessage(nil, 'C', []byte("S"+OwnStatement+"\x00"))
	return pgwire.AppendMessage(b, 'S', nil)
}

// Canceled reports whether the question has failed by a cancel request or a timeout. The client gets that error as the
// answer to its change, which is not sent.
func (w *Write) Canceled() bool { return w.canceled }

// Pending returns the messages of the question that a node which gives the session back has not forwarded, if it has
// left any; nil: the question is over.
func (w *Write) Pending() []byte {
	switch {
	case !w.told:
		return Question()
	case w.failed && w.ended && !w.synced:
		return closed()
	}
	return nil
}

// canceled is the SQLSTATE of a statement that a cancel request or a timeout has ended.
const canceled = "57014"

// Take takes a message of the server of that type, header included. With swallow the client must not get it now. before
// is what it gets before it.
func (w *Write) Take(typ byte, message []byte) (before []byte, swallow bool) {
	body := message[headerLength:]
	fatal := typ == 'E' && pgwire.ErrorField(body, 'V') != "ERROR"
	switch {
	case typ == 'N' && !w.told: // the client may have asked for messages of each statement
		return nil, pgwire.ErrorField(body, 'V') != "WARNING"
	case typ == 'N' || typ == 'S' || typ == 'A':
		return nil, false
	case fatal:
		return w.Pass(), false
	case !w.told || w.failed && !w.synced:
		if w.answer(typ, body); w.canceled && typ == 'E' {
			w.held = bytes.Clone(message)
		}
		if w.canceled && w.synced {
			return w.Pass(), false
		}
		return nil, true
	case w.simple && (typ == '1' || typ == '2' || typ == '3' || typ == 'n'): // a Query has no such answers
		return nil, true
	case w.simple && typ == 'C':
		w.tag, w.whole = bytes.Clone(message), true
		return nil, true
	case typ == 'Z':
		return append(w.Pass(), w.tag...), false
	}
	w.precedes(typ)
	if w.passed || len(w.held)+len(message) > maxAnswer {
		return w.Pass(), false
	}
	w.whole = typ == 'C'
	w.held = append(w.held, message...)
	return nil, true
}

// Begins takes the beginning of a message of that type that is too long to be held. The client gets it with all that
// follows of it, and before it what is returned. If it is not of the change, it is of the question: the change is not
// sent then, as its client has got that in the place of its answer.
func (w *Write) Begins(typ byte) (before []byte) {
	switch {
	case typ == 'N' || typ == 'S' || typ == 'A':
		return nil
	case !w.told:
		w.told, w.failed, w.canceled = true, true, true
		close(w.Done)
	}
	w.precedes(typ)
	return w.Pass()
}

// precedes notes a message of the answer, before which PostgreSQL does not send what was held if it is the error of a
// Query.
func (w *Write) precedes(typ byte) {
	if w.rows = w.rows || typ == 'D'; typ != 'E' || !w.simple {
		return
	}
	if w.tag = nil; w.late && !w.rows {
		w.held = nil // the description of its rows
	}
}

// Pass returns what is held, but the tag of a Query: the client gets it.
func (w *Write) Pass() (held []byte) {
	held, w.held, w.passed = w.held, nil, true
	return held
}

// answer takes a message of the answer to the question, or to the Sync after it.
func (w *Write) answer(typ byte, body []byte) {
	switch {
	case w.told && typ == 'Z' && !w.ended:
		w.ended = true
	case w.told && typ == 'Z':
		w.synced = true
		close(w.Done)
	case w.told:
	case typ == 'D' && len(body) > 6:
		number, file, _ := strings.Cut(string(body[6:]), " ")
		const timeline = 8 // hexadecimal digits
		xid, err := strconv.ParseUint(number, 10, 64)
		t, err2 := strconv.ParseUint(file[:min(timeline, len(file))], 16, 32)
		if err == nil && err2 == nil && t != 0 {
			w.Xid, w.Timeline = xid, ag.Timeline(t)
		}
	case typ == 'E' || typ == '3':
		w.told, w.failed = true, typ == 'E'
		w.canceled = w.failed && pgwire.ErrorField(body, 'C') == canceled
		close(w.Done)
	}
}

// Answer returns what the client gets if the change is committed; nil if that has not come whole.
func (w *Write) Answer() []byte {
	if !w.whole || w.passed {
		return nil
	}
	return pgwire.AppendMessage(slices.Concat(w.held, w.tag), 'Z', []byte{'I'})
}

// Untold reports whether the client has got nothing of the answer.
func (w *Write) Untold() bool { return !w.passed }

// Changes reports whether b is one request that executes one provable change of rows: a Query; or Bind and Execute of a
// prepared statement or, behind a Parse, of the unnamed one, and a Sync. text returns the text of a prepared statement.
func Changes(b []byte, text func(name string) (text string, known bool)) bool {
	if len(b) > 0 && b[0] == 'Q' {
		return queryChanges(b)
	}
	parsed, bound, executed := false, false, false
	for {
		n, whole := length(b)
		if !whole {
			return false
		}
		typ, body := b[0], b[headerLength:n]
		b = b[n:]
		switch {
		case typ == 'P' && !parsed && !bound && len(body) > 0 && body[0] == 0:
			parsed = stmt.OnlyChange(body[1:])
			if !parsed {
				return false
			}
		case typ == 'B' && !bound && len(body) > 0 && body[0] == 0:
			name, _, ok := bytes.Cut(body[1:], []byte{0})
			of, known := "", parsed
			if len(name) > 0 && !parsed {
				of, known = text(string(name))
				known = known && stmt.OnlyChange([]byte(of))
			}
			if bound = ok && known && parsed == (len(name) == 0); !bound {
				return false
			}
		case typ == 'D' && !executed:
		case typ == 'E' && bound && !executed && bytes.Equal(body, make([]byte, 5)):
			executed = true
		case typ == 'S' && executed:
			return len(b) == 0
		default:
			return false
		}
	}
}

// queryChanges reports whether b is one Query that is one provable change of rows. A text with a parameter fails as a
// Query, so it is sent as one.
func queryChanges(b []byte) bool {
	n, whole := length(b)
	if !whole || n != len(b) {
		return false
	}
	text := b[headerLength:]
	return bytes.IndexByte(text, 0) == len(text)-1 && bytes.IndexByte(text, '$') < 0 && stmt.OnlyChange(text)
}

// Request returns the messages by which the change b is executed behind the question. The server sends its answer
// before it commits: a Flush goes before the Sync. A Query would commit first, so its text is executed as the unnamed
// statement, which is closed before that: its portal stays. If the question was canceled, they end that instead.
func (w *Write) Request(b []byte) []byte {
	switch {
	case w.canceled:
		return w.Synced()
	case !w.simple:
		return flushed(b)
	}
	text := b[headerLength:] // with its end
	out := pgwire.AppendMessage(make([]byte, 0, len(b)+64), 'P', slices.Concat([]byte{0}, text, []byte{0, 0}))
	out = pgwire.AppendMessage(out, 'B', make([]byte, 8))
	out = pgwire.AppendMessage(out, 'C', []byte{'S', 0})
	out = pgwire.AppendMessage(out, 'D', []byte{'P', 0})
	out = pgwire.AppendMessage(out, 'E', make([]byte, 5))
	return flushed(pgwire.AppendMessage(out, 'S', nil))
}

// flushed returns a request with a Flush before its Sync.
func flushed(b []byte) []byte {
	end := len(b) - headerLength
	out := append(make([]byte, 0, len(b)+headerLength), b[:end]...)
	return append(pgwire.AppendMessage(out, 'H', nil), b[end:]...)
}

// Ask begins with the change b, whose number is asked for.
func (l *Log) Ask(m *Memory, b []byte) *Write {
	if !l.Fresh() { // else it is executed again
		l.Begin(m)
	}
	l.write = NewWrite(b[0] == 'Q')
	l.write.late = l.write.simple && stmt.ChangesRows(b[headerLength:])
	return l.write
}

// Write returns the change under way whose number was asked for; nil if there is none.
func (l *Log) Write() *Write { return l.write }

// Twice reports whether the requests are executed a second time already.
func (l *Log) Twice() bool { return l.again }

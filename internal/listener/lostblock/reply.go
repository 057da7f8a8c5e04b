package lostblock

import (
	"bytes"
	"fmt"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Error returns the error of a request whose transaction was lost. why is added to its detail.
func Error(why string) *pgwire.Error {
	bad := &pgwire.Error{
		Code: pgwire.StateSerialization, Message: "the transaction was open on a server that was lost",
		Detail: "It was not committed: no request that could have committed it was forwarded.", Hint: "Run the transaction again. The session goes on.",
	}
	return again(bad, why)
}

// NotCommitted returns the error of a COMMIT that was under way when the server was lost, and is proved not to have
// happened.
// why is added to its detail.
func NotCommitted(why string) *pgwire.Error {
	bad := &pgwire.Error{
		Code: pgwire.StateSerialization, Message: "the transaction was being committed on a server that was lost",
		Detail: "It was not committed: the new primary has proved it.", Hint: "Run the transaction again. The session goes on.",
	}
	return again(bad, why)
}

// again adds to the detail of an error why a transaction was not run again.
func again(bad *pgwire.Error, why string) *pgwire.Error {
	if why != "" {
		bad.Detail += " It could not be run again by itself: " + why + "."
	}
	return bad
}

// Query returns the error of a query outside a transaction whose answer was cut when its server was lost.
func Query() *pgwire.Error {
	return &pgwire.Error{
		Code: pgwire.StateSerialization, Message: "the query was being answered by a server that was lost",
		Detail: "It changed nothing, unless a function that a view or an operator calls has. A part of its answer had been sent, or it was executed again once already.",
		Hint:   "Run it again. The session goes on.",
	}
}

// QueryCut returns the final error of a session that ends with such a query under way.
func QueryCut(why string) *pgwire.Error {
	bad := pgwire.Fatal("", pgwire.StateSerialization, "terminating connection with a query in flight: %s", why)
	bad.Detail, bad.Hint = "It changed nothing, unless a function that a view or an operator calls has.", "Reconnect and run it again."
	return bad
}

// maxKept is how many bytes of one request are kept. A request that is longer ends no transaction block.
const maxKept = 4 << 10

// Reply is the answer to the next request. A Sync without anything before it that is executed is answered, and is not
// that request. The zero value has seen nothing.
type Reply struct {
	Why        string            // what the error adds
	Statements map[string]string // the client's prepared statements, texts by names: one that it closes is removed

	// The outcome of the request, once Feed has reported its end.
	Failed     bool   // the client is in a block that has failed
	Forward    []byte // the request, if it is a ROLLBACK: a block that has failed answers it as one that has not
	Terminated bool   // the client has ended its session

	frame   pgwire.Framer
	message []byte // the current one, as far as it is kept
	long    bool   // it is longer
	held    []byte // messages of a batch that may be a ROLLBACK
	batch   batch
	skips   bool // the error was sent: everything up to the Sync is skipped
}

// Feed takes bytes of the client. out is for the client. With done the request has come to its end after used bytes. An
// error means that the client violates the protocol.
func (r *Reply) Feed(b []byte) (used int, out []byte, done bool, err error) {
	for used < len(b) && !done {
		n, whole, err := r.frame.Next(b[used:])
		if err != nil {
			return used, out, false, err
		}
		r.keep(b[used : used+n])
		used += n
		if !whole {
			continue
		}
		var answer []byte
		if answer, done, err = r.take(r.frame.Type()); err != nil {
			return used, out, false, err
		}
		out = append(out, answer...)
		r.message, r.long = r.message[:0], false
	}
	return used, out, done, nil
}

func (r *Reply) keep(piece []byte) {
	if r.long = r.long || len(r.message)+len(piece) > maxKept; !r.long {
		r.message = append(r.message, piece...)
	}
}

// take takes a message that is whole.
func (r *Reply) take(typ byte) (out []byte, done bool, err error) {
	switch typ {
	case 'X':
		r.Terminated = true
		return nil, true, nil
	case 'd', 'c', 'f': // of a COPY that has failed, or was never begun
		return nil, false, nil
	case 'S':
		out, done = r.sync()
		return out, done, nil
	case 'Q', 'F', 'P', 'B', 'E', 'D', 'C', 'H':
	default:
		return nil, false, fmt.Errorf("%w: message %q", pgwire.ErrProtocol, typ)
	}
	switch {
	case r.skips:
		if typ != 'H' {
			r.batch.step(typ, r.body(), r.Statements)
		}
		return nil, false, nil
	case typ == 'Q' || typ == 'F':
		out, done = r.single(typ)
		return out, done, nil
	case typ == 'H' && r.batch.at == atBegin: // nothing is owed
		return nil, false, nil
	case typ == 'C' && r.batch.at == atBegin && !r.long:
		r.close()
		return pgwire.AppendMessage(nil, '3', nil), false, nil
	}
	r.batch.step(typ, r.body(), r.Statements)
	if r.batch.ending == stmt.EndsByRollback && r.batch.at != atOther && len(r.held)+len(r.message) <= maxKept {
		r.held = append(r.held, r.message...)
		return nil, false, nil
	}
	r.held, r.skips = nil, true
	return Error(r.Why).EncodeError(), false, nil
}

// body returns the body of the current message; nil if it is not kept.
func (r *Reply) body() []byte {
	const header = 5
	if r.long || len(r.message) < header {
		return nil
	}
	return r.message[header:]
}

// single answers a Query or a FunctionCall.
func (r *Reply) single(typ byte) (out []byte, done bool) {
	ending := stmt.EndsNothing
	if typ == 'Q' && r.batch.at == atBegin {
		ending = stmt.EndingOf(r.body())
	}
	if ending == stmt.EndsByRollback {
		r.Failed, r.Forward = true, bytes.Clone(r.message)
		return nil, true
	}
	return r.ready(Error(r.Why).EncodeError(), ending == stmt.EndsByCommit), true
}

// sync answers a Sync.
func (r *Reply) sync() (out []byte, done bool) {
	switch {
	case r.skips:
		return r.ready(nil, r.batch.ending == stmt.EndsByCommit && r.batch.at == atExecuted), true
	case r.batch.at == atBegin:
		return pgwire.AppendMessage(nil, 'Z', []byte{'T'}), false
	case r.batch.at == atExecuted: // of a ROLLBACK
		r.Failed, r.Forward = true, append(r.held, r.message...)
		return nil, true
	}
	return r.ready(Error(r.Why).EncodeError(), false), true
}

// ready ends an answer.
func (r *Reply) ready(out []byte, ended bool) []byte {
	r.Failed = !ended
	if ended {
		return pgwire.AppendMessage(out, 'Z', []byte{'I'})
	}
	return pgwire.AppendMessage(out, 'Z', []byte{'E'})
}

// close notes that the client closes a prepared statement, or a portal of the block.
func (r *Reply) close() {
	if b := r.body(); len(b) > 2 && b[0] == 'S' {
		name, _, _ := bytes.Cut(b[1:], []byte{0})
		delete(r.Statements, string(name))
	}
}

// batch follows whether the messages of the extended protocol execute one statement that ends the block, and nothing
// else: Bind and Execute of the unnamed portal, with or without Parse before them. Some drivers name each statement,
// and prepare COMMIT and ROLLBACK once.
type batch struct {
	at     int
	ending stmt.Ending
	name   string // of the statement
}

// Where a batch is.
const (
	atBegin = iota
	atParsed
	atBound
	atExecuted
	atOther
)

func (b *batch) step(typ byte, body []byte, statements map[string]string) {
	at := b.at
	b.at = atOther
	if at == atBegin && typ == 'B' && len(body) > 0 && body[0] == 0 { // without a Parse
		name, _, _ := bytes.Cut(body[1:], []byte{0})
		at = b.parsed(string(name), []byte(statements[string(name)]))
	}
	switch {
	case at == atBegin && typ == 'P':
		if name, text, ok := bytes.Cut(body, []byte{0}); ok {
			b.at = b.parsed(string(name), text)
		}
	case at == atParsed && typ == 'B' && bytes.HasPrefix(body, []byte("\x00"+b.name+"\x00")):
		b.at = atBound
	case at == atBound && typ == 'E' && bytes.HasPrefix(body, []byte{0}):
		b.at = atExecuted
	case at == atParsed && typ == 'D' && string(body) == "S"+b.name+"\x00", at == atBound && typ == 'D' && string(body) == "P\x00":
		b.at = at
	}
}

// parsed notes the statement of the batch.
func (b *batch) parsed(name string, text []byte) (at int) {
	if b.name, b.ending = name, stmt.EndingOf(text); b.ending == stmt.EndsNothing {
		return atOther
	}
	return atParsed
}

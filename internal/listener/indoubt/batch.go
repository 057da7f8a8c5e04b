package indoubt

import (
	"encoding/binary"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// batch is what is known of the messages before a COMMIT that have no Sync. A FunctionCall among them would be a
// request of its own, so the question is a statement, behind which a Flush has the server send all answers before it
// commits. If a message of the batch fails, the server skips the question and the COMMIT, too.
type batch struct {
	closes int  // messages CloseComplete that the client gets before the question is answered
	begun  bool // the answer to the question has begun
	failed bool // the batch has before that
}

// InBatch has the COMMIT be the end of a batch: messages without a Sync are under way before it, all of one
// transaction. The client gets so many more messages CloseComplete for them.
func (c *Commit) InBatch(closes int) *Commit {
	c.batch = &batch{closes: closes}
	return c
}

// EndsBatch reports whether the COMMIT is the end of a batch, which may have begun the transaction.
func (c *Commit) EndsBatch() bool { return c.batch != nil }

// void reports whether the question is not answered any more. The COMMIT is not executed then.
func (b *batch) void() bool { return b != nil && b.failed }

// ahead reports whether the answer to the question is still to come.
func (b *batch) ahead() bool { return b != nil && !b.begun && !b.failed }

// before takes the type of a message of the server that may come before the answer to the question. It reports whether
// that begins with it.
func (b *batch) before(typ byte) (begins bool) {
	switch {
	case typ == 'E' || typ == 'Z':
		b.failed = true
	case typ == '3' && b.closes > 0:
		b.closes--
	case typ == '3':
		b.begun = true
	}
	return b.begun
}

// ownStatement is the name of the prepared statement of the question, which exists for its duration. It is closed
// first, in case an earlier question has failed: that answer begins the one to the question.
const ownStatement = "coterie.commit"

// question returns the messages of the question in a batch.
func question() []byte {
	asked := []string{"pg_catalog.pg_current_xact_id_if_assigned()", "pg_catalog.pg_walfile_name('0/1')"}
	for _, name := range characteristics[askIsolation:] {
		asked = append(asked, "pg_catalog.current_setting('"+name+"')")
	}
	b := pgwire.AppendMessage(nil, 'C', []byte("S"+ownStatement+"\x00"))
	b = pgwire.AppendMessage(b, 'P', []byte(ownStatement+"\x00select pg_catalog.concat("+strings.Join(asked, ", ',', ")+")\x00\x00\x00"))
	b = pgwire.AppendMessage(b, 'B', []byte("\x00"+ownStatement+"\x00\x00\x00\x00\x00\x00\x00"))
	b = pgwire.AppendMessage(b, 'E', make([]byte, 5))
	b = pgwire.AppendMessage(b, 'C', []byte("S"+ownStatement+"\x00"))
	return pgwire.AppendMessage(b, 'H', nil)
}

// inBatch takes a message of the answer to the question in a batch. If it fails the client hears of that, and the
// server skips what follows.
func (c *Commit) inBatch(typ byte, body []byte) (swallow bool) {
	switch {
	case c.failed:
		return typ != 'Z'
	case typ == 'E':
		c.fails(body)
		return false
	case typ == '3':
		c.answered = true
	case typ == 'D':
		c.row(body)
	}
	return true
}

// row reads what the question in a batch has returned.
func (c *Commit) row(body []byte) {
	const header = 6 // one column and its length
	if len(body) < header || int(binary.BigEndian.Uint32(body[2:])) != len(body)-header {
		return
	}
	values := strings.Split(string(body[header:]), ",")
	if len(values) != 1+len(characteristics[askIsolation:])+1 {
		return
	}
	if c.numbered = values[0] == ""; !c.numbered {
		c.number(values[0])
	}
	c.Timeline = timelineOf(values[1])
	copy(c.settings[askIsolation:], values[2:])
}

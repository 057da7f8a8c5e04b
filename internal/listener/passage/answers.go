package passage

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// Chunk is a chunk of answers on its way to the client.
type Chunk struct {
	b      []byte
	at     int  // bytes that the framer has seen
	from   int  // bytes that were handed out to be written
	begin  int  // where the current message begins
	asked  bool // confirmed once: the confirmation came after the read, so it covers all of b
	judged bool // the current message is whole and was checked
	tail   bool // its beginning was passed on with an earlier chunk
	looked bool // at the server's log, after the read
}

// Chunk returns bytes of the server as a chunk. Advance was told of the first seen bytes with the chunk before: they
// are what that has kept.
func (p *Passage) Chunk(b []byte, seen int) Chunk { return Chunk{b: b, at: seen, tail: p.MidMessage} }

// Kept returns what the next chunk begins with: an answer that is checked when it is whole.
func (c *Chunk) Kept() []byte { return c.b[c.from:] }

// Partly reports whether the client has got half a message with the chunk.
func (c *Chunk) Partly() bool { return c.from > c.begin }

// Owned returns the chunk with bytes of its own.
func (c *Chunk) Owned() *Chunk {
	own := *c
	own.b = bytes.Clone(c.b)
	return &own
}

// insert puts bytes that were checked before the current message.
func (c *Chunk) insert(b []byte) {
	if n := len(b); n > 0 {
		c.b = slices.Concat(c.b[:c.begin], b, c.b[c.begin:])
		c.begin, c.at = c.begin+n, c.at+n
	}
}

// takeOut takes the current message out of what goes to the client.
func (c *Chunk) takeOut() {
	c.b, c.at = append(c.b[:c.begin], c.b[c.at:]...), c.begin
}

// ErrPromoted means that an answer must be discarded: it is of a server that was promoted under the session.
var ErrPromoted = errors.New("the replica was promoted")

// Advance follows a chunk to its end, or to an answer that must be confirmed before it is sent. In the second case s
// is not NoEffect, and the caller calls again after the confirmation. out is to be written first.
func (p *Passage) Advance(w *underway.Work, h Host, c *Chunk) (out []byte, s stmt.Effect, err error) {
	assert.That(c.from <= c.begin && c.begin <= c.at, "bytes of an answer are passed on before they are checked")
	for c.judged || c.at < len(c.b) {
		if whole, err := p.frames(c); err != nil {
			return nil, stmt.NoEffect, err
		} else if !whole {
			break
		}
		typ, body := p.answers.Type(), p.answers.Kept()
		if p.isLast(w, h, typ, c) {
			c.b, c.at = c.b[:c.begin], c.begin
			break
		}
		if end := p.isOfPromoted(w, typ, body); end != 0 {
			h.Ends(end)
			return nil, stmt.NoEffect, ErrPromoted
		}
		if !c.tail && w.Writes() && holdsAnswer(w, typ, c) {
			continue
		}
		if p.Guarding.Takes(typ) || w.MayBeOfQuestion(typ) && swallows(w, h, typ, c) {
			c.takeOut()
			continue // it was held until it was whole
		}
		if s := p.Confirmation.AtStake(typ, body, &c.looked); !c.asked && s != stmt.NoEffect {
			c.asked, c.judged = true, true
			out, c.from = c.b[c.from:c.begin], c.begin
			return out, s, nil
		}
		c.judged = false
		w.Answering(typ)
		w.Answered(typ, c.b[c.begin:c.at], true)
		p.observe(w, h, typ, body)
		c.begin, c.tail = c.at, false
	}
	end := p.sendable(w, c)
	out, c.from = c.b[c.from:end], end
	return out, stmt.NoEffect, nil
}

// sendable returns the end of what the client gets of a chunk that was followed to its end: without the beginning of a
// message that must be whole first, or else with what is held of the answer before it.
func (p *Passage) sendable(w *underway.Work, c *Chunk) (end int) {
	part := c.b[c.begin:]
	switch {
	case len(part) == 0:
		return len(c.b)
	case !c.tail && p.holdsPart(w, part):
		return c.begin
	case !c.tail && w.Writes():
		c.insert(w.PassHeld(p.answers.Type()))
	}
	w.Answering(p.answers.Type())
	w.Answered(p.answers.Type(), c.b[c.begin:], false)
	return len(c.b)
}

// holdsPart reports whether the current message, of which part is the beginning, must be whole before any of it is
// passed on.
func (p *Passage) holdsPart(w *underway.Work, part []byte) bool {
	return p.answers.HoldsBack() || w.HoldsPart(part) || p.Guarding.Holds(part) || mayBeOfDeath(w, part)
}

// frames follows the chunk to the end of the current message. It reports whether that is whole.
func (p *Passage) frames(c *Chunk) (whole bool, err error) {
	if c.judged {
		return true, nil
	}
	used, whole, err := p.answers.Next(c.b[c.at:])
	if err != nil {
		return false, err
	}
	c.at += used
	return whole, nil
}

// observe follows an answer of PostgreSQL.
func (p *Passage) observe(w *underway.Work, h Host, typ byte, body []byte) {
	switch typ {
	case 'Z':
		if len(body) > 0 {
			if p.Starting {
				p.Starting = false
				h.Started()
			}
			w.Ready(body[0])
		}
		p.CycleEnded(w)
	case 'W': // CopyBothResponse
		w.StreamBegins()
	case 'C':
		if w.Known.Follows {
			w.Asking.Ended(body)
		}
		p.Confirmation.CommandEnded(body)
	case 'V', 's':
		w.Asking.Worked()
		p.Confirmation.Returned()
	case 'N':
		p.Confirmation.Notice(body)
	case 'A': // a notification
		h.Taints()
	case 'S': // a setting has changed
		h.Taints()
		if w.Reported(body); posesAsMember(w, body) {
			h.Ends(Member)
		}
	case 'K': // only relayed sessions see it here: others have it from the greeting
		key := bytes.Clone(body)
		p.Key.Store(&key)
	case 'E':
		w.Asking.Worked()
		p.Confirmation.Failed()
		if v := pgwire.ErrorField(body, 'V'); v == "FATAL" || v == "PANIC" {
			p.FatalSent.Store(true)
		}
	}
}

// swallows reports whether the current message of a chunk answers the question that went before a request. Of a tail
// the client has got the beginning.
func swallows(w *underway.Work, h Host, typ byte, c *Chunk) bool {
	swallow, refused := w.Swallows(typ, c.b[c.begin:c.at], c.tail)
	if refused {
		h.NumberRefused()
	}
	return swallow
}

// holdsAnswer takes the current message of a chunk from what goes to the client, if it answers the question for a
// number, or the change that is not committed yet.
func holdsAnswer(w *underway.Work, typ byte, c *Chunk) bool {
	before, held := w.HoldsAnswer(typ, c.b[c.begin:c.at])
	if held {
		c.takeOut()
	}
	c.insert(before)
	return held
}

// isOfPromoted returns for what the session ends by a message, after which it must get nothing more of its server:
// recovery has ended there, or a query that is executed again would have written, or is left in a block.
func (p *Passage) isOfPromoted(w *underway.Work, typ byte, body []byte) End {
	switch {
	case p.Recovery.Over(typ, body):
		return Promoted
	case p.wouldWrite(w, typ, body):
		return HiddenWrite
	case p.Guarding.StaysOpen(typ, body):
		return OpenBlock
	}
	return 0
}

// wouldWrite reports whether a message of the server tells that a request that is executed again would have written. At
// its first execution it may have.
func (p *Passage) wouldWrite(w *underway.Work, typ byte, body []byte) bool {
	return p.Guarding.On() && typ == 'E' && w.OnPrimary && pgwire.ErrorField(body, 'C') == lone.ReadOnly
}

// isLast reports whether the client gets nothing of the current message or of what follows it: the other node gives the
// session back by it, or PostgreSQL says by it that its postmaster died.
func (p *Passage) isLast(w *underway.Work, h Host, typ byte, c *Chunk) bool {
	if typ == giveback.Message && h.FromNode() {
		p.Given = append([]byte{}, c.b[c.at:]...)
		if q, asked := w.NotAsked(); asked {
			p.Unanswered = q
		}
		return true
	}
	return !c.tail && postmasterDied(w, typ, c.b[c.begin:c.at])
}

// Streams of logical replication must not pass for a member. PostgreSQL counts the acknowledgements of any walsender
// whose application_name is in synchronous_standby_names, including logical ones. It takes the name as it is when
// START_REPLICATION arrives: from the startup packet, a default of the role or the database, or any statement that has
// set it since.

// posesAsMember checks a ParameterStatus. PostgreSQL reports application_name before the ReadyForQuery of the command
// that changed it.
func posesAsMember(w *underway.Work, status []byte) bool {
	name, value, _ := bytes.Cut(status, []byte{0})
	return w.Replicates && strings.EqualFold(string(name), underway.ApplicationName) && startup.IsMemberName(string(value))
}

// CheckGreeting checks the name with which the session begins: a default of its role or database may have set it.
func CheckGreeting(w *underway.Work, greeting []byte) (bad *pgwire.Error) {
	var f pgwire.Framer
	_ = f.Scan(greeting, func(typ byte, body []byte) { // it was assembled here
		if typ == 'S' && posesAsMember(w, body) {
			bad = startup.RefuseMember()
		}
	})
	return bad
}

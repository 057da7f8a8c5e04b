package indoubt

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// The probe calls functions by their numbers, which are the same in every version of PostgreSQL, whatever the search
// path. A FunctionCall is neither parsed nor planned, and leaves the client's unnamed statement and portals alone.
// A role that may not execute one of the functions is not asked (continuity.State.Tells): the error would fail its
// transaction.
const (
	currentXid     = 5060 // pg_current_xact_id_if_assigned(): the number of the open transaction, NULL if it has none
	walfileName    = 2851 // pg_walfile_name(pg_lsn): a file of WAL, whose name begins with the timeline that is written
	currentSetting = 2077 // current_setting(text)
)

// ask is a question of the probe.
type ask int

// The questions, in their order. Those about settings are asked before COMMIT AND CHAIN only.
const (
	askXid ask = iota
	askIsolation
	askReadOnly
	askDeferrable
	askTimeline
)

// characteristics are the settings of a transaction that AND CHAIN gives the next one, by their questions.
var characteristics = [...]string{askIsolation: "transaction_isolation", askReadOnly: "transaction_read_only", askDeferrable: "transaction_deferrable"}

// Commit is a COMMIT that was forwarded behind the probe, or whose number was known before. Or it is a probe before
// another request of the transaction, whose number is known then for its COMMIT.
type Commit struct {
	Xid      uint64      // of the transaction; 0: it has none, so it has written nothing
	Timeline ag.Timeline // on which it was given; 0: not known

	done     []byte // what the client still has to get of the answer to the COMMIT, if it was executed
	chains   bool   // it is COMMIT AND CHAIN
	settings [len(characteristics)]string
	asks     []ask  // questions whose answer has not ended
	numbered bool   // Xid was told
	empty    bool   // its transaction has done nothing: it has no number on any timeline
	batch    *batch // the COMMIT is the end of a batch; nil: it is a request of its own
	answered bool   // the probe was, to its end
	failed   bool   // it has failed, and the transaction with it
	canceled bool   // by a cancel request or a timeout
	told     bool   // the client has got more of the answer to the COMMIT than that it was parsed and bound
}

// New returns a COMMIT that is about to be forwarded, by what Done has returned. timeline is what an earlier one of the
// same backend was told, which keeps its timeline for as long as it lives; 0: none was.
func New(done []byte, timeline ag.Timeline) *Commit {
	c := &Commit{done: done, Timeline: timeline, asks: []ask{askXid}, chains: Chains(done)}
	if c.chains {
		c.asks = append(c.asks, askIsolation, askReadOnly, askDeferrable)
	}
	if timeline == 0 {
		c.asks = append(c.asks, askTimeline)
	}
	return c
}

// Early returns the probe before a request that is not the COMMIT. timeline is as in New.
func Early(timeline ag.Timeline) *Commit { return New(nil, timeline) }

// Numbered returns a COMMIT of a transaction whose number is known. There is no probe before it. It is not AND CHAIN.
func Numbered(done []byte, n Number) *Commit {
	return &Commit{done: done, Xid: n.Xid, Timeline: n.Timeline, numbered: true, answered: true}
}

// Empty returns a COMMIT of a transaction that has done nothing. There is no probe before it. It is not AND CHAIN.
func Empty(done []byte) *Commit {
	return &Commit{done: done, empty: true, numbered: true, answered: true}
}

// Chains reports whether the answer that Done has returned is that of COMMIT AND CHAIN.
func Chains(done []byte) bool { return bytes.HasSuffix(done, []byte{'T'}) }

// Number is that of an open transaction.
type Number struct {
	Xid      uint64 // 0: not known
	Timeline ag.Timeline
}

// Number returns the number that an early probe was told; zero: it was told none, or not yet.
func (c *Commit) Number() Number {
	if len(c.done) > 0 || !c.answered || c.failed || !c.numbered || c.Timeline == 0 {
		return Number{}
	}
	return Number{c.Xid, c.Timeline}
}

// Probe returns the requests that are sent before the COMMIT.
func (c *Commit) Probe() (b []byte) {
	if c.batch != nil {
		return question()
	}
	for _, a := range c.asks {
		switch a {
		case askXid:
			b = appendCall(b, currentXid)
		case askTimeline:
			b = appendCall(b, walfileName, "0/1")
		case askIsolation, askReadOnly, askDeferrable:
			b = appendCall(b, currentSetting, characteristics[a])
		}
	}
	return b
}

// Begin returns the statement that begins the transaction after COMMIT AND CHAIN; "" if none is begun.
func (c *Commit) Begin() string {
	if !c.chains {
		return ""
	}
	text := "begin isolation level " + c.settings[askIsolation]
	if text += ", read write"; c.settings[askReadOnly] == "on" {
		text = strings.TrimSuffix(text, "write") + "only"
	}
	if c.settings[askDeferrable] == "off" {
		text += ", not"
	} else {
		text += ","
	}
	return text + " deferrable"
}

// begins reports whether it is known how the transaction after COMMIT AND CHAIN begins.
func (c *Commit) begins() bool {
	if !c.chains {
		return true
	}
	is := func(a ask, values ...string) bool { return slices.Contains(values, c.settings[a]) }
	return is(askIsolation, "read uncommitted", "read committed", "repeatable read", "serializable") && is(askReadOnly, "on", "off") && is(askDeferrable, "on", "off")
}

// appendCall appends a FunctionCall with arguments and result as text.
func appendCall(b []byte, function uint32, arguments ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, function)
	body = binary.BigEndian.AppendUint16(body, 0)
	body = binary.BigEndian.AppendUint16(body, uint16(len(arguments)))
	for _, a := range arguments {
		body = binary.BigEndian.AppendUint32(body, uint32(len(a)))
		body = append(body, a...)
	}
	return pgwire.AppendMessage(b, 'F', binary.BigEndian.AppendUint16(body, 0))
}

// Done returns what the client still has to get of the answer to the COMMIT, if it was executed.
func (c *Commit) Done() []byte { return c.done }

// Answered reports whether the probe was answered, well or not.
func (c *Commit) Answered() bool { return c.answered || c.failed || c.batch.void() }

// Known reports whether the outcome can be asked for: the probe was answered, and the answer to the COMMIT has not said
// it. Its beginning may have come: a server that is killed in order sends what it has.
func (c *Commit) Known() bool {
	return len(c.done) > 0 && c.answered && !c.failed && !c.told && c.numbered && (c.Timeline != 0 || c.empty) && c.begins()
}

// Refused reports whether the probe has failed, and would fail again. A cancel request or a timeout is of one
// statement.
func (c *Commit) Refused() bool { return c.failed && !c.canceled }

// fails notes an error of the probe.
func (c *Commit) fails(body []byte) {
	c.failed, c.canceled = true, pgwire.ErrorField(body, 'C') == "57014"
}

// maxHeld bounds a message that is held until it is whole, in bytes. Nothing that Swallow keeps is longer.
const maxHeld = 8 << 10

// Holds reports whether a message with that beginning must be whole before any of it is passed on, for Swallow.
func (c *Commit) Holds(part []byte) bool {
	return !c.told && !c.batch.void() && (len(part) < headerLength || binary.BigEndian.Uint32(part[1:]) < maxHeld)
}

// Passed takes a message that was too long to be held, and that the client has got.
func (c *Commit) Passed(typ byte) {
	switch {
	case c.batch.ahead():
		_ = c.batch.before(typ)
	case typ == 'N' || typ == 'S' || typ == 'A':
	case !c.answered:
		c.failed = true
	default:
		c.told = true
	}
}

// Swallow takes a whole message of the server, header included. It reports whether the client must not get it. If the
// probe fails, the client hears of that error as of one of the COMMIT, which then commits nothing: what the server says
// of it is left out up to its end.
func (c *Commit) Swallow(message []byte) bool {
	typ, body := message[0], message[headerLength:]
	switch {
	case c.batch.void():
		return false
	case c.batch.ahead():
		return c.batch.before(typ)
	case typ == 'N' && !c.answered: // the client may have asked for messages of each statement (client_min_messages)
		return pgwire.ErrorField(body, 'V') != "WARNING"
	case typ == 'N' || typ == 'S' || typ == 'A': // they may come at any time
		return false
	case !c.answered && c.batch != nil:
		return c.inBatch(typ, body)
	case !c.answered:
		return c.probed(typ, body)
	case c.failed:
		return typ != 'Z'
	}
	if c.told = c.told || typ == 'C' || typ == 'Z' || !bytes.HasPrefix(c.done, message); !c.told {
		c.done = c.done[len(message):]
	}
	return false
}

// probed takes a message of the answer to the probe.
func (c *Commit) probed(typ byte, body []byte) (swallow bool) {
	switch typ {
	case 'V':
		c.result(body)
	case 'E':
		if c.failed {
			return true
		}
		c.fails(body)
		return false
	case 'Z':
		c.asks = c.asks[1:]
		c.answered = len(c.asks) == 0
		c.failed = c.failed || string(body) != "T"
	}
	return true
}

// result reads what a function has returned.
func (c *Commit) result(body []byte) {
	value, null, ok := column(body)
	switch a := c.asks[0]; {
	case !ok || null && a != askXid:
	case a == askTimeline:
		c.Timeline = timelineOf(string(value))
	case a != askXid:
		c.settings[a] = string(value)
	case null:
		c.numbered = true
	default:
		c.number(string(value))
	}
}

// number reads the number of the transaction.
func (c *Commit) number(text string) {
	xid, err := strconv.ParseUint(text, 10, 64)
	c.Xid, c.numbered = xid, err == nil && xid > 0
}

// timelineOf returns the timeline of a file of WAL by its name; 0: it is none.
func timelineOf(file string) ag.Timeline {
	const digits = 8 // hexadecimal
	if len(file) < digits {
		return 0
	}
	t, _ := strconv.ParseUint(file[:digits], 16, 32)
	return ag.Timeline(t)
}

// column reads a value with its length before it.
func column(b []byte) (value []byte, null, ok bool) {
	if len(b) < 4 {
		return nil, false, false
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n < 0 {
		return nil, true, true
	}
	return b[4:], false, int(n) == len(b)-4
}

package indoubt

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// The probe calls functions by their numbers, which are the same in every version of PostgreSQL, whatever the search
// path. A FunctionCall is neither parsed nor planned, and leaves the client's unnamed statement and portals alone.
// A role that may not execute one of the functions is not asked (continuity.State.Tells): the error would fail its
// transaction.
const (
	currentXid  = 5060 // pg_current_xact_id_if_assigned(): the number of the open transaction, NULL if it has none
	walfileName = 2851 // pg_walfile_name(pg_lsn): a file of WAL, whose name begins with the timeline that is written
)

// Commit is a COMMIT that was forwarded behind the probe.
type Commit struct {
	Xid      uint64      // of the transaction; 0: it has none, so it has written nothing
	Timeline ag.Timeline // on which it was given; 0: not known

	done     []byte // what the client still has to get of the answer to the COMMIT, if it was executed
	owed     int    // answers to the probe that have not ended
	numbered bool   // Xid was told
	answered bool   // the probe was, to its end
	failed   bool   // it has failed, and the transaction with it
	told     bool   // the client has got more of the answer to the COMMIT than that it was parsed and bound
}

// New returns a COMMIT that is about to be forwarded, by what Done has returned. timeline is what an earlier one of the
// same backend was told, which keeps its timeline for as long as it lives; 0: none was.
func New(done []byte, timeline ag.Timeline) *Commit {
	c := &Commit{done: done, Timeline: timeline, owed: 1}
	if timeline == 0 {
		c.owed = 2
	}
	return c
}

// Probe returns the requests that are sent before the COMMIT.
func (c *Commit) Probe() []byte {
	b := appendCall(nil, currentXid)
	if c.owed > 1 {
		b = appendCall(b, walfileName, "0/1")
	}
	return b
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

// Known reports whether the outcome can be asked for: the probe was answered, and the answer to the COMMIT has not said
// it. Its beginning may have come: a server that is killed in order sends what it has.
func (c *Commit) Known() bool {
	return c.answered && !c.failed && !c.told && c.numbered && c.Timeline != 0
}

// Failed reports whether the probe has failed.
func (c *Commit) Failed() bool { return c.failed }

// maxHeld bounds a message that is held until it is whole, in bytes. Nothing that Swallow keeps is longer.
const maxHeld = 8 << 10

// Holds reports whether a message with that beginning must be whole before any of it is passed on, for Swallow.
func (c *Commit) Holds(part []byte) bool {
	return !c.told && (len(part) < headerLength || binary.BigEndian.Uint32(part[1:]) < maxHeld)
}

// Passed takes a message that was too long to be held, and that the client has got.
func (c *Commit) Passed(typ byte) {
	switch {
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
	case typ == 'N' && !c.answered: // the client may have asked for messages of each statement (client_min_messages)
		return pgwire.ErrorField(body, 'V') != "WARNING"
	case typ == 'N' || typ == 'S' || typ == 'A': // they may come at any time
		return false
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
		told := c.failed
		c.failed = true
		return told
	case 'Z':
		c.owed--
		c.answered = c.owed <= 0
		c.failed = c.failed || string(body) != "T"
	}
	return true
}

// result reads what a function has returned.
func (c *Commit) result(body []byte) {
	value, null, ok := column(body)
	switch {
	case !ok:
	case c.Timeline == 0 && c.owed == 1:
		if c.Timeline = timelineOf(string(value)); null {
			c.Timeline = 0
		}
	case null:
		c.numbered = true
	default:
		xid, err := strconv.ParseUint(string(value), 10, 64)
		c.Xid, c.numbered = xid, err == nil && xid > 0
	}
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

package indoubt

import (
	"bytes"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Asking decides for one session whether the number of its open transaction is asked for before a request, and follows
// the answers. One goroutine at a time may call it, but for Asks, Ended and Worked.
type Asking struct {
	// Commit is the one that was forwarded last, or another request behind a probe, until its answer; nil: none was.
	Commit *Commit
	// Asks is whether Commit is not nil.
	Asks atomic.Bool
	// Timeline is that of the server, as an earlier probe was told; 0: none was.
	Timeline ag.Timeline
	// Closes is how many messages CloseComplete the client still gets for the batch under way, or unknownCloses.
	Closes int
	// Refused is whether the server has refused to tell the number of a transaction. It is not asked again.
	Refused bool
	// State is the SQLSTATE by which it has.
	State string

	worked  atomic.Bool // the open transaction may have done more than to begin and to show settings
	wrote   atomic.Bool // the open transaction has changed rows, and its number was not asked for since
	number  Number      // of the open transaction, as long as stmt.Requests.Endings returns endings
	endings uint64
}

// unknownCloses is how many CloseComplete are to come if that cannot be told from those for an earlier request.
const unknownCloses = -1

// Request is what is under way of the session before a request of its client.
type Request struct {
	Status         byte // of the last ReadyForQuery
	Owed, Unsynced bool // an answer is owed; messages without a Sync are under way
	OneTransaction bool // those are of one transaction
	Endings        uint64
	Commits        Names                                    // the prepared statements that are a COMMIT
	Text           func(name string) (text string, is bool) // of a prepared statement of the client
}

// Question is a question that is wanted before a request.
type Question struct {
	Early   bool // the request is none that ends its transaction
	InBatch bool // it is the end of a batch
	empty   bool // its transaction has done nothing, and nothing is asked
	done    []byte
}

// Wants returns the question that is wanted before the client's bytes b: if these begin with a COMMIT whose outcome can
// be asked for once the server is lost, or with an earlier request of a transaction that has changed rows. A COMMIT
// that is sent to a server which is lost already then has a number, too. Nothing is under way but a batch that a COMMIT
// ends, if there is one.
//
// A transaction that has done nothing is not asked. It is known to have written nothing, and the question would take
// its snapshot, for which a SERIALIZABLE READ ONLY DEFERRABLE one waits for the transactions of other sessions. With
// AND CHAIN it is asked for its settings all the same.
func (a *Asking) Wants(b []byte, r *Request) (q Question, wants bool) {
	q.done, q.InBatch = a.Ends(b, r), r.Unsynced
	q.empty = q.done != nil && !q.InBatch && !a.worked.Load() && !Chains(q.done)
	q.Early = q.done == nil && a.early(b, r)
	return q, q.done != nil || q.Early
}

// MayEndBatch reports whether a COMMIT that ends a batch may begin with a message of that type.
func MayEndBatch(typ byte) bool { return typ == 'P' || typ == 'B' || typ == 'D' }

// Ends returns the answer to the COMMIT with which the client's bytes b begin; nil: they begin with none, or its
// transaction is not the only one of what is under way.
func (a *Asking) Ends(b []byte, r *Request) []byte {
	switch {
	case r.Owed || a.Refused:
		return nil
	case r.Unsynced:
		if !MayEndBatch(b[0]) || a.Closes == unknownCloses || !r.OneTransaction {
			return nil
		}
	case r.Status != 'T':
		return nil
	}
	return Done(b, r.Commits.Has)
}

// early reports whether the number of the open transaction is to be asked for before the client's bytes b, which begin
// with no COMMIT. If the question fails, that request fails in its place: it is one that fails in a block that has
// failed.
func (a *Asking) early(b []byte, r *Request) bool {
	if !a.wrote.Load() || r.Status != 'T' || r.Owed || r.Unsynced || a.Refused || len(b) < headerLength {
		return false
	}
	if a.Known(r.Endings) != 0 {
		a.wrote.Store(false)
		return false
	}
	body := b[headerLength:]
	switch b[0] {
	case 'Q':
		return stmt.Works(body)
	case 'P':
		_, text, ok := bytes.Cut(body, []byte{0})
		return ok && stmt.Works(text)
	case 'B':
		_, rest, _ := bytes.Cut(body, []byte{0})
		name, _, ok := bytes.Cut(rest, []byte{0})
		text, known := r.Text(string(name))
		return ok && known && stmt.Works([]byte(text))
	}
	return false
}

// Known returns the number of the open transaction; 0: it is not known, or not certain.
func (a *Asking) Known(endings uint64) uint64 {
	if a.endings != endings {
		return 0
	}
	return a.number.Xid
}

// Ask notes that the request of a question is forwarded. It returns what goes before it; nil: nothing, the number is
// known.
func (a *Asking) Ask(q Question, endings uint64) []byte {
	switch {
	case q.Early:
		a.Commit, a.number, a.endings = Early(a.Timeline), Number{}, endings
		a.wrote.Store(false)
	case q.empty:
		a.Commit = Empty(q.done)
	case !q.InBatch && a.Known(endings) != 0 && !Chains(q.done):
		a.Commit = Numbered(q.done, a.number)
	default:
		if a.Commit = New(q.done, a.Timeline); q.InBatch {
			a.Commit.InBatch(a.Closes)
		}
	}
	a.Asks.Store(true)
	if a.Commit.Answered() {
		return nil
	}
	return a.Commit.Probe()
}

// Ended notes the body of a CommandComplete, by whose command the open transaction may have got a number.
func (a *Asking) Ended(body []byte) {
	tag := stmt.CommandTag(body)
	if !a.worked.Load() && !stmt.DoesNothing(tag) {
		a.Worked()
	}
	if stmt.ChangedRows(tag) {
		a.wrote.Store(true)
	}
}

// Worked notes that the open transaction may have done something.
func (a *Asking) Worked() { a.worked.Store(true) }

// BatchBegins notes the first of the messages that have no Sync yet. busy is whether an answer is owed to the client.
func (a *Asking) BatchBegins(busy bool) {
	if a.Closes = 0; busy {
		a.Closes = unknownCloses
	}
}

// Closing notes a Close among them.
func (a *Asking) Closing() {
	if a.Closes != unknownCloses {
		a.Closes++
	}
}

// Ready notes a ReadyForQuery with that status: the answer has come, and the number of the open transaction is
// forgotten if none is open any more.
func (a *Asking) Ready(status byte) {
	a.Commit = nil
	a.Asks.Store(false)
	if status == 'I' {
		a.number, a.endings = Number{}, 0
		a.wrote.Store(false)
		a.worked.Store(false)
	}
}

// Swallows reports whether a message of the server answers the question that went before a request. Of a tail the
// client has got the beginning. refused is whether the server has refused the question for the first time.
func (a *Asking) Swallows(typ byte, message []byte, tail bool) (swallow, refused bool) {
	if typ == '3' && a.Closes > 0 { // in one step: a COMMIT that is forwarded meanwhile takes over the number
		a.Closes--
	}
	d := a.Commit
	if d == nil {
		return false, false
	}
	state := ""
	if tail {
		d.Passed(typ)
	} else {
		swallow, state = d.Swallow(message), pgwire.ErrorField(message[headerLength:], 'C')
	}
	if n := d.Number(); n.Timeline != 0 && swallow {
		a.number, a.Timeline = n, n.Timeline
	}
	if d.Known() && !d.empty {
		a.Timeline = d.Timeline
	}
	if d.Refused() && !a.Refused {
		a.Refused, a.State, refused = true, state, true
	}
	return swallow, refused
}

// Holds reports whether a message with that beginning must be whole before Swallows sees it.
func (a *Asking) Holds(part []byte) bool { return a.Commit != nil && a.Commit.Holds(part) }

// Provable reports whether the one request under way is a COMMIT whose outcome can be asked for, by the status of the
// last ReadyForQuery.
func (a *Asking) Provable(status byte) bool {
	return a.Commit != nil && a.Commit.Known() && (status == 'T' || a.Commit.EndsBatch())
}

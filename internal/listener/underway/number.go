package underway

import (
	"time"

	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// The outcome of a COMMIT whose answer is lost with its server can be proved by the number of its transaction (package
// indoubt), and with CONTINUITY = REPLAY that of a change outside a block (package lone). The server is asked for the
// number beforehand, and the client gets nothing of its answer.

// Probe has the question for the number of the open transaction go before the client's bytes b (Preceded), if one is
// wanted there (indoubt.Asking), the session may outlive its server, and that tells numbers. The caller holds the lock.
func (w *Work) Probe(b []byte) {
	if !w.probes() || w.Status.Load() != 'T' && !w.Unsynced.Load() { // nothing is under way that a COMMIT could end
		return
	}
	r := w.beforeRequest()
	q, wants := w.Asking.Wants(b, &r)
	if !wants {
		return
	}
	why := w.Unfit()
	if !q.InBatch && !q.Early {
		why, _ = w.WouldEnd()
	}
	if why != "" || !w.Known.Told.Tells {
		return
	}
	w.before = w.Asking.Ask(q, r.Endings)
	if w.logs.Load() && !q.InBatch && !q.Early {
		w.Log.Commits()
	}
}

// probes reports whether numbers of transactions of the session may be asked for. A session whose client is at another
// node is not followed.
func (w *Work) probes() bool { return w.Known.Follows && w.OnPrimary }

// beforeRequest returns what is under way before the client's next request. The caller holds the lock.
func (w *Work) beforeRequest() indoubt.Request {
	unsynced := w.Unsynced.Load()
	return indoubt.Request{
		Status: byte(w.Status.Load()), Owed: w.Owed.Load() != 0, Unsynced: unsynced, OneTransaction: unsynced && w.Requests.OneTransaction(),
		Endings: w.Requests.Endings(), Commits: w.Known.Commits, Text: w.Requests.Texts,
	}
}

// BatchCommits reports whether the client's bytes b, behind others of the same chunk, begin with a COMMIT that ends the
// batch under way: the question goes between the two. The caller holds the lock.
func (w *Work) BatchCommits(b []byte) bool {
	if !w.Unsynced.Load() || !indoubt.MayEndBatch(b[0]) || !w.probes() {
		return false
	}
	r := w.beforeRequest()
	return w.Asking.Ends(b, &r) != nil
}

// Preceded returns a chunk with what goes before it.
func (w *Work) Preceded(chunk []byte) []byte {
	if w.before == nil {
		return chunk
	}
	chunk, w.before = append(w.before, chunk...), nil
	return chunk
}

// MayBeOfQuestion reports whether Swallows has to see a message of the server of that type. Most need not, which is
// cheap to tell.
func (w *Work) MayBeOfQuestion(typ byte) bool { return typ == '3' || w.Asking.Asks.Load() }

// Swallows reports whether a message of the server answers the question that went before a request. Of a tail the
// client has got the beginning. refused is whether the server has refused the question for the first time.
func (w *Work) Swallows(typ byte, message []byte, tail bool) (swallow, refused bool) {
	if !w.MayBeOfQuestion(typ) {
		return false, false
	}
	w.Lock()
	defer w.Unlock()
	return w.Asking.Swallows(typ, message, tail)
}

// HoldsPart reports whether a message with that beginning must be whole before it is passed on: for Swallows or
// HoldsAnswer, or so that an error can follow the part of the answer to a query that the client has got.
func (w *Work) HoldsPart(part []byte) bool {
	return w.MaySwallow(part) || (w.keeps.Load() || w.writes.Load()) && lone.Holds(part)
}

// MaySwallow reports whether Swallows has to see a message with that beginning whole.
func (w *Work) MaySwallow(part []byte) bool {
	if !w.Asking.Asks.Load() {
		return false
	}
	w.Lock()
	defer w.Unlock()
	return w.Asking.Holds(part)
}

// Provable reports whether the one request under way is a COMMIT whose outcome can be asked for. The caller holds the
// lock.
func (w *Work) Provable() bool {
	return w.Owed.Load() == 1 && w.Asking.Provable(byte(w.Status.Load()))
}

// BeginsChange returns the change outside a block that the client's bytes are, whose number is to be asked for; nil:
// they are none for which that can be.
func (w *Work) BeginsChange(b []byte) *lone.Write {
	w.Lock()
	defer w.Unlock()
	k := &w.Known
	if !k.Follows || !w.Idle() || w.Midway || w.Asking.Refused || time.Now().Before(w.Numberless) || w.Requests.Sealed || w.Leaving.Load() || !lone.Changes(b, w.PreparedText) {
		return nil
	}
	if why, _ := w.WouldEnd(); why != "" || !k.Told.Tells || b[0] == 'Q' && !k.Told.Ruleless {
		return nil
	}
	w.Unsynced.Store(true) // until the Sync of the change
	return w.Change(b)
}

// Change keeps the change b, whose number is asked for. The caller holds the lock.
func (w *Work) Change(b []byte) *lone.Write {
	c := w.Lone.Ask(&w.Rules.Lone, b)
	w.noteLone()
	return c
}

// QuestionAnswered looks at the answer to the question for the number of the change c. synced is what must be sent if
// it has failed, canceled whether that was by a cancel request.
func (w *Work) QuestionAnswered(c *lone.Write) (synced []byte, canceled bool) {
	w.Lock()
	defer w.Unlock()
	if c.Canceled() {
		return nil, true
	}
	return c.Synced(), false
}

// numberlessFor is how long a session is not asked after a question for a number that has failed.
const numberlessFor = time.Minute

// NumberTold reports whether the number of the change c is known, once the answer has come or is waited for no more.
// failed is whether the question has failed: the change is then kept no longer.
func (w *Work) NumberTold(c *lone.Write) (known, failed bool) {
	w.Lock()
	defer w.Unlock()
	if c.Xid != 0 || c.Asked() {
		return c.Xid != 0, false
	}
	w.Numberless = time.Now().Add(numberlessFor)
	w.Unsynced.Store(false)
	w.Lone.Forget()
	w.noteLone()
	return false, true
}

// Unbegun notes that the next request was not begun, and will not be: its server is silent.
func (w *Work) Unbegun() {
	w.Lock()
	defer w.Unlock()
	w.Held = true
	w.Unsynced.Store(false)
}

// ChangeRequest returns what goes to PostgreSQL for the change c, which the client's bytes b are.
func (w *Work) ChangeRequest(c *lone.Write, b []byte) []byte {
	w.Lock()
	defer w.Unlock()
	return c.Request(b)
}

// Writes reports whether the first request outside a block is a change whose answer is held.
func (w *Work) Writes() bool { return w.writes.Load() }

// HoldsAnswer reports whether a message of the server is held: it answers the question for a number, or the change that
// is not committed yet. before is what the client gets before it.
func (w *Work) HoldsAnswer(typ byte, message []byte) (before []byte, held bool) {
	w.Lock()
	defer w.Unlock()
	c := w.Lone.Write()
	if c == nil {
		return nil, false
	}
	return c.Take(typ, message)
}

// PassHeld returns what is held of an answer and goes before a message of that type, which is too long to be held. The
// client gets its beginning.
func (w *Work) PassHeld(typ byte) []byte {
	w.Lock()
	defer w.Unlock()
	if c := w.Lone.Write(); c != nil {
		return c.Begins(typ)
	}
	return nil
}

// NotAsked returns the messages of a question that another node has perhaps not forwarded before it gives the session
// back. ok reports whether a number was asked for.
func (w *Work) NotAsked() (question []byte, ok bool) {
	w.Lock()
	defer w.Unlock()
	if c := w.Lone.Write(); c != nil {
		return c.Pending(), true
	}
	return nil, false
}

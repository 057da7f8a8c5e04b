package underway

import (
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// The requests of an open transaction are kept if CONTINUITY is REPLAY, and a digest of each answer (package replay).
// Requests outside a transaction block are kept as long as they are under way (package lone): if they change nothing,
// or have not reached their server, they go on at the next one.

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// Sent keeps a piece of a message of the client, header included. begun means that it is the beginning, whole that it
// reaches the end. The caller holds the lock.
func (w *Work) Sent(piece []byte, begun, whole bool) {
	if !w.Known.Follows {
		return
	}
	idle := begun && w.Idle()
	if begins := idle && w.Rules.Replays(); begins || w.logs.Load() {
		w.log().Sent(piece, begun, whole, begins)
		w.logs.Store(w.Log.On())
	}
	switch {
	case !idle || w.Lone.Fresh():
	case w.Known.Unchanged.Holds():
		w.Lone.Begin(&w.Rules.Lone)
	default:
		w.Lone.Forget()
	}
	if w.Lone.On() {
		w.Lone.Sent(piece, begun, whole)
	}
	w.noteLone()
}

// log returns the log of the open transaction. Most sessions never need one.
func (w *Work) log() *replay.Log {
	if w.Log == nil {
		w.Log = replay.New(&w.Rules.Logs, w.PreparedText)
	}
	return w.Log
}

// Logs reports whether the open transaction is kept.
func (w *Work) Logs() bool { return w.logs.Load() }

// Answered keeps the digest of a piece of a message that goes to the client.
func (w *Work) Answered(typ byte, piece []byte, whole bool) {
	if !w.logs.Load() {
		return
	}
	w.Lock()
	defer w.Unlock()
	w.Log.Answered(typ, piece, whole)
	w.logs.Store(w.Log.On())
}

// Answering notes that the client gets a message of that type, or a part of it.
func (w *Work) Answering(typ byte) {
	if !w.awaits.Load() || typ == 'N' || typ == 'S' || typ == 'A' {
		return
	}
	w.Lock()
	defer w.Unlock()
	w.Lone.Answering()
	w.noteLone()
}

// noteLone notes for downstream whether requests are kept, after that has changed. The caller holds the lock.
func (w *Work) noteLone() {
	if awaits := w.Lone.Awaits(); w.awaits.Load() != awaits {
		w.awaits.Store(awaits)
	}
	if keeps := w.Lone.On(); w.keeps.Load() != keeps {
		w.keeps.Store(keeps)
	}
	if writes := w.Lone.Write() != nil; w.writes.Load() != writes {
		w.writes.Store(writes)
	}
}

// Unsent notes that the last n bytes of the client were not sent.
func (w *Work) Unsent(n int) {
	w.Lock()
	defer w.Unlock()
	w.Lone.Unsent(n)
}

// Close ends the keeping. Its caller is upstream, or comes after it.
func (w *Work) Close() {
	w.Lock()
	defer w.Unlock()
	w.Lone.Forget()
	w.noteLone()
	if w.Log != nil {
		w.Log.Close()
		w.logs.Store(false)
	}
}

// Continues takes over what was under way in a session that goes on as this one. resumed means that this one is in its
// transaction. again is what its server gets before what the client sends next. Nothing else uses either.
func (w *Work) Continues(from *Work, resumed bool) (again []byte) {
	if w.Requests = from.Requests.Continued(); w.Loss.Failed {
		w.Requests.Answered('E', true)
	}
	if resumed {
		w.Requests = from.Requests.Resumed()
		w.Asking.Worked()
		if from.Loss.Replays {
			w.log().Repeats()
		}
	}
	w.Requests.Texts = w.PreparedText
	w.Tracker, w.by, w.leaves, w.Application = from.Tracker, from.by, from.leaves, from.Application
	if from.Loss.Replays { // a request that was not answered goes on from here
		again = from.Log.Unanswered()
	}
	if fate := from.Loss.Fate; fate != lone.Doubtful {
		if again = from.Lone.Requests(fate); len(again) > 0 { // not a third time
			w.Lone.Again(&w.Rules.Lone)
		}
	}
	return again
}

package underway

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/known"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/sessionstate"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Rules say which sessions of a listener go on at another server. They have the memory for that.
type Rules struct {
	Continuity func() bool   // CONTINUITY = SESSION or REPLAY; nil: it is OFF
	Replay     func() bool   // CONTINUITY = REPLAY; nil: it is not
	Lone       lone.Memory   // of requests outside a block that may be executed again
	Logs       replay.Memory // of the open transactions that may be executed again
}

// Continues reports whether sessions go on at another server.
func (r *Rules) Continues() bool { return r.Continuity != nil && r.Continuity() }

// Replays reports whether transactions are executed again.
func (r *Rules) Replays() bool { return r.Replay != nil && r.Replay() }

// Work is what is under way in one session. Its lock is held from the check for a drain until the forwarded bytes are
// counted.
type Work struct {
	sync.Mutex
	Rules      *Rules
	Local      bool                            // the backend is the local server
	OnPrimary  bool                            // the backend is the primary
	Replicates bool                            // a session of logical replication
	Promoted   func() bool                     // whether a server that was a secondary may have become a primary
	Kernel     atomic.Pointer[offload.Session] // relays the session now; nil: the kernel does not
	Leaving    atomic.Bool                     // it leaves its backend

	// The following is seen by the two directions. Status is that of the last ReadyForQuery. Owed counts Query, Sync
	// and FunctionCall without one. Unsynced: extended messages were forwarded without a Sync after them.
	Status   atomic.Uint32
	Owed     atomic.Int32
	Unsynced atomic.Bool
	syncs    int32         // Sync messages behind the last message that could begin a COPY: guarded by the lock
	Midway   bool          // a request is partly forwarded: guarded by the lock, as are the next three
	Streams  bool          // a stream of logical replication, which has no end to wait for
	Held     bool          // a request waits that was not forwarded at all
	Requests stmt.Requests // forwarded, and not answered

	// The following is known for its next server, guarded by the lock.
	Tracker     sessionstate.Tracker
	Known       known.State
	Application string   // application_name
	ReadOnly    bool     // its transactions are READ ONLY by default
	by          string   // keywords of the statement for which Tracker refuses
	leaves      []string // keywords of statements that may have left something in the session

	// The following is kept for its next server.
	Lone   lone.Log    // requests outside a block: guarded by the lock
	awaits atomic.Bool // the client has got nothing of the answer to the first of them
	keeps  atomic.Bool // there are some
	writes atomic.Bool // the first of them is a change whose answer is held
	Log    *replay.Log // of its open transaction, guarded by the lock; nil: none was kept yet
	logs   atomic.Bool // requests and answers are being kept in it

	// The questions for numbers of transactions.
	Asking     indoubt.Asking // of the open transaction: guarded by the lock
	Numberless time.Time      // no number of a change is asked for before that: its server has refused one
	before     []byte         // of upstream: goes to PostgreSQL before the next bytes of the client

	Loss Loss // guarded by the lock
}

// Offloaded reports whether the kernel relays the session.
func (w *Work) Offloaded() bool { return w.Kernel.Load() != nil }

// RelayedUnseen reports whether the kernel relays the session and has relayed requests since it took it over. The
// caller holds the lock.
func (w *Work) RelayedUnseen() bool {
	kernel := w.Kernel.Load()
	return kernel != nil && kernel.Relayed()
}

// Idle reports whether nothing is owed to the client and no transaction is open. Status is read last: an answer
// changes it before it counts as delivered, so an answer that is no longer owed has left its status.
func (w *Work) Idle() bool {
	if k := w.Kernel.Load(); k != nil {
		if s := k.Slot; w.Kernel.Load() != nil { // a session that comes back has correct counters before Kernel is cleared
			return s.Quiet() && atomic.LoadUint32(&s.Status) == 'I'
		}
	}
	return w.Owed.Load() <= 0 && !w.Unsynced.Load() && w.Status.Load() == 'I'
}

// Busy reports whether PostgreSQL is still working for the session.
func (w *Work) Busy() bool {
	w.Lock()
	defer w.Unlock()
	return !w.Streams && (w.Midway || !w.Idle())
}

// State returns the session's state as pg_stat_activity names it.
func (w *Work) State() string {
	status, active := w.Status.Load(), w.Owed.Load() > 0 || w.Unsynced.Load()
	if k := w.Kernel.Load(); k != nil {
		status, active = atomic.LoadUint32(&k.Slot.Status), !k.Slot.Quiet()
	}
	switch {
	case active:
		return "active"
	case status == 'T', status == 'E':
		return "idle in transaction"
	}
	return "idle"
}

// Requested counts a message of the client that goes to PostgreSQL. The caller holds the lock.
func (w *Work) Requested(typ byte) {
	switch typ {
	case 'Q', 'F':
		w.syncs = 0
		w.Owed.Add(1)
		if w.Lone.Write() != nil { // the question before it had no Sync
			w.Unsynced.Store(false)
		}
	case 'S':
		w.syncs++
		w.Unsynced.Store(false)
		w.Owed.Add(1)
	case 'P', 'B', 'E', 'D', 'C':
		w.syncs = 0
		w.Batched(typ)
	case 'H': // PostgreSQL ignores it during COPY, too
		w.Batched(typ)
	case 'c', 'f':
		w.copied()
	}
}

// copied notes the end of what the client sends for a COPY. PostgreSQL has ignored a Sync that came during that, and
// another one follows. Answers to requests before the COPY are still to come. The caller holds the lock.
func (w *Work) copied() {
	if w.syncs == 0 {
		return
	}
	w.Requests.SyncsIgnored(int(w.syncs))
	w.Owed.Add(-min(w.syncs, w.Owed.Load()))
	w.syncs = 0
	w.Unsynced.Store(true)
}

// Batched follows a message of the client that has no answer of its own kind to end with. The caller holds the lock.
func (w *Work) Batched(typ byte) {
	if !w.Unsynced.Swap(true) {
		w.Asking.BatchBegins(w.Owed.Load() != 0)
	}
	if typ == 'C' {
		w.Asking.Closing()
	}
}

// Waits reports whether the client's next message, of that type, has to wait for the end of a drain. It does if it
// begins something new, or might, as long as the previous answer is not known.
func (w *Work) Waits(typ byte) bool {
	switch {
	case typ == 'X': // Terminate
		return false
	case w.Unsynced.Load(): // belongs to the current batch
		return false
	case w.Owed.Load() > 0:
		return typ != 'd' && typ != 'c' && typ != 'f' // COPY data belongs to the current statement
	}
	return w.Status.Load() == 'I'
}

// Ready handles a ReadyForQuery with that status.
func (w *Work) Ready(status byte) {
	w.Lock()
	defer w.Unlock()
	w.Status.Store(uint32(status))
	for {
		n := w.Owed.Load()
		if n <= 0 || w.Owed.CompareAndSwap(n, n-1) {
			break
		}
	}
	w.Requests.Answered(status, w.Owed.Load() <= 0)
	w.Asking.Ready(status)
	w.Lone.Answered(status)
	w.noteLone()
}

// StreamBegins marks the session as a stream of logical replication.
func (w *Work) StreamBegins() {
	w.Lock()
	defer w.Unlock()
	w.Streams = true
}

// PreparedText returns the text of a prepared statement of the client, if its state is known. The caller holds the
// lock.
func (w *Work) PreparedText(name string) (text string, known bool) { return w.Known.PreparedText(name) }

package pool

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// A backend costs PostgreSQL a process and its caches, some milliseconds of a processor. In two cases a client need not
// wait for that. Where logins with one startup packet follow each other closely, a backend is opened ahead. With
// BACKEND_REUSE = ON, the backend of a client that has left is reused. Neither is a new session. So both are
// handed out only if the difference cannot be seen:
//
//   - the startup packet is the same, byte by byte: user, database, every parameter, the client's host, TLS and intent;
//   - the server's fingerprint of role, database and settings is the same as before the backend was opened;
//   - nothing has happened that ends sessions of this kind: an epoch, a drain, a closed gate, a statement about
//     databases.
//
// The pool holds backends of the local server only. A server's own refusals (NOLOGIN, CONNECT, connection limits) occur
// when a backend is opened; the facts that they depend on are part of the fingerprint.

const (
	// PerKind is how many backends of one kind wait at most.
	PerKind = 16
	// Unused is how long a backend waits: less than the 5 s for which DROP DATABASE waits for other sessions.
	Unused = 2 * time.Second
	// Oldest is how old a backend that waits may be, since it was opened.
	Oldest = 10 * time.Minute
	// Answer bounds a query for a fingerprint, and a reset.
	Answer = time.Second

	maxKinds = 256         // kinds of login that are remembered
	fresh    = time.Second // a backend that waited no longer needs no restart of its idle timers
)

// Config is what a Pool needs. Size and Ahead are its bounds.
type Config struct {
	Size   int           // backends that wait
	Ahead  int           // of one kind that are opened ahead; negative = none
	Unused time.Duration // how long a backend waits
	Oldest time.Duration // how old it may be
	Answer time.Duration // how long an answer of the server may take
	// Open starts the session of a backend, and sets its Conn, Greeting and Born.
	Open       func(*Backend) error
	Background func(what string, f func()) // runs a function in a goroutine that is waited for at the end
	Log        *slog.Logger
}

// Pool keeps backends that wait for a client.
type Pool struct {
	Config

	mu         sync.Mutex
	closed     bool                  // guarded by mu, as are all fields below
	inProgress int                   // being opened or reset
	generation uint64                // backends of older generations are dropped
	idle       map[string][]*Backend // by startup packet, the newest last
	size       int
	room       time.Time            // until then, connection slots may become free that MakeRoom has dropped
	opening    map[string]bool      // ahead
	seen       map[string]time.Time // by startup packet: the last login
	sweeping   *time.Timer          // nil: the pool is empty
	counts     Stats
}

// Stats are counters of the pool since the start, and its size now.
type Stats struct {
	Ahead, Reused uint64            // logins served by a backend opened ahead, and by a reused one
	Returned      uint64            // reset after their client
	Dropped       map[string]uint64 // by reason
	Waiting       int               // now
	InProgress    int               // being opened or reset now
}

// MakeRoom drops all backends after the server has refused a session for lack of connection slots, and reports whether
// the next try may succeed. For a while it may even if nothing is left to drop: the processes of dropped backends take
// a moment to exit.
func (w *Pool) MakeRoom() bool {
	n, now := w.Flush("room"), time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 0 {
		w.room = now.Add(w.Answer)
	}
	return !now.After(w.room)
}

// Generation returns the generation of backends that are opened now.
func (w *Pool) Generation() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.generation
}

// Take returns a pooled backend of that kind; nil if there is none.
func (w *Pool) Take(want *Backend) *Backend {
	for {
		b := w.pop(want)
		if b == nil {
			return nil
		}
		if waiting, gone := socket.Peek(b.Conn); waiting || gone {
			w.Drop(b, "gone")
			continue
		}
		if time.Since(b.since) > fresh && !b.wake(w.Answer) {
			w.Drop(b, "gone")
			continue
		}
		w.served(b)
		return b
	}
}

// Has reports whether a backend with that startup packet is pooled.
func (w *Pool) Has(packet string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.idle[packet]) > 0
}

// TakeFresh is Take without waiting: it returns the newest of its kind, if that needs no restart of its timers.
func (w *Pool) TakeFresh(want *Backend) *Backend {
	for {
		w.mu.Lock()
		list := w.idle[want.Packet]
		n := len(list) - 1
		if n < 0 || list[n].Kind != want.Kind || time.Since(list[n].since) > fresh {
			w.mu.Unlock()
			return nil
		}
		b := list[n]
		w.size--
		w.setIdle(want.Packet, list[:n])
		w.mu.Unlock()
		if waiting, gone := socket.Peek(b.Conn); !waiting && !gone {
			w.served(b)
			return b
		}
		w.Drop(b, "gone")
	}
}

// served counts a login.
func (w *Pool) served(b *Backend) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.Used {
		w.counts.Reused++
	} else {
		w.counts.Ahead++
	}
}

// pop removes the newest backend of a kind. Those with the same packet and another fingerprint or epoch are outdated
// and dropped.
func (w *Pool) pop(want *Backend) *Backend {
	w.mu.Lock()
	list := w.idle[want.Packet]
	var old []*Backend
	for len(list) > 0 {
		b := list[len(list)-1]
		list = list[:len(list)-1]
		w.size--
		if b.Kind == want.Kind {
			w.setIdle(want.Packet, list)
			w.mu.Unlock()
			w.dropAll(old, "changed")
			return b
		}
		old = append(old, b)
	}
	w.setIdle(want.Packet, nil)
	w.mu.Unlock()
	w.dropAll(old, "changed")
	return nil
}

func (w *Pool) setIdle(packet string, list []*Backend) {
	if len(list) == 0 {
		delete(w.idle, packet)
		return
	}
	w.idle[packet] = list
}

// Put adds a backend, if there is room and nothing has happened since it was opened. Otherwise it is dropped.
func (w *Pool) Put(b *Backend) {
	now := time.Now()
	w.mu.Lock()
	why := ""
	switch {
	case w.closed || b.Generation != w.generation:
		why = "ended"
	case w.size >= w.Size || len(w.idle[b.Packet]) >= PerKind:
		why = "room"
	case now.Sub(b.Born) > w.Oldest:
		why = "age"
	}
	if why == "" {
		b.since = now
		if b.Used {
			w.counts.Returned++
		}
		if w.idle == nil {
			w.idle = make(map[string][]*Backend)
		}
		w.idle[b.Packet] = append(w.idle[b.Packet], b)
		w.size++
		if w.sweeping == nil {
			w.sweeping = time.AfterFunc(w.Unused/4, w.sweep)
		}
	}
	w.mu.Unlock()
	if why != "" {
		w.Drop(b, why)
	}
}

// sweep drops backends that waited too long.
func (w *Pool) sweep() {
	now := time.Now()
	var old []*Backend
	w.mu.Lock()
	for packet, list := range w.idle {
		n := slices.IndexFunc(list, func(b *Backend) bool { return now.Sub(b.since) < w.Unused })
		if n < 0 {
			n = len(list)
		}
		old = append(old, list[:n]...)
		w.setIdle(packet, slices.Clone(list[n:]))
	}
	w.size -= len(old)
	if w.sweeping = nil; w.size > 0 {
		w.sweeping = time.AfterFunc(w.Unused/4, w.sweep)
	}
	w.mu.Unlock()
	w.dropAll(old, "idle")
}

// Flush empties the pool. Backends that are in use or being opened will not be added either. It returns how many are
// gone or will be.
func (w *Pool) Flush(why string) int {
	var all []*Backend
	w.mu.Lock()
	w.generation++
	for _, list := range w.idle {
		all = append(all, list...)
	}
	w.idle, w.size = nil, 0
	n := len(all) + w.inProgress
	w.mu.Unlock()
	w.dropAll(all, why)
	return n
}

// Close empties the pool for good.
func (w *Pool) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.Flush("ended")
}

func (w *Pool) dropAll(list []*Backend, why string) {
	for _, b := range list {
		w.Drop(b, why)
	}
}

// Drop ends a backend as a client would.
func (w *Pool) Drop(b *Backend, why string) {
	w.Dropped(why)
	_ = b.Conn.SetDeadline(time.Now().Add(w.Answer))
	_, _ = b.Conn.Write(pgwire.AppendMessage(nil, 'X', nil))
	_ = b.Conn.Close()
}

// Dropped counts a dropped backend.
func (w *Pool) Dropped(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts.Dropped == nil {
		w.counts.Dropped = make(map[string]uint64)
	}
	w.counts.Dropped[why]++
}

// NoteLogin notes a login of that kind. Two that follow each other closely are taken as a sign of a third.
func (w *Pool) NoteLogin(b *Backend) {
	now := time.Now()
	w.mu.Lock()
	last, known := w.seen[b.Packet]
	if !known && len(w.seen) >= maxKinds {
		for p, at := range w.seen {
			if now.Sub(at) > w.Unused {
				delete(w.seen, p)
			}
		}
	}
	if w.seen == nil {
		w.seen, w.opening = make(map[string]time.Time), make(map[string]bool)
	}
	if known || len(w.seen) < maxKinds {
		w.seen[b.Packet] = now
	}
	ahead := known && now.Sub(last) < w.Unused && !w.closed && b.Generation == w.generation && !w.opening[b.Packet] &&
		len(w.idle[b.Packet]) < w.Ahead && w.size < w.Size
	if ahead {
		w.opening[b.Packet] = true
		w.inProgress++
	}
	w.mu.Unlock()
	if ahead {
		w.Background("opening a backend ahead", func() { w.openAhead(b) })
	}
}

// openAhead opens a backend like that one.
func (w *Pool) openAhead(like *Backend) {
	b := &Backend{Kind: like.Kind, Replica: like.Replica, Hello: like.Hello, NotReusable: like.NotReusable, Generation: like.Generation}
	defer w.CountOpening(-1)
	err := w.Open(b)
	w.mu.Lock()
	delete(w.opening, b.Packet)
	w.mu.Unlock()
	if err != nil {
		w.Log.Debug("no backend opened ahead", "user", b.Hello.User, "database", b.Hello.Database, "error", err)
		return
	}
	w.Put(b)
}

// CountOpening counts backends that are being opened or reset.
func (w *Pool) CountOpening(n int) {
	w.mu.Lock()
	w.inProgress += n
	w.mu.Unlock()
}

// Stats returns the counters.
func (w *Pool) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.counts
	st.Waiting, st.InProgress = w.size, w.inProgress
	st.Dropped = make(map[string]uint64, len(w.counts.Dropped))
	for why, n := range w.counts.Dropped {
		st.Dropped[why] = n
	}
	return st
}

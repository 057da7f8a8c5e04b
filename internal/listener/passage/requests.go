package passage

import (
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// terminateLength is the length of a Terminate message in bytes.
const terminateLength = 5

// Follow observes the client's bytes up to the end of one message, and returns how many those are. The caller holds the
// lock of w.
func (p *Passage) Follow(w *underway.Work, h Host, b []byte) (used int, err error) {
	used, _, err = p.follow(w, h, b)
	return used, err
}

// follow is Follow. over is whether the session has ended for that message: it is not forwarded.
func (p *Passage) follow(w *underway.Work, h Host, b []byte) (used int, over bool, err error) {
	f := &p.requests
	head := f.HeaderLeft()
	used, whole, err := f.Next(b)
	if err != nil {
		return used, false, err
	}
	typ, text := f.Type(), b[min(head, used):used]
	w.Sent(b[:used], head == headerLength, whole)
	if typ == 'Q' {
		w.Requests.QueryText(text)
	}
	if used >= head && (typ == 'Q' || typ == 'P') && h.Changes(instead.Piece{Type: typ, B: text, Begins: head > 0, Ends: whole, HasHeader: used == len(text)+headerLength}) {
		return used, true, nil
	}
	if used >= head {
		w.Follow(typ, text, head > 0, whole)
	}
	if p.Pooled {
		h.Uses(typ, text, head > 0, whole)
	}
	if whole {
		if typ == 'P' && stmt.MayCopy(f.Kept()) {
			p.Copies = true
		}
		w.Requests.Forwarded(typ, f.Kept())
		if w.Requested(typ); typ == 'X' {
			p.Terminated.Store(true)
		}
	}
	return used, false, nil
}

// Release decides how much of chunk may go to PostgreSQL now, and counts it as sent. n is 0 if the session has to
// wait for the drain d, or leaves its backend (d is nil), or has ended. bad is a violation of the protocol.
func (p *Passage) Release(w *underway.Work, h Host, chunk []byte) (n int, d *Drain, bad error) {
	w.Lock()
	defer w.Unlock()
	if w.Requests.Sealed || w.Leaving.Load() {
		return 0, nil, nil
	}
	p.Instead.Begins()
	d = h.Drain()
	free := d == nil || !w.Local || w.Streams
	for bad == nil && n < len(chunk) && (free || !p.requests.AtBoundary() || !w.Waits(chunk[n])) {
		if p.requests.AtBoundary() {
			if outOfTurn(w, chunk[n]) {
				h.Ends(OutOfTurn)
				return 0, nil, nil
			}
			if !p.begins(w, chunk, n) {
				break // it is released with the question before it
			}
		}
		var used int
		var over bool
		if used, over, bad = p.follow(w, h, chunk[n:]); over { // refused, after its beginning went out: PostgreSQL does not get its end
			return 0, nil, nil
		}
		n += used
		if p.Instead.Takes(chunk[:n], used) || p.followed(chunk[:n]) {
			break
		}
		if n == terminateLength && p.Terminated.Load() && h.KeepsBackend() {
			return 0, nil, nil
		}
	}
	if h.Ended() { // from outside: nothing of the chunk is sent
		return 0, nil, nil
	}
	w.Midway = !p.requests.AtBoundary()
	if w.Held = n == 0; n > 0 {
		h.Forwarded()
	}
	return n, d, bad
}

// followed reports whether a message of the listener goes behind a chunk. Nothing of the client behind it belongs to
// the chunk then. The caller holds the lock of Work.
func (p *Passage) followed(chunk []byte) bool {
	if p.Behind == nil || !p.requests.AtBoundary() {
		return false
	}
	p.Instead.Behind(chunk, p.Behind)
	p.Behind = nil
	return true
}

// begins counts the request that begins at chunk[n], unless it is a COMMIT of a batch, which begins a chunk of its own.
// The caller holds the lock of w.
func (p *Passage) begins(w *underway.Work, chunk []byte, n int) bool {
	if n > 0 && w.BatchCommits(chunk[n:]) {
		return false
	}
	if n == 0 {
		w.Probe(chunk)
	}
	// Before the first message of a request is forwarded; it may know less than there is.
	if p.Confirmation.Guarded && w.Owed.Load() <= 0 && !w.Unsynced.Load() {
		p.Confirmation.RequestBegins()
	}
	return true
}

// Goes returns what goes to PostgreSQL for a chunk that was released.
func (p *Passage) Goes(w *underway.Work, released []byte) []byte {
	return w.Preceded(p.Instead.Replaced(released))
}

// outOfTurn reports whether a session of logical replication sends a command before the previous one is over: it might
// start to stream under a name that was not checked.
func outOfTurn(w *underway.Work, typ byte) bool {
	return w.Replicates && typ == 'Q' && w.Owed.Load() > 0
}

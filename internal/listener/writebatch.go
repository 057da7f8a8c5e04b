package listener

import (
	"slices"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// The sessions of a loop write in batches. Their writes in one turn of the loop go to the kernel in one system call at
// the end of the turn, when all bytes that had arrived were read. A write counts as sent as soon as it is queued: the
// gate was checked and the request was counted before. Only short writes are queued, and only while a session relays.
// The end of a session writes its queued bytes first.

const (
	// maxQueuedWrite is the longest write that is queued, in bytes. A longer one is not worth the copy.
	maxQueuedWrite = 4 << 10
	// maxSpareBuffers is how many buffers a loop keeps for the next slow peer.
	maxSpareBuffers = 16
)

// writeBatch is the queue of one loop. It belongs to the loop's goroutine.
type writeBatch struct {
	ring     *uring.Ring    // nil: nothing is queued, each write is a system call of its own
	pending  []uring.Write  // are written at the end of the turn
	telling  []uring.Write  // were written; their writers are being told
	bytes    []byte         // the storage that both refer to
	spare    [][]byte       // buffers for bytes that a peer did not take yet
	together *atomic.Uint64 // counts writes that shared a system call with others
}

// use lets the batch queue writes for that ring, and count those that share a system call.
func (b *writeBatch) use(r *uring.Ring, together *atomic.Uint64) {
	b.ring, b.together = r, together
	b.pending, b.telling = make([]uring.Write, 0, uring.Size), make([]uring.Write, 0, uring.Size)
	b.bytes = make([]byte, 0, loopBuffer)
}

func (b *writeBatch) close() {
	if b.ring != nil {
		b.ring.Close()
	}
}

// full reports whether the batch has to be flushed before the end of the turn.
func (b *writeBatch) full() bool { return len(b.pending) == uring.Size }

// queue has p written for w at the end of the turn. It reports false, and does nothing, where that is not possible.
func (b *writeBatch) queue(w uring.Writer, fd int, p []byte) bool {
	if b.ring == nil || len(p) == 0 || len(p) > maxQueuedWrite || len(p) > cap(b.bytes)-len(b.bytes) || b.full() {
		return false
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, p...)
	b.pending = append(b.pending, uring.Write{By: w, FD: fd, B: b.bytes[from:]})
	return true
}

// holds reports whether a write of w is queued. Anything that w writes at once would overtake it.
func (b *writeBatch) holds(w uring.Writer) bool {
	return slices.ContainsFunc(b.pending, func(e uring.Write) bool { return e.By == w })
}

// remove drops the queued writes of w, and the results that w was not told yet. A writer that is being told may call
// it.
func (b *writeBatch) remove(w uring.Writer) {
	for _, list := range [][]uring.Write{b.pending, b.telling} {
		for i := range list {
			if list[i].By == w {
				list[i].By = nil
			}
		}
	}
}

// flush writes the queued bytes, and those that the writers queue when they get the results.
func (b *writeBatch) flush() {
	for len(b.pending) > 0 {
		b.flushOnce()
	}
	b.bytes = b.bytes[:0]
}

// flushOnce writes what is queued now. While it tells the results, more may be queued, and a writer may remove its
// other results.
func (b *writeBatch) flushOnce() {
	list := b.pending[:0]
	for _, w := range b.pending {
		if s, ok := w.By.(*side); ok {
			s.queued = 0
		}
		if w.By != nil {
			list = append(list, w)
		}
	}
	b.pending, b.telling = b.telling[:0], list
	if len(list) == 1 {
		list[0].N, list[0].Err = socket.Write(list[0].FD, list[0].B)
	} else if len(list) > 1 {
		b.together.Add(uint64(len(list)))
		b.ring.Write(list)
	}
	for i := range list {
		if w := &list[i]; w.By != nil {
			w.By.Wrote(w)
		}
	}
	b.telling = list[:0]
}

// socketWriter writes to one non-blocking socket: queued to the end of the turn, at once, or later if the peer does not
// take the bytes.
type socketWriter struct {
	fd     int
	batch  *writeBatch
	by     uring.Writer // receives the results of queued writes
	queued int          // index of its write among batch.pending, counted from 1; 0: nothing is queued
	out    []byte       // the bytes that the peer did not take yet
	room   []byte       // the buffer of out
	unsent int          // bytes that were dropped: the peer never gets them
	stuck  bool         // the kernel may still have something to write to this socket first: nothing is written
}

// full reports whether the socket takes nothing now.
func (w *socketWriter) full() bool { return len(w.out) > 0 || w.stuck }

// send writes p. With queue it may wait for the end of the turn. Bytes that the peer does not take are kept. p may be
// reused.
func (w *socketWriter) send(p []byte, queue bool) error {
	if err := w.flushQueued(); err != nil {
		w.unsent += len(p)
		return err
	}
	if queue && !w.full() && w.queue(p) {
		return nil
	}
	return w.sendNow(p)
}

// queue has p written at the end of the turn. It reports false where that is not possible. Nothing else may be queued.
func (w *socketWriter) queue(p []byte) bool {
	assert.That(w.queued == 0, "a second write of one socket is queued in a turn")
	if !w.batch.queue(w.by, w.fd, p) {
		return false
	}
	w.queued = len(w.batch.pending)
	return true
}

// flushQueued writes now what is queued.
func (w *socketWriter) flushQueued() error {
	p := w.unqueue()
	if p == nil {
		return nil
	}
	return w.sendNow(p)
}

// unqueue takes the queued write back and returns it; nil if there is none.
func (w *socketWriter) unqueue() []byte {
	if w.queued == 0 {
		return nil
	}
	q := &w.batch.pending[w.queued-1]
	assert.That(q.By == w.by, "a queued write belongs to another socket")
	q.By, w.queued = nil, 0
	return q.B
}

// sendNow writes what the socket takes and keeps the rest.
func (w *socketWriter) sendNow(p []byte) error {
	if !w.full() {
		n, err := socket.Write(w.fd, p)
		if p = p[n:]; err != nil {
			w.unsent += len(p)
			return err
		}
	}
	w.keep(p)
	return nil
}

// keep has p written when the peer takes more.
func (w *socketWriter) keep(p []byte) {
	if len(p) == 0 {
		return
	}
	if w.room == nil {
		w.room = w.batch.borrow()
		w.out = w.room[:0]
	}
	w.out = append(w.out, p...)
}

// writeKept writes what was kept, as far as the peer takes it, and reports whether that was all.
func (w *socketWriter) writeKept() (all bool, err error) {
	n, err := socket.Write(w.fd, w.out)
	if w.out = w.out[n:]; err != nil {
		return false, err
	}
	if len(w.out) > 0 {
		return false, nil
	}
	w.discard()
	return true, nil
}

// discard drops what was kept and gives the buffer back.
func (w *socketWriter) discard() {
	w.unsent += len(w.out)
	w.batch.giveBack(w.room)
	w.room, w.out = nil, nil
}

// drop drops everything that was not written.
func (w *socketWriter) drop() {
	w.unsent += len(w.unqueue())
	w.discard()
}

func (b *writeBatch) borrow() []byte {
	if n := len(b.spare); n > 0 {
		p := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return p
	}
	return make([]byte, 0, loopBuffer)
}

func (b *writeBatch) giveBack(p []byte) {
	if p != nil && len(b.spare) < maxSpareBuffers {
		b.spare = append(b.spare, p)
	}
}

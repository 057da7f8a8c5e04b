package eventloop

import (
	"slices"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// The sessions of a loop write in batches. Their writes in one turn of the loop go to the kernel in one system call at
// the end of the turn, when all bytes that had arrived were read. A write counts as sent as soon as it is queued: the
// caller has checked and counted what is in it before. Only short writes are queued, and only while a session relays.
// The end of a session writes its queued bytes first.

const (
	// MaxQueued is the longest write that is queued, in bytes. A longer one is not worth the copy.
	MaxQueued = 4 << 10
	// maxSpareBuffers is how many buffers a loop keeps for the next slow peer.
	maxSpareBuffers = 16
)

// Batch is the queue of one loop. It belongs to the loop's goroutine.
type Batch struct {
	ring     *uring.Ring    // nil: nothing is queued, each write is a system call of its own
	pending  []uring.Write  // are written at the end of the turn
	owners   []*Writer      // of pending, nil for those without one
	telling  []uring.Write  // were written; their writers are being told
	bytes    []byte         // the storage that both refer to
	spare    [][]byte       // buffers for bytes that a peer did not take yet
	together *atomic.Uint64 // counts writes that shared a system call with others
}

// Use lets the batch queue writes for that ring, and count those that share a system call.
func (b *Batch) Use(r *uring.Ring, together *atomic.Uint64) {
	b.ring, b.together = r, together
	b.pending, b.telling = make([]uring.Write, 0, uring.Size), make([]uring.Write, 0, uring.Size)
	b.owners = make([]*Writer, 0, uring.Size)
	b.bytes = make([]byte, 0, BufferSize)
}

func (b *Batch) close() {
	if b.ring != nil {
		b.ring.Close()
	}
}

// Full reports whether the batch has to be flushed before the end of the turn.
func (b *Batch) Full() bool { return len(b.pending) == uring.Size }

// Queue has p written for w at the end of the turn. It reports false, and does nothing, where that is not possible.
func (b *Batch) Queue(w uring.Writer, fd int, p []byte) bool { return b.queue(w, nil, fd, p) }

func (b *Batch) queue(w uring.Writer, owner *Writer, fd int, p []byte) bool {
	if b.ring == nil || len(p) == 0 || len(p) > MaxQueued || len(p) > cap(b.bytes)-len(b.bytes) || b.Full() {
		return false
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, p...)
	b.pending = append(b.pending, uring.Write{By: w, FD: fd, B: b.bytes[from:]})
	b.owners = append(b.owners, owner)
	return true
}

// Holds reports whether a write of w is queued. Anything that w writes at once would overtake it.
func (b *Batch) Holds(w uring.Writer) bool {
	return slices.ContainsFunc(b.pending, func(e uring.Write) bool { return e.By == w })
}

// Remove drops the queued writes of w, and the results that w was not told yet. A writer that is being told may call
// it.
func (b *Batch) Remove(w uring.Writer) {
	for _, list := range [][]uring.Write{b.pending, b.telling} {
		for i := range list {
			if list[i].By == w {
				list[i].By = nil
			}
		}
	}
}

// Flush writes the queued bytes, and those that the writers queue when they get the results.
func (b *Batch) Flush() {
	for len(b.pending) > 0 {
		b.flushOnce()
	}
	b.bytes = b.bytes[:0]
}

// flushOnce writes what is queued now. While it tells the results, more may be queued, and a writer may remove its
// other results.
func (b *Batch) flushOnce() {
	list := b.pending[:0]
	for i, w := range b.pending {
		if o := b.owners[i]; o != nil {
			o.queued = 0
		}
		if w.By != nil {
			list = append(list, w)
		}
	}
	b.pending, b.telling, b.owners = b.telling[:0], list, b.owners[:0]
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

// Writer writes to one non-blocking socket: queued to the end of the turn, at once, or later if the peer does not
// take the bytes.
type Writer struct {
	FD     int
	batch  *Batch
	by     uring.Writer // receives the results of queued writes
	queued int          // index of its write among batch.pending, counted from 1; 0: nothing is queued
	Out    []byte       // the bytes that the peer did not take yet
	room   []byte       // the buffer of Out
	Unsent int          // bytes that were dropped: the peer never gets them
	Stuck  bool         // the kernel may still have something to write to this socket first: nothing is written
}

// NewWriter returns a writer to that socket, whose queued writes are those of the loop. by receives their results.
func (l *Loop) NewWriter(fd int, by uring.Writer) Writer {
	return Writer{FD: fd, batch: &l.Batch, by: by}
}

// Full reports whether the socket takes nothing now.
func (w *Writer) Full() bool { return len(w.Out) > 0 || w.Stuck }

// Send writes p. With queue it may wait for the end of the turn. Bytes that the peer does not take are kept. p may be
// reused.
func (w *Writer) Send(p []byte, queue bool) error {
	if err := w.FlushQueued(); err != nil {
		w.Unsent += len(p)
		return err
	}
	if queue && !w.Full() && w.Queue(p) {
		return nil
	}
	return w.SendNow(p)
}

// Queue has p written at the end of the turn. It reports false where that is not possible. Nothing else may be queued.
func (w *Writer) Queue(p []byte) bool {
	assert.That(w.queued == 0, "a second write of one socket is queued in a turn")
	if !w.batch.queue(w.by, w, w.FD, p) {
		return false
	}
	w.queued = len(w.batch.pending)
	return true
}

// Queued reports whether a write is queued.
func (w *Writer) Queued() bool { return w.queued != 0 }

// FlushQueued writes now what is queued.
func (w *Writer) FlushQueued() error {
	p := w.Unqueue()
	if p == nil {
		return nil
	}
	return w.SendNow(p)
}

// Unqueue takes the queued write back and returns it; nil if there is none.
func (w *Writer) Unqueue() []byte {
	if w.queued == 0 {
		return nil
	}
	q := &w.batch.pending[w.queued-1]
	assert.That(q.By == w.by, "a queued write belongs to another socket")
	w.batch.owners[w.queued-1] = nil
	q.By, w.queued = nil, 0
	return q.B
}

// SendNow writes what the socket takes and keeps the rest.
func (w *Writer) SendNow(p []byte) error {
	if !w.Full() {
		n, err := socket.Write(w.FD, p)
		if p = p[n:]; err != nil {
			w.Unsent += len(p)
			return err
		}
	}
	w.Keep(p)
	return nil
}

// Keep has p written when the peer takes more.
func (w *Writer) Keep(p []byte) {
	if len(p) == 0 {
		return
	}
	if w.room == nil {
		w.room = w.batch.borrow()
		w.Out = w.room[:0]
	}
	w.Out = append(w.Out, p...)
}

// WriteKept writes what was kept, as far as the peer takes it, and reports whether that was all.
func (w *Writer) WriteKept() (all bool, err error) {
	n, err := socket.Write(w.FD, w.Out)
	if w.Out = w.Out[n:]; err != nil {
		return false, err
	}
	if len(w.Out) > 0 {
		return false, nil
	}
	w.Discard()
	return true, nil
}

// Discard drops what was kept and gives the buffer back.
func (w *Writer) Discard() {
	w.Unsent += len(w.Out)
	w.batch.giveBack(w.room)
	w.room, w.Out = nil, nil
}

// Drop drops everything that was not written.
func (w *Writer) Drop() {
	w.Unsent += len(w.Unqueue())
	w.Discard()
}

func (b *Batch) borrow() []byte {
	if n := len(b.spare); n > 0 {
		p := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return p
	}
	return make([]byte, 0, BufferSize)
}

func (b *Batch) giveBack(p []byte) {
	if p != nil && len(b.spare) < maxSpareBuffers {
		b.spare = append(b.spare, p)
	}
}

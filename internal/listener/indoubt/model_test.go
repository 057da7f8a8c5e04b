package indoubt

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// transaction is one of the model: clients', and those that nobody knows of.
type transaction struct {
	xid      uint64
	timeline ag.Timeline
}

// record is one of the WAL: a transaction has used its number, or has ended.
type record struct {
	of     *transaction
	ended  bool
	commit bool
}

// history is a server's WAL, with the numbers that it gives.
type history struct {
	wal      []record
	next     uint64 // the number that is given next
	ended    uint64 // the highest number of a transaction that has ended
	open     []*transaction
	timeline ag.Timeline
	base     int // records before its timeline, which are durable
}

// recovered returns a server that has recovered from the first n records.
func (h *history) recovered(n int) *history {
	r := &history{wal: slices.Clone(h.wal[:n]), next: 3, timeline: h.timeline, base: h.base}
	for _, w := range r.wal {
		r.next = max(r.next, w.of.xid+1)
	}
	r.ended = r.next - 1
	return r
}

// replayed returns the number after that of the last transaction that ended in the first n records, as a standby does.
func (h *history) replayed(n int) uint64 {
	at := uint64(2)
	for _, w := range h.wal[:n] {
		if w.ended {
			at = max(at, w.of.xid)
		}
	}
	return at + 1
}

// run has transactions begin, write and end. It returns those that began.
func (h *history) run(r *rand.Rand, steps int) (began []*transaction) {
	for range steps {
		if len(h.open) == 0 || r.IntN(3) == 0 {
			t := &transaction{xid: h.next, timeline: h.timeline}
			h.next++
			h.open, began = append(h.open, t), append(began, t)
			continue
		}
		i := r.IntN(len(h.open))
		t := h.open[i]
		if r.IntN(3) == 0 {
			h.wal = append(h.wal, record{of: t})
			continue
		}
		h.open = slices.Delete(h.open, i, i+1)
		h.wal = append(h.wal, record{of: t, ended: true, commit: r.IntN(2) == 0})
		h.ended = max(h.ended, t.xid)
	}
	return began
}

// status is what the server says of a number.
func (h *history) status(xid uint64) Status {
	s := Status{Text: statusAborted, Timeline: h.timeline}
	if xid > h.ended {
		s.Text = statusFuture
		return s
	}
	for _, t := range h.open {
		if t.xid == xid {
			s.Text = "in progress"
		}
	}
	for _, w := range h.wal {
		if w.of.xid == xid && w.commit {
			s.Text = statusCommitted
		}
	}
	return s
}

// committed reports whether a transaction is committed in the history.
func (h *history) committed(t *transaction) bool {
	return slices.ContainsFunc(h.wal, func(w record) bool { return w.of == t && w.commit })
}

// TestOutcomeIsTrue: whatever is lost with primaries, and whatever their successors do before their numbers are noted,
// an outcome that is proved is true. The last server asked may be one that was deposed.
func TestOutcomeIsTrue(t *testing.T) {
	var proved [3]int
	others := 0
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := &history{next: 3, ended: 2, timeline: 1}
		timelines := []ag.TimelineEntry{{TLI: 1}}
		all := h.run(r, r.IntN(12))
		var deposed []*history
		for range 1 + r.IntN(3) {
			kept := len(h.wal) - r.IntN(len(h.wal)-h.base+1)
			if r.IntN(8) == 0 { // it is started again in the same epoch, after a crash
				h, timelines[len(timelines)-1].Reused = h.recovered(kept), true
				all = append(all, h.run(r, r.IntN(12))...)
				continue
			}
			deposed = append(deposed, h)
			x := ag.Xids{Kept: h.replayed(kept - r.IntN(min(3, kept+1)))} // the standby may not have replayed all when it is asked
			h = h.recovered(kept)
			h.timeline, h.base = ag.Timeline(len(timelines)+1), kept
			all = append(all, h.run(r, r.IntN(6))...) // background processes, before the numbers are noted
			if x.Lost = h.ended + 1; r.IntN(10) == 0 {
				x = ag.Xids{} // they are not
			}
			timelines = append(timelines, ag.TimelineEntry{TLI: h.timeline, Parent: h.timeline - 1, Xids: x})
			all = append(all, h.run(r, r.IntN(12))...)
		}
		asked := h
		if len(deposed) > 0 && r.IntN(4) == 0 {
			asked = deposed[r.IntN(len(deposed))]
		}
		known := timelines
		if r.IntN(10) == 0 { // a longer history was forgotten
			known = known[r.IntN(len(known)):]
		}
		for _, x := range all {
			c := &Commit{Xid: x.xid, Timeline: x.timeline}
			got := c.Outcome(known, asked.status(x.xid))
			proved[got]++
			if open := slices.Contains(h.open, x); got == Committed && !h.committed(x) || got == NotCommitted && (h.committed(x) || open) {
				t.Fatalf("seed %d: %+v is %s: %+v, %+v", seed, x, got, asked.status(x.xid), known)
			}
			if got == NotCommitted && asked.status(x.xid).Text == statusCommitted {
				others++
			}
		}
	}
	t.Log(proved, others)
	if proved[Committed] < 1000 || proved[NotCommitted] < 1000 || others < 100 {
		t.Errorf("too little is proved: %v, and %d by what another transaction with the number did", proved, others)
	}
}

package listener

import (
	"slices"

	"github.com/coteriedb/coterie/internal/listener/uring"
)

// What the sessions of a loop write in one of its turns goes to the kernel in one system call at the turn's end, when everything that had
// come was read. It stands in the books as sent from the moment it is handed over here: the gate was looked at, and a request was counted.
// Only what is short waits for the turn's end, and only while a session relays; whoever ends a session writes before what was handed over.

// shortWrite is the longest that waits: what is longer is not worth a copy.
const shortWrite = 4 << 10

// delay has b written at the end of the turn. It is false where that cannot be.
func (l *loop) delay(s *side, b []byte) bool {
	if s.p.phase != relaying && s.p.phase != renewing || !l.put(s, s.fd, b) {
		return false
	}
	s.delayed = len(l.writes)
	return true
}

// put has b written for w at the end of the turn. It is false where that cannot be.
func (l *loop) put(w uring.Writer, fd int, b []byte) bool {
	if l.ring == nil || len(b) == 0 || len(b) > shortWrite || len(b) > cap(l.short)-len(l.short) || len(l.writes) == uring.Size {
		return false
	}
	from := len(l.short)
	l.short = append(l.short, b...)
	l.writes = append(l.writes, uring.Write{By: w, FD: fd, B: l.short[from:]})
	return true
}

// holds says that something waits to be written for w: what is written past the turn's end would overtake it.
func (l *loop) holds(w uring.Writer) bool {
	return slices.ContainsFunc(l.writes, func(e uring.Write) bool { return e.By == w })
}

// unput has nothing more written for w, and w told nothing more. Whoever is told of a write may call it.
func (l *loop) unput(w uring.Writer) {
	for _, list := range [][]uring.Write{l.writes, l.telling} {
		for i := range list {
			if list[i].By == w {
				list[i].By = nil
			}
		}
	}
}

// undelay returns what waits for the turn's end, which then does not write it; nil if nothing does.
func (l *loop) undelay(s *side) []byte {
	if s.delayed == 0 {
		return nil
	}
	w := &l.writes[s.delayed-1]
	w.By, s.delayed = nil, 0
	return w.B
}

// write writes what waits for the turn's end, and what whoever is told of it hands over then.
func (l *loop) write() {
	for len(l.writes) > 0 {
		l.writeOnce()
	}
	l.short = l.short[:0]
}

// writeOnce writes what there is. Meanwhile more may be handed over, and a writer that is lost takes back what is not told yet.
func (l *loop) writeOnce() {
	list := l.writes[:0]
	for _, w := range l.writes {
		if s, ok := w.By.(*side); ok {
			s.delayed = 0
		}
		if w.By != nil {
			list = append(list, w)
		}
	}
	l.writes, l.telling = l.telling[:0], list
	if len(list) == 1 {
		list[0].N, list[0].Err = put(list[0].FD, list[0].B)
	} else if len(list) > 1 {
		l.srv.counts.together.Add(uint64(len(list)))
		l.ring.Write(list)
	}
	for i := range list {
		if w := &list[i]; w.By != nil {
			w.By.Wrote(w)
		}
	}
	l.telling = list[:0]
}

// Wrote keeps what the peer did not take, as send does, and ends what send's callers end.
func (s *side) Wrote(w *uring.Write) {
	p := s.p
	if p.phase == buried || w.Err == nil && w.N == len(w.B) {
		return
	}
	defer p.rescue()
	switch {
	case p.phase == renewing:
		p.notAsNew()
	case w.Err != nil && !wouldWait(w.Err):
		p.sendFailed(s)
	default:
		p.keep(s, w.B[w.N:])
	}
	p.settle()
}

// hurry writes now what would wait for the turn's end.
func (p *pump) hurry(s *side) error {
	b := p.loop.undelay(s)
	if b == nil {
		return nil
	}
	return p.sendNow(s, b)
}

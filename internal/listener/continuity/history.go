package continuity

import (
	"sync"
	"time"
)

// Bounds of a history: an hour more than a week, and how many different reasons of an hour are told apart.
const (
	maxHours   = 7*24 + 1
	maxReasons = 64
)

// Share is how many sessions an event would have kept, and for which reason it would have ended most of the others.
type Share struct {
	Kept int
	Why  string // the most frequent reason; "": there was none
}

// Hour is what became known in an hour of the clock. Its numbers are those of all looks together.
type Hour struct {
	Begin                  time.Time // UTC
	Looks                  int
	Sessions               int
	Failover, Node, Server Share
	Open                   int   // transactions that were open, of sessions that would have outlived their server
	Replayed               Share // of these
}

// History is what became known of the sessions of a listener's clients in the last week, hour by hour. Its zero value
// is empty.
type History struct {
	mu    sync.Mutex
	hours []Hour            // guarded by mu; the last one goes on
	why   [4]map[string]int // guarded by mu; the reasons of the last one
}

// Take adds a look at all sessions.
func (h *History) Take(now time.Time, groups []Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begin := now.UTC().Truncate(time.Hour)
	if n := len(h.hours); n == 0 || begin.After(h.hours[n-1].Begin) { // a clock that is set back makes no hour
		if h.hours = append(h.hours, Hour{Begin: begin}); len(h.hours) > maxHours {
			h.hours = append(h.hours[:0], h.hours[1:]...)
		}
		for i := range h.why {
			h.why[i] = map[string]int{}
		}
	}
	hour := &h.hours[len(h.hours)-1]
	hour.Looks++
	for _, g := range groups {
		hour.Sessions += g.Sessions
		for i, p := range []Prospect{g.Failover, g.Node, g.Server, g.Transaction} {
			h.add(i, p, g.Sessions)
		}
		if g.Transaction.Fate != "" {
			hour.Open += g.Sessions
		}
	}
}

// add adds n sessions with a prospect to a share of the last hour. The caller holds mu.
func (h *History) add(share int, p Prospect, n int) {
	hour := &h.hours[len(h.hours)-1]
	s := []*Share{&hour.Failover, &hour.Node, &hour.Server, &hour.Replayed}[share]
	reasons := h.why[share]
	switch _, known := reasons[p.Why]; {
	case p.Fate == "":
	case p.Fate != Ends:
		s.Kept += n
	case p.Why != "" && (known || len(reasons) < maxReasons):
		if reasons[p.Why] += n; reasons[p.Why] > reasons[s.Why] || s.Why == "" {
			s.Why = p.Why
		}
	}
}

// Hours returns the hours, oldest first.
func (h *History) Hours() []Hour {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Hour(nil), h.hours...)
}

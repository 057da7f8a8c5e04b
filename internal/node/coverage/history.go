package coverage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/listener/continuity"
)

// Bounds of a history: an hour and a day more than a week, how many applications and users of a day are told apart, and
// how many reasons of a span that is not over.
const (
	maxHours   = 7*24 + 1
	maxDays    = 7 + 1
	maxOwners  = 32
	maxReasons = 64
	maxName    = 63  // bytes of the name of an application or a user, as PostgreSQL has it
	maxReason  = 256 // bytes
)

// Share is how many sessions an event would have kept, and why not the others.
type Share struct {
	Kept int `json:"kept"`
	// Not counts the others by the reason. Of a span that is over it has the most frequent reason only.
	Not map[string]int `json:"not,omitempty"`
}

// Why returns the most frequent reason; "": there is none.
func (s Share) Why() string {
	why := ""
	for _, reason := range slices.Sorted(maps.Keys(s.Not)) {
		if why == "" || s.Not[reason] > s.Not[why] {
			why = reason
		}
	}
	return why
}

// add adds n sessions with a prospect. Of a reason beyond the bound nothing is known but that they were not kept.
func (s *Share) add(p continuity.Prospect, by string, n int) {
	switch {
	case p.Fate == "":
	case p.Fate != continuity.Ends:
		s.Kept += n
	case p.Why != "":
		why := p.Why
		if by != "" {
			why += " (" + by + ")"
		}
		why = cut(why, maxReason)
		if _, known := s.Not[why]; !known && len(s.Not) >= maxReasons {
			return
		}
		if s.Not == nil {
			s.Not = map[string]int{}
		}
		s.Not[why] += n
	}
}

// close forgets all reasons but the most frequent one.
func (s *Share) close() {
	if why := s.Why(); why != "" {
		s.Not = map[string]int{why: s.Not[why]}
	}
}

// Span is what became known in an hour or a day. Its numbers are those of all looks together.
type Span struct {
	Begin    time.Time `json:"begin"` // UTC
	Looks    int       `json:"looks"` // in which there was such a session, of an owner; all of them otherwise
	Sessions int       `json:"sessions"`
	Failover Share     `json:"failover"`
	Node     Share     `json:"node"`
	Server   Share     `json:"server"`
	Open     int       `json:"open,omitempty"`    // transactions that were open, of sessions that would have outlived their server
	Replayed Share     `json:"replayed,omitzero"` // of these
}

func (s *Span) add(g continuity.Group) {
	s.Sessions += g.Sessions
	s.Failover.add(g.Failover, g.Statement, g.Sessions)
	s.Server.add(g.Server, g.Statement, g.Sessions)
	if g.Node == g.Server {
		s.Node.add(g.Node, g.Statement, g.Sessions)
	} else { // a reason of its own, which no statement has caused
		s.Node.add(g.Node, "", g.Sessions)
	}
	s.Replayed.add(g.Transaction, "", g.Sessions)
	if g.Transaction.Fate != "" {
		s.Open += g.Sessions
	}
}

func (s *Span) close() {
	for _, x := range []*Share{&s.Failover, &s.Node, &s.Server, &s.Replayed} {
		x.close()
	}
}

// Owner is an application and a user.
type Owner struct {
	Application string `json:"application"`
	User        string `json:"user"`
	Others      bool   `json:"others,omitempty"` // several of them, which are not named
}

// Owned is what became known of the sessions of an owner in a day.
type Owned struct {
	Owner
	Span
}

// History is what became known of the sessions of a listener's clients in the last week. Its zero value is empty.
type History struct {
	Hours  []Span  `json:"hours"`  // of all sessions, oldest first; the last one may go on
	Owners []Owned `json:"owners"` // of a day each, oldest first
}

// take adds a look at all sessions.
func (h *History) take(now time.Time, groups []continuity.Group) {
	now = now.UTC()
	h.forget(now)
	hour := h.hour(now.Truncate(time.Hour))
	hour.Looks++
	day := now.Truncate(24 * time.Hour)
	for i := range h.Owners {
		if h.Owners[i].Begin.Before(day) {
			h.Owners[i].close()
		}
	}
	seen := map[Owner]bool{}
	for _, g := range groups {
		hour.add(g)
		o := h.owned(day, ownerOf(g))
		o.add(g)
		if !seen[o.Owner] {
			seen[o.Owner] = true
			o.Looks++
		}
	}
}

// forget forgets what is older than a week, and what a clock that was wrong has put into the future.
func (h *History) forget(now time.Time) {
	outside := func(begin time.Time, span time.Duration, most int) bool {
		return begin.After(now) || now.Sub(begin) >= time.Duration(most)*span
	}
	h.Hours = slices.DeleteFunc(h.Hours, func(s Span) bool { return outside(s.Begin, time.Hour, maxHours) })
	h.Owners = slices.DeleteFunc(h.Owners, func(o Owned) bool { return outside(o.Begin, 24*time.Hour, maxDays) })
}

// hour returns the span of an hour, which is made if there is none. After a clock was set back the hour is not the last
// one.
func (h *History) hour(begin time.Time) *Span {
	i, found := slices.BinarySearchFunc(h.Hours, begin, func(s Span, t time.Time) int { return s.Begin.Compare(t) })
	if !found {
		for k := range h.Hours[:i] {
			h.Hours[k].close()
		}
		h.Hours = slices.Insert(h.Hours, i, Span{Begin: begin})
	}
	return &h.Hours[i]
}

// owned returns the span of an owner's day, which is made if there is none. Owners beyond the bound are joined.
func (h *History) owned(day time.Time, owner Owner) *Owned {
	of := 0
	for i := range h.Owners {
		if o := &h.Owners[i]; o.Begin.Equal(day) {
			if of++; o.Owner == owner {
				return o
			}
		}
	}
	if of >= maxOwners && !owner.Others {
		return h.owned(day, Owner{Others: true})
	}
	h.Owners = append(h.Owners, Owned{Owner: owner, Span: Span{Begin: day}})
	return &h.Owners[len(h.Owners)-1]
}

func ownerOf(g continuity.Group) Owner {
	if g.Others {
		return Owner{Others: true}
	}
	return Owner{Application: cut(g.Application, maxName), User: cut(g.User, maxName)}
}

// cut returns a text with at most so many bytes of whole characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// copied returns a history that shares nothing with h.
func (h *History) copied() History {
	out := History{Hours: slices.Clone(h.Hours), Owners: slices.Clone(h.Owners)}
	for i := range out.Hours {
		out.Hours[i].separate()
	}
	for i := range out.Owners {
		out.Owners[i].separate()
	}
	slices.SortStableFunc(out.Owners, func(a, b Owned) int {
		others := map[bool]int{true: 1}
		return cmp.Or(a.Begin.Compare(b.Begin), others[a.Others]-others[b.Others], cmp.Compare(a.Application, b.Application), cmp.Compare(a.User, b.User))
	})
	return out
}

func (s *Span) separate() {
	for _, x := range []*Share{&s.Failover, &s.Node, &s.Server, &s.Replayed} {
		x.Not = maps.Clone(x.Not)
	}
}

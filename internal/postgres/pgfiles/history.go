package pgfiles

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// ParseHistory reads a timeline history file: lines of parent id, LSN of the switch, reason; # begins a comment.
func ParseHistory(content string, tli ag.Timeline) ([]ag.TimelineEntry, error) {
	var entries []ag.TimelineEntry
	last := ag.TimelineEntry{}
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("history of timeline %d: %.60q is not a parent and a WAL position", tli, line)
		}
		parent, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %.20q is not a timeline id", tli, fields[0])
		}
		lsn, err := ag.ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %w", tli, err)
		}
		e := ag.TimelineEntry{Parent: ag.Timeline(parent), Switch: lsn}
		if e.Parent <= last.Parent || e.Parent >= tli || lsn < last.Switch {
			return nil, fmt.Errorf("history of timeline %d: parent %d at %s is out of order", tli, e.Parent, lsn)
		}
		last = e
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("history of timeline %d: the file is empty: the id was skipped", tli)
	}
	for k := range entries {
		entries[k].TLI = tli
		if k+1 < len(entries) {
			entries[k].TLI = entries[k+1].Parent
		}
	}
	return entries, nil
}

// Lineage is the sequence of timelines from the first to a tip.
type Lineage []Span

// Span is one timeline of a lineage. It holds the WAL from begin (included) to end (excluded).
type Span struct {
	TLI        ag.Timeline
	begin, end ag.LSN
}

// MaxLSN is beyond every position.
const MaxLSN = ^ag.LSN(0)

// NewLineage returns the timelines that lead to tip.
func NewLineage(tip ag.Timeline, entries []ag.TimelineEntry) Lineage {
	var l Lineage
	begin := ag.LSN(0)
	for _, e := range entries {
		l = append(l, Span{TLI: e.Parent, begin: begin, end: e.Switch})
		begin = e.Switch
	}
	return append(l, Span{TLI: tip, begin: begin, end: MaxLSN})
}

// Contains reports whether the position lies on the lineage; both ends of a span count as being on it.
func (l Lineage) Contains(p ag.Position) bool {
	for _, s := range l {
		if s.TLI == p.Timeline {
			return p.LSN >= s.begin && p.LSN <= s.end
		}
	}
	return false
}

// at returns the timeline on which the byte at lsn was written.
func (l Lineage) at(lsn ag.LSN) ag.Timeline {
	for _, s := range l {
		if lsn < s.end {
			return s.TLI
		}
	}
	return l[len(l)-1].TLI
}

// CommonAncestor returns where two lineages part; ok is false if they have no timeline in common.
func CommonAncestor(a, b Lineage) (fork ag.Position, ok bool) {
	for k := range min(len(a), len(b)) {
		if a[k].TLI != b[k].TLI || a[k].begin != b[k].begin {
			break
		}
		fork = ag.Position{Timeline: a[k].TLI, LSN: min(a[k].end, b[k].end)}
		if a[k].end != b[k].end {
			break
		}
	}
	return fork, fork.Timeline != 0
}

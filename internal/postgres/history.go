package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// History returns the ancestry of a timeline from its pg_wal/<tli>.history: one entry per timeline from the eldest that
// left its parent up to tli itself, each with its parent and the LSN where it leaves it. Timeline 1 has no file and an
// empty history. Epoch is not known to PostgreSQL and left zero. The error wraps os.ErrNotExist if the file is not here.
func (i *Instance) History(ctx context.Context, tli ag.Timeline) ([]ag.TimelineEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", tli, err)
	}
	if tli <= 1 {
		return nil, nil
	}
	content, err := os.ReadFile(i.historyPath(tli))
	if err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", tli, err)
	}
	return parseHistory(string(content), tli)
}

// parseHistory reads a timeline history file: lines of parent id, LSN of the switch, reason; # begins a comment.
func parseHistory(content string, tli ag.Timeline) ([]ag.TimelineEntry, error) {
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

// lineage is the way from the first timeline to a tip.
type lineage []span

// span is one timeline of a lineage: it holds the WAL from begin (included) to end (excluded).
type span struct {
	tli        ag.Timeline
	begin, end ag.LSN
}

const maxLSN = ^ag.LSN(0)

func (i *Instance) lineage(ctx context.Context, tip ag.Timeline) (lineage, error) {
	entries, err := i.History(ctx, tip)
	if err != nil {
		return nil, err
	}
	return newLineage(tip, entries), nil
}

func newLineage(tip ag.Timeline, entries []ag.TimelineEntry) lineage {
	var l lineage
	begin := ag.LSN(0)
	for _, e := range entries {
		l = append(l, span{tli: e.Parent, begin: begin, end: e.Switch})
		begin = e.Switch
	}
	return append(l, span{tli: tip, begin: begin, end: maxLSN})
}

// contains reports whether the position lies on the lineage; both ends of a span count as being on it.
func (l lineage) contains(p ag.Position) bool {
	for _, s := range l {
		if s.tli == p.Timeline {
			return p.LSN >= s.begin && p.LSN <= s.end
		}
	}
	return false
}

// at returns the timeline on which the byte at lsn was written.
func (l lineage) at(lsn ag.LSN) ag.Timeline {
	for _, s := range l {
		if lsn < s.end {
			return s.tli
		}
	}
	return l[len(l)-1].tli
}

func (i *Instance) historyPath(tli ag.Timeline) string {
	return i.path("pg_wal", fmt.Sprintf("%08X.history", uint32(tli)))
}

// historyFiles returns the size of every history file by timeline.
func (i *Instance) historyFiles() (map[ag.Timeline]int64, error) {
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return nil, fmt.Errorf("list timelines: %w", err)
	}
	files := map[ag.Timeline]int64{}
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".history")
		if !ok || len(hex) != 8 {
			continue
		}
		id, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list timelines: %w", err)
		}
		files[ag.Timeline(id)] = info.Size()
	}
	return files, nil
}

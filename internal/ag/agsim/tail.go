package agsim

import "github.com/coteriedb/coterie/internal/ag"

// This file is how a candidate gets the end of the longest log from a member that may not be promoted.

// feed opens and closes node i for the candidate of the epoch it has sealed.
func (m *Model) feed(w *World, i int, v ag.View) {
	n := &w.nodes[i]
	n.feeds, n.feedTo = 0, 0
	if to, ok := v.Feeds(); ok {
		n.feeds, n.feedTo = uint16(v.Record.Epoch.Epoch), uint8(index(to)+1)
	}
}

// mayFetch reports whether node j streams from src, its source, as a candidate does.
func (m *Model) mayFetch(w *World, j, src int) bool {
	n, s := &w.nodes[j], &w.nodes[src]
	return s.up && s.server == recovery && s.feeds != 0 && s.feeds == n.sourceEp && int(s.feedTo) == j+1
}

// fetch carries one record, unless the histories differ.
func (m *Model) fetch(w *World, j, src int) {
	n, s := &w.nodes[j], &w.nodes[src]
	depth := m.logs.depth(n.log)
	if depth > m.logs.depth(s.log) || m.logs.tli(m.logs.at(s.log, depth)) != m.logs.tli(n.log) {
		n.refused = true
		return
	}
	r := m.logs.of(m.logs.at(s.log, depth+1))
	n.log = m.logs.append(n.log, r.tli, r.writer)
}

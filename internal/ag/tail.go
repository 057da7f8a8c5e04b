package ag

import (
	"fmt"
	"slices"
)

// This file is what becomes of a longest log that may not be promoted: its replica is MANUAL or suspended, or its copy is not trusted.
//
// What is acknowledged is on some member of any |V| - k + 1 of V, so it is in the longest log of as many. Either enough members are left
// when those ahead of a copy that may be promoted are taken out; or the candidate fetches from the longest log what its own lacks, and then
// it has the longest log. Both logs stand still but for that: who sealed takes no WAL of an older epoch, and nobody leads this one.

// spared returns the furthest copy that may be promoted without those ahead of it: as many as are needed are not further than it is, so
// what the others have beyond it was never acknowledged.
func (v View) spared(ofV []SealReport) (SealReport, bool) {
	var fit []SealReport
	for _, s := range ofV {
		behind := 0
		for _, t := range ofV {
			if t.Position.Compare(s.Position) <= 0 {
				behind++
			}
		}
		if s.Promotable && behind >= v.Record.State.SealsNeeded() {
			fit = append(fit, s)
		}
	}
	return v.furthest(fit), len(fit) > 0
}

// tail returns whose log this candidate, which may be promoted, lacks the end of and can take it from: the longest of enough seals, of
// which its own copy is a beginning.
func (v View) tail() (from SealReport, ok bool) {
	in := v.sealed()
	from = v.furthest(in.ofV)
	i := slices.IndexFunc(in.ofV, func(s SealReport) bool { return s.Member == v.Self && s.Copy == v.Local.Copy })
	if !in.suffice || i < 0 || from.Member == v.Self || !in.ofV[i].Promotable {
		return from, false
	}
	return from, v.Record.State.begins(in.ofV[i].Position, from.Position)
}

// fetchTail has this candidate stream from the member with the longest log, in the epoch that is being sealed. It is done when the copy
// here is as far; until then nobody is chosen, whatever becomes of either.
func (v View) fetchTail(from SealReport, ask AskSeals) Plan {
	p := Plan{
		Rule: RuleFetch, Actions: []Action{ask},
		Because: fmt.Sprintf("%s has the longest log, up to %s, and may not be promoted: fetching what this copy lacks of it", from.Member, from.Position),
	}
	if !v.reaches(from.Member) {
		p.Because = fmt.Sprintf("%s has the longest log, up to %s, and does not answer: this copy waits for what it lacks of it; start that node, or force a failover and lose it",
			from.Member, from.Position)
	}
	if v.Local.Server == ServerDown {
		p.Actions = append(p.Actions, Start{})
	}
	if v.Local.Source != from.Member || v.Local.SourceEp != v.epoch() {
		p.Actions = append(p.Actions, Follow{Leader: from.Member, Epoch: v.epoch()})
	}
	return p
}

// begins reports whether a log that ends at p is a beginning of one that ends at q, by the history of the record. Timeline ids are
// never allotted twice; what the history does not tell is taken for no.
func (s State) begins(p, q Position) bool {
	if p.Timeline == q.Timeline {
		return p.LSN <= q.LSN
	}
	at := func(t Timeline) int {
		return slices.IndexFunc(s.Timelines, func(e TimelineEntry) bool { return e.TLI == t })
	}
	i, j := at(p.Timeline), at(q.Timeline)
	return i >= 0 && i < j && s.Timelines[i+1].Parent == p.Timeline && p.LSN <= s.Timelines[i+1].Switch
}

// Feeds returns who may stream from this node although it does not lead: the candidate of the epoch that is being sealed, once this node
// has promised it. Nothing feeds this node then, so the log that is streamed from it stands still.
func (v View) Feeds() (to ReplicaID, ok bool) {
	e, l := v.Record.Epoch, v.Local
	return e.Leader, e.Phase == PhaseSeal && e.Leader != v.Self && l.Promised == e.Epoch && l.Source == "" && l.Server == ServerRecovery
}

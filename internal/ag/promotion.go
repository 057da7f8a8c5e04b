package ag

import (
	"fmt"
	"slices"
)

// sealOrChoose gathers seals and, with enough of them, names the best copy.
func (v View) sealOrChoose() Plan {
	best, enough := v.best()
	st, ask := v.Record.State, AskSeals{Epoch: v.epoch(), Members: v.askable()}
	if from, ok := v.tail(); ok && !enough {
		return v.fetchTail(from, ask)
	}
	if !enough || v.Sealed < SealGrace && len(v.Seals) < len(ask.Members) {
		because := fmt.Sprintf("%d of %d seals needed", len(v.Seals), st.SealsNeeded())
		if v.sealed().suffice && !enough {
			because = fmt.Sprintf("%s has the longest log, may not be promoted, and cannot be fetched from: waiting for another member, or for an operator", best.Member)
		}
		p := Plan{Rule: RuleSeal, Because: because, Actions: []Action{ask}}
		if v.Silence >= v.Profile.Progress() && v.sound() {
			p.Actions = v.start(ask) // only with its server up may who led last outbid itself, and hear what the others say now
		}
		return p
	}
	e := v.Record.Epoch
	e.Phase, e.Leader, e.MaxTLI = PhasePromote, best.Member, e.MaxTLI+1
	e.TLI, e.From, e.Copy = e.MaxTLI, best.Position, best.Copy
	e.V, e.K = v.initialSyncSet(best)
	e.Reason = fmt.Sprintf("%s: the copy of %s is promoted, sealed at %s, the furthest of %d", v.Record.Epoch.Reason, best.Member, best.Position, len(v.Seals))
	return Plan{Rule: RuleChoose, Because: e.Reason, Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, Epoch: &e}}
}

// askable lists whom to ask for a seal: every member of V and every synchronous replica in reach, this node, and the last leader.
func (v View) askable() []ReplicaID {
	ids := []ReplicaID{v.Self}
	for _, m := range v.Record.State.V {
		if !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
	}
	for _, id := range append(v.Group.syncSecondaries(v.Self), v.Record.State.Leader) {
		if !slices.Contains(ids, id) && v.reaches(id) && id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// seals are those that count: a seal counts when its copy is the one in V, or is the last leader's own, which alone suffices.
type seals struct {
	all, ofV []SealReport
	leaderIn bool // the last leader's is there
	suffice  bool // those of V do
}

func (v View) sealed() (in seals) {
	st := v.Record.State
	for _, s := range v.Seals {
		m, counted := st.InV(s.Member)
		counted = counted && m.Copy == s.Copy
		last := s.Member == st.Leader && s.Copy == st.Copy
		if s.Epoch != v.epoch() || !counted && !last {
			continue
		}
		s.Promotable = s.Promotable && (last || v.mayLead(s.Member))
		if l := v.Local; s.Member == v.Self && s.Copy == l.Copy && l.SourceEp == v.epoch() && l.Position.Compare(s.Position) > 0 {
			s.Position = l.Position // it has been fed in this epoch
		}
		in.all, in.leaderIn = append(in.all, s), in.leaderIn || last
		if counted {
			in.ofV = append(in.ofV, s)
		}
	}
	in.suffice = st.K >= 1 && len(in.ofV) >= st.SealsNeeded()
	return in
}

func (v View) furthest(seals []SealReport) (best SealReport) {
	for _, s := range seals {
		if best.Member == "" || s.better(best, v.Self) {
			best = s
		}
	}
	return best
}

// best returns the copy to promote, and whether there are enough seals for it: the furthest, if it may be promoted, else the furthest
// that may be and is not needed to look further (spared).
//
// While the members of V suffice, another candidate leaves the last leader's copy aside: it may be the furthest, but only by what was
// never acknowledged, and its server has just gone down or fallen silent.
func (v View) best() (SealReport, bool) {
	in := v.sealed()
	best, ofV := v.furthest(in.all), v.furthest(in.ofV)
	switch {
	case in.suffice && ofV.Promotable && v.Self != v.Record.State.Leader:
		return ofV, true
	case in.suffice && !best.Promotable:
		if s, ok := v.spared(in.ofV); ok {
			return s, true
		}
	}
	return best, (in.suffice || in.leaderIn) && best.Promotable
}

// mayLead reports whether the agents may promote the member of their own accord.
func (v View) mayLead(id ReplicaID) bool {
	r, ok := v.Group.Replica(id)
	return ok && r.FailoverMode == Automatic && !r.Suspended
}

// SealsSuffice reports whether the seals so far allow to choose whom to promote. View.Sealed is measured from that moment.
func (v View) SealsSuffice() bool {
	_, enough := v.best()
	return enough
}

// better prefers the longer log; among equals one that can be promoted, and this node, which needs no word sent to it.
func (s SealReport) better(t SealReport, self ReplicaID) bool {
	if c := s.Position.Compare(t.Position); c != 0 {
		return c > 0
	}
	if s.Promotable != t.Promotable {
		return s.Promotable
	}
	return s.Member == self
}

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

// This file is what a new epoch starts with: whom its first commits wait for, and who may lead should its primary die before any of them
// has come (docs/internals/safety.md, "Promotion").
//
// The members that were sealed have promised the epoch and stand still until its leader feeds them. So the candidate knows which of them have
// everything that was ever acknowledged, and (V, k) of the new epoch begins with those: what earlier epochs acknowledged is on them already,
// and what this one acknowledges is on as many as the setting asks for that is in force before the promotion.

// initialSyncSet returns the sealed members, beside the chosen one, whose log is a beginning of its log, and how many of them have everything that was
// acknowledged so far. Who went on elsewhere is to be rewound, and V would keep it from that.
func (v View) initialSyncSet(chosen SealReport) (ms []Member, k int) {
	in, all := v.sealed(), v.acknowledged(chosen.Position)
	eligible := v.Group.syncSecondaries(chosen.Member)
	for _, s := range in.all {
		if !slices.Contains(eligible, s.Member) || !v.Record.State.begins(s.Position, chosen.Position) {
			continue
		}
		ms = append(ms, Member{s.Member, s.Copy})
		if s.Position.Compare(all) >= 0 {
			k++
		}
	}
	return ms, k
}

// HandoverSyncSet returns what the epoch of a planned failover starts with, once the server of this node has stopped: this node, which has everything,
// and the members of V that streamed from it, all but the target, whose logs are beginnings of its log.
func (v View) HandoverSyncSet(to ReplicaID) (ms []Member, k int) {
	st, eligible := v.Record.State, v.Group.syncSecondaries(to)
	if !slices.Contains(eligible, v.Self) {
		return nil, 0
	}
	ms = append(ms, Member{v.Self, st.Copy})
	for _, m := range st.V {
		if s, ok := v.stream(m.ID); ok && s.Open && s.Copy == m.Copy && slices.Contains(eligible, m.ID) {
			ms = append(ms, m)
		}
	}
	return ms, 1
}

// acknowledged returns a position that no acknowledged commit lies behind. Each is on k of V: if those that are not sealed have it, on so
// many fewer of those that are. Where that leaves none, it is only known to be in the chosen log.
func (v View) acknowledged(chosen Position) Position {
	st, in := v.Record.State, v.sealed()
	n := st.K - (len(st.V) - len(in.ofV))
	if n < 1 || n > len(in.ofV) { // the latter in no record that is in order
		return chosen
	}
	slices.SortFunc(in.ofV, func(s, t SealReport) int { return t.Position.Compare(s.Position) })
	return in.ofV[n-1].Position
}

// firstSyncSet returns the (V, k) that the epoch starts with: k members have what was acknowledged before, and what is acknowledged under the
// setting in force is on as many of V as it asks for, but for those outside.
func (v View) firstSyncSet() ([]Member, int) {
	e, set := v.Record.Epoch, v.Local.Sync
	st := State{V: slices.Clone(e.V)}
	for k := e.K; k >= 1; k-- {
		if st.K = k; st.Holds(set) {
			return st.V, k
		}
	}
	return []Member{}, 0
}

// FirstSync is the setting a new primary starts with, in force before promotion: it is protected from its first commit
// (docs/internals/safety.md, "Promotion"). It waits for the heirs, if they are enough.
func (v View) FirstSync() Sync {
	eligible := v.Group.syncSecondaries(v.Self)
	_, required := v.Group.CommitTarget(len(eligible))
	var initial, p []ReplicaID
	for _, id := range eligible {
		if slices.ContainsFunc(v.Record.Epoch.V, func(m Member) bool { return m.ID == id }) {
			initial = append(initial, id)
		}
		if v.reaches(id) || slices.ContainsFunc(v.Seals, func(s SealReport) bool { return s.Member == id }) {
			p = append(p, id)
		}
	}
	switch {
	case len(initial) >= max(1, required):
		p = initial
	case len(p) < required:
		p = eligible
	}
	slices.Sort(p)
	return Sync{P: p, N: min(max(1, required), len(p))}
}

// promoteOrLead promotes this node's server and, once it is seen writable on the timeline of the epoch, takes the rights.
func (v View) promoteOrLead() Plan {
	e := v.Record.Epoch
	if v.Local.Server != ServerWritable || v.Local.EndOfRec == 0 {
		if e.Copy != "" && e.Copy != v.Local.Copy {
			return v.giveUp("chosen with another copy than the one that is here now")
		}
		switch v.Local.Server {
		case ServerDown:
			if v.Local.Data != DataPresent {
				return v.giveUp("chosen, but the data directory is " + string(v.Local.Data))
			}
			return Plan{Rule: RuleStart, Because: "to be promoted", Actions: []Action{Start{}}}
		case ServerStarting:
			return Plan{Rule: RuleStart, Because: "starting, to be promoted"}
		case ServerRecovery:
			if v.Local.Position.Timeline >= e.TLI {
				return v.promoteAgain()
			}
		case ServerWritable: // where its recovery ended is not known yet
		}
		return Plan{
			Rule: RulePromote, Because: fmt.Sprintf("chosen for epoch %d at %s", e.Epoch, e.From),
			Actions: []Action{Promote{Epoch: e.Epoch, TLI: e.TLI, Sync: v.FirstSync()}},
		}
	}
	st := State{
		Epoch: e.Epoch, Leader: v.Self, Copy: v.Local.Copy,
		Basis: Position{e.TLI, v.Local.EndOfRec}, Timelines: v.history(), Setting: v.Local.Sync.Setting(), Seq: v.Record.State.Seq + 1,
	}
	st.V, st.K = v.firstSyncSet()
	e.Phase, e.Copy, e.V, e.K = PhaseLead, "", nil, 0
	if last := v.Record.State; last.Leader != v.Self && v.reaches(last.Leader) {
		st.Former = Member{last.Leader, last.Copy}
	}
	return Plan{
		Rule: RuleLead, Because: fmt.Sprintf("promoted to timeline %d at %s", e.TLI, v.Local.EndOfRec),
		Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, Epoch: &e, State: &st},
	}
}

// giveUp ends the renewals of a chosen replica that no longer has what was chosen, so that others may outbid it.
func (v View) giveUp(why string) Plan {
	if v.released() {
		return Plan{Rule: RuleStandBy, Because: why}
	}
	return v.release(why)
}

// promoteAgain gives this copy another epoch and timeline id: its promotion ended, but it went down before it led, and no timeline id
// is used twice. No new seals are needed: nobody led since it was chosen, those who sealed kept their promise, and its log passed
// through the timeline that was allotted to the choice, hence is the log that was chosen.
func (v View) promoteAgain() Plan {
	e := v.Record.Epoch
	e.Epoch, e.MaxTLI, e.From = e.Epoch+1, e.MaxTLI+1, v.Local.Position
	e.TLI = e.MaxTLI
	e.Reason = fmt.Sprintf("the promotion to timeline %d was interrupted", v.Record.Epoch.TLI)
	return Plan{Rule: RulePromoteAgain, Because: e.Reason, Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, Epoch: &e}}
}

// history tags the timelines of the promoted copy with the epochs the record knows them by.
func (v View) history() []TimelineEntry {
	h := slices.Clone(v.Local.History)
	for i := range h {
		for _, old := range v.Record.State.Timelines {
			if old.TLI == h[i].TLI {
				h[i].Epoch, h[i].Until = old.Epoch, old.Until
			}
		}
		if e := v.Record.Epoch; h[i].TLI == e.TLI {
			h[i].Epoch = v.epoch()
			if e.From.Timeline == h[i].Parent && e.From.LSN > h[i].Switch {
				h[i].Until = e.From.LSN
			}
		}
	}
	return h
}

package ag

import (
	"fmt"
	"slices"
	"time"
)

// sealOrChoose gathers seals and, with enough of them, chooses the best copy.
func (v *View) sealOrChoose() Plan {
	best, enough := v.best()
	st, ask := v.Record.State, AskSeals{Epoch: v.epoch(), Members: v.askable()}
	if from, ok := v.tail(); ok && (!enough || v.sooner(from)) {
		return v.fetchTail(from, ask)
	}
	if !enough || v.Sealed < SealGrace && len(v.Seals) < len(ask.Members) {
		because := fmt.Sprintf("%d of %d seals needed", len(v.Seals), st.SealsNeeded())
		if v.sealed().suffice && !enough {
			because = fmt.Sprintf("%s has the longest log, may not be promoted, and cannot be fetched from: waiting for another member, or for an operator", best.Member)
		}
		if i := slices.IndexFunc(v.Seals, v.forked); i >= 0 && !enough && v.Seals[i].Member != st.Leader {
			because += fmt.Sprintf("; %s does not count: a forced failover promoted it and did not come to lead", v.Seals[i].Member)
		}
		p := Plan{Rule: RuleSeal, Because: because, Actions: []Action{ask}}
		if v.Silence >= v.Profile.Progress() && v.sound() {
			p.Actions = v.start(ask) // a candidate that led last can outbid itself, and ask again, only with its server up
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

// askable lists the members to ask for a seal: this node, every member of V, every synchronous replica in reach, and
// the last leader.
func (v *View) askable() []ReplicaID {
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

// seals are the seals that count. A seal counts if its copy is the one in V, or if it is the last leader's own, which
// is enough alone. A copy in V does not count if a forced failover promoted it and did not come to lead. The last
// leader's own lacks nothing all the same.
type seals struct {
	all, ofV []SealReport
	leaderIn bool // the last leader's is among them
	suffice  bool // those of V are enough
}

func (v *View) sealed() (in seals) {
	st := v.Record.State
	for _, s := range v.Seals {
		m, counted := st.InV(s.Member)
		counted = counted && m.Copy == s.Copy
		last := s.Member == st.Leader && s.Copy == st.Copy
		if s.Epoch != v.epoch() || !last && (!counted || v.forked(s)) {
			continue
		}
		s.Promotable = s.Promotable && (last || v.mayLead(s.Member))
		if l := v.Local; s.Member == v.Self && s.Copy == l.Copy && l.SourceEp == v.epoch() && l.Position.Compare(s.Position) > 0 {
			s.Position = l.Position // it was fed in this epoch
		}
		in.all, in.leaderIn = append(in.all, s), in.leaderIn || last
		if counted {
			in.ofV = append(in.ofV, s)
		}
	}
	in.suffice = st.K >= 1 && len(in.ofV) >= st.SealsNeeded()
	return in
}

// forked reports whether a copy was promoted by a forced failover that did not come to lead. It may lack acknowledged
// commits, whose loss was accepted for that failover alone.
func (v *View) forked(s SealReport) bool {
	return slices.Contains(v.Record.Epoch.Unled, s.Position.Timeline)
}

func (v *View) furthest(seals []SealReport) (best SealReport) {
	for _, s := range seals {
		if best.Member == "" || s.better(best, v.Self) {
			best = s
		}
	}
	return best
}

// best returns the copy to promote, and whether there are enough seals to promote it. It is the furthest copy, if that
// may be promoted. Otherwise it is the furthest copy that may be promoted and is far enough (spared).
//
// While the members of V are enough, another candidate does not choose the last leader's copy. That copy may be the
// furthest, but its additional records were never acknowledged, and its server has just gone down or fallen silent.
func (v *View) best() (SealReport, bool) {
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

// mayLead reports whether the configuration allows that the agents promote the member without a person. It judges
// members of which this node knows no more: whether a member's copy is sound and in V, its own electable says, by the
// Promotable of its seal.
func (v *View) mayLead(id ReplicaID) bool {
	r, ok := v.Group.Replica(id)
	return ok && r.FailoverMode == Automatic && !r.Suspended && r.Options.Maintenance == nil
}

// SealsSuffice reports whether a copy can be chosen from the seals so far. View.Sealed is measured from that moment.
func (v *View) SealsSuffice() bool {
	_, enough := v.best()
	return enough
}

// better prefers the longer log. Among equals it prefers a copy that may be promoted, then one that has little to
// replay, then this node, which needs no message.
func (s SealReport) better(t SealReport, self ReplicaID) bool {
	if c := s.Position.Compare(t.Position); c != 0 {
		return c > 0
	}
	if s.Promotable != t.Promotable {
		return s.Promotable
	}
	if s.Late != t.Late {
		return t.Late
	}
	return s.Member == self
}

// The next functions handle a longest log that may not be promoted: its replica is MANUAL or suspended, or its copy is
// not trusted.
//
// An acknowledged commit is on some member of any |V| - k + 1 members of V, so it is in the longest log of that many.
// There are two ways out. Either enough members are left without those that are ahead of a copy that may be promoted.
// Or the candidate fetches from the longest log what its own log lacks, and then has the longest log. Neither log moves
// otherwise: a member that sealed takes no WAL of an older epoch, and no member leads this one.

// spared returns the furthest copy that may be promoted without the members ahead of it. As many members as are needed
// are not further than it, so what the others have beyond it was never acknowledged.
func (v *View) spared(ofV []SealReport) (SealReport, bool) {
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

// tail returns the member from whose log this candidate can fetch the end that its own log lacks: the longest of enough
// seals. ok is false unless this copy may be promoted and its log is a prefix of that one.
func (v *View) tail() (from SealReport, ok bool) {
	in := v.sealed()
	from = v.furthest(in.ofV)
	i := slices.IndexFunc(in.ofV, func(s SealReport) bool { return s.Member == v.Self && s.Copy == v.Local.Copy })
	if !in.suffice || i < 0 || from.Member == v.Self || !in.ofV[i].Promotable {
		return from, false
	}
	return from, v.Record.State.begins(in.ofV[i].Position, from.Position)
}

// tailPatience is how long a candidate tries to fetch the end of a log that could be promoted as well.
const tailPatience = 3 * time.Second

// sooner reports whether this copy is to be promoted in place of the furthest one, which could be promoted and has long
// to replay, once it has the end of its log.
func (v *View) sooner(furthest SealReport) bool {
	own := slices.IndexFunc(v.Seals, func(s SealReport) bool { return s.Member == v.Self })
	return furthest.Late && furthest.Promotable && own >= 0 && !v.Seals[own].Late && v.Local.Server == ServerRecovery && v.reaches(furthest.Member) && v.Sealed < tailPatience
}

// fetchTail streams from the member with the longest log, in the epoch that is being sealed, until this copy is as far.
// No copy is chosen before that.
func (v *View) fetchTail(from SealReport, ask AskSeals) Plan {
	p := Plan{
		Rule: RuleFetch, Actions: []Action{ask},
		Because: fmt.Sprintf("%s has the longest log, up to %s, and may not be promoted: fetching what this copy lacks of it", from.Member, from.Position),
	}
	if from.Promotable {
		p.Because = fmt.Sprintf("%s has the longest log, up to %s, and long to replay: fetching what this copy lacks of it", from.Member, from.Position)
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

// begins reports whether a log that ends at p is a prefix of one that ends at q, by the history of the record. Timeline
// ids are never allotted twice. If the history does not tell, the answer is no.
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

// Feeds returns the member that may stream from this node although this node does not lead. It is the candidate of the
// epoch that is being sealed, AFTER this node has promised it that epoch. Nothing feeds this node then, so the log that
// is streamed does not move.
func (v *View) Feeds() (to ReplicaID, ok bool) {
	e, l := v.Record.Epoch, v.Local
	return e.Leader, e.Phase == PhaseSeal && e.Leader != v.Self && l.Promised == e.Epoch && l.Source == "" && l.Server == ServerRecovery
}

// The next functions decide which members the first commits of a new epoch wait for, and which may lead if its primary
// dies before any of them has connected (docs/internals/safety.md, "Promotion").
//
// The sealed members have promised the epoch, and their logs do not move until its leader feeds them. So the candidate
// knows which of them hold everything that was ever acknowledged, and (V, k) of the new epoch begins with those. The
// commits of earlier epochs are on them already. The commits of this epoch are on as many members as the setting
// requires, which is in force before the promotion.

// initialSyncSet returns the sealed members whose WAL is a prefix of the chosen member's, and how many of them hold
// every acknowledged commit. Diverged members are left out: they must be rewound, and a member of V never is.
func (v *View) initialSyncSet(chosen SealReport) (ms []Member, k int) {
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

// HandoverSyncSet returns the members that the epoch of a planned failover to a replica starts with, AFTER the server
// of this node has stopped. They are this node, which has everything, and the members of V other than the target that
// streamed from it. Their logs are prefixes of its log.
func (v *View) HandoverSyncSet(to ReplicaID) (ms []Member, k int) {
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

// acknowledged returns a position before which every acknowledged commit ends. Each commit is on k members of V. Even
// if all unsealed members hold it, n of the sealed ones must hold it too. If n is below one, it is only known to be in
// the chosen log.
func (v *View) acknowledged(chosen Position) Position {
	st, in := v.Record.State, v.sealed()
	n := st.K - (len(st.V) - len(in.ofV))
	if n < 1 || n > len(in.ofV) { // n > len(in.ofV) in no valid record
		return chosen
	}
	slices.SortFunc(in.ofV, func(s, t SealReport) int { return t.Position.Compare(s.Position) })
	return in.ofV[n-1].Position
}

// firstSyncSet returns the (V, k) that the epoch starts with. k members hold every commit that was acknowledged before.
// A commit that is acknowledged under the setting in force is on at least k members of V as well.
func (v *View) firstSyncSet() ([]Member, int) {
	e, set := v.Record.Epoch, v.Local.Sync
	st := State{V: slices.Clone(e.V)}
	for k := e.K; k >= 1; k-- {
		if st.K = k; st.Holds(set) {
			return st.V, k
		}
	}
	return []Member{}, 0
}

// FirstSync returns the setting that a new primary starts with. It is in force BEFORE the promotion, so that the first
// commit is protected (docs/internals/safety.md, "Promotion"). It waits for the members of the epoch's V, if they are
// enough.
func (v *View) FirstSync() Sync {
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

// Expected returns the epoch in which this node may be promoted soon, and the setting that it would start with. ok is
// false while nothing shows that a failover is near. Both are a guess, made so that the setting can be put before the
// server in advance: which members seal is not known yet. The promotion compares it with FirstSync.
func (v *View) Expected() (e Epoch, s Sync, ok bool) {
	r, l := v.Record, v.Local
	switch {
	case !v.Quorum || l.Server != ServerRecovery || l.Quarantine != "" || !slices.ContainsFunc(r.State.V, func(m Member) bool { return m.ID == v.Self }):
		return 0, Sync{}, false
	case r.Epoch.Phase == PhaseSeal && l.Promised == r.Epoch.Epoch:
		e = r.Epoch.Epoch
	case r.Epoch.Phase == PhaseLead && v.Voting.Withheld == r.Epoch.Epoch && r.Epoch.Epoch != 0:
		e = r.Epoch.Epoch + 1
	default:
		return 0, Sync{}, false
	}
	next := *v
	next.Record.Epoch.V = slices.DeleteFunc(slices.Clone(r.State.V), func(m Member) bool { return m.ID == r.State.Leader })
	return e, next.FirstSync(), true
}

// promoteOrLead promotes this node's server, and takes the rights AFTER a view has shown the server writable on the
// timeline of the epoch.
func (v *View) promoteOrLead() Plan {
	e := v.Record.Epoch
	if v.Local.Server != ServerWritable || v.Local.EndOfRec == 0 {
		if e.Copy != "" && e.Copy != v.Local.Copy {
			return v.giveUp("chosen with another copy than the one that is here now: " + v.saidBereft())
		}
		if v.forsaken() {
			return v.giveUp("chosen, and its copy is to be made anew: " + v.Local.Renew + "; " + v.saidBereft())
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
			if v.Local.Position.Timeline >= e.TLI || v.released() { // what was released is renewed no more
				return v.promoteAgain()
			}
		case ServerWritable: // the end of its recovery is not known yet
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
	e.Phase, e.Copy, e.V, e.K, e.Unled = PhaseLead, "", nil, 0, nil
	if last := v.Record.State; last.Leader != v.Self && v.reaches(last.Leader) {
		st.Former = Member{last.Leader, last.Copy}
	}
	return Plan{
		Rule: RuleLead, Because: fmt.Sprintf("promoted to timeline %d at %s", e.TLI, v.Local.EndOfRec),
		Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, Epoch: &e, State: &st},
	}
}

// giveUp ends the renewals of a chosen replica that no longer has the chosen copy, so that others may outbid it.
func (v *View) giveUp(why string) Plan {
	if v.released() {
		return Plan{Rule: RuleStandBy, Because: why}
	}
	return v.release(why)
}

// promoteAgain gives this copy another epoch and timeline id. Either its promotion ended, but its server went down
// before it led, and no timeline id is used twice. Or its agent was stopped in order meanwhile and released the epoch.
// No new seals are needed: no member led since the copy was chosen, and the members that sealed kept their promise. The
// log is the one that was chosen, or passed through the timeline that was allotted to the choice.
func (v *View) promoteAgain() Plan {
	e := v.Record.Epoch
	e.Unled = e.unled()
	e.Epoch, e.MaxTLI, e.From = e.Epoch+1, e.MaxTLI+1, v.Local.Position
	e.TLI = e.MaxTLI
	e.Reason = fmt.Sprintf("the promotion to timeline %d %s", v.Record.Epoch.TLI, saidInterrupted)
	return Plan{Rule: RulePromoteAgain, Because: e.Reason, Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, Epoch: &e}}
}

// history adds to the timelines of the promoted copy the epochs by which the record knows them.
func (v *View) history() []TimelineEntry {
	h := slices.Clone(v.Local.History)
	for i := range h {
		for _, old := range v.Record.State.Timelines {
			if old.TLI == h[i].TLI {
				h[i].Epoch, h[i].Leader, h[i].Until, h[i].Xids, h[i].Reused = old.Epoch, old.Leader, old.Until, old.Xids, old.Reused
			}
		}
		if e := v.Record.Epoch; h[i].TLI == e.TLI {
			h[i].Epoch, h[i].Leader, h[i].Xids = v.epoch(), v.Self, v.Local.Xids
			if e.From.Timeline == h[i].Parent && e.From.LSN > h[i].Switch {
				h[i].Until = e.From.LSN
			}
		}
	}
	return h
}

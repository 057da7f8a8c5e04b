package ag

import (
	"fmt"
	"slices"
	"time"
)

// electable reports whether this copy may be promoted without a person: it is counted in V, so that it is one of those that
// may hold every acknowledged commit, and its replica is configured for it.
func (v View) electable() bool {
	m, in := v.Record.State.InV(v.Self)
	r := v.me()
	return in && m.Copy == v.Local.Copy && v.sound() && !r.Suspended &&
		r.AvailabilityMode == SynchronousCommit && r.FailoverMode == Automatic
}

// ledLast reports whether this copy is the one the last LEAD named: it may lead again with nobody's seal but its own.
func (v View) ledLast() bool {
	s := v.Record.State
	return s.Leader == v.Self && s.Copy == v.Local.Copy && v.sound()
}

// quorumInReach reports whether enough members of V answer for a seal to succeed; a leader is not deposed in vain.
func (v View) quorumInReach() bool {
	n := 0
	for _, m := range v.Record.State.V {
		if v.reaches(m.ID) {
			n++
		}
	}
	return n >= v.Record.State.SealsNeeded()
}

func (v View) silent() bool {
	return v.released() || v.Silence >= v.Patience()
}

// Patience returns how long the holder of the present epoch must have been silent before another may claim it: what it declared itself with
// the renewal that the silence is counted from. The profile of the configuration may have been changed since, and it may not know yet.
func (v View) Patience() time.Duration {
	if l := v.Record.Lead; l.Epoch == v.epoch() && l.Observer > 0 {
		return l.Observer
	}
	return v.Profile.Observer
}

func (v View) mayClaim() bool {
	return v.Record.Epoch.Phase == PhaseLead && v.Record.Epoch.Leader != v.Self && v.Record.State.K >= 1 &&
		(v.silent() || v.votes() != nil) && v.electable() && v.quorumInReach() && !v.yields() && !v.defers()
}

func (v View) whyClaim() string {
	if v.released() {
		return fmt.Sprintf("%s released the leadership", v.Record.Epoch.Leader)
	}
	if n := len(v.votes()); n > 0 && !v.silent() {
		return fmt.Sprintf("%d of %d voters saw %s die", n, len(v.Record.Lead.Answer.Voters), v.Record.Epoch.Leader)
	}
	return fmt.Sprintf("%s has been silent for %v", v.Record.Epoch.Leader, v.Silence.Round(10*time.Millisecond))
}

// mayRetake: the record names this node, its server does not lead (it was restarted), and it does not leave the field to others
// after having released.
func (v View) mayRetake() bool {
	return v.is(PhaseLead) && v.ledLast() && v.Local.Server == ServerRecovery && (!v.released() || v.Silence >= ReleaseGrace && !v.yields())
}

func (v View) mayOutbid() bool {
	e := v.Record.Epoch
	if e.Phase == PhaseLead || v.Silence < v.Profile.Progress() || v.Local.Server == ServerWritable {
		return false
	}
	if v.ledLast() && v.Local.Server == ServerRecovery {
		return true
	}
	return v.Record.State.K >= 1 && v.electable() && v.quorumInReach() && e.Leader != v.Self
}

// claim raises the epoch. The transaction compares all three keys, so that the (V, k) it returns is the last one the old leader
// could write (safety specification 1.2). Where the leader has not been silent for long, the transaction compares the votes as well.
func (v View) claim(r Rule, why string) Plan {
	e := EpochRecord{Epoch: v.epoch() + 1, Phase: PhaseSeal, Leader: v.Self, MaxTLI: max(v.Record.Epoch.MaxTLI, v.Record.Epoch.TLI), Reason: why}
	c := &Commit{Guard: v.Record.Revs, Epoch: &e}
	if r == RuleClaim && !v.silent() {
		c.Votes = v.votes()
	}
	return Plan{Rule: r, Because: why, Commit: c}
}

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
	e.V, e.K = v.heirs(best)
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
	st.V, st.K = v.inherited()
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

package ag

import (
	"fmt"
	"slices"
	"time"
)

// Timing of takeover that does not depend on the lease profile.
const (
	// ProgressTimeout is how long, at least, a candidate or a promotion may show no progress before it may be outbid
	// (docs/internals/safety.md, "Epochs and phases", Profile.Progress).
	ProgressTimeout = 1500 * time.Millisecond
	// SealGrace is how long a candidate with enough seals waits for the others, to choose among more copies.
	SealGrace = 150 * time.Millisecond
	// ReleaseGrace is how long a leader that released because its server crashed leaves the leadership to others.
	ReleaseGrace = 3 * time.Second
)

// Rule names the case of Decide that fired. It is logged with its reason, counted, and shown by EXPLAIN FAILOVER.
type Rule string

// The rules, most dangerous case first, in the order Decide tries them.
const (
	RuleFenceDeposed Rule = "fence-deposed" // writable without the right to be
	RuleFenceExpired Rule = "fence-expired" // writable, and the lease ran out
	RuleFenceForeign Rule = "fence-foreign" // acknowledgements no longer keep the record true
	RuleStepDown     Rule = "step-down"     // the primary is ill and another can take over: release
	RuleRestart      Rule = "restart"       // the primary is ill, no other can take over, and a restart may help
	RuleDoubled      Rule = "two-streams"   // a member acknowledges twice, or another program in its name: hold answers, end them
	RuleAwaitQuorum  Rule = "await-quorum"  // no majority of the quorum answers: nothing may be decided (S8)
	RuleVote         Rule = "vote"          // the leader's death was seen: stop acknowledging it, then record the vote
	RuleAcknowledge  Rule = "acknowledge"   // the leader is alive, or this agent has just begun: remove the vote, then acknowledge
	RuleBusy         Rule = "busy"          // a long action is under way
	RuleWitness      Rule = "witness"       // a vote without data
	RuleHoldSealed   Rule = "hold-sealed"   // a later epoch is being formed: take no WAL of an older one (S4)
	RuleForce        Rule = "force"         // an operator accepted the loss
	RuleClaim        Rule = "claim"         // the leader fell silent or released: raise the epoch
	RuleRetake       Rule = "retake"        // the leader of the record comes back before another replica led
	RuleOutbid       Rule = "outbid"        // a candidate or promotion makes no progress
	RuleSeal         Rule = "seal"          // ask the members for promise and position
	RuleFetch        Rule = "fetch-tail"    // the longest log may not be promoted: fetch what this copy lacks of it
	RuleChoose       Rule = "choose"        // enough seals: the best copy is to be promoted
	RulePromote      Rule = "promote"       // this copy was chosen
	RulePromoteAgain Rule = "promote-again" // its promotion was interrupted before it led
	RuleLead         Rule = "lead"          // promoted: take the rights (the point of no return)
	RuleRelease      Rule = "release"       // the server crashed, or the chosen copy does not exist any more: another member may take over
	RuleHandOver     Rule = "hand-over"     // planned failover
	RuleSync         Rule = "sync"          // bring setting and record to what the group wants
	RuleServe        Rule = "serve"         // lead, nothing to change
	RuleQuarantined  Rule = "quarantined"   // the storage lost a write of this copy: not started before a person has decided
	RuleSuspended    Rule = "suspended"     // data movement suspended until RESUME
	RuleSeed         Rule = "seed"          // empty or unusable: make a copy
	RuleReseed       Rule = "reseed"        // diverged and not to be rewound
	RuleRewind       Rule = "rewind"        // diverged: back to the group's history
	RuleAwaitDrop    Rule = "await-drop"    // this copy is still counted in V: the record must drop it first
	RuleStart        Rule = "start"         // start as standby
	RuleReread       Rule = "reread"        // it cannot replay what it received: restarted, it fetches that again, or has the settings that it needs
	RuleFollow       Rule = "follow"        // stream from the leader of this epoch
	RuleStandBy      Rule = "stand-by"      // streaming, or waiting for a leader
)

// Rules lists every rule, for tests that each is exercised and for metrics that begin at zero.
var Rules = []Rule{
	RuleFenceDeposed, RuleFenceExpired, RuleFenceForeign, RuleStepDown, RuleRestart, RuleDoubled, RuleAwaitQuorum, RuleVote, RuleAcknowledge, RuleBusy, RuleWitness, RuleHoldSealed, RuleForce,
	RuleClaim, RuleRetake, RuleOutbid, RuleSeal, RuleFetch, RuleChoose, RulePromote, RulePromoteAgain, RuleLead, RuleRelease, RuleHandOver, RuleSync, RuleServe,
	RuleQuarantined, RuleSuspended, RuleSeed, RuleReseed, RuleRewind, RuleAwaitDrop, RuleStart, RuleReread, RuleFollow, RuleStandBy,
}

// Decide returns what replica v.Self should do next. It is a pure function of v, the same for every node.
//
// The order matters: the conditions that could lose or contradict data come first. A failover reads claim → seal →
// choose → promote → lead; its safety argument is in quorum.go and in docs/internals/safety.md, "Takeover".
func Decide(v View) Plan {
	switch {
	case v.Local.Server == ServerWritable && v.deposed():
		return v.fence(RuleFenceDeposed, v.whyDeposed())
	case v.Local.Server == ServerWritable && !v.leaseHeld():
		return v.fence(RuleFenceExpired, v.whyExpired())
	case v.Local.Server == ServerWritable && v.Quorum && v.contradicts():
		return v.fence(RuleFenceForeign, v.whyContradicts())
	case v.is(PhaseLead) && v.Local.Server == ServerWritable && len(v.Local.Doubled) > 0:
		return Plan{
			Rule: RuleDoubled, Because: fmt.Sprintf("a walsender of %s is not the member's: what it acknowledges counts, and no member has it", Names(v.Local.Doubled)), Open: v.open(),
			Actions: []Action{EndStreams{Members: v.Local.Doubled}},
		}
	case !v.Quorum:
		return v.awaitQuorum()
	case v.mayVote():
		return v.vote()
	case v.mayAcknowledge():
		return v.acknowledge()
	case !v.me().HasData():
		return Plan{Rule: RuleWitness, Because: v.whyNoData()}
	case v.mustHold():
		return Plan{Rule: RuleHoldSealed, Because: fmt.Sprintf("epoch %d is being formed", v.epoch()), Actions: []Action{Hold{}}}
	case v.mustStepDown():
		return v.stepDown()
	case v.Local.Quarantine != "" && v.Local.Server != ServerWritable && v.Busy == "":
		return v.quarantined()
	case v.Busy != "":
		return Plan{Rule: RuleBusy, Because: v.Busy, Open: v.open()}
	case v.forced():
		return v.force()
	case v.mayClaim():
		return v.claim(RuleClaim, v.whyClaim())
	case v.mayRetake():
		return v.claim(RuleRetake, saidRetaken)
	case v.mayOutbid():
		return v.claim(RuleOutbid, fmt.Sprintf("%s by %s %s %v", v.Record.Epoch.Phase, v.Record.Epoch.Leader, saidStalled, v.Profile.Progress()))
	case v.is(PhaseSeal):
		return v.sealOrChoose()
	case v.is(PhasePromote):
		return v.promoteOrLead()
	case v.is(PhaseLead):
		return v.lead()
	default:
		return v.follow()
	}
}

func (v *View) epoch() Epoch { return v.Record.Epoch.Epoch }

// is reports whether this node holds the record's epoch in that phase.
func (v *View) is(p Phase) bool { return v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == p }

// deposed reports whether a writable server has no right to be writable: the record names another leader, or another
// epoch than the keeper is armed for. Without quorum the record is the one read last; the lease bounds how long that
// may last.
func (v *View) deposed() bool {
	return v.Record.Epoch.Leader != v.Self || v.Record.Epoch.Phase == PhaseSeal || v.Local.Armed != v.epoch()
}

func (v *View) whyDeposed() string {
	e := v.Record.Epoch
	return fmt.Sprintf("writable in epoch %d, but the record says %s of epoch %d by %s", v.Local.Armed, e.Phase, e.Epoch, e.Leader)
}

func (v *View) whyExpired() string {
	if v.is(PhaseLead) && v.released() {
		return "this node released the leadership while its server was still writable"
	}
	return "the lease was not renewed in time"
}

func (v *View) leaseHeld() bool { return v.Lease.Valid && v.Lease.Epoch == v.epoch() }

// contradicts reports whether PostgreSQL's setting could acknowledge commits that the record does not cover.
func (v *View) contradicts() bool {
	return v.is(PhaseLead) && v.Record.State.Epoch == v.epoch() && (v.Local.Foreign != "" || !v.Record.State.Holds(v.Local.Sync))
}

func (v *View) whyContradicts() string {
	if v.Local.Foreign != "" {
		return "a reserved setting was changed behind the agent: " + v.Local.Foreign
	}
	return fmt.Sprintf("waiting for %d of %v does not keep (V %v, k %d) true", v.Local.Sync.N, v.Local.Sync.P, v.Record.State.V, v.Record.State.K)
}

func (v *View) fence(r Rule, why string) Plan {
	return Plan{Rule: r, Because: why, Actions: []Action{Fence{Reason: why}}}
}

// awaitQuorum continues what needs no decision: a leader within its lease serves, and a standby that is down is
// started.
func (v *View) awaitQuorum() Plan {
	p := Plan{Rule: RuleAwaitQuorum, Because: "no majority of the quorum answers", Open: v.open()}
	if v.Untrusted != "" {
		p.Because = v.Untrusted
	}
	if v.Busy == "" && v.Local.Server == ServerDown && v.Local.Data == DataPresent && v.me().HasData() {
		p.Actions = []Action{Start{}}
	}
	return p
}

// mustHold reports whether this node still takes WAL of an epoch that a later one is about to replace. For a candidate
// its own seal ends that.
func (v *View) mustHold() bool {
	return !v.is(PhaseSeal) && v.Local.Source != "" && v.Local.SourceEp < v.epoch() && v.Record.Epoch.Phase != PhaseLead
}

// forced reports whether an operator asked this node to lead at once and accepted the loss. That includes a candidate
// that waits in vain, and a holder whose copy is another one since. A request that was made before this node was taken
// out of the group is void.
func (v *View) forced() bool {
	_, member := v.Group.Replica(v.Self)
	return member && v.Op.Kind == OpForced && v.Op.To == v.Self && v.Op.Epoch == v.epoch() && v.Local.Data == DataPresent &&
		(v.Record.Epoch.Leader != v.Self || v.is(PhaseSeal) || v.bereft())
}

// bereft reports whether this node holds the epoch and cannot go on: its copy is another one than that which it is to
// lead with, as after its node was restored, or is to be made anew. Where no other member may take over, an operator
// has to decide.
func (v *View) bereft() bool {
	e := v.Record.Epoch
	switch {
	case v.Local.Server == ServerWritable:
		return false
	case v.is(PhasePromote):
		return e.Copy != "" && e.Copy != v.Local.Copy || v.forsaken()
	}
	return v.is(PhaseLead) && v.Record.State.Leader == v.Self && v.Record.State.Copy != v.Local.Copy
}

// forsaken reports whether this node was chosen, has released the epoch because its copy was put under quarantine, and
// an operator wants that copy to be made anew.
func (v *View) forsaken() bool { return v.is(PhasePromote) && v.released() && v.Local.Renew != "" }

// saidBereft returns what can be done about a holder of the epoch that is bereft.
func (v *View) saidBereft() string {
	return fmt.Sprintf("another member takes over, or an operator accepts what this one lacks: coterie failover --to %s --allow-data-loss", v.Self)
}

// Unforceable returns why this node does not carry out the forced failover that was asked of it; "": none was asked, or
// it carries it out. Such a request is to be ended: it would take effect when nobody expects it any more.
func (v *View) Unforceable() string {
	switch {
	case !v.Quorum || v.Op.Kind != OpForced || v.Op.To != v.Self || v.Op.Epoch != v.epoch():
		return ""
	case v.Local.Data == DataEmpty, v.Local.Data == DataPartial, v.Local.Data == DataForeign:
		return fmt.Sprintf("the data directory is %s, so %s has nothing to lead with", v.Local.Data, v.Self)
	case v.Local.Quarantine != "" && v.Local.Server != ServerWritable:
		return fmt.Sprintf("%s is under quarantine: %s; coterie replica resume %s ends that", v.Self, v.Local.Quarantine, v.Self)
	case v.is(PhasePromote) && !v.bereft():
		return fmt.Sprintf("%s was chosen to lead already, and its promotion is under way", v.Self)
	case v.is(PhaseLead) && !v.bereft():
		return fmt.Sprintf("%s is the primary already", v.Self)
	}
	return ""
}

// released reports whether the holder of the present epoch has released it. A candidate's release does not bind the
// replica that it chose in the same epoch.
func (v *View) released() bool {
	l := v.Record.Lead
	return l.Released && l.Epoch == v.epoch() && l.Holder == v.Record.Epoch.Leader
}

// Released reports whether this node holds the present epoch and has released it: it renews it no more.
func (v *View) Released() bool { return v.Record.Epoch.Leader == v.Self && v.released() }

// release gives the epoch up: this node no longer renews it.
func (v *View) release(why string) Plan {
	l := v.Record.Lead
	l.Settled = l.Settled && l.Epoch == v.epoch()
	l.Epoch, l.Holder, l.Released = v.epoch(), v.Self, true
	return Plan{Rule: RuleRelease, Because: why, Commit: &Commit{Guard: Revisions{v.Record.Revs.Epoch, -1, -1}, Lead: &l}}
}

// lead returns the plan of a leader in LEAD: serve, keep the bookkeeping, hand over on request, release when the server
// has ended.
func (v *View) lead() Plan {
	if v.Local.Server != ServerWritable {
		switch {
		case !v.released() && v.leaseHeld() && v.relief():
			return v.release("the server ended; a synchronized secondary takes over without waiting")
		case v.Local.Data != DataPresent:
			return Plan{Rule: RuleStandBy, Because: "the record names this replica but its data directory is " + string(v.Local.Data)}
		case v.Local.Server == ServerDown:
			return Plan{Rule: RuleStart, Because: "to lead again", Actions: []Action{Start{}}}
		case v.bereft():
			return Plan{Rule: RuleStandBy, Because: "its copy is another one than that which led: " + v.saidBereft()}
		default:
			return Plan{Rule: RuleStandBy, Because: "waiting for the server, or for somebody to take over"}
		}
	}
	planned := v.Op.Kind == OpPlanned && v.Op.Epoch == v.epoch() && v.Op.To != v.Self
	if planned && v.Ready == v.Op.ID {
		return Plan{Rule: RuleHandOver, Because: "planned failover to " + string(v.Op.To), Open: v.open(), Actions: []Action{HandOver{v.Op}}}
	}
	step := NextSync(v)
	p := Plan{Rule: RuleSync, Because: step.Because, Open: v.open()}
	switch {
	case step.State != nil:
		step.State.Seq++
		p.Commit = &Commit{Guard: Revisions{v.Record.Revs.Epoch, v.Record.Revs.State, -1}, State: step.State}
	case step.Set != nil:
		p.Actions = []Action{SetSync{Sync: *step.Set}}
	case step.Prove:
		p.Actions = []Action{ProveSync{}}
	case step.Because == "":
		p.Rule, p.Because = RuleServe, fmt.Sprintf("leads epoch %d", v.epoch())
		if said := v.Outgoing(); said != "" {
			p.Because += "; " + said
		}
	}
	if planned { // serving and bookkeeping continue, however long a checkpoint takes
		p.Actions = append(p.Actions, Prepare{v.Op})
	}
	return p
}

// open reports whether this node may take writes from clients. It must lead and hold its lease. The WAL that it
// recovered must be replicated as the commit rule requires, or the group be recorded as degraded (S6).
func (v *View) open() bool {
	if !v.is(PhaseLead) || v.Local.Server != ServerWritable || !v.leaseHeld() || v.Local.Armed != v.epoch() {
		return false
	}
	if v.Local.Attached && !v.Local.Sync.Proven {
		return false
	}
	if v.Local.Restart != 0 && !v.replicated(v.Local.Restart) {
		return false
	}
	if _, waits := v.awaits(); waits {
		return false
	}
	switch st := v.Record.State; {
	case v.Local.Opened == v.epoch():
		return true
	case st.K == 0:
		return st.Epoch == v.epoch() && v.Local.Sync.N == 0
	}
	return v.Local.Sync.Proven && v.replicated(v.Local.EndOfRec) // V may still be what the epoch started with, and no member of it may have connected
}

// replicated reports whether enough members of V have flushed what this server had when it was restarted: as many as
// the record promises. It is true as well if the group is recorded as degraded. No client may read that data before
// (S6).
func (v *View) replicated(at LSN) bool {
	st, have := v.Record.State, 0
	for _, m := range st.V {
		if s, ok := v.stream(m.ID); ok && s.Open && s.Copy == m.Copy && s.Flush >= at {
			have++
		}
	}
	return have >= max(st.K, 1) || st.K == 0 && v.Local.Sync.N == 0
}

// follow is the turn of every node that does not hold the epoch.
func (v *View) follow() Plan {
	leader := v.Record.Epoch.Leader
	leading := v.Record.Epoch.Phase == PhaseLead
	diverged := leading && (v.Diverged() || v.Local.Refused && v.Local.Source == leader && v.Local.SourceEp == v.epoch())
	stays, counted := v.counted()
	switch {
	case v.Local.Data == DataForeign:
		return Plan{Rule: RuleStandBy, Because: "the data directory does not hold the copy this node was given; nothing touches it (S5)"}
	case v.me().Suspended:
		because := "data movement is suspended; coterie replica resume continues it"
		if v.me().Join != "" {
			because = "no replica of a group: ALTER AVAILABILITY GROUP ADD REPLICA and JOIN make it one"
		}
		return Plan{Rule: RuleSuspended, Because: because, Actions: v.start(Hold{})}
	case v.Local.Data == DataEmpty && (v.me().Options.NoSeeding || v.me().Options.ManualSeeding && v.Local.Renew == ""):
		return Plan{Rule: RuleStandBy, Because: "holds no copy, and may not be given one: SEEDING_MODE is MANUAL (coterie replica seed asks for one), or CREATE ANY DATABASE is denied"}
	case v.Local.Withheld != "" && (v.Local.Data != DataPresent || v.Local.Renew != "" || diverged && v.Local.NoRewind):
		return Plan{Rule: RuleStandBy, Because: v.Local.Withheld}
	case v.Local.Data != DataPresent && leading && v.reaches(leader): // counted or not: no data is left to protect
		return Plan{Rule: RuleSeed, Because: "the data directory is " + string(v.Local.Data), Actions: []Action{Seed{Source: leader}}}
	case v.Local.Data != DataPresent:
		return Plan{Rule: RuleStandBy, Because: "waiting for a leader to be seeded from"}
	case (diverged || v.Local.Renew != "") && counted:
		return Plan{Rule: RuleAwaitDrop, Because: stays, Actions: []Action{Hold{}}}
	case v.Local.Renew != "" && leading && v.reaches(leader):
		return Plan{Rule: RuleReseed, Because: v.Local.Renew, Actions: []Action{Seed{Source: leader}}}
	case diverged && !v.reaches(leader):
		return Plan{Rule: RuleStandBy, Because: "diverged; waiting for the leader to answer"}
	case diverged && v.Local.NoRewind:
		return Plan{Rule: RuleReseed, Because: "diverged at " + v.Local.Position.String() + " and not to be rewound", Actions: []Action{Seed{Source: leader}}}
	case diverged:
		return Plan{Rule: RuleRewind, Because: "diverged at " + v.Local.Position.String(), Actions: []Action{Rewind{Source: leader}}}
	case v.Local.Server == ServerDown:
		return Plan{Rule: RuleStart, Because: "a secondary is started as standby", Actions: []Action{Start{}}}
	case leading && v.Local.Stuck != "" && v.Local.Server == ServerRecovery:
		return Plan{Rule: RuleReread, Because: v.Local.Stuck, Actions: []Action{Stop{}}}
	case leading && (v.Local.Source != leader || v.Local.SourceEp != v.epoch()):
		return Plan{Rule: RuleFollow, Because: fmt.Sprintf("%s leads epoch %d", leader, v.epoch()), Actions: []Action{Follow{Leader: leader, Epoch: v.epoch()}}}
	}
	if v.Local.Source != "" {
		return Plan{Rule: RuleStandBy, Because: fmt.Sprintf("follows %s in epoch %d", v.Local.Source, v.Local.SourceEp)}
	}
	return Plan{Rule: RuleStandBy, Because: fmt.Sprintf("waiting for %s to lead epoch %d", leader, v.epoch())}
}

// start adds a Start to the action if the server is down.
func (v *View) start(a Action) []Action {
	if v.Local.Server == ServerDown && v.Local.Data == DataPresent {
		return []Action{a, Start{}}
	}
	return []Action{a}
}

// counted reports whether this node's copy is in V. Acknowledged commits may then rest on it alone, so it must not be
// touched.
func (v *View) counted() (why string, in bool) {
	m, in := v.Record.State.InV(v.Self)
	if !in || v.Local.Copy != "" && m.Copy != v.Local.Copy {
		return "", false
	}
	return "the record still counts this copy; waiting for the leader to drop it", true
}

// Diverged reports whether this copy holds WAL that is not in the leader's history (S7). Either its timeline is not one
// of the leader's, or its WAL continues after the point where the leader's history left that timeline. Timeline ids are
// never allotted twice, so this is exact; the checksum of the stream handshake guards against other mistakes. A
// promotion that began here and did not lead counts as well, independent of the files' content: it may have written
// (docs/internals/safety.md, "Timelines").
func (v *View) Diverged() bool {
	tls, at := v.Record.State.Timelines, v.Local.Position
	i := slices.IndexFunc(tls, func(t TimelineEntry) bool { return t.TLI == at.Timeline })
	if i < 0 {
		return len(tls) > 0 && at.Timeline != 0
	}
	for _, t := range tls[i+1:] {
		if t.Parent == at.Timeline && at.LSN > t.leaves() {
			return true
		}
	}
	began := v.Local.Began
	return began != 0 && !slices.ContainsFunc(tls, func(t TimelineEntry) bool { return t.TLI == began })
}

// whyNoData says of a witness whether it votes.
func (v *View) whyNoData() string {
	if v.Group.Votes(v.me()) {
		return "this member votes and holds no data"
	}
	return "this member holds no data, and has no vote now"
}

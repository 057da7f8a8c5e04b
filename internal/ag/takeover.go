package ag

import (
	"fmt"
	"slices"
	"time"
)

// This file decides when a node may take the leadership over. It includes fast takeover: a leader whose death the
// network shows is replaced before it has been silent for long.
//
// Evidence only says when to try; the proof is the answer lease. A leader passes answers on only while a majority of
// the voters that it declared has acknowledged a heartbeat sent less than Answer.Lease ago. A voter votes AFTER it has
// acknowledged nothing for longer than that, and MUST NOT acknowledge anything while its vote stands. Every majority of
// voters meets every majority of acknowledgers. So when a majority has voted, no answer of the leader is on its way to
// a client any more, as after silence of O (docs/internals/safety.md, "Fast takeover").

// electable reports whether this copy may be promoted without a person. It must be in V, because then it may hold every
// acknowledged commit, and its replica must be configured for automatic failover. It judges this node; what is known of
// another is judged by mayLead. Whether the moment has come is decided by mayClaim, and which copy it is by best.
func (v *View) electable() bool {
	m, in := v.Record.State.InV(v.Self)
	return in && m.Copy == v.Local.Copy && v.sound() && v.me().MayTakeOver()
}

// ledLast reports whether the last LEAD named this copy. Then it may lead again with no other seal than its own.
func (v *View) ledLast() bool {
	s := v.Record.State
	return s.Leader == v.Self && s.Copy == v.Local.Copy && v.sound()
}

// quorumInReach reports whether enough members of V answer for a seal to succeed. Without them a leader would be
// deposed in vain.
func (v *View) quorumInReach() bool {
	n := 0
	for _, m := range v.Record.State.V {
		if v.reaches(m.ID) {
			n++
		}
	}
	return n >= v.Record.State.SealsNeeded()
}

func (v *View) silent() bool {
	return v.released() || v.Silence >= v.Patience()
}

// mostPatience is more than any holder declares: no keeper takes a deadline that is more than 20 s ahead. /lead is not
// signed, and what the thief of a witness leaves there must not keep every later takeover from beginning.
const mostPatience = time.Minute

// Patience returns how long the holder of the present epoch must have been silent before another may claim the epoch.
// The holder declares it with the renewal that the silence is counted from: the profile of the configuration may have
// changed since, and the holder may not know the new one yet.
func (v *View) Patience() time.Duration {
	if l := v.Record.Lead; l.Epoch == v.epoch() && l.Observer > 0 {
		return min(l.Observer, mostPatience)
	}
	return v.Profile.Observer
}

func (v *View) mayClaim() bool {
	return v.Group.Maintenance == nil && v.Record.Epoch.Phase == PhaseLead && v.Record.Epoch.Leader != v.Self && v.Record.State.K >= 1 &&
		(v.silent() || v.votes() != nil) && v.electable() && v.quorumInReach() && !v.yields() && !v.defers()
}

func (v *View) whyClaim() string {
	if v.released() {
		return fmt.Sprintf("%s %s", v.Record.Epoch.Leader, saidReleased)
	}
	if n := len(v.votes()); n > 0 && !v.silent() {
		return fmt.Sprintf("%d of %d voters %s", n, len(v.Record.Lead.Answer.Voters), v.whatVotersSaw())
	}
	return fmt.Sprintf("%s %s %v", v.Record.Epoch.Leader, saidSilent, v.Silence.Round(10*time.Millisecond))
}

// mayRetake reports whether this node may lead again: the record names it, its server was restarted and does not lead,
// and it does not leave the leadership to others after a release.
func (v *View) mayRetake() bool {
	return v.is(PhaseLead) && v.ledLast() && v.Local.Server == ServerRecovery && (!v.released() || v.Silence >= ReleaseGrace && !v.yields())
}

// The pause before a candidate or a promotion is outbid doubles with each epoch beyond patientTries since the last
// LEAD, up to mostTries times.
const (
	patientTries = 4
	mostTries    = 16
)

// outbidAfter returns how long the holder of an epoch that has not come to LEAD may show no progress before a replica
// bids more that did not lead last. The first epochs follow each other soon. If none of them came to LEAD, all that may
// lead have the same trouble, such as a long replay or storage that hangs. Each more takes another timeline id, and
// PostgreSQL has a file for every id that is skipped.
func (v *View) outbidAfter() time.Duration {
	pause := v.Profile.Progress()
	for tries, n := int64(v.epoch())-int64(v.Record.State.Epoch), 1; tries > patientTries && n < mostTries; tries, n = tries-1, 2*n {
		pause *= 2
	}
	return pause
}

func (v *View) mayOutbid() bool {
	e := v.Record.Epoch
	if e.Phase == PhaseLead || v.Silence < v.Profile.Progress() || v.Local.Server == ServerWritable {
		return false
	}
	if v.ledLast() && v.Local.Server == ServerRecovery {
		return true
	}
	if v.Silence < v.outbidAfter() {
		return false
	}
	if v.Group.Maintenance != nil && e.Leader == v.Record.State.Leader {
		return false // the last leader comes back: no takeover has begun
	}
	return v.Record.State.K >= 1 && v.electable() && v.quorumInReach() && e.Leader != v.Self
}

// claim raises the epoch. The transaction compares all three keys, so that the (V, k) that it returns is the last one
// that the old leader could write (docs/internals/safety.md, "Takeover"). If the leader has not been silent for long,
// the transaction compares the votes as well.
func (v *View) claim(r Rule, why string) Plan {
	e := EpochRecord{Epoch: v.epoch() + 1, Phase: PhaseSeal, Leader: v.Self, MaxTLI: max(v.Record.Epoch.MaxTLI, v.Record.Epoch.TLI), Unled: v.Record.Epoch.unled(), Outgoing: v.pending(), Reason: why}
	c := &Commit{Guard: v.Record.Revs, Epoch: &e}
	if r == RuleClaim && !v.silent() {
		c.Votes = v.votes()
		if l := v.Record.Lead; bySilence(c.Votes) {
			e.Unheard = Evidence{Epoch: l.Epoch, Incarnation: l.Incarnation, Silent: v.Voting.Evidence.Silent}
		}
	}
	return Plan{Rule: r, Because: why, Commit: c}
}

// Answer is the answer lease that the holder of an epoch declares in /lead. Without voters there is none, and no vote
// counts.
type Answer struct {
	Voters []ReplicaID   `json:"voters,omitempty"`
	Lease  time.Duration `json:"lease,omitempty"` // G: an answer leaves within this time of a heartbeat that a majority acknowledged
}

// Same reports whether two declarations are equal.
func (a Answer) Same(b Answer) bool { return a.Lease == b.Lease && slices.Equal(a.Voters, b.Voters) }

// Majority returns how many of the declared voters are a majority.
func (a Answer) Majority() int { return len(a.Voters)/2 + 1 }

// Until returns the end of the answer lease of the leader self. acked holds, for each voter, when the newest heartbeat
// that it acknowledged was sent. ok is false while there is no lease. limited is false for a leader that is its own
// majority, or that declares no answer lease.
func (a Answer) Until(self ReplicaID, acked map[ReplicaID]time.Duration) (until time.Duration, limited, ok bool) {
	need := a.Majority()
	if len(a.Voters) == 0 {
		return 0, false, true
	}
	var sent []time.Duration
	for _, id := range a.Voters {
		if t, has := acked[id]; id == self {
			need--
		} else if has {
			sent = append(sent, t)
		}
	}
	if need <= 0 {
		return 0, false, true
	}
	if len(sent) < need {
		return 0, true, false
	}
	slices.Sort(sent)
	return sent[len(sent)-need] + a.Lease, true, true
}

// minVoters is the number of voters below which there is no fast takeover: a majority would need the leader's own vote.
// An external store must have as many members (docs/internals/safety.md, "Fast takeover").
const minVoters = 3

// Answers returns what a leader of the group declares: no voters if a takeover is to rest on silence alone.
func (g Group) Answers(p Profile) Answer {
	few := g.Voters() < minVoters || g.External > 0 && g.External < minVoters
	if g.Options.Detection() == DetectStrict || g.Options.Strict() || few {
		return Answer{}
	}
	a := Answer{Lease: p.Answer}
	for _, r := range g.Replicas {
		if r.Voter {
			a.Voters = append(a.Voters, r.ID)
		}
	}
	slices.Sort(a.Voters)
	return a
}

// JudgesSilence reports whether an unusual silence of the leader is evidence against it. It needs two secondaries, so
// that commits stay protected when it was wrong, and the heartbeats and votes of an embedded quorum.
func (g Group) JudgesSilence() bool {
	copies := 0
	for _, r := range g.Replicas {
		if r.HasData() && r.Part() {
			copies++
		}
	}
	return copies >= 3 && g.External == 0 && len(g.Answers(Profile{}).Voters) >= minVoters
}

// SilenceFloor returns how long a pause of the leader, beside the usual interval, is never unusual. It is twice as long
// if damped: a leader that was deposed for its silence lately was alive.
func (g Group) SilenceFloor(p Profile, damped bool) time.Duration {
	floor := p.Floor
	if o := g.Options; o.Detection() == DetectAdaptive && o.SilenceFloor > 0 {
		floor = o.SilenceFloor
	}
	if damped {
		floor *= 2
	}
	return max(p.Answer, min(floor, p.Observer))
}

// VoteWait returns how long a voter must have acknowledged nothing before it votes. By then the answer lease has run
// out even if the voter's clock is the slowest and the leader's the fastest.
func (a Answer) VoteWait() time.Duration {
	return time.Duration(float64(a.Lease)*(1+Rho)/(1-Rho)) + 1
}

// Vote is the value of a store's /vote key. Its member acknowledges no heartbeat of that epoch as long as the key
// exists.
type Vote struct {
	Member      ReplicaID     `json:"member"`
	Epoch       Epoch         `json:"epoch"`
	Incarnation string        `json:"incarnation"`      // of the leader's agent whose death it saw
	Waited      time.Duration `json:"waited"`           // the answer lease, as the leader declared it, for which it has waited
	Silent      string        `json:"silent,omitempty"` // how the leader was silent, if only its silence speaks against it
	Rev         int64         `json:"-"`                // modification revision of the key
}

// Evidence names an agent that this node takes for dead. Either its streams ended without a farewell and its endpoint
// then refused two connections, or its silence is unusual. It has not renewed since. The zero value is no evidence.
type Evidence struct {
	Epoch       Epoch  `json:"epoch"`
	Incarnation string `json:"incarnation"`
	Silent      string `json:"silent,omitempty"` // how its silence is unusual, in words; "": its endpoint refuses connections
}

// Against reports whether the evidence is against that agent as the holder of that epoch.
func (e Evidence) Against(epoch Epoch, incarnation string) bool {
	return e.Epoch == epoch && e.Incarnation == incarnation && epoch != 0
}

// bySilence reports whether any of the votes rests on silence alone.
func bySilence(votes []Vote) bool {
	return slices.ContainsFunc(votes, func(x Vote) bool { return x.Silent != "" })
}

func (v *View) whatVotersSaw() string {
	if bySilence(v.votes()) {
		return fmt.Sprintf("%s %s", saidUnheard, v.Record.Epoch.Leader)
	}
	return fmt.Sprintf("saw %s %s", v.Record.Epoch.Leader, saidDied)
}

// Voting is a node's own part in fast takeover.
type Voting struct {
	Evidence Evidence `json:"evidence,omitzero"`
	Withheld Epoch    `json:"withheld,omitempty"` // no heartbeat of this epoch is acknowledged; 0: none is withheld
	// An earlier process of this node may have voted, and the vote is not removed yet: nothing is acknowledged.
	Fresh bool          `json:"fresh,omitempty"`
	Quiet time.Duration `json:"quiet,omitempty"` // since the last acknowledgement was sent, or this process began
	Heard string        `json:"heard,omitempty"` // the rhythm in which this node hears of the leader, and which silence is unusual; "": not known
}

// suspects reports whether this node has evidence against the present leader, and a vote against it could count.
func (v *View) suspects() bool {
	e, l := v.Record.Epoch, v.Record.Lead
	return v.Group.Maintenance == nil && e.Phase == PhaseLead && e.Leader != v.Self && v.Record.State.K >= 1 &&
		l.Epoch == e.Epoch && l.Holder == e.Leader && !l.Released && !l.Restarting &&
		v.Voting.Evidence.Against(e.Epoch, l.Incarnation) && (v.Voting.Evidence.Silent == "" || v.Group.JudgesSilence()) &&
		len(l.Answer.Voters) >= minVoters && slices.Contains(l.Answer.Voters, v.Self)
}

// ownVote reports whether the record holds a vote of this node that counts against the present leader.
func (v *View) ownVote() bool {
	return slices.ContainsFunc(v.Record.Votes, func(x Vote) bool { return x.Member == v.Self && v.counts(x) })
}

// counts reports whether a vote is against the present leader with its present declaration.
func (v *View) counts(x Vote) bool {
	l := v.Record.Lead
	return x.Epoch == v.epoch() && x.Incarnation == l.Incarnation && x.Member != v.Record.Epoch.Leader &&
		x.Waited >= l.Answer.Lease && slices.Contains(l.Answer.Voters, x.Member)
}

// VoteIn returns how long this node must still be quiet before it may vote. ok is false if it has no reason to vote.
func (v *View) VoteIn() (d time.Duration, ok bool) {
	if v.Voting.Fresh || !v.suspects() || v.Voting.Withheld != v.epoch() || v.ownVote() {
		return 0, false
	}
	return max(0, v.Record.Lead.Answer.VoteWait()-v.Voting.Quiet), true
}

func (v *View) mayVote() bool {
	if v.Voting.Fresh || !v.suspects() {
		return false
	}
	in, ok := v.VoteIn()
	return v.Voting.Withheld != v.epoch() || ok && in == 0
}

// vote votes against the leader. BEFORE it writes the vote, it stops acknowledging and waits until no acknowledgement
// of this node can extend the leader's answer lease.
func (v *View) vote() Plan {
	why := fmt.Sprintf("%s closed its streams without a farewell and its endpoint refuses connections", v.Record.Epoch.Leader)
	if s := v.Voting.Evidence.Silent; s != "" {
		why = fmt.Sprintf("%s is silent: %s", v.Record.Epoch.Leader, s)
	}
	if v.Voting.Withheld != v.epoch() {
		return Plan{Rule: RuleVote, Because: why, Actions: []Action{Withhold{Epoch: v.epoch()}}}
	}
	l := v.Record.Lead
	return Plan{Rule: RuleVote, Because: why, Commit: &Commit{
		Guard: Revisions{v.Record.Revs.Epoch, -1, -1},
		Vote:  &Vote{Member: v.Self, Epoch: v.epoch(), Incarnation: l.Incarnation, Waited: l.Answer.Lease, Silent: v.Voting.Evidence.Silent},
	}}
}

// mayAcknowledge reports whether this node withholds acknowledgements and has no reason to.
func (v *View) mayAcknowledge() bool {
	return v.Voting.Fresh || v.Voting.Withheld == v.epoch() && v.Voting.Withheld != 0 && !v.suspects()
}

// acknowledge acknowledges heartbeats again, AFTER this node's vote was removed: in the other order the vote would be
// false.
func (v *View) acknowledge() Plan {
	why := fmt.Sprintf("%s lives", v.Record.Epoch.Leader)
	if v.Voting.Fresh {
		why = "this agent has begun; what an earlier one voted is void"
	}
	return Plan{
		Rule: RuleAcknowledge, Because: why, Open: v.open(),
		Commit:  &Commit{Guard: Revisions{v.Record.Revs.Epoch, -1, -1}, Unvote: v.Self},
		Actions: []Action{Acknowledge{}},
	}
}

// votes returns the votes that depose the leader, this node's own among them; nil while they are too few.
func (v *View) votes() []Vote {
	if !v.suspects() || !v.ownVote() {
		return nil
	}
	var out []Vote
	for _, x := range v.Record.Votes {
		if v.counts(x) {
			out = append(out, x)
		}
	}
	if len(out) < v.Record.Lead.Answer.Majority() {
		return nil
	}
	return out
}

// Outgoing is a leader that was deposed by a forced failover and may still answer clients. The zero value is none.
// The epoch that follows it is promoted at once, and opens when the outgoing leader can answer nobody any more: after
// its silence, or after its answer lease (docs/internals/safety.md, "Forced failover").
type Outgoing struct {
	Leader ReplicaID     `json:"leader,omitempty"`
	Epoch  Epoch         `json:"epoch,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"`  // counted from when a node first sees the epoch that follows
	Answer Answer        `json:"answer,omitzero"` // its answer lease; without voters only Wait counts
	Now    bool          `json:"now,omitempty"`   // an operator accepted that both answer for so long
}

// force makes this node's copy the next primary. It needs nobody else.
func (v *View) force() Plan {
	tli := v.Record.Epoch.MaxTLI + 1
	e := EpochRecord{
		Epoch: v.epoch() + 1, Phase: PhasePromote, Leader: v.Self, TLI: tli, MaxTLI: tli, From: v.Local.Position, Copy: v.Local.Copy, Forced: true,
		Unled: v.Record.Epoch.unled(), Outgoing: v.outgoing(), Reason: "forced by an operator who accepted data loss",
	}
	c := &Commit{Guard: v.Record.Revs, Epoch: &e, Votes: v.votes()}
	return Plan{Rule: RuleForce, Because: e.Reason, Commit: c}
}

// pending returns the outgoing leader of the present epoch, as long as it may still answer clients for all that this
// node's stopwatch and the holder of the epoch tell.
func (v *View) pending() Outgoing {
	l := v.Record.Lead
	if o := v.Record.Epoch.Outgoing; v.Since < o.Wait && !(l.Epoch == v.epoch() && l.Settled) {
		return o
	}
	return Outgoing{}
}

// Settled reports whether this node leads an epoch that had an outgoing leader, and that leader can answer nobody any
// more. The holder says so in /lead: an agent that begins later has not seen when the epoch began.
func (v *View) Settled() bool {
	o := v.pending()
	return v.is(PhaseLead) && v.Record.Epoch.Outgoing.Leader != "" && (o.Leader == "" || v.superseded(o))
}

// Pending is pending, for the record of the epoch that follows a planned failover.
func (v *View) Pending() Outgoing { return v.pending() }

// outgoing returns what a forced failover has to wait for: the present leader, unless it has released, a majority has
// voted against it, or its silence was long enough; and the outgoing leader that itself was waited for.
func (v *View) outgoing() Outgoing {
	e, old := v.Record.Epoch, v.pending()
	old.Now = old.Leader != "" && v.Op.Now
	if e.Phase != PhaseLead || e.Leader == v.Self || v.released() || v.votes() != nil || v.Silence >= v.Patience() {
		return old
	}
	o := Outgoing{Leader: e.Leader, Epoch: e.Epoch, Wait: v.Patience() - v.Silence, Answer: v.Record.Lead.Answer, Now: v.Op.Now}
	if v.Record.Lead.Epoch != e.Epoch {
		o.Answer = Answer{} // it has declared none yet
	}
	if old.Leader != "" {
		o.Wait, o.Answer = max(o.Wait, old.Wait), Answer{}
	}
	return o
}

// awaits returns the outgoing leader for which this node does not open yet.
func (v *View) awaits() (o Outgoing, yes bool) {
	o = v.pending()
	return o, o.Leader != "" && !o.Now && !v.superseded(o)
}

// Outgoing returns what is to be said of an outgoing leader; "" if nothing is.
func (v *View) Outgoing() string {
	o := v.pending()
	switch _, waits := v.awaits(); {
	case o.Leader == "" || !v.is(PhaseLead):
		return ""
	case waits:
		return fmt.Sprintf("opens when %s of epoch %d can answer nobody any more, at the latest %v after epoch %d began; coterie failover --allow-data-loss --now would not have waited",
			o.Leader, o.Epoch, o.Wait.Round(100*time.Millisecond), v.epoch())
	case o.Now && !v.superseded(o):
		return fmt.Sprintf("opened at once by an operator: until %v after epoch %d began, clients of %s may still be given answers of epoch %d, which lack what is written here",
			o.Wait.Round(100*time.Millisecond), v.epoch(), o.Leader, o.Epoch)
	}
	return ""
}

// superseded reports whether the answer lease of an outgoing leader has ended: a majority of its voters acknowledged
// this epoch so long ago, and acknowledges no heartbeat of an earlier one since.
func (v *View) superseded(o Outgoing) bool {
	return len(o.Answer.Voters) > 0 && v.Superseded > o.Answer.VoteWait()
}

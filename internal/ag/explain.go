package ag

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check is one condition of a decision, as a view sees it.
type Check struct {
	Condition string `json:"condition"`
	Holds     bool   `json:"holds"`
	Seen      string `json:"seen"` // the facts of it in the view
}

// WhyClaim returns the conditions for this node to take the leadership over without a person, each with what the view
// shows of it. It is mayClaim in words; a test compares the two.
func (v *View) WhyClaim() []Check {
	e, st := v.Record.Epoch, v.Record.State
	m, in := st.InV(v.Self)
	r := v.me()
	may, work := r.MayTakeOver(), ""
	if m := v.Group.Maintenance; m != nil {
		work = "maintenance " + m.String()
	}
	reached := 0
	for _, x := range st.V {
		if v.reaches(x.ID) {
			reached++
		}
	}
	return []Check{
		{"a majority of the quorum answers", v.Quorum, yes(v.Quorum, "it does", "it does not")},
		{"somebody else leads", e.Phase == PhaseLead && e.Leader != v.Self, v.seenOfEpoch()},
		{"the leader is silent, has released, or was seen to die", v.silent() || v.votes() != nil, v.seenOfLeader()},
		{"commits are on at least one secondary (k ≥ 1)", st.K >= 1, fmt.Sprintf("k = %d of %d counted", st.K, len(st.V))},
		{"this copy is one of those that are counted", in && m.Copy == v.Local.Copy, yes(in && m.Copy == v.Local.Copy, "it is", yes(in, "another copy of this replica is", "it is not synchronized"))},
		{"this copy is sound", v.sound(), v.seenOfCopy()},
		{"this replica may lead by itself", may, fmt.Sprintf("%s, %s%s", r.AvailabilityMode, r.FailoverMode, yes(r.Suspended, ", suspended", yes(r.Options.Maintenance != nil, ", under maintenance", "")))},
		{"enough members answer to seal the epoch", v.quorumInReach(), fmt.Sprintf("%d of %d counted members answer, %d needed", reached, len(st.V), st.SealsNeeded())},
		{"it is well, or nobody else came forward", !v.yields(), yes(v.illness() == "", "well", v.illness())},
		{"it did not itself give up the leadership lately, or nobody else came forward", !v.defers(), yes(v.Local.StoodDown == "", "it did not", v.Local.StoodDown)},
		{"automatic failover is not switched off", work == "", yes(work == "", "it is on", work)},
	}
}

func yes(is bool, then, otherwise string) string {
	if is {
		return then
	}
	return otherwise
}

func (v *View) seenOfEpoch() string {
	e := v.Record.Epoch
	return fmt.Sprintf("%s of epoch %d by %s%s", e.Phase, e.Epoch, e.Leader, yes(e.Leader == v.Self && v.Self != "", ", which is this node itself", ""))
}

func (v *View) seenOfLeader() string {
	s := fmt.Sprintf("last renewal %v ago, silent from %v on", v.Silence.Round(10*time.Millisecond), v.Patience())
	if h := v.Voting.Heard; h != "" && v.Group.JudgesSilence() {
		s += "; " + h
	}
	if v.released() {
		s = "it released the leadership"
	}
	if n := len(v.votes()); n > 0 {
		s = fmt.Sprintf("%d voters %s", n, v.whatVotersSaw())
	}
	return s
}

func (v *View) seenOfCopy() string {
	switch {
	case v.Local.Quarantine != "":
		return "under quarantine: " + v.Local.Quarantine
	case v.Local.Renew != "":
		return "to be made anew: " + v.Local.Renew
	}
	return "the data directory is " + string(v.Local.Data)
}

// WhyLead returns the conditions for the viewing primary to continue to lead.
func (v *View) WhyLead() []Check {
	return []Check{
		{"the record names it, in this epoch", !v.deposed(), fmt.Sprintf("%s of epoch %d by %s; armed for epoch %d", v.Record.Epoch.Phase, v.epoch(), v.Record.Epoch.Leader, v.Local.Armed)},
		{"its lease holds", v.leaseHeld(), yes(v.Lease.Valid, "renewed in time", "it ran out")},
		{"its server is writable", v.Local.Server == ServerWritable, string(v.Local.Server)},
		{"nobody changed reserved settings behind it", !v.contradicts(), yes(v.Local.Foreign == "", "nobody did", v.Local.Foreign)},
		{"it is well, or nobody could take over", !v.mustStepDown(), v.seenOfHealth()},
	}
}

func (v *View) seenOfHealth() string {
	why := v.illness()
	switch {
	case why == "" && v.Local.Health.Because != "":
		return fmt.Sprintf("%s: of level %d, and FAILURE_CONDITION_LEVEL is %d", v.Local.Health.Because, v.Local.Health.Level, v.Group.Options.Level())
	case why == "":
		return "well"
	case v.Local.StoodDown != "":
		return why + "; but it has itself lately given up the leadership: " + v.Local.StoodDown
	case !v.transferee():
		return why + "; but no synchronized secondary that is better off could take over"
	}
	return why
}

// Meaning describes in a sentence what a rule does. Every rule has a meaning.
func (r Rule) Meaning() string { return meanings[r] }

var meanings = map[Rule]string{
	RuleFenceDeposed: "ended its server at once: somebody else has the right to lead",
	RuleFenceExpired: "ended its server at once: its right to lead was not renewed",
	RuleFenceForeign: "ended its server at once: commits were no longer protected as the record says",
	RuleStepDown:     "gave up the leadership because it is ill and another can take over",
	RuleRestart:      "ended its server to start it again: it is ill, and nobody could take over",
	RuleAwaitQuorum:  "decided nothing",
	RuleDoubled:      "held every answer and ended the streams of a member that acknowledged twice",
	RuleVote:         "saw the primary die, stopped acknowledging it, and said so",
	RuleAcknowledge:  "took its vote back, for the primary lives",
	RuleBusy:         "went on with a long action",
	RuleWitness:      "voted; a witness has no data",
	RuleHoldSealed:   "stopped taking WAL of the old epoch",
	RuleForce:        "took the leadership because an operator accepted the loss",
	RuleClaim:        "tried to take the leadership over",
	RuleRetake:       "took its own leadership again after its server had ended",
	RuleOutbid:       "took over a failover that made no progress",
	RuleSeal:         "asked the members to promise the new epoch and to say how far their copies are",
	RuleFetch:        "fetched the end of the longest log from a copy that may not be promoted",
	RuleChoose:       "chose the copy that is promoted",
	RulePromote:      "promoted its server",
	RulePromoteAgain: "promoted its server once more, after the first time was cut short",
	RuleLead:         "became the primary",
	RuleRelease:      "gave up the leadership, so that others need not wait for silence",
	RuleHandOver:     "carried out a planned failover",
	RuleSync:         "brought what commits wait for up to date",
	RuleServe:        "served as the primary",
	RuleQuarantined:  "kept its copy under quarantine",
	RuleSuspended:    "left its copy as it is: suspended",
	RuleSeed:         "made a copy of the primary",
	RuleReseed:       "made its copy anew",
	RuleRewind:       "brought its copy back to the group's history",
	RuleAwaitDrop:    "waited until its copy is no longer counted, before it touches it",
	RuleStart:        "started its server",
	RuleReread:       "stopped its server, which could not replay what it had received",
	RuleFollow:       "followed the new primary",
	RuleStandBy:      "stood by",
}

// Slim returns the view without what no explanation needs, for a record of decisions that is kept for a long time.
func (v *View) Slim() View {
	s := *v
	s.Group.HBA, s.Group.Options.Recorded, s.Group.Options.Listeners = "", nil, nil
	s.Group.Replicas = slices.Clone(s.Group.Replicas)
	for i, r := range s.Group.Replicas {
		s.Group.Replicas[i] = Replica{
			ID: r.ID, AvailabilityMode: r.AvailabilityMode, FailoverMode: r.FailoverMode, Voter: r.Voter, Suspended: r.Suspended,
			Options: ReplicaOptions{Maintenance: r.Options.Maintenance},
		}
	}
	const history = 3
	s.Local.History = s.Local.History[max(0, len(s.Local.History)-history):]
	s.Record.State.Timelines = s.Record.State.Timelines[max(0, len(s.Record.State.Timelines)-history):]
	return s
}

// Cause is why an epoch began, in one word of a few. EpochRecord.Reason says it to people.
type Cause string

// The causes of an epoch. CausePlanned and CauseOperator are those of a planned and of a forced failover.
const (
	CausePlanned     Cause = "planned"
	CauseOperator    Cause = "operator"
	CauseReleased    Cause = "released"    // the leader released it: its server crashed, it was ill, or its node was stopped
	CauseSilent      Cause = "silent"      // the leader was silent for as long as its lease
	CauseUnheard     Cause = "unheard"     // the voters found the leader's silence unusual
	CauseDied        Cause = "died"        // the voters saw the leader's process end
	CauseRetaken     Cause = "retaken"     // the leader came back before another replica led
	CauseStalled     Cause = "stalled"     // a candidate or a promotion made no progress
	CauseInterrupted Cause = "interrupted" // a promotion was interrupted
	CauseOther       Cause = "other"       // the group was founded, or the record is of another version
)

// The words of a reason by which its cause is known.
const (
	saidPlanned     = "planned failover from"
	saidReleased    = "released the leadership"
	saidSilent      = "has been silent for"
	saidUnheard     = "hear no more of"
	saidDied        = "die"
	saidRetaken     = "this copy led last and nobody has led since"
	saidStalled     = "made no progress for"
	saidInterrupted = "was interrupted"
)

// causeOf are the words for each cause. The first that occurs counts.
var causeOf = []struct {
	said  string
	cause Cause
}{
	{saidPlanned, CausePlanned},
	{saidReleased, CauseReleased},
	{saidSilent, CauseSilent},
	{saidUnheard, CauseUnheard},
	{" " + saidDied, CauseDied},
	{saidRetaken, CauseRetaken},
	{saidStalled, CauseStalled},
	{saidInterrupted, CauseInterrupted},
}

// Causes returns every cause.
func Causes() []Cause {
	out := []Cause{CauseOperator, CauseOther}
	for _, c := range causeOf {
		out = append(out, c.cause)
	}
	return out
}

// PlannedFrom returns the reason of an epoch that a planned failover from that member began.
func PlannedFrom(id ReplicaID) string { return saidPlanned + " " + string(id) }

// Cause returns why the epoch began.
func (e EpochRecord) Cause() Cause {
	if e.Forced {
		return CauseOperator
	}
	for _, c := range causeOf {
		if strings.Contains(e.Reason, c.said) {
			return c.cause
		}
	}
	return CauseOther
}

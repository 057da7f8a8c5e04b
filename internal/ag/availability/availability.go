package availability

import (
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Facts are what one node knows at one moment.
type Facts struct {
	View    ag.View
	Open    bool                    // the primary takes writes, by its own last report or, on itself, by its decision
	Members map[ag.ReplicaID]Member // last reports, this node's own among them
	Routes  *ag.Routes              // by which this node sends sessions; nil: not known
	// Voters are the ids of the voting members by the quorum's own list; nil: not known, or the quorum is external.
	Voters []uint64
	// Stray is how the quorum's list of members and the configuration differ, if they do for longer than a change of
	// the members takes; "": they do not.
	Stray string
	// Logins are the reasons for which this node refuses clients that its configuration would admit, as when its file
	// of rules cannot be read.
	Logins []string
	// Unserved are the reasons for which the group's listener is not served on this node where it should be.
	Unserved []string
	// Untold are sentences about the receivers of this node's events that have taken none for long.
	Untold []string
	// Refused is why a configuration in the quorum's store was refused lately; "": none was.
	Refused string
	// Removed reports that the configuration does not have this node any more.
	Removed bool
}

// Member is the last report of a member about itself.
type Member struct {
	Copy       ag.CopyID
	Data       ag.DataState
	Server     ag.ServerState
	Position   ag.Position
	Sync       ag.Sync        // as primary: the setting in force
	Streams    []ag.ReplicaID // as primary: the members that stream and acknowledge
	Waits      time.Duration  // as primary: how long commits have waited; 0: they do not
	WaitsWhy   string
	Sees       []ag.ReplicaID    // the members that answer it; nil: not known
	Relays     [][2]ag.ReplicaID // the pairs of members whose connections it relays
	Silent     time.Duration     // since its last sign of life; 0: not known
	Ill        string
	Offline    []string // the databases that are not online there
	Quarantine string
	NoVote     string   // why its member of the quorum does not run; "": it does
	NoLogins   []string // why its listener refuses clients that the configuration would admit
	Unserved   []string // why the group's listener is not served there where it should be
	Busy       string
	Progress   string
	Storage    []Trouble // what is wrong with the mirrors that its data stands on
}

// Trouble is what a member reports of its machine that stops nothing yet, with what to do.
type Trouble struct{ Finding, Run string }

// Severity is how bad a problem is, by the names of the policies.
type Severity string

// The severities. Critical: the group takes no writes, acknowledges no commits, or its quorum is not what its
// configuration says.
const (
	Critical Severity = "Critical"
	Warning  Severity = "Warning"
)

// Level is the state of the group in one word.
type Level string

// The levels, from the best to the worst.
const (
	Healthy  Level = "healthy"
	Degraded Level = "degraded"
	Down     Level = "down" // no primary, or commits are blocked
)

// Problem is one root cause, with what to do.
type Problem struct {
	Severity Severity `json:"severity"`      // how bad it is
	Target   string   `json:"target"`        // a member, or the group
	Finding  string   `json:"finding"`       // what is wrong, and why
	Run      string   `json:"run,omitempty"` // the next thing to do; "": nothing
}

// Outcome is what a failure would lead to.
type Outcome string

// The outcomes of the failure of a member.
const (
	Survived Outcome = "SURVIVED" // the group takes writes and acknowledges commits, without a person
	Blocked  Outcome = "BLOCKED"  // a primary is there, and its commits wait
	Stops    Outcome = "STOPS"    // no primary
	Gone     Outcome = "DOWN"     // the member does not answer now
)

// Failure is the forecast for the death of one member.
type Failure struct {
	Member  ag.ReplicaID `json:"member"`            // that would die
	Outcome Outcome      `json:"outcome"`           // BLOCKED: commits would wait; STOPS: no primary would take writes; DOWN: it does not answer now
	Primary ag.ReplicaID `json:"primary,omitempty"` // afterwards; "": none
	Because string       `json:"because,omitempty"` // why it is not survived; "": it is
}

// Report is the judgement.
type Report struct {
	Level    Level        `json:"level"`             // the state of the group in one word
	Primary  ag.ReplicaID `json:"primary,omitempty"` // the primary that leads; "": none does
	Writable bool         `json:"writable"`          // a primary takes writes
	// Blocked is whether the primary is there and no commit of it is acknowledged.
	Blocked        bool      `json:"commits_blocked"`
	BlockedSeconds float64   `json:"commits_blocked_seconds,omitempty"` // for how long; 0: they are not
	Because        string    `json:"because,omitempty"`                 // why it takes no writes, or acknowledges no commits; "": it does both
	Automatic      string    `json:"automatic_failover"`                // "ready", or "not ready: " and why
	Failures       []Failure `json:"failures"`                          // what the death of each member would lead to
	Problems       []Problem `json:"problems"`                          // root causes, the worst first
	Next           string    `json:"next,omitempty"`                    // what to run for the first problem; "": nothing
	// QuorumDiffers is how the quorum's list of members and the configuration differ; "": they do not.
	QuorumDiffers string `json:"quorum_differs,omitempty"`
	// Untrusted is why this node does not believe the quorum's store; "": it does.
	Untrusted string `json:"quorum_untrusted,omitempty"`
	// Removed means that the configuration does not have the answering node any more.
	Removed bool `json:"removed,omitempty"`
}

// Ready is the value of Report.Automatic if a replica would take over from the primary.
const Ready = "ready"

// Ready reports whether a replica would take over without a person if the primary failed now.
func (r Report) Ready() bool { return r.Automatic == Ready }

// Survives returns the members whose failure the group survives now, and those whose failure it does not.
func (r Report) Survives() (yes, no []ag.ReplicaID) {
	for _, f := range r.Failures {
		switch f.Outcome {
		case Survived:
			yes = append(yes, f.Member)
		case Blocked, Stops:
			no = append(no, f.Member)
		case Gone:
		}
	}
	return yes, no
}

// Assess returns the judgement. Every node that has the same facts returns the same.
func Assess(f Facts) Report {
	r := Report{Problems: []Problem{}, Failures: []Failure{}, QuorumDiffers: f.Stray, Untrusted: f.View.Untrusted, Removed: f.Removed}
	leader := f.View.Record.Epoch.Leader
	leads := f.View.Record.Epoch.Phase == ag.PhaseLead && f.answers(leader)
	if leader != f.View.Self && (f.View.Untrusted != "" || f.unheard()) {
		leads = false // that is what the record said before; the leader is fenced when its lease has ended
	}
	r.Writable = leads && f.Open && !f.Removed
	if leads && !f.Removed {
		r.Primary = leader
	}
	m := f.Members[leader]
	if r.Writable && m.WaitsWhy != "" {
		r.Blocked, r.BlockedSeconds, r.Because = true, m.Waits.Seconds(), m.WaitsWhy
	}
	if !r.Writable {
		r.Because = f.whyNotWritable()
	}
	for _, x := range f.View.Group.Replicas {
		if x.Part() || f.View.Group.Votes(x) {
			r.Failures = append(r.Failures, f.forecast(x.ID))
		}
	}
	r.Automatic = f.automatic(r)
	r.Problems = append(r.Problems, f.problems(r)...)
	r.Level = Healthy
	switch {
	case !r.Writable || r.Blocked:
		r.Level = Down
	case len(r.Problems) > 0:
		r.Level = Degraded
	}
	for _, p := range r.Problems {
		if p.Run != "" {
			r.Next = p.Run
			break
		}
	}
	return r
}

func (f Facts) answers(id ag.ReplicaID) bool {
	return id == f.View.Self || slices.Contains(f.View.Reach, id)
}

// unheard reports whether this node has no quorum, and has had none for so long that the lease of the leader may have
// run out unseen. The last report of the leader says nothing then, even where the leader itself answers.
func (f Facts) unheard() bool {
	v := f.View
	return !v.Quorum && v.Profile.Observer > 0 && v.Silence >= v.Profile.Observer
}

// handsOver reports whether the primary carries a planned failover out.
func (f Facts) handsOver() bool {
	v := f.View
	asked := v.Op.ID != "" && v.Op.Kind == ag.OpPlanned && v.Op.Epoch == v.Record.Epoch.Epoch
	return v.Record.Epoch.Phase == ag.PhaseLead && (asked || f.Members[v.Record.Epoch.Leader].Busy == "hand-over")
}

func (f Facts) whyNotWritable() string {
	e := f.View.Record.Epoch
	switch {
	case f.Removed:
		return "this node is no member of the group any more"
	case f.View.Untrusted != "":
		return f.View.Untrusted
	case !f.View.Quorum:
		return "no majority of the quorum answers this node"
	case e.Leader == "":
		return "the group has had no primary yet"
	case e.Phase != ag.PhaseLead:
		return fmt.Sprintf("a failover is under way: %s of epoch %d by %s", e.Phase, e.Epoch, e.Leader)
	case !f.answers(e.Leader):
		return fmt.Sprintf("the primary %s does not answer", e.Leader)
	case f.handsOver():
		return fmt.Sprintf("a planned failover is under way: %s hands the leadership over", e.Leader)
	case f.Members[e.Leader].Server != ag.ServerWritable:
		return fmt.Sprintf("the server of the primary %s is %s", e.Leader, f.Members[e.Leader].Server)
	}
	why := fmt.Sprintf("%s has become the primary and is not open for writes yet", e.Leader)
	if left, required, missing := f.lacksRequired(); len(missing) > 0 {
		return fmt.Sprintf("%s: commits must wait for %d (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT), and of its synchronous secondaries %d can acknowledge, without %s",
			why, required, left, ag.Names(missing))
	}
	return why
}

// lacksRequired returns how many secondaries could acknowledge commits of the leader, where those are fewer than are
// required, and which are missing. During a change of the primary each that answers could; after it, each that streams.
func (f Facts) lacksRequired() (left, required int, missing []ag.ReplicaID) {
	v := f.View
	leader := v.Record.Epoch.Leader
	required = v.Group.RequiredBeside(leader)
	for _, x := range v.Group.Replicas {
		if x.ID == leader || !x.HasData() || x.AvailabilityMode != ag.SynchronousCommit {
			continue
		}
		settled := v.Since >= turning && f.answers(leader)
		if !x.Suspended && f.answers(x.ID) && (!settled || slices.Contains(f.Members[leader].Streams, x.ID)) {
			left++
		} else {
			missing = append(missing, x.ID)
		}
	}
	if left >= required {
		return left, required, nil
	}
	return left, required, missing
}

// automatic returns whether a replica would take over if the primary died now, or why not.
func (f Facts) automatic(r Report) string {
	leader := f.View.Record.Epoch.Leader
	forecast := Failure{Outcome: Stops}
	for _, x := range r.Failures {
		if x.Member == leader {
			forecast = x
		}
	}
	switch {
	case f.Removed:
		return "not ready: " + f.whyNotWritable()
	case f.Stray != "":
		return "not ready: " + f.Stray
	case forecast.Outcome == Survived:
		return Ready
	case forecast.Outcome == Gone: // it is dead already: what hinders the takeover
		forecast = f.forecastTakeover(leader)
		if forecast.Outcome == Survived {
			return fmt.Sprintf("not ready: %s takes over now", forecast.Primary)
		}
	}
	return "not ready: " + forecast.Because
}

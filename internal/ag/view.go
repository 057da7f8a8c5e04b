package ag

import (
	"slices"
	"time"
)

// DataState says what is in a replica's data directory.
type DataState string

// The states of a data directory. DataPartial was left by a seeding or rewind that did not finish: no server may start on it.
const (
	DataEmpty   DataState = "EMPTY"
	DataPartial DataState = "PARTIAL"
	DataPresent DataState = "PRESENT"
	DataForeign DataState = "FOREIGN" // not the copy this node's marks name: nothing touches it until a person has looked
)

// ServerState says what a replica's PostgreSQL is doing.
type ServerState string

// The states of a server. A server in ServerWritable left recovery: fenced unless the record says it may be so.
const (
	ServerDown     ServerState = "DOWN"
	ServerStarting ServerState = "STARTING"
	ServerRecovery ServerState = "RECOVERY"
	ServerWritable ServerState = "WRITABLE"
)

// Sync is the synchronous-replication setting of a primary as PostgreSQL has it: a commit waits for N of the members P.
// N = 0 waits for nobody.
type Sync struct {
	P       []ReplicaID `json:"p"`
	N       int         `json:"n"`
	Proven  bool        `json:"proven"`  // every backend and walsender is known to have taken it over
	Barrier LSN         `json:"barrier"` // sampled after the proof: commits acknowledged under any earlier setting end before it
}

// Setting returns what the setting asks for.
func (s Sync) Setting() Setting { return Setting{s.P, s.N} }

// Local is what a node knows of its own PostgreSQL and of its own durable marks.
type Local struct {
	Data     DataState       `json:"data"`
	Server   ServerState     `json:"server"`
	Copy     CopyID          `json:"copy"`
	Position Position        `json:"position"`            // end of WAL here; of a running primary its flush position
	Promised Epoch           `json:"promised"`            // the highest epoch promised to a candidate, on disk
	Began    Timeline        `json:"began,omitempty"`     // the timeline of the last promotion that was begun here, on disk; 0: none
	Armed    Epoch           `json:"armed"`               // the epoch the keeper holds a deadline for; 0: none
	Source   ReplicaID       `json:"source,omitempty"`    // whom the upstream socket is pointed at
	SourceEp Epoch           `json:"source_epoch"`        // and in which epoch
	Refused  bool            `json:"refused,omitempty"`   // the source refused the stream because this copy diverged
	NoRewind bool            `json:"no_rewind,omitempty"` // the last rewind of this copy failed or is impossible: reseed
	Sync     Sync            `json:"sync"`
	Foreign  string          `json:"foreign,omitempty"`  // a reserved setting carries a value that is not ours
	EndOfRec LSN             `json:"end_of_recovery"`    // where the promotion of this epoch ended
	History  []TimelineEntry `json:"history,omitempty"`  // the timelines of this copy, oldest first, known after promotion
	Doubled  []ReplicaID     `json:"doubled,omitempty"`  // members for which two walsenders run: PostgreSQL counts both
	Opened   Epoch           `json:"opened"`             // the epoch in which the gate was opened here
	Attached bool            `json:"attached,omitempty"` // the server was left running by another agent, and what commits wait for is not proven yet
	Restart  LSN             `json:"restart,omitempty"`  // the server was started again within the epoch: how far its WAL went then; 0: it was not

	Stuck      string `json:"stuck,omitempty"`    // why this standby will not go on before it is started again; "": it goes on, or waits for its source
	Renew      string `json:"renew,omitempty"`    // why the copy must be made anew although it has not diverged; "": it need not
	Withheld   string `json:"withheld,omitempty"` // why no copy is made here for now although one is needed; "": one may be
	Health     Health `json:"health,omitzero"`
	Quarantine string `json:"quarantine,omitempty"` // why this copy is not trusted; "": it is
	StoodDown  string `json:"stood_down,omitempty"` // when this node last gave up the leadership for its health or a crash, while that counts
}

// Stream is a replication stream that a secondary draws from this node, as seen by the primary's agent.
type Stream struct {
	Member  ReplicaID     `json:"member"`
	Copy    CopyID        `json:"copy"`
	Open    bool          `json:"open"`
	Flush   LSN           `json:"flush"`
	Close   bool          `json:"close"`             // its lag is small enough to be made synchronous
	Silent  time.Duration `json:"silent"`            // since the last feedback, or since it was lost
	Refused bool          `json:"refused,omitempty"` // not open, and its endpoint refuses connections: provably not running
	Gone    bool          `json:"gone,omitempty"`    // not open, and it says itself that it has the copy no more that V names, or waits for V to drop it
}

// SealReport is a member's answer to a candidate: it promised Epoch, its older streams are closed, and Position will not move
// until a leader of that epoch or a later one feeds it.
type SealReport struct {
	Member     ReplicaID `json:"member"`
	Copy       CopyID    `json:"copy"`
	Epoch      Epoch     `json:"epoch"`
	Position   Position  `json:"position"`
	Promotable bool      `json:"promotable"` // its PostgreSQL could be promoted now
}

// OpKind is the kind of an operator's request.
type OpKind string

// The operator's requests the leader or the target carries out.
const (
	OpPlanned OpKind = "PLANNED"
	OpForced  OpKind = "FORCED"
)

// Op is an operator's request under way, kept in the store so that it survives any one node. One at a time.
type Op struct {
	ID    string    `json:"id"`
	Kind  OpKind    `json:"kind"`
	To    ReplicaID `json:"to"`
	Epoch Epoch     `json:"epoch"` // the epoch it was asked in; it is void in any other
	// Drain is how long running transactions may take to end before a planned failover, 0: as usual. Cut ends them then, instead of
	// giving up.
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
}

// Lease is this node's own hold on the leadership, as its renewals and its clock have it.
type Lease struct {
	Epoch Epoch `json:"epoch"`
	Valid bool  `json:"valid"` // the deadline of the last successful renewal has not passed
}

// View is what one node can see at one moment: a value, without pointers to anything alive, that can be stored and decided
// again. Durations are what this node's own stopwatch measured.
type View struct {
	Self      ReplicaID     `json:"self"`
	Group     Group         `json:"group"`
	Profile   Profile       `json:"profile"`
	Untrusted string        `json:"untrusted,omitempty"` // the store has gone back in time: why it is not believed; Quorum is false then
	Quorum    bool          `json:"quorum"`              // Record is from a linearizable read of this turn
	Record    Record        `json:"record"`
	Silence   time.Duration `json:"silence"` // since this node last saw /lead or /epoch change
	Lease     Lease         `json:"lease"`
	Voting    Voting        `json:"voting,omitzero"`
	Local     Local         `json:"local"`
	Reach     []ReplicaID   `json:"reach"`           // members that answered on the control stream lately, self included
	Unfit     []ReplicaID   `json:"unfit,omitempty"` // members that an ill primary should not leave the leadership to: by their own reports
	Seals     []SealReport  `json:"seals,omitempty"`
	Sealed    time.Duration `json:"sealed"` // since enough seals were in; 0 if they are not
	Streams   []Stream      `json:"streams,omitempty"`
	Op        Op            `json:"op,omitzero"`
	Ready     string        `json:"ready,omitempty"` // the operator's request that this node is prepared for
	Busy      string        `json:"busy,omitempty"`  // the long action under way here
}

// Plan is what the node should do now.
//
// Contract: a fence comes before anything and needs no record. Commit, if there is one, is made before the Actions, by
// compare-and-swap on the record of the view, and the Actions are dropped when it fails. What must follow an effect waits
// until a later view shows the effect. A plan is never resumed, only decided anew.
type Plan struct {
	Rule    Rule     `json:"rule"`
	Because string   `json:"because"`
	Commit  *Commit  `json:"commit,omitempty"`
	Actions []Action `json:"actions,omitempty"`
	Open    bool     `json:"open"` // this node may accept writes from clients (S6); false shuts the gate
}

// Commit is one guarded transaction on the record: nil fields stay as they are.
type Commit struct {
	Guard Revisions    `json:"guard"` // negative: not compared
	Epoch *EpochRecord `json:"epoch,omitempty"`
	State *State       `json:"state,omitempty"`
	Lead  *Lead        `json:"lead,omitempty"`

	Votes  []Vote    `json:"votes,omitempty"`  // compared as well: each must still be there, unchanged
	Vote   *Vote     `json:"vote,omitempty"`   // written
	Unvote ReplicaID `json:"unvote,omitempty"` // whose vote is removed, if there is one
}

// Action is one thing an agent can do. The set is closed.
//
//sumtype:decl
type Action interface{ action() }

// The actions. Each is idempotent: doing it twice is doing it once.
type (
	// Fence makes writes impossible here, now, needing nobody.
	Fence struct{ Reason string }
	// Withhold acknowledges no heartbeat of the epoch any more.
	Withhold struct{ Epoch Epoch }
	// Acknowledge acknowledges heartbeats again.
	Acknowledge struct{}
	// Start starts PostgreSQL as a standby.
	Start struct{}
	// Stop stops a standby.
	Stop struct{}
	// AskSeals asks the members for their promise to Epoch and their position; this node itself among them.
	AskSeals struct {
		Epoch   Epoch
		Members []ReplicaID
	}
	// Promote arms the keeper, puts Sync in force, marks the promotion on disk and promotes onto timeline TLI.
	Promote struct {
		Epoch Epoch
		TLI   Timeline
		Sync  Sync
	}
	// Follow points the upstream at Leader in Epoch: at who leads it, or, while it is being sealed, at who has the longest log.
	Follow struct {
		Leader ReplicaID
		Epoch  Epoch
	}
	// Hold points the upstream at nobody; the walreceiver waits.
	Hold struct{}
	// Rewind brings a diverged copy back to Source's history.
	Rewind struct{ Source ReplicaID }
	// Seed makes a new copy from Source; what is there is kept in part (the diverged tail) and replaced.
	Seed struct{ Source ReplicaID }
	// SetSync puts a synchronous-replication setting before PostgreSQL.
	SetSync struct{ Sync Sync }
	// EndStreams holds every answer, ends all walsenders of the members, and lets answers go again once the setting is proven anew.
	EndStreams struct{ Members []ReplicaID }
	// ProveSync proves the present setting to be in force everywhere and samples the barrier.
	ProveSync struct{}
	// Prepare does what a planned failover needs beforehand, while this node goes on serving.
	Prepare struct{ Op Op }
	// HandOver runs a planned failover that is prepared.
	HandOver struct{ Op Op }
)

func (Fence) action()       {}
func (Withhold) action()    {}
func (Acknowledge) action() {}
func (Start) action()       {}
func (Stop) action()        {}
func (AskSeals) action()    {}
func (Promote) action()     {}
func (Follow) action()      {}
func (Hold) action()        {}
func (Rewind) action()      {}
func (Seed) action()        {}
func (SetSync) action()     {}
func (EndStreams) action()  {}
func (ProveSync) action()   {}
func (Prepare) action()     {}
func (HandOver) action()    {}

func (v View) reaches(id ReplicaID) bool { return id == v.Self || slices.Contains(v.Reach, id) }

func (v View) me() Replica {
	r, _ := v.Group.Replica(v.Self)
	return r
}

// Role returns what the viewing replica is at this moment.
func (v View) Role() Role {
	switch {
	case v.is(PhaseLead) && v.Local.Server == ServerWritable:
		return RolePrimary
	case v.Record.Epoch.Phase == PhaseLead && v.Record.Epoch.Leader != v.Self && v.Local.Data == DataPresent && v.Local.Server == ServerRecovery:
		return RoleSecondary
	}
	return RoleResolving
}

// ForkPoint returns where this copy's WAL leaves the leader's history; its own position where it does not, and the start of its
// timeline where nothing is known of that.
func (v View) ForkPoint() Position {
	tls, at := v.Record.State.Timelines, v.Local.Position
	i := slices.IndexFunc(tls, func(t TimelineEntry) bool { return t.TLI == at.Timeline })
	if i < 0 {
		return Position{Timeline: at.Timeline}
	}
	for _, t := range tls[i+1:] {
		if t.Parent == at.Timeline && t.leaves() < at.LSN {
			return Position{at.Timeline, t.Switch}
		}
	}
	return at
}

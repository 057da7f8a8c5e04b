package ag

import (
	"slices"
	"time"
)

// DataState is what a replica's data directory contains.
type DataState string

// The states of a data directory. An unfinished seeding or rewind leaves DataPartial: no server may start on it.
const (
	DataEmpty   DataState = "EMPTY"
	DataPartial DataState = "PARTIAL"
	DataPresent DataState = "PRESENT"
	DataForeign DataState = "FOREIGN" // not the copy that this node's marks name: not touched before a person has looked
)

// ServerState is what a replica's PostgreSQL does.
type ServerState string

// The states of a server. A server in ServerWritable has left recovery. It is fenced unless the record gives it the
// right.
const (
	ServerDown     ServerState = "DOWN"
	ServerStarting ServerState = "STARTING"
	ServerRecovery ServerState = "RECOVERY"
	ServerWritable ServerState = "WRITABLE"
)

// Sync is the synchronous-replication setting of a primary as PostgreSQL has it: a commit waits for N of the members P.
// N = 0: commits wait for no member.
type Sync struct {
	P       []ReplicaID `json:"p"`
	N       int         `json:"n"`
	Proven  bool        `json:"proven"`  // every backend and walsender is known to have taken it over
	Barrier LSN         `json:"barrier"` // sampled after the proof: commits acknowledged under any earlier setting end before it
}

// Setting returns the members and their number, without the proof.
func (s Sync) Setting() Setting { return Setting{s.P, s.N} }

// Same reports whether commits wait for as many of the same members in o, in whatever order these are named.
func (s Sync) Same(o Sync) bool {
	return s.N == o.N && slices.Equal(slices.Sorted(slices.Values(s.P)), slices.Sorted(slices.Values(o.P)))
}

// Local is what a node knows about its own PostgreSQL and from its own durable marks.
type Local struct {
	Data     DataState       `json:"data"`
	Server   ServerState     `json:"server"`
	Copy     CopyID          `json:"copy"`
	Position Position        `json:"position"`            // end of WAL here; the flush position of a running primary
	Promised Epoch           `json:"promised"`            // the highest epoch promised to a candidate, on disk
	Began    Timeline        `json:"began,omitempty"`     // the timeline of the last promotion that began here, on disk; 0: none
	Armed    Epoch           `json:"armed"`               // the epoch for which the keeper holds a deadline; 0: none
	Source   ReplicaID       `json:"source,omitempty"`    // the member that the upstream socket leads to
	SourceEp Epoch           `json:"source_epoch"`        // the epoch in which it does
	Refused  bool            `json:"refused,omitempty"`   // the source refused the stream because this copy diverged
	NoRewind bool            `json:"no_rewind,omitempty"` // the last rewind of this copy failed or is impossible: reseed
	Sync     Sync            `json:"sync"`
	Foreign  string          `json:"foreign,omitempty"`  // a reserved setting has a value that the agent did not set
	EndOfRec LSN             `json:"end_of_recovery"`    // where the promotion of this epoch ended
	History  []TimelineEntry `json:"history,omitempty"`  // the timelines of this copy, oldest first, known after promotion
	Xids     Xids            `json:"xids,omitzero"`      // of the promotion of this epoch
	Doubled  []ReplicaID     `json:"doubled,omitempty"`  // members in whose names two walsenders run, or one of another program: PostgreSQL counts them
	Opened   Epoch           `json:"opened"`             // the epoch in which the gate was opened here
	Attached bool            `json:"attached,omitempty"` // another agent left the server running, and the setting of its commits is not proven yet
	Restart  LSN             `json:"restart,omitempty"`  // the end of its WAL when the server was restarted within the epoch; 0: it was not

	Late       bool   `json:"late,omitempty"`     // more than LateReplay of its WAL is not replayed
	Stuck      string `json:"stuck,omitempty"`    // why this standby does not continue before it is restarted; "": it continues, or waits for its source
	Renew      string `json:"renew,omitempty"`    // why the copy must be replaced although it has not diverged; "": it need not
	Withheld   string `json:"withheld,omitempty"` // why no copy is made here for now although one is needed; "": one may be made
	Health     Health `json:"health,omitzero"`
	Quarantine string `json:"quarantine,omitempty"` // why this copy is not trusted; "": it is trusted
	StoodDown  string `json:"stood_down,omitempty"` // when this node last gave up the leadership for its health or a crash, while that counts
}

// Stream is a replication stream from this node to a secondary, as the primary's agent sees it.
type Stream struct {
	Member  ReplicaID     `json:"member"`
	Copy    CopyID        `json:"copy"`
	Open    bool          `json:"open"`
	Flush   LSN           `json:"flush"`
	Close   bool          `json:"close"`             // its lag is small enough for synchronous commit
	Silent  time.Duration `json:"silent"`            // since the last feedback, or since the stream was lost
	Refused bool          `json:"refused,omitempty"` // not open, and its endpoint refuses connections: it provably does not run
	Gone    bool          `json:"gone,omitempty"`    // not open, and it reports that it no longer has the copy that V names, or waits for V to drop it
	Bare    bool          `json:"bare,omitempty"`    // not open, and it reports in this epoch that it holds no whole copy of the group's cluster: nothing it has could stream
}

// SealReport is a member's answer to a candidate. The member has promised Epoch and closed its older streams. Position
// does not move until a leader of that epoch or a later one feeds the member.
type SealReport struct {
	Member     ReplicaID `json:"member"`
	Copy       CopyID    `json:"copy"`
	Epoch      Epoch     `json:"epoch"`
	Position   Position  `json:"position"`
	Promotable bool      `json:"promotable"`     // its PostgreSQL could be promoted now
	Late       bool      `json:"late,omitempty"` // and would have to replay more than LateReplay first
}

// LateReplay is how many bytes of WAL a copy may have without having replayed them before its promotion is said to take
// long. A server replays some ten or hundred megabytes in a second.
const LateReplay LSN = 64 << 20

// OpKind is the kind of an operator's request.
type OpKind string

// The kinds of request. The leader or the target carries them out.
const (
	OpPlanned OpKind = "PLANNED"
	OpForced  OpKind = "FORCED"
)

// Op is an operator's request. It is kept in the store, so that it survives any single node. There is one at a time.
type Op struct {
	ID    string    `json:"id"`
	Kind  OpKind    `json:"kind"`
	To    ReplicaID `json:"to"`
	Epoch Epoch     `json:"epoch"` // the epoch in which it was made; it is void in any other
	// Drain is how long running transactions may take to end before a planned failover; 0: the default. Afterwards Cut
	// ends them, instead of giving the failover up.
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
	Now   bool          `json:"now,omitempty"` // a forced failover opens although the old leader may still answer clients
}

// Lease is this node's hold on the leadership, by its own renewals and clock.
type Lease struct {
	Epoch Epoch `json:"epoch"`
	Valid bool  `json:"valid"` // the deadline of the last successful renewal has not passed
}

// View is what one node can see at one moment. It is a value without pointers to anything alive, so it can be stored
// and decided again. This node's own stopwatch measures its durations. Its methods take a pointer because it is large;
// none of them changes it.
type View struct {
	Self      ReplicaID     `json:"self"`
	Group     Group         `json:"group"`
	Profile   Profile       `json:"profile"`
	Untrusted string        `json:"untrusted,omitempty"` // why the store is not believed: it has gone back in time; Quorum is false then
	Quorum    bool          `json:"quorum"`              // Record is from a linearizable read of this turn
	Record    Record        `json:"record"`
	Silence   time.Duration `json:"silence"`         // since this node last saw /lead or /epoch change
	Since     time.Duration `json:"since,omitempty"` // since this node first saw the present epoch
	// Superseded is how long ago a majority of the voters of the outgoing leader had acknowledged a heartbeat of the
	// present epoch; 0: they have not.
	Superseded time.Duration `json:"superseded,omitempty"`
	Lease      Lease         `json:"lease"`
	Voting     Voting        `json:"voting,omitzero"`
	Local      Local         `json:"local"`
	Reach      []ReplicaID   `json:"reach"`           // other members that gave a sign of life lately
	Unfit      []ReplicaID   `json:"unfit,omitempty"` // members that an ill primary should not leave the leadership to, by their own reports
	Late       []ReplicaID   `json:"late,omitempty"`  // members that have more than LateReplay to replay, or no standby that runs, by their own reports
	Seals      []SealReport  `json:"seals,omitempty"`
	Sealed     time.Duration `json:"sealed"` // since enough seals were in; 0 if they are not
	Streams    []Stream      `json:"streams,omitempty"`
	Op         Op            `json:"op,omitzero"`
	Ready      string        `json:"ready,omitempty"` // the operator's request for which this node is prepared
	Busy       string        `json:"busy,omitempty"`  // the long action under way
}

// Plan is what the node should do now. Its order is a contract:
//
//	Fence     comes BEFORE anything else, and needs no record.
//	Commit    is made BEFORE the Actions, by compare-and-swap on the record of the view. If it fails, the Actions MUST
//	          NOT be performed.
//	Actions   are performed in order, AFTER the commit.
//
// A step that must follow an effect waits until a later view shows that effect. A plan is never resumed; the next view
// is decided anew.
//
// A promotion is therefore a sequence of plans, each of which rests on what the view shows:
//
//  1. claim:    the epoch is raised. The transaction MUST compare all three keys, so that (V, k) is final.
//  2. seal:     each member makes its promise durable BEFORE it closes its older streams, and closes them BEFORE it
//     reports its position.
//  3. choose:   the best copy and a new timeline id are recorded BEFORE any server is promoted.
//  4. promote:  see Promote.
//  5. lead:     LEAD and the new state are recorded AFTER the server is seen writable. Only LEAD gives rights.
//  6. open:     the gate opens AFTER the setting is proven and what was recovered is replicated (S6).
type Plan struct {
	Rule    Rule     `json:"rule"`
	Because string   `json:"because"`
	Commit  *Commit  `json:"commit,omitempty"`
	Actions []Action `json:"actions,omitempty"`
	Open    bool     `json:"open"` // this node may accept writes from clients (S6); false shuts the gate
}

// Commit is one guarded transaction on the record. A nil field is not written.
type Commit struct {
	Guard Revisions `json:"guard"` // negative: not compared
	// Group is the revision of the configuration that the view had, which is compared as well; 0: it is not. The agent
	// fills it in, but for a release: a decision by a configuration that has been changed since does not take effect.
	Group int64        `json:"group,omitempty"`
	Epoch *EpochRecord `json:"epoch,omitempty"`
	State *State       `json:"state,omitempty"`
	Lead  *Lead        `json:"lead,omitempty"`

	Votes  []Vote    `json:"votes,omitempty"`  // compared as well: each must still exist, unchanged
	Vote   *Vote     `json:"vote,omitempty"`   // written
	Unvote ReplicaID `json:"unvote,omitempty"` // the member whose vote is removed, if there is one
}

// Action is one thing an agent can do. The set is closed.
//
//sumtype:decl
type Action interface{ action() }

// The actions. Each is idempotent.
type (
	// Fence makes writes impossible here and now. It needs no other node.
	Fence struct{ Reason string }
	// Withhold stops acknowledging heartbeats of the epoch.
	Withhold struct{ Epoch Epoch }
	// Acknowledge acknowledges heartbeats again.
	Acknowledge struct{}
	// Start starts PostgreSQL as a standby.
	Start struct{}
	// Stop stops a standby.
	Stop struct{}
	// AskSeals asks the members, this node included, for their promise of Epoch and their position.
	AskSeals struct {
		Epoch   Epoch
		Members []ReplicaID
	}
	// Promote promotes the server here onto timeline TLI. Sync MUST be in force BEFORE the keeper is armed. The keeper
	// MUST be armed BEFORE the promotion is marked on disk. The mark MUST be on disk BEFORE pg_promote is called.
	Promote struct {
		Epoch Epoch
		TLI   Timeline
		Sync  Sync
	}
	// Follow points the upstream at a member in an epoch: at its leader, or, while it is being sealed, at the member
	// with the longest log.
	Follow struct {
		Leader ReplicaID
		Epoch  Epoch
	}
	// Hold points the upstream at no member; the walreceiver waits.
	Hold struct{}
	// Rewind brings a diverged copy back to Source's history.
	Rewind struct{ Source ReplicaID }
	// Seed makes a new copy from Source. The diverged tail of the present copy is kept; the rest is replaced.
	Seed struct{ Source ReplicaID }
	// SetSync puts a synchronous-replication setting before PostgreSQL.
	SetSync struct{ Sync Sync }
	// EndStreams holds every answer and ends all walsenders of the members. Answers are sent again AFTER the setting
	// was proven anew.
	EndStreams struct{ Members []ReplicaID }
	// ProveSync proves that the present setting is in force everywhere, then samples the barrier.
	ProveSync struct{}
	// Prepare does in advance what a planned failover needs, while this node serves.
	Prepare struct{ Op Op }
	// HandOver carries out a planned failover that is prepared.
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

func (v *View) reaches(id ReplicaID) bool { return id == v.Self || slices.Contains(v.Reach, id) }

func (v *View) me() Replica {
	r, _ := v.Group.Replica(v.Self)
	return r
}

// Role returns what the viewing replica is at this moment.
func (v *View) Role() Role {
	switch {
	case v.is(PhaseLead) && v.Local.Server == ServerWritable:
		return RolePrimary
	case v.Record.Epoch.Phase == PhaseLead && v.Record.Epoch.Leader != v.Self && v.Local.Data == DataPresent && v.Local.Server == ServerRecovery:
		return RoleSecondary
	}
	return RoleResolving
}

// Unreadable returns why readers may not see this copy; "": they may, while its server is in recovery. The state that
// it shows must be one of the group's history (S7), and nothing may be about to rewrite it.
func (v *View) Unreadable() string {
	switch {
	case v.Local.Data != DataPresent:
		return "the data directory is " + string(v.Local.Data)
	case v.Diverged():
		return "this copy holds WAL that is not in the group's history"
	case v.Local.Refused:
		return "the leader refuses this copy"
	case v.Local.Quarantine != "":
		return "this copy is under quarantine: " + v.Local.Quarantine
	case v.Local.Renew != "":
		return "this copy is to be made anew: " + v.Local.Renew
	}
	return ""
}

// Readable reports whether this node's server may take read-only sessions as a secondary's. One that answers no new
// connection takes none, and keeps those that it has.
func (v *View) Readable() bool {
	return v.Local.Server == ServerRecovery && v.Busy == "" && v.Unreadable() == "" && !v.Local.Health.Unresponsive()
}

// ForkPoint returns where this copy's WAL leaves the leader's history. It is the copy's position if it does not leave
// it, and the start of its timeline if nothing is known about that.
func (v *View) ForkPoint() Position {
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

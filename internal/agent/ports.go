package agent

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/lease"
	"github.com/coteriedb/coterie/internal/agent/liveness"
	"github.com/coteriedb/coterie/internal/agent/marks"
)

// ErrConflict is the error of a Store whose guarded key has changed: the caller must read again.
var ErrConflict = lease.ErrConflict

// ErrUnknown is the error of a Store that could not find out in time whether a change was made, or will be. Any other
// error means that it was not and will not be.
var ErrUnknown = errors.New("it is not known whether the record was changed")

// ErrForged is the error of a Store whose record was written by no replica: a witness may be stolen. Nothing may be
// decided by it (docs/internals/safety.md, "Untrusted store").
var ErrForged = errors.New("the record is not believed")

// Snapshot is the result of one linearizable read of the store.
type Snapshot struct {
	Record   ag.Record
	Group    ag.Group
	GroupRev int64
	Op       ag.Op // zero: none
	OpRev    int64
	Statuses map[ag.ReplicaID]Status
	StoreID  uint64 // the store that answered; 0: unknown
	StoreRev int64  // its revision
	// ByWitness means that no replica's member answered. A stolen witness may have: what no replica signs is of no use
	// beyond this read.
	ByWitness bool
}

// Store is the group's record in the quorum.
type Store interface {
	// Read returns everything at one revision, linearizably.
	Read(ctx context.Context) (Snapshot, error)
	// Commit makes the guarded transaction, or returns ErrConflict. ErrUnknown leaves the outcome open.
	Commit(ctx context.Context, c ag.Commit) error
	// Renew writes /lead if /epoch is still at that revision, or returns ErrConflict.
	Renew(ctx context.Context, epochRev int64, l ag.Lead) error
	// Watch reports that something changed. Its hints may be late, repeated or missing.
	Watch(ctx context.Context) <-chan Hint
	// PutStatus publishes what this node reports about itself.
	PutStatus(ctx context.Context, id ag.ReplicaID, s Status) error
	// CloseOp removes the operator's request of that revision.
	CloseOp(ctx context.Context, opRev int64) error
	// Prefer orders the members to ask. This node's own member comes last while this node is the primary.
	Prefer(primary ag.ReplicaID)
	// Yield moves the quorum's leadership away from this node, if it has it, to one of the given members, which are in
	// reach.
	Yield(ctx context.Context, to []ag.ReplicaID)
}

// Hint is what a watch saw.
type Hint struct {
	Changed bool    // something may have changed, other than by a renewal of /lead
	Lead    ag.Lead // the newest renewal seen, at revision LeadRev; 0: none
	LeadRev int64
}

// Observation is what the running server reports about itself.
type Observation struct {
	InRecovery bool
	Position   ag.Position // end of the whole records held durably here; a lower bound while WAL comes in
	Flushed    ag.Position // end of the bytes held durably here, which may lie inside a record
	Replay     ag.LSN
	Receiving  bool // a walreceiver is alive
	Streamed   bool // a walreceiver has received something since the server started and had replayed all it had
	// Short is why the server has paused its replay: settings that are below the primary's. Started again it has as
	// much. "": it has not.
	Short  string
	Paused bool // replay is paused, by an administrator if not for Short: it goes on when one says so
	P      []ag.ReplicaID
	N      int
	// Written is the setting that is in force after the next reload, which any session may ask for; nil: not known. N
	// is -1 if it is not one of the agent's.
	Written   *ag.Sync
	Doubled   []ag.ReplicaID // members in whose names more than one walsender runs, or one that this node's agent did not open
	SyncEpoch ag.Epoch       // of the names in it; 0: none, or of several epochs
	Waiters   int            // sessions waiting for synchronous replication
}

// Instance is this node's PostgreSQL: its files and, while it runs, its server.
type Instance interface {
	// Data returns the state of the data directory, including the marks of an unfinished seeding or rewind.
	Data() ag.DataState
	// InsideCopy reads the copy id in the data directory; WriteCopy writes it there, durably.
	InsideCopy() (ag.CopyID, error)
	WriteCopy(id ag.CopyID) error
	// Observe asks the server; an error means that it does not answer.
	Observe(ctx context.Context) (Observation, error)
	// EndOfWAL reads the end of WAL, from the files when the server is down.
	EndOfWAL(ctx context.Context) (ag.Position, error)
	// Holds reports whether the files hold WAL up to a position that this copy reported once, the beginning of a record
	// included. It may read much.
	Holds(ctx context.Context, pos ag.Position) (bool, error)
	// History returns the timelines that lead to tli, oldest first, tli last.
	History(ctx context.Context, tli ag.Timeline) ([]ag.TimelineEntry, error)
	// CatchUp does what may take long before a promotion to a timeline. It returns when the server in recovery has
	// replayed all that it has and can replay, up to end at least.
	CatchUp(ctx context.Context, end ag.Position, tli ag.Timeline) error
	// Promote leaves recovery on exactly that timeline, and returns the flushed end of recovery, and of the numbers of
	// transactions there what is known.
	Promote(ctx context.Context, tli ag.Timeline) (ag.LSN, ag.Xids, error)
	// SetSync puts the setting before PostgreSQL and waits until a new session sees it. The names carry the epoch.
	SetSync(ctx context.Context, p []ag.ReplicaID, n int, e ag.Epoch) error
	FlushLSN(ctx context.Context) (ag.LSN, error)
	// Strays returns what Observe returns in Doubled. It is called ten times a second.
	Strays(ctx context.Context) ([]ag.ReplicaID, error)
	// EndWalsenders ends every walsender of a member.
	EndWalsenders(ctx context.Context, member ag.ReplicaID) error
	Checkpoint(ctx context.Context) error
	// FreshSegment makes a primary switch to a new WAL segment, unless it has just begun one. It returns where that
	// segment begins; 0 if it did not switch.
	FreshSegment(ctx context.Context) (ag.LSN, error)
	// EndWriters ends background workers of users, and sessions with a statement or transaction under way.
	EndWriters(ctx context.Context) error
	// EndConflicts lets replay win over readers from the start of a seal; RestoreConflicts undoes it.
	EndConflicts(ctx context.Context) error
	RestoreConflicts(ctx context.Context) error
	// ProbeCommit makes a tiny commit that must wait for synchronous replication. waiting reports whether it does.
	ProbeCommit(ctx context.Context) (done <-chan error, waiting func(context.Context) bool, err error)
	// EnsureSlots keeps one physical slot per member. On a server in recovery it advances each to the member's
	// position.
	EnsureSlots(ctx context.Context, at map[ag.ReplicaID]ag.LSN) error
	// KeepFork saves WAL from the fork on, history files and control file BEFORE they are rewound or replaced (S5).
	KeepFork(ctx context.Context, from ag.Position) (dir string, err error)
	// Rewind brings the stopped copy back to the history of the server behind the upstream socket.
	Rewind(ctx context.Context, progress func(string)) error
}

// Keeper is the parent of the server.
type Keeper interface {
	// Start starts the server as a standby and returns once the process exists.
	Start(ctx context.Context, generation uint64) error
	// StartPrimary starts a server that led when it stopped. It leads again in the epoch for which the keeper is armed.
	StartPrimary(ctx context.Context, generation uint64, e ag.Epoch) error
	Arm(ctx context.Context, e ag.Epoch, deadline time.Duration) error
	Extend(ctx context.Context, e ag.Epoch, deadline time.Duration) error
	Disarm(ctx context.Context, e ag.Epoch) error
	// Detach announces that this agent ends, and that another agent will call Extend before until, which is not beyond
	// the deadline.
	Detach(ctx context.Context, e ag.Epoch, until time.Duration) error
	// Fence returns AFTER no process of the server is left.
	Fence(ctx context.Context, reason string) error
	// Stop stops the server within the budget, and kills it at its end; clean reports whether it shut down in order.
	Stop(ctx context.Context, budget time.Duration) (clean bool, err error)
	Status(ctx context.Context) (KeeperState, error)
	// Exits yields each end of the server, "fenced: …" if it was fenced. It is closed when the keeper is lost.
	Exits() <-chan string
}

// KeeperState is what the keeper reports.
type KeeperState struct {
	KeeperPID, ServerPID int
	Generation           uint64
	Armed                ag.Epoch // 0: not armed
}

// Upstream is where this node's walreceiver connects.
type Upstream interface {
	Follow(leader ag.Replica, e ag.Epoch)
	// Hold closes the present connection and keeps new ones waiting.
	Hold()
	// Seal is Hold, and returns AFTER no connection is left.
	Seal(ctx context.Context) error
	Status() UpstreamStatus
}

// UpstreamStatus is the state of the upstream.
type UpstreamStatus struct {
	Connected bool // a walreceiver is connected to the source
	Held      bool // a walreceiver waits for the source
	Source    ag.ReplicaID
	Epoch     ag.Epoch
	Diverged  bool          // the source in force refused the stream because of this copy's history
	Gone      bool          // the source no longer keeps the WAL that this copy needs
	At        time.Duration // boottime of the source's answer
	Detail    string
	LastRead  time.Duration // boottime of the last byte from a source on a WAL stream; 0: never
}

// Downstream feeds the members from this node's server.
type Downstream interface {
	// Lead opens for members in that epoch, or closes everything if leading is false. It returns AFTER older streams
	// are closed.
	Lead(e ag.Epoch, leading bool)
	// Feed opens for the WAL stream of one member only, in an epoch that has no leader yet, until the next Lead.
	Feed(e ag.Epoch, to ag.ReplicaID)
	Streams() []Stream
	Changed() <-chan struct{}
	Prove(ctx context.Context, members []ag.ReplicaID) error
	HoldFeedback(hold bool)
	// Drop ends a member's stream; it may open another.
	Drop(member ag.ReplicaID, why string)
}

// Stream is a member's open WAL stream.
type Stream struct {
	Member       ag.ReplicaID
	Copy         ag.CopyID
	Flush, Apply ag.LSN
	Session      uint64
	LastFeedback time.Duration // boottime
}

// Peers reaches the other members' agents.
type Peers interface {
	// Ping returns what the member has seen of the record, and ErrRefused when its endpoint refuses connections.
	Ping(ctx context.Context, r ag.Replica) (marks.Seen, error)
	Seal(ctx context.Context, r ag.Replica, req SealRequest) (ag.SealReport, error)
	// Position asks a member how far its copy is.
	Position(ctx context.Context, r ag.Replica) (Positions, error)
	// Heartbeats opens a stream of heartbeats to a member, whose agent serves it with ServeHeartbeats.
	Heartbeats(ctx context.Context, r ag.Replica) (liveness.HeartbeatStream, error)
	// Probe makes a connection to the member's endpoint and drops it: ErrRefused where nothing listens.
	Probe(ctx context.Context, r ag.Replica) error
	// PrepareTakeover asks the target of a planned failover to do in advance what it can.
	PrepareTakeover(ctx context.Context, r ag.Replica, req TakeoverRequest) error
	// ReleaseReaders asks the target of a planned failover to have its readers continue elsewhere.
	ReleaseReaders(ctx context.Context, r ag.Replica, req TakeoverRequest) error
}

// TakeoverRequest asks the target of a planned failover to prepare to lead the next epoch, or to release its readers.
// The error is what speaks against it.
type TakeoverRequest struct {
	Epoch ag.Epoch     `json:"epoch"` // the present epoch; the target would lead the next one
	From  ag.ReplicaID `json:"from"`
}

// ErrRefused is the error of Peers when a member's endpoint actively refused a connection: nothing listens there.
var ErrRefused = liveness.ErrRefused

// SealRequest requests the promise never again to take WAL of an epoch before Epoch.
type SealRequest struct {
	Epoch     ag.Epoch     `json:"epoch"`
	Candidate ag.ReplicaID `json:"candidate"`
}

// Positions is how far a copy has flushed and replayed.
type Positions struct {
	Flush  ag.Position `json:"flush"`
	Replay ag.LSN      `json:"replay"`
}

// Sessions are the sessions of clients.
type Sessions interface {
	// Publish puts a snapshot in force.
	Publish(r *ag.Routes)
	// CloseOlder ends the read-write sessions opened before epoch e, wherever they run.
	CloseOlder(e ag.Epoch, why string)
	// CloseLocal ends the read-write sessions that run on this node's server.
	CloseLocal(why string)
	// CloseReaders ends the read-only sessions on this node's server, which did not ask for a primary. It is called
	// before the server is promoted. Routes.Promoting was published before that, so that no session comes after it.
	CloseReaders(why string)
	// ContinueReaders has the readers of this node's server continue on other replicas, each as soon as it is idle. It
	// is called after Publish has told that no reader comes here. It returns when ctx ends, or when all were asked.
	ContinueReaders(ctx context.Context)
	// Hold keeps new sessions on the primary waiting during a planned failover, from clients of every node.
	Hold(on bool)
	// Drain holds requests that would begin a transaction on this node's server, from clients of every node.
	Drain(on bool)
	// Busy counts the sessions of this node's server that have a transaction or request under way.
	Busy() int
	// CutBusy ends those sessions.
	CutBusy(why string)
	// ReadAhead asks this node's server for the state of its sessions while they go on, so that ReadStates has few left
	// to ask. told is called now and then with how many were asked, of how many. It returns at the latest when ctx
	// ends.
	ReadAhead(ctx context.Context, told func(asked, of int))
	// ReadStates asks this node's server for the state of its sessions, so that CloseServer can move them. It is called
	// during a drain, when nothing is busy any more, and returns at the latest when ctx ends.
	ReadStates(ctx context.Context)
	// ReadRelayedStates does the same for the sessions of other nodes' clients, which those nodes can continue.
	ReadRelayedStates(ctx context.Context)
	// CloseServer takes all sessions from this node's server. Those whose state was read are continued where the routes
	// lead; the others end.
	CloseServer(why string)
	// GateMoved is called when Agent.Gate has come nearer, other than by time. It returns AFTER every decision that
	// rests on the older gate has ended. It calls Agent.Gate and no other method of the agent.
	GateMoved()
}

// Seeder fills this node's data directory from another replica.
type Seeder interface {
	Seed(ctx context.Context, job SeedJob, progress func(string)) (ag.CopyID, error)
}

// SeedJob is a copy that the plan asks for.
type SeedJob struct {
	From  ag.Replica // the primary of Epoch
	Epoch ag.Epoch
	// Because is why a whole copy is given up; empty if there is none. A request of an operator that was withdrawn
	// since is no reason any more: the copy is not begun then.
	Because string
	Begins  func() error // is called before the first byte changes; none changes where it fails
}

// SeedRequests are the requests of operators for a new copy on this node. The loop asks at every turn: both methods
// answer from memory.
type SeedRequests interface {
	// ReseedReason returns why the copy is to be replaced by a new one; empty if no operator requested that.
	ReseedReason(copy ag.CopyID) string
	// BlockedReason returns why no copy is to be made in that epoch for now; empty if one may be made.
	BlockedReason(e ag.Epoch) string
}

// Package api is the management interface of an agent: HTTP with JSON on the node's private socket for administration,
// and on the node's HTTP port for health checks and reading.
//
// It owns the paths, the documents and their limits. It decides nothing and knows no other adapter: everything it
// serves comes from a Node. Start reading at Node, then Server and Client.
package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Node is the agent as an administrator sees it. Server serves it.
type Node interface {
	// Status returns what this node knows. It never blocks, even if other nodes or this node's server are dead.
	Status() Status
	// Decisions returns this node's recent decisions, oldest first.
	Decisions() []Decision
	// Lineage returns where the group's data come from, as this node remembers it. It never blocks.
	Lineage() Lineage
	// Explain asks every reachable member, and returns the changes of leadership that they remember, with their
	// reasons.
	Explain() any
	// Failover makes another replica the primary: planned, or forced with the loss accepted.
	Failover(ctx context.Context, req FailoverRequest) (FailoverResult, error)
	// Restart replaces the agent by a new one while its PostgreSQL server keeps running.
	Restart(ctx context.Context, req RestartRequest) error
	// Programs returns the version of each member's agent, and of the program that a restart of it would begin.
	Programs(ctx context.Context) ([]Program, error)
	// RestartAgent has a member's agent replace itself, as Restart does here. It returns when that was asked for; on
	// the primary, when no transaction runs any more.
	RestartAgent(ctx context.Context, req AgentRequest) error
	// Major looks at, begins, follows or takes back a major upgrade of PostgreSQL. One that was begun goes on after the
	// answer.
	Major(ctx context.Context, req MajorRequest) (MajorPlan, error)
	// CreateToken makes a one-time join token.
	CreateToken(ctx context.Context, req TokenRequest) (TokenResult, error)
	// RotateAuthority begins to replace the group's certificate authority, changes how that is done, or abandons it.
	RotateAuthority(ctx context.Context, req RotateRequest) (Rotation, error)
	// Remove takes a member out of the group.
	Remove(ctx context.Context, id ag.ReplicaID) error
	// Replace takes a member that is lost out of the group, and makes a token for the node that takes its name and its
	// settings. It can be repeated, for another token, until a node has joined by the name.
	Replace(ctx context.Context, req ReplaceRequest) (TokenResult, error)
	// Leave has another member take this node out of the group. After an error the node may be out all the same: the
	// status says so.
	Leave(ctx context.Context) error
	// Resume continues the data movement of a suspended replica. A copy under quarantine is replaced by a new one.
	Resume(ctx context.Context, id ag.ReplicaID) error
	// Trust ends the quarantine of a replica's copy without replacing it, and returns the reason of the quarantine; ""
	// if there was none.
	Trust(ctx context.Context, id ag.ReplicaID) (was string, err error)
	// Seed replaces a replica's copy by a new one, or verifies it in place. It returns the state of the operation
	// without waiting for its end.
	Seed(ctx context.Context, req SeedRequest) (any, error)
	// CancelSeeding ends an operation of Seed, or one that the replica began on its own.
	CancelSeeding(ctx context.Context, id ag.ReplicaID) (any, error)
	// BackupStep has the primary do a step of a backup that is made of this node's copy.
	BackupStep(ctx context.Context, req backup.StepRequest) (backup.StepAnswer, error)
	// BackupRun has a replica make a backup of its server. It does not wait for its end.
	BackupRun(ctx context.Context, req BackupRunRequest) (backup.Run, error)
	// BackupActivity returns a replica's work on backups.
	BackupActivity(ctx context.Context, on ag.ReplicaID) (backup.Activity, error)
	// Seedings lists a replica's copies and verifications, oldest first.
	Seedings(ctx context.Context, id ag.ReplicaID) (any, error)
	// Link returns the measurements of the path between two members and the transport of WAL on it, as the first member
	// sees them.
	Link(ctx context.Context, req LinkRequest) (Link, error)
	// Set changes settings of the group.
	Set(ctx context.Context, req SettingsRequest) error
	// SQL runs one statement of the console as an administrator, and returns its result. Its errors are those of the
	// console.
	SQL(ctx context.Context, text string) (any, error)
	// Metrics serves what the node counts and measures, for Prometheus.
	Metrics() http.Handler
}

// Decision is a decision of a node, without the view that it was based on.
type Decision struct {
	At      time.Time `json:"at"` // by the node's own clock
	Rule    ag.Rule   `json:"rule"`
	Because string    `json:"because"`
	Epoch   ag.Epoch  `json:"epoch"`
}

// failure is the document of an error. The client makes a fail.Error of it.
type failure struct {
	Kind    fail.Kind `json:"kind"`
	Number  int       `json:"number,omitempty"`
	Message string    `json:"message"`
}

// SQLAnswer is the answer to a statement: a result of the console, or its error.
type SQLAnswer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// FailoverRequest is the request for a failover.
type FailoverRequest struct {
	To            ag.ReplicaID `json:"to"`
	AllowDataLoss bool         `json:"allow_data_loss,omitempty"`
	Now           bool         `json:"now,omitempty"` // with AllowDataLoss: open although the old primary may still answer clients
	// Drain is how long running transactions may take to end before a planned failover is abandoned; 0: 10 s. With Cut
	// they are terminated instead.
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
	// NoWait makes the call return as soon as the request is accepted.
	NoWait bool `json:"no_wait,omitempty"`
	// DryRun only asks what a planned failover would do with the sessions of clients.
	DryRun bool `json:"dry_run,omitempty"`
}

// RestartRequest is the request for a restart of the agent in place. Drain and Cut are as for a failover.
type RestartRequest struct {
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
	// Server restarts PostgreSQL instead, of a secondary: Replica, or this node for "".
	Server  bool         `json:"server,omitempty"`
	Replica ag.ReplicaID `json:"replica,omitempty"`
	// InPlace restarts the server of Replica, which must be the primary, with the leadership where it is.
	InPlace bool `json:"in_place,omitempty"`
}

// KeptSource begins the source of a setting of which a server has more than is wanted, and says why it has.
const KeptSource = "kept"

// KeptWhile begins it where no restart of that server helps yet.
const KeptWhile = "kept while"

// BackupRunRequest is the request for a backup on a replica.
type BackupRunRequest struct {
	On ag.ReplicaID `json:"on"`
	backup.RunRequest
}

// SeedRequest is the request for a copy of the data on a replica.
type SeedRequest struct {
	Replica ag.ReplicaID `json:"replica"`
	// Full allows the replacement of a complete copy: every byte is compared with the source, and the differences are
	// fetched.
	Full bool `json:"full,omitempty"`
	// From is a directory on the replica's machine with another copy. Data found there is not fetched from the source.
	From string `json:"from,omitempty"`
	// Verify changes nothing: it checks the page checksums of the running server.
	Verify bool `json:"verify,omitempty"`
}

// RotateRequest is the request for a rotation of the certificate authority.
type RotateRequest struct {
	Hold    bool `json:"hold,omitempty"`    // both authorities stay trusted until a request without Hold
	Abandon bool `json:"abandon,omitempty"` // end the rotation, as long as no member uses a certificate of the new authority
}

// FailoverResult is the outcome of a failover.
type FailoverResult struct {
	From  ag.ReplicaID  `json:"from"`
	To    ag.ReplicaID  `json:"to"`
	Epoch ag.Epoch      `json:"epoch"`
	Took  time.Duration `json:"took_ns"`
	// Of a dry run: nothing was changed, and Sessions are those of the primary's server.
	DryRun   bool             `json:"dry_run,omitempty"`
	Sessions []ag.SessionMove `json:"sessions,omitempty"`
}

// TokenRequest is the request for a join token.
type TokenRequest struct {
	Role string        `json:"role"` // replica or witness
	TTL  time.Duration `json:"ttl_ns"`
}

// ReplaceRequest is the request for a token of a node that replaces a member.
type ReplaceRequest struct {
	Member ag.ReplicaID  `json:"member"`
	TTL    time.Duration `json:"ttl_ns"`
}

// SettingsRequest changes the settings that are not nil. A negative Required means the default of the commit rule.
type SettingsRequest struct {
	CommitRule     *ag.CommitRule `json:"commit_rule,omitempty"`
	Required       *int           `json:"required,omitempty"`
	SessionTimeout *time.Duration `json:"session_timeout_ns,omitempty"`
}

// TokenResult is the token and the command that uses it.
type TokenResult struct {
	Token   string    `json:"token"`
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"`
	Command string    `json:"command"`
}

// Status is the group as one node knows it.
type Status struct {
	Group string `json:"group"` // the name of the group
	// Version is the version of PostgreSQL of the answering node or, on a witness, the major version of a replica; "":
	// it is not known.
	Version string       `json:"postgresql,omitempty"`
	Draft   bool         `json:"draft,omitempty"` // the nodes have joined each other, and the group does not exist yet
	GroupID ag.GroupID   `json:"group_id"`        // a UUID
	Node    ag.ReplicaID `json:"node"`            // the member that answers
	// Uptime is how long the answering agent has run; 0: it begins.
	Uptime time.Duration `json:"uptime_ns,omitempty"`
	Epoch  ag.Epoch      `json:"epoch"` // of the leadership; it grows with each change of it
	Phase  ag.Phase      `json:"phase"` // SEAL: a candidate asks for the lead; PROMOTE: its server is promoted
	// Primary is where the listeners send writers, also while it takes no writes; "": no primary is known.
	Primary ag.ReplicaID `json:"primary,omitempty"`
	// PrimarySince is since when the primary leads this epoch, by its own clock. A restart of its agent in place is
	// no interruption; nil: no primary leads, or it is not known.
	PrimarySince *time.Time `json:"primary_since,omitempty"`
	WriteOpen    bool       `json:"write_open"`                // the primary takes writes
	Quorum       bool       `json:"quorum"`                    // a majority of the quorum answers this node
	Voters       int        `json:"voters"`                    // votes in the quorum, those of members that do not answer among them
	External     int        `json:"external_quorum,omitempty"` // voting members of the administrator's etcd; 0: the quorum is embedded
	// QuorumEndpoints are where the answering node reaches an external quorum; nil: the quorum is embedded.
	QuorumEndpoints []string      `json:"quorum_endpoints,omitempty"`
	Profile         string        `json:"profile"`     // the lease profile: default, fast or wan
	CommitRule      ag.CommitRule `json:"commit_rule"` // how many synchronous secondaries a commit waits for
	// Required is how many of the synchronous secondaries there are a commit must wait for at least. With fewer it
	// waits.
	Required int `json:"required_synchronized_secondaries"`
	// SyncMembers are the members of which k have each acknowledged commit, beside the primary.
	SyncMembers   []ag.Member `json:"v"`
	SyncCount     int         `json:"k"`                  // see v
	WaitsFor      string      `json:"commits_wait_for"`   // what commits wait for, for people
	FailoverReady string      `json:"automatic_failover"` // ready, or why not
	// Awaited are the members that were taken out to be replaced, and whose successors have not joined.
	Awaited []ag.ReplicaID `json:"awaited,omitempty"`
	// Availability is the judgement of the group: whether it takes writes and acknowledges commits, which failures it
	// survives, and what is wrong.
	Availability availability.Report `json:"availability"`
	// LogWeakness is why the log of the answering node's server cannot be relied on to tell of cancelled waits, and
	// what to change. As primary the node has each commit confirmed once more then; "": it can be.
	LogWeakness  string      `json:"log_weakness,omitempty"`
	Timeline     ag.Timeline `json:"timeline"`                     // PostgreSQL's, of the epoch
	Rule         ag.Rule     `json:"rule"`                         // the last decision of this node
	Because      string      `json:"because"`                      // why it decided so
	Operation    string      `json:"operation,omitempty"`          // a failover under way, for people; "": none is
	Replicas     []Replica   `json:"replicas"`                     // the members, witnesses too
	AnswersUntil string      `json:"lease,omitempty"`              // how long this node may lead without a renewal, for people; "": it is not the primary
	Links        []Link      `json:"links,omitempty"`              // that carry WAL from or to this node
	Relays       []Relay     `json:"relays,omitempty"`             // connections of others that this node relays
	Authority    string      `json:"authority"`                    // pin of the authority that issued this node's certificate
	Rotation     *Rotation   `json:"authority_rotation,omitempty"` // of the group's certificate authority; nil: none is under way
	// Maintenance is why no automatic failover begins; nil: it may.
	Maintenance *ag.Maintenance `json:"maintenance,omitempty"`
	// Configuration is what the answering node knows of the group's signed configuration.
	Configuration Configuration `json:"configuration"`
	// Requests are the requests of operators, such as forced failovers, that the answering node has refused.
	Requests Refusals `json:"operator_requests"`
	// Record is what the answering node has refused of the record: who leads, and which members commits wait for.
	Record Refusals `json:"record"`
}

// Refusals are values of one kind that a node found in the quorum's store and refused since its agent started.
type Refusals struct {
	Refused uint64     `json:"refused"`       // how many
	Why     string     `json:"why,omitempty"` // the last one was refused; "": none was
	At      *time.Time `json:"at,omitempty"`  // by the node's own clock; nil: none was
}

// Configuration is how far the group uses signed configurations only, and which others a node has refused.
type Configuration struct {
	Serial       uint64 `json:"serial"`        // of the configuration in use
	SignedOnly   bool   `json:"signed_only"`   // no configuration without a replica's signature is used any more
	SignedRecord bool   `json:"signed_record"` // so is the record of who leads and which members hold what
	// WaitsFor are the members, seen by the primary, that did not say that their programs sign.
	WaitsFor []ag.ReplicaID `json:"waits_for,omitempty"`
	Refused  uint64         `json:"refused"`          // configurations refused since the agent started
	Why      string         `json:"why,omitempty"`    // the last one was refused; "": none was
	At       *time.Time     `json:"at,omitempty"`     // by the node's own clock; nil: none was
	Stands   bool           `json:"stands,omitempty"` // the store still holds it
}

// Relay is a connection between two other members that the answering node relays.
type Relay struct {
	From  ag.ReplicaID `json:"from"`  // a member
	To    ag.ReplicaID `json:"to"`    // the other
	Since time.Time    `json:"since"` // by the answering node's clock
}

// Rotation is a change of the group's certificate authority under way.
type Rotation struct {
	Pin      string           `json:"pin"`            // of the new authority's key
	Phase    ag.RotationPhase `json:"phase"`          // trust the new authority, get certificates of it, drop the old one
	Held     bool             `json:"held,omitempty"` // it waits for coterie ca rotate without --hold
	WaitsFor []ag.ReplicaID   `json:"waits_for"`      // the members that have not completed the phase
}

// Restarted reports whether the answering agent was started less than ago before its answer.
func (s Status) Restarted(ago time.Duration) bool { return s.Uptime > 0 && s.Uptime < ago }

// Replica returns a member.
func (s Status) Replica(id ag.ReplicaID) (Replica, bool) {
	i := slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.Name == id })
	if i < 0 {
		return Replica{}, false
	}
	return s.Replicas[i], true
}

// Witness reports whether the answering node is a witness, which has no PostgreSQL.
func (s Status) Witness() bool { return s.self().Mode == ag.ConfigurationOnly }

// RoleWitness is the role of a witness in a Status: it looks for no primary, and never is one.
const RoleWitness ag.Role = "WITNESS"

// Replica is one member in a Status.
type Replica struct {
	Name         ag.ReplicaID        `json:"name"`                            // of the member
	Role         ag.Role             `json:"role"`                            // RESOLVING: it is neither, or does not answer; WITNESS: it holds no data
	Mode         ag.AvailabilityMode `json:"availability_mode"`               // CONFIGURATION_ONLY: a witness
	FailoverMode ag.FailoverMode     `json:"failover_mode"`                   // whether it may become the primary without a person
	Sync         ag.SyncState        `json:"synchronization_state,omitempty"` // of its data; "": a witness, which has none
	Connected    string              `json:"connected_state"`                 // CONNECTED or DISCONNECTED
	Position     ag.Position         `json:"position"`                        // of its WAL; that of a witness is zero
	LagBytes     *int64              `json:"lag_bytes"`                       // behind the primary; nil: not known, or a witness
	Server       ag.ServerState      `json:"server,omitempty"`                // what its PostgreSQL does; "": it does not answer, or is a witness
	Data         ag.DataState        `json:"data,omitempty"`                  // what its data directory has; "": it does not tell, or is a witness
	Busy         string              `json:"busy,omitempty"`                  // the long action under way, as seed, rewind or promote; "": none is
	Progress     string              `json:"progress,omitempty"`              // of that action, for people; "": none is known
	Because      string              `json:"because,omitempty"`               // why it does what it does; "": it has not told
	Voter        bool                `json:"voter"`                           // it has a vote in the quorum
	Suspended    bool                `json:"suspended,omitempty"`             // data movement to it is suspended
	Allow        ag.AllowConnections `json:"allow_connections,omitempty"`     // of its secondary role; "": READ_ONLY
	Join         ag.JoinState        `json:"join_state,omitempty"`            // it is a node of the quorum, and no replica of the group yet; "": it is one
	// Ill is the problem that counts as a failure at the group's FAILURE_CONDITION_LEVEL; "": there is none.
	Ill string `json:"ill,omitempty"`
	// Offline are the databases that are not online there: their files are missing or cannot be read.
	Offline    []string `json:"offline,omitempty"`
	Silent     bool     `json:"silent,omitempty"`     // its server runs, and answers no new connection
	Concern    string   `json:"concern,omitempty"`    // a problem that would count at a higher level; "": there is none
	Quarantine string   `json:"quarantine,omitempty"` // why its copy is not trusted; "": it is
	NoVote     string   `json:"no_vote,omitempty"`    // why its vote in the quorum is not cast; "": it is, or it has none
	// StoodDown is when it last gave up the leadership for its health or a crash, and why, as long as that counts;
	// "": it has not.
	StoodDown   string          `json:"stood_down,omitempty"`
	Endpoint    string          `json:"endpoint"`              // host:port for other nodes
	Listener    string          `json:"listener,omitempty"`    // host:port for clients that write; "": it has none
	ReadOnly    string          `json:"read_only,omitempty"`   // host:port for clients that read; "": it has none
	HTTP        string          `json:"http,omitempty"`        // host:port of health checks and metrics; "": it has none
	Console     string          `json:"console,omitempty"`     // host:port of the console in the browser; "": it has none, or has not told
	Maintenance *ag.Maintenance `json:"maintenance,omitempty"` // why it takes no readers and does not take over; nil: it is not under maintenance
	Local       *Process        `json:"process,omitempty"`     // of the answering node; nil: another member
}

// Link is a link that carries WAL, as the answering node sees it.
type Link struct {
	Peer       ag.ReplicaID `json:"peer"`               // the other member
	Idle       bool         `json:"idle,omitempty"`     // no WAL flows; the fields show what AUTO would choose
	Dialled    bool         `json:"dialled"`            // by this node
	Transport  string       `json:"transport"`          // of the main leg: tcp or quic
	Congestion string       `json:"congestion"`         // the controller in force on it
	Via        ag.ReplicaID `json:"via,omitempty"`      // the member that relays it, as the two cannot connect to each other; "": it is direct
	Legs       []string     `json:"legs"`               // the connections of which it is made, for people
	Twice      bool         `json:"small_frames_twice"` // small frames are sent on two legs
	Reason     string       `json:"reason,omitempty"`   // of that choice; "": the node that did not dial does not know
	RTT        float64      `json:"round_trip_ms"`      // of the main leg
	Packets    uint64       `json:"packets"`            // of the last ten seconds, both directions
	Lost       uint64       `json:"lost"`               // of those
	Rate       int64        `json:"rate"`               // estimated bandwidth of the main leg in bytes per second, from its latest traffic; 0: unknown
	Carried    int64        `json:"carried"`            // bytes per second that this link or an earlier one to the peer carried while saturated; 0: never saturated

	Codec           string      `json:"codec"`            // codec of the data that this node sends
	Sent            uint64      `json:"sent_bytes"`       // bytes before encoding
	SentEncoded     uint64      `json:"sent_encoded"`     // bytes after encoding
	Ratio           float64     `json:"ratio"`            // of sent_bytes to sent_encoded
	EncodeSeconds   float64     `json:"encode_seconds"`   // spent on encoding
	Received        uint64      `json:"received_bytes"`   // bytes after decoding
	ReceivedEncoded uint64      `json:"received_coded"`   // bytes before decoding
	DecodeSeconds   float64     `json:"decode_seconds"`   // spent on decoding
	SentTwice       uint64      `json:"sent_twice"`       // bytes of second copies and of redundant shards
	Resent          uint64      `json:"resent"`           // bytes sent again after the loss of a leg
	Doubles         uint64      `json:"doubles_dropped"`  // frames that arrived more than once
	Events          []LinkEvent `json:"events,omitempty"` // the last changes of the link
}

// LinkRequest names two members.
type LinkRequest struct {
	From ag.ReplicaID `json:"from"` // the member that is asked
	To   ag.ReplicaID `json:"to"`
}

// LinkEvent is a change of a link, with its reason.
type LinkEvent struct {
	At     time.Time `json:"at"`     // by the answering node's clock
	What   string    `json:"what"`   // what changed
	Reason string    `json:"reason"` // why
}

// Process names the operating-system side of the answering node.
type Process struct {
	Dir      string        `json:"dir"`                // the node directory
	Sockets  string        `json:"sockets"`            // directory of PostgreSQL's private socket, which only the server's user can use
	Agent    int           `json:"agent"`              // process number
	Keeper   int           `json:"keeper,omitempty"`   // process number; 0: it does not run, or a witness
	Postgres int           `json:"postgres,omitempty"` // process number; 0: it does not run, or a witness
	Uptime   time.Duration `json:"uptime_ns"`          // of the agent
	Sessions int           `json:"sessions"`           // of clients, at its listener
}

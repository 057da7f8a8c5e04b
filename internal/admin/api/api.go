// Package api is how people and programs talk to an agent: HTTP with JSON on the node's private socket for administration, and on
// the node's HTTP port for health checks and reading.
//
// It owns the paths, the documents and their limits. It decides nothing and knows no other adapter: what it serves comes from a
// Node. Start reading at Node, then Server and Client.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Node is the agent as an administrator sees it: what Server serves.
type Node interface {
	// Status answers from what this node knows, at once, whatever is dead.
	Status() Status
	// Decisions returns what this node decided lately, oldest first.
	Decisions() []Decision
	// Explain asks every member in reach, and tells why the leadership changed hands as far as they remember.
	Explain() any
	// Failover makes another replica the primary: planned, or forced with the loss accepted.
	Failover(ctx context.Context, req FailoverRequest) (FailoverResult, error)
	// Restart replaces the agent by a new one while its server goes on.
	Restart(ctx context.Context, req RestartRequest) error
	// CreateToken makes a one-time join token.
	CreateToken(ctx context.Context, req TokenRequest) (TokenResult, error)
	// RotateAuthority begins to replace the group's certificate authority, changes how that is done, or gives it up.
	RotateAuthority(ctx context.Context, req RotateRequest) (Rotation, error)
	// Remove takes a member out of the group.
	Remove(ctx context.Context, id ag.ReplicaID) error
	// Resume continues the data movement of a suspended replica; a copy under quarantine is made anew.
	Resume(ctx context.Context, id ag.ReplicaID) error
	// Trust ends the quarantine of a replica's copy as it is, and returns what it was for; "" if there was none.
	Trust(ctx context.Context, id ag.ReplicaID) (was string, err error)
	// Seed has a replica's copy made anew, or verified where it is, and returns the operation as it stands.
	Seed(ctx context.Context, req SeedRequest) (any, error)
	// CancelSeeding ends what Seed began, or what the replica began by itself.
	CancelSeeding(ctx context.Context, id ag.ReplicaID) (any, error)
	// Seedings lists a replica's copies and verifications, oldest first.
	Seedings(ctx context.Context, id ag.ReplicaID) (any, error)
	// Link says what a way between two members measures and how WAL travels by it, as the first one sees it.
	Link(ctx context.Context, req LinkRequest) (Link, error)
	// Set changes settings of the group.
	Set(ctx context.Context, req SettingsRequest) error
	// SQL runs one statement of the console as an administrator; it returns its result, or an error of the console.
	SQL(ctx context.Context, text string) (any, error)
	// Metrics writes the Prometheus text form.
	Metrics() map[string]float64
}

// Decision is what a node decided, without what it saw.
type Decision struct {
	At      time.Time `json:"at"` // by the node's own clock
	Rule    ag.Rule   `json:"rule"`
	Because string    `json:"because"`
	Epoch   ag.Epoch  `json:"epoch"`
}

// failure is the document of an error. The client makes a fail.Error of it.
type failure struct {
	Kind    fail.Kind `json:"kind"`
	Message string    `json:"message"`
}

// SQLAnswer is the answer to a statement: a result of the console, or its error.
type SQLAnswer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// Refused returns the error of an operation that would not be safe.
func Refused(message string) error { return fail.Error{Kind: fail.Refused, Err: errors.New(message)} }

// Unhealthy returns the error of an operation that the group's state does not allow now.
func Unhealthy(message string) error {
	return fail.Error{Kind: fail.Unhealthy, Err: errors.New(message)}
}

// FailoverRequest asks for a failover.
type FailoverRequest struct {
	To            ag.ReplicaID `json:"to"`
	AllowDataLoss bool         `json:"allow_data_loss,omitempty"`
	// Drain is how long running transactions may take to end before a planned failover is given up; 0: 10 s. With Cut they are ended
	// then.
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
	// NoWait returns when the request is accepted.
	NoWait bool `json:"no_wait,omitempty"`
}

// RestartRequest asks for a restart of the agent in place; Drain and Cut are as for a failover.
type RestartRequest struct {
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
}

// SeedRequest asks for a copy of the data on a replica.
type SeedRequest struct {
	Replica ag.ReplicaID `json:"replica"`
	// Full replaces a copy that is whole: every byte is compared with the source, what differs is fetched.
	Full bool `json:"full,omitempty"`
	// From is a directory on the replica's machine with another copy, which is looked into before the source is asked.
	From string `json:"from,omitempty"`
	// Verify changes nothing: the checksums of the running server's pages are read.
	Verify bool `json:"verify,omitempty"`
}

// RotateRequest asks for a rotation of the certificate authority.
type RotateRequest struct {
	Hold    bool `json:"hold,omitempty"`    // both authorities are believed until it is asked for again without this
	Abandon bool `json:"abandon,omitempty"` // give it up, while nobody shows a certificate of the new one
}

// FailoverResult says how it went.
type FailoverResult struct {
	From  ag.ReplicaID  `json:"from"`
	To    ag.ReplicaID  `json:"to"`
	Epoch ag.Epoch      `json:"epoch"`
	Took  time.Duration `json:"took_ns"`
}

// TokenRequest asks for a join token.
type TokenRequest struct {
	Role string        `json:"role"` // replica or witness
	TTL  time.Duration `json:"ttl_ns"`
}

// SettingsRequest changes the settings that are not nil. Required below zero means: by the table of the commit rule.
type SettingsRequest struct {
	CommitRule     *ag.CommitRule `json:"commit_rule,omitempty"`
	Required       *int           `json:"required,omitempty"`
	SessionTimeout *time.Duration `json:"session_timeout_ns,omitempty"`
}

// TokenResult is the token and the commands that use it.
type TokenResult struct {
	Token   string    `json:"token"`
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"`
	Command string    `json:"command"`
}

// Status is the group as one node knows it.
type Status struct {
	Group     string       `json:"group"`
	Draft     bool         `json:"draft,omitempty"` // the nodes have joined each other, and there is no group yet
	GroupID   ag.GroupID   `json:"group_id"`
	Node      ag.ReplicaID `json:"node"`
	Epoch     ag.Epoch     `json:"epoch"`
	Phase     ag.Phase     `json:"phase"`
	Primary   ag.ReplicaID `json:"primary,omitempty"`
	WriteOpen bool         `json:"write_open"`
	Quorum    bool         `json:"quorum"`
	Voters    int          `json:"voters"`
	External  int          `json:"external_quorum,omitempty"` // voting members of the administrator's etcd; 0: the quorum is embedded
	// QuorumEndpoints are where the answering node reaches an external quorum.
	QuorumEndpoints []string      `json:"quorum_endpoints,omitempty"`
	Profile         string        `json:"profile"`
	CommitRule      ag.CommitRule `json:"commit_rule"`
	Required        int           `json:"required_synchronized_secondaries"`
	SyncMembers     []ag.Member   `json:"v"`
	SyncCount       int           `json:"k"`
	WaitsFor        string        `json:"commits_wait_for"`
	FailoverReady   string        `json:"automatic_failover"` // ready, or why not
	Timeline        ag.Timeline   `json:"timeline"`
	Rule            ag.Rule       `json:"rule"` // the last decision of this node
	Because         string        `json:"because"`
	Operation       string        `json:"operation,omitempty"`
	Replicas        []Replica     `json:"replicas"`
	AnswersUntil    string        `json:"lease,omitempty"`  // of this node, as primary
	Links           []Link        `json:"links,omitempty"`  // that carry WAL from or to this node
	Relays          []Relay       `json:"relays,omitempty"` // connections of others that this node relays
	Authority       string        `json:"authority"`        // pin of the authority that issued this node's certificate
	Rotation        *Rotation     `json:"authority_rotation,omitempty"`
}

// Relay is a connection between two other members that the answering node relays.
type Relay struct {
	From  ag.ReplicaID `json:"from"`
	To    ag.ReplicaID `json:"to"`
	Since time.Time    `json:"since"`
}

// Rotation is a change of the group's certificate authority under way.
type Rotation struct {
	Pin      string           `json:"pin"` // of the new authority's key
	Phase    ag.RotationPhase `json:"phase"`
	Held     bool             `json:"held,omitempty"` // it waits for coterie ca rotate without --hold
	WaitsFor []ag.ReplicaID   `json:"waits_for"`      // the members that are not through with the phase
}

// Restarted reports whether the agent that answered was started less than that long ago.
func (s Status) Restarted(ago time.Duration) bool {
	p := s.self().Local
	return p != nil && p.Uptime < ago
}

// Replica is one member in a Status.
type Replica struct {
	Name         ag.ReplicaID        `json:"name"`
	Role         ag.Role             `json:"role"`
	Mode         ag.AvailabilityMode `json:"availability_mode"`
	FailoverMode ag.FailoverMode     `json:"failover_mode"`
	Sync         ag.SyncState        `json:"synchronization_state"`
	Connected    string              `json:"connected_state"` // CONNECTED or DISCONNECTED
	Position     ag.Position         `json:"position"`
	LagBytes     *int64              `json:"lag_bytes"` // behind the primary; null while not known
	Server       ag.ServerState      `json:"server,omitempty"`
	Data         ag.DataState        `json:"data,omitempty"`
	Busy         string              `json:"busy,omitempty"`
	Progress     string              `json:"progress,omitempty"`
	Because      string              `json:"because,omitempty"`
	Voter        bool                `json:"voter"`
	Suspended    bool                `json:"suspended,omitempty"`
	Join         ag.JoinState        `json:"join_state,omitempty"` // "": a replica of the group
	Ill          string              `json:"ill,omitempty"`        // what counts as a failure at the group's FAILURE_CONDITION_LEVEL
	Concern      string              `json:"concern,omitempty"`    // what would at a higher one
	Quarantine   string              `json:"quarantine,omitempty"` // why its copy is not trusted
	NoVote       string              `json:"no_vote,omitempty"`    // why its vote in the quorum is not cast
	StoodDown    string              `json:"stood_down,omitempty"` // when it last gave up the leadership for its health or a crash
	Endpoint     string              `json:"endpoint"`
	Listener     string              `json:"listener,omitempty"`
	ReadOnly     string              `json:"read_only,omitempty"`
	HTTP         string              `json:"http,omitempty"`
	Local        *Process            `json:"process,omitempty"` // of the answering node only
}

// Link is one link that carries WAL, as the answering node sees it.
type Link struct {
	Peer       ag.ReplicaID `json:"peer"`
	Idle       bool         `json:"idle,omitempty"` // no WAL flows: the choice is what AUTO would choose
	Dialled    bool         `json:"dialled"`        // by this node
	Transport  string       `json:"transport"`      // of the main leg: tcp or quic
	Congestion string       `json:"congestion"`     // the controller in force on it
	Via        ag.ReplicaID `json:"via,omitempty"`  // the member that relays it, since the two do not see each other
	Legs       []string     `json:"legs"`
	Twice      bool         `json:"small_frames_twice"`
	Reason     string       `json:"reason,omitempty"` // of that choice, at the node that dialled
	RTT        float64      `json:"round_trip_ms"`
	Packets    uint64       `json:"packets"` // of the last ten seconds, both directions
	Lost       uint64       `json:"lost"`    // of those
	Rate       int64        `json:"rate"`    // bytes per second that the main leg thinks possible, from its latest traffic; 0: unknown
	Carried    int64        `json:"carried"` // bytes per second, of this link or earlier ones to the peer, when there was more to send; 0: never

	Codec           string      `json:"codec"`           // of what this node sends
	Sent            uint64      `json:"sent_bytes"`      // before encoding
	SentEncoded     uint64      `json:"sent_encoded"`    // after it
	Ratio           float64     `json:"ratio"`           // of the two
	EncodeSeconds   float64     `json:"encode_seconds"`  // spent on it
	Received        uint64      `json:"received_bytes"`  // after decoding
	ReceivedEncoded uint64      `json:"received_coded"`  // before it
	DecodeSeconds   float64     `json:"decode_seconds"`  // spent on it
	SentTwice       uint64      `json:"sent_twice"`      // bytes of second copies, and of shards beyond the frames' own
	Resent          uint64      `json:"resent"`          // bytes sent again after a leg was lost
	Doubles         uint64      `json:"doubles_dropped"` // frames that arrived more than once
	Events          []LinkEvent `json:"events,omitempty"`
}

// LinkRequest names two members.
type LinkRequest struct {
	From ag.ReplicaID `json:"from"` // who is asked
	To   ag.ReplicaID `json:"to"`
}

// LinkEvent is a change of a link, and why it came.
type LinkEvent struct {
	At     time.Time `json:"at"`
	What   string    `json:"what"`
	Reason string    `json:"reason"`
}

// Process names the operating-system side of the answering node.
type Process struct {
	Dir      string        `json:"dir"`
	Sockets  string        `json:"sockets"` // directory of PostgreSQL's private socket, for the server's own user
	Agent    int           `json:"agent"`
	Keeper   int           `json:"keeper,omitempty"`
	Postgres int           `json:"postgres,omitempty"`
	Uptime   time.Duration `json:"uptime_ns"`
	Sessions int           `json:"sessions"`
}

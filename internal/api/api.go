// Package api is how people and programs talk to an agent: HTTP with JSON on the node's private socket for administration, and on
// the node's HTTP port for health checks and reading.
//
// It owns the paths, the documents and their limits. It decides nothing and knows no other adapter: what it serves comes from a
// Manager. Start reading at Manager, then Server and Client.
package api

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Manager is the agent as an administrator sees it.
type Manager interface {
	// Status answers from what this node knows, at once, whatever is dead.
	Status() Status
	// Decisions returns what this node decided lately, oldest first.
	Decisions() any
	// Failover makes another replica the primary: planned, or forced with the loss accepted.
	Failover(ctx context.Context, req FailoverRequest) (FailoverResult, error)
	// CreateToken makes a one-time join token.
	CreateToken(ctx context.Context, req TokenRequest) (TokenResult, error)
	// Remove takes a member out of the group.
	Remove(ctx context.Context, id ag.ReplicaID) error
	// Resume continues the data movement of a suspended replica.
	Resume(ctx context.Context, id ag.ReplicaID) error
	// Set changes settings of the group.
	Set(ctx context.Context, req SettingsRequest) error
	// Metrics writes the Prometheus text form.
	Metrics() map[string]float64
}

// Error is a refusal with its kind: the client's exit code follows from it.
type Error struct {
	Kind    string `json:"kind"` // refused (for safety), unhealthy, usage, or error
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Refused is an operation that would not be safe.
func Refused(message string) error { return &Error{"refused", message} }

// Unhealthy is an operation that the group's state does not allow now.
func Unhealthy(message string) error { return &Error{"unhealthy", message} }

// FailoverRequest asks for a failover.
type FailoverRequest struct {
	To            ag.ReplicaID `json:"to"`
	AllowDataLoss bool         `json:"allow_data_loss,omitempty"`
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
	Group         string        `json:"group"`
	GroupID       ag.GroupID    `json:"group_id"`
	Node          ag.ReplicaID  `json:"node"`
	Epoch         ag.Epoch      `json:"epoch"`
	Phase         ag.Phase      `json:"phase"`
	Primary       ag.ReplicaID  `json:"primary,omitempty"`
	WriteOpen     bool          `json:"write_open"`
	Quorum        bool          `json:"quorum"`
	Voters        int           `json:"voters"`
	Profile       string        `json:"profile"`
	CommitRule    ag.CommitRule `json:"commit_rule"`
	Required      int           `json:"required_synchronized_secondaries"`
	SyncMembers   []ag.Member   `json:"v"`
	SyncCount     int           `json:"k"`
	WaitsFor      string        `json:"commits_wait_for"`
	FailoverReady string        `json:"automatic_failover"` // ready, or why not
	Timeline      ag.Timeline   `json:"timeline"`
	Rule          ag.Rule       `json:"rule"` // the last decision of this node
	Because       string        `json:"because"`
	Operation     string        `json:"operation,omitempty"`
	Replicas      []Replica     `json:"replicas"`
	AnswersUntil  string        `json:"lease,omitempty"` // of this node, as primary
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
	Endpoint     string              `json:"endpoint"`
	Listener     string              `json:"listener,omitempty"`
	ReadOnly     string              `json:"read_only,omitempty"`
	HTTP         string              `json:"http,omitempty"`
	Local        *Process            `json:"process,omitempty"` // of the answering node only
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

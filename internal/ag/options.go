package ag

import "time"

// Options are the group-wide options of the availability-group language. The zero value means the defaults of a new group, so
// that a configuration written by an older version keeps its meaning; read them through the methods, which know the defaults.
type Options struct {
	FailureDetection FailureDetection `json:"failure_detection,omitempty"`
	CommitBarrier    CommitBarrier    `json:"commit_barrier,omitempty"`
	ConditionLevel   int              `json:"failure_condition_level,omitempty"`     // 1 to 5; 0: DefaultConditionLevel
	HealthTimeout    time.Duration    `json:"health_check_timeout,omitempty"`        // 0: DefaultHealthTimeout
	NoDBFailover     bool             `json:"db_failover_off,omitempty"`             // DB_FAILOVER = OFF
	BackupPreference BackupPreference `json:"automated_backup_preference,omitempty"` // "": SECONDARY
	BackendReuse     bool             `json:"backend_reuse,omitempty"`               // BACKEND_REUSE = ON
	Databases        []string         `json:"databases,omitempty"`                   // registered for health, routing and views
	Listeners        []Listener       `json:"listeners,omitempty"`
	// Recorded holds options that were accepted and have no effect here, by their name in the language.
	Recorded map[string]string `json:"recorded,omitempty"`
}

// The defaults of Options that are not zero values.
const (
	DefaultConditionLevel = 3
	DefaultHealthTimeout  = 10 * time.Second
)

// FailureDetection is how a takeover may be begun: FAST ("" too) also by evidence and votes, STRICT by silence alone.
type FailureDetection string

// The values of FAILURE_DETECTION.
const (
	DetectFast   FailureDetection = "FAST"
	DetectStrict FailureDetection = "STRICT"
)

// CommitBarrier is what a client is told of a commit whose wait was cut short: "" (by revoking and holding) or STRICT (no answer
// leaves before the listener has itself seen the flush).
type CommitBarrier string

// BarrierStrict is COMMIT_BARRIER = STRICT.
const BarrierStrict CommitBarrier = "STRICT"

// BackupPreference says where a backup job should run; advice only.
type BackupPreference string

// The values of AUTOMATED_BACKUP_PREFERENCE.
const (
	BackupPrimary       BackupPreference = "PRIMARY"
	BackupSecondaryOnly BackupPreference = "SECONDARY_ONLY"
	BackupSecondary     BackupPreference = "SECONDARY"
	BackupNone          BackupPreference = "NONE"
)

// Listener is a named client address of the group.
type Listener struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses,omitempty"` // virtual addresses with prefix length, as 10.0.0.9/24; they follow the primary
	Port      int      `json:"port,omitempty"`      // 0: the node's own read-write port
}

// Level returns FAILURE_CONDITION_LEVEL.
func (o Options) Level() int {
	if o.ConditionLevel == 0 {
		return DefaultConditionLevel
	}
	return o.ConditionLevel
}

// HealthWait returns HEALTH_CHECK_TIMEOUT.
func (o Options) HealthWait() time.Duration {
	if o.HealthTimeout == 0 {
		return DefaultHealthTimeout
	}
	return o.HealthTimeout
}

// Detection returns FAILURE_DETECTION.
func (o Options) Detection() FailureDetection {
	if o.FailureDetection == "" {
		return DetectFast
	}
	return o.FailureDetection
}

// ReplicaOptions are the options of one replica beside its modes. The zero value means the defaults.
type ReplicaOptions struct {
	SessionTimeout  time.Duration `json:"session_timeout,omitempty"`             // 0: the group's
	ManualSeeding   bool          `json:"seeding_mode_manual,omitempty"`         // SEEDING_MODE = MANUAL
	NoSeeding       bool          `json:"seeding_denied,omitempty"`              // DENY CREATE ANY DATABASE
	BackupPriority  *int          `json:"backup_priority,omitempty"`             // 0 to 100; nil: 50
	PrimaryAllow    PrimaryAllow  `json:"primary_allow,omitempty"`               // "": ALL
	ReadOnlyURL     string        `json:"read_only_routing_url,omitempty"`       // shown, never dialled
	ReadWriteURL    string        `json:"read_write_routing_url,omitempty"`      // shown, never dialled
	RoutingList     [][]ReplicaID `json:"read_only_routing_list,omitempty"`      // while this replica is the primary; nil: the default list
	RoutingNone     bool          `json:"read_only_routing_list_none,omitempty"` // READ_ONLY_ROUTING_LIST = NONE
	EndpointURL     string        `json:"endpoint_url,omitempty"`                // as typed; Replica.Endpoint is dialled
	LogCompression  string        `json:"log_compression,omitempty"`             // AUTO (""), OFF, LZ4, ZSTD[:level]
	SeedCompression string        `json:"seed_compression,omitempty"`            // the same
	SeedMaxRate     int64         `json:"seed_max_rate,omitempty"`               // bytes per second; 0: no limit
	Transport       string        `json:"transport,omitempty"`                   // AUTO (""), TCP, QUIC
}

// PrimaryAllow is which intents a replica takes as the primary: ALL (also for "") or READ_WRITE, which refuses read intent.
type PrimaryAllow string

// The values of ALLOW_CONNECTIONS of a primary role.
const (
	PrimaryAllowAll       PrimaryAllow = "ALL"
	PrimaryAllowReadWrite PrimaryAllow = "READ_WRITE"
)

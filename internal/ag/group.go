package ag

import (
	"maps"
	"slices"
	"time"
)

// GroupID is the UUID of an availability group. It is in every certificate and in every key of the quorum store.
type GroupID string

// ReplicaID names one member of the group (a replica or the witness). It is chosen at init or join, matches
// [a-z][a-z0-9_]{0,29}, and belongs to another node only after that one has replaced a lost member.
type ReplicaID string

// CopyID is the UUID of one copy of the data. It is made anew whenever a data directory is created, seeded, rewound or
// restored. Copies, not members, hold data (docs/internals/safety.md, "Copies").
type CopyID string

// Role is what a replica is at this moment, in the words of the availability-group views.
type Role string

// The three roles. RESOLVING: the role is not known, or the replica may not serve writes and follows no other.
const (
	RolePrimary   Role = "PRIMARY"
	RoleSecondary Role = "SECONDARY"
	RoleResolving Role = "RESOLVING"
)

// AvailabilityMode is how a replica is configured to take part in commits.
type AvailabilityMode string

// The availability modes. CONFIGURATION_ONLY is the witness: a vote without data.
const (
	SynchronousCommit  AvailabilityMode = "SYNCHRONOUS_COMMIT"
	AsynchronousCommit AvailabilityMode = "ASYNCHRONOUS_COMMIT"
	ConfigurationOnly  AvailabilityMode = "CONFIGURATION_ONLY"
)

// FailoverMode is whether a replica may become primary without a person.
type FailoverMode string

// The failover modes.
const (
	Automatic FailoverMode = "AUTOMATIC"
	Manual    FailoverMode = "MANUAL"
)

// SyncState is a replica's synchronization state, as the availability-group views print it.
type SyncState string

// The synchronization states. REVERTING is a rewind under way, INITIALIZING a seeding under way.
const (
	NotSynchronizing SyncState = "NOT SYNCHRONIZING"
	Synchronizing    SyncState = "SYNCHRONIZING"
	Synchronized     SyncState = "SYNCHRONIZED"
	Reverting        SyncState = "REVERTING"
	Initializing     SyncState = "INITIALIZING"
)

// CommitRule decides how many synchronous secondaries a commit waits for.
type CommitRule string

// The commit rules. QUORUM waits for as many as the number of simultaneous failures that can be survived (ANY n). ALL
// waits for every synchronized secondary, as SQL Server does.
const (
	RuleQuorum CommitRule = "QUORUM"
	RuleAll    CommitRule = "ALL"
)

// Replica is one member of the group as the configuration describes it.
type Replica struct {
	ID               ReplicaID        `json:"id"`
	AvailabilityMode AvailabilityMode `json:"availability_mode"`
	FailoverMode     FailoverMode     `json:"failover_mode"`
	Endpoint         string           `json:"endpoint"`            // host:port of the endpoint, as other nodes dial it
	Listener         string           `json:"listener,omitempty"`  // host:port for read-write clients
	ReadOnly         string           `json:"read_only,omitempty"` // host:port for read-only clients
	HTTP             string           `json:"http,omitempty"`      // host:port of the HTTP interface
	KeyPin           string           `json:"key_pin"`             // hex SHA-256 of the node certificate's public key
	Voter            bool             `json:"voter"`               // a voting member of the quorum
	EtcdID           uint64           `json:"etcd_id,omitempty"`   // its member id in the embedded store
	Suspended        bool             `json:"suspended,omitempty"` // data movement suspended until RESUME
	SuspendedBy      SuspendReason    `json:"suspended_by,omitempty"`
	Join             JoinState        `json:"join_state,omitempty"` // unless it is "", the replica is suspended too
	Major            int              `json:"major,omitempty"`      // PostgreSQL major version, 0 for the witness
	Allow            AllowConnections `json:"secondary_allow,omitempty"`
	Options          ReplicaOptions   `json:"options,omitzero"`

	later later
}

// JoinState is how far a node of the quorum has become a replica of the group; "": it is one.
type JoinState string

// The join states of a node that is not a replica. ADD REPLICA, and then JOIN on the node itself, make it one.
const (
	NotJoined JoinState = "NOT_JOINED" // added, and not joined yet
	Detached  JoinState = "DETACHED"   // a node of the quorum only
)

// SuspendReason is the origin of a suspension: a person for "" and USER, a forced failover for PARTNER, and the removal
// or replacement of the member for REMOVAL.
type SuspendReason string

// The reasons of a suspension.
const (
	SuspendUser    SuspendReason = "USER"
	SuspendPartner SuspendReason = "PARTNER"
	SuspendRemoval SuspendReason = "REMOVAL"
)

// Part reports whether the replica was added to the group, joined or not.
func (r Replica) Part() bool { return r.Join != Detached }

// HasData reports whether the replica holds a copy of the database; a witness does not.
func (r Replica) HasData() bool { return r.AvailabilityMode != ConfigurationOnly }

// AllowConnections is which connections a secondary takes: NO, READ_ONLY (the default, also for "") or ALL.
type AllowConnections string

// The values of ALLOW_CONNECTIONS of a secondary role.
const (
	AllowNo       AllowConnections = "NO"
	AllowReadOnly AllowConnections = "READ_ONLY"
	AllowAll      AllowConnections = "ALL"
)

// Group is the configuration that administrators want. It is stored under /config and changed by compare-and-swap by
// the administrator's node; the leader reconciles the Record towards it (docs/internals/safety.md, "Record").
type Group struct {
	ID             GroupID       `json:"id"`
	Name           string        `json:"name"`
	SystemID       string        `json:"system_identifier"` // of the PostgreSQL cluster; every copy must carry it
	Replicas       []Replica     `json:"replicas"`
	CommitRule     CommitRule    `json:"commit_rule"`
	Required       *int          `json:"required_synchronized_secondaries,omitempty"` // nil: by the table of docs/internals/safety.md, "Commit rule"
	SessionTimeout time.Duration `json:"session_timeout"`                             // a silent member is dropped after this; default 10 s
	Profile        string        `json:"profile"`                                     // lease profile: default, fast, wan
	HBA            string        `json:"hba,omitempty"`                               // listener rules of the group, pg_hba.conf syntax; "": the default
	Superuser      string        `json:"superuser,omitempty"`                         // bootstrap superuser of the cluster; "": postgres
	Options        Options       `json:"options,omitzero"`
	// External is the number of voting members of the etcd on which an administrator founded the group; 0: the quorum
	// is embedded in the group's nodes.
	External int `json:"external_quorum,omitempty"`
	// Draft means that the nodes have a quorum, and one of them has the data, but no group exists (yet, or any more).
	// CREATE makes it a group.
	Draft bool `json:"draft,omitempty"`
	// Parameters are the settings of PostgreSQL that every replica's server has, by name. Read them through
	// ParametersOf.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Maintenance keeps takeovers from beginning; nil: none does.
	Maintenance *Maintenance `json:"maintenance,omitempty"`
	// Rotation is the change of the certificate authority under way; nil: none.
	Rotation *Rotation `json:"rotation,omitempty"`
	// Awaited are members that were taken out to be replaced: the node that joins by the name of one takes its place,
	// with its settings. They hold nothing, vote nowhere and are counted nowhere.
	Awaited []Replica `json:"awaited,omitempty"`
	// Serial numbers the signed configurations: each has a greater one than those before it (package endorsement).
	Serial uint64 `json:"serial,omitempty"`
	// SignedOnly means that every member's program signs the configuration: none without a signature is used any more.
	SignedOnly bool `json:"signed_only,omitempty"`
	// SignedRecord means that every member's program signs the record: none without signatures is used any more.
	SignedRecord bool `json:"signed_record,omitempty"`

	later later // of this object; so in its parts
}

// Timeout returns the SESSION_TIMEOUT of a replica: its own, or the group's.
func (g Group) Timeout(r Replica) time.Duration {
	if r.Options.SessionTimeout > 0 {
		return r.Options.SessionTimeout
	}
	return g.SessionTimeout
}

// Replica returns the configured replica with that id.
func (g Group) Replica(id ReplicaID) (Replica, bool) {
	for i := range g.Replicas {
		if r := &g.Replicas[i]; r.ID == id {
			return *r, true
		}
	}
	return Replica{}, false
}

// Votes reports whether the member votes now. In an embedded quorum it does not vote before its learner is promoted. On
// an external quorum a vote is about the death of a leader, and needs no member of the store.
func (g Group) Votes(r Replica) bool { return r.Voter && (r.EtcdID != 0 || g.External > 0) }

// ParametersOf returns the settings of PostgreSQL that the server of a replica is to have: those of the group, and its
// own, which come first.
func (g Group) ParametersOf(id ReplicaID) map[string]string {
	want := maps.Clone(g.Parameters)
	if want == nil {
		want = map[string]string{}
	}
	if r, ok := g.Replica(id); ok {
		maps.Copy(want, r.Options.Parameters)
	}
	return want
}

// ParameterNames returns the names of all settings of PostgreSQL that the configuration has for any replica, sorted.
func (g Group) ParameterNames() []string {
	names := slices.Collect(maps.Keys(g.Parameters))
	for _, r := range g.Replicas {
		names = slices.AppendSeq(names, maps.Keys(r.Options.Parameters))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Voting returns how many members vote now.
func (g Group) Voting() (n int) {
	for _, r := range g.Replicas {
		if g.Votes(r) {
			n++
		}
	}
	return n
}

// Survives reports whether the quorum keeps its majority without a member. An external quorum does not depend on any of
// them.
func (g Group) Survives(id ReplicaID) bool {
	left := g.Voting()
	if r, ok := g.Replica(id); ok && g.Votes(r) {
		left--
	}
	return g.External > 0 || left > g.Voting()/2
}

// Voters returns how many members vote in the quorum, or will when they have joined it.
func (g Group) Voters() int {
	n := 0
	for i := range g.Replicas {
		if g.Replicas[i].Voter {
			n++
		}
	}
	return n
}

// Options are the group-wide options of the availability-group language. The zero value means the defaults of a new
// group, so that a configuration written by an older version keeps its meaning. Read them through the methods, which
// know the defaults.
type Options struct {
	FailureDetection FailureDetection `json:"failure_detection,omitempty"`
	SilenceFloor     time.Duration    `json:"silence_floor,omitempty"` // of ADAPTIVE(ms); 0: the profile's
	CommitBarrier    CommitBarrier    `json:"commit_barrier,omitempty"`
	ConditionLevel   int              `json:"failure_condition_level,omitempty"`     // 1 to 5; 0: DefaultConditionLevel
	HealthTimeout    time.Duration    `json:"health_check_timeout,omitempty"`        // 0: DefaultHealthTimeout
	NoDBFailover     bool             `json:"db_failover_off,omitempty"`             // DB_FAILOVER = OFF
	BackupPreference BackupPreference `json:"automated_backup_preference,omitempty"` // "": SECONDARY
	BackendReuse     bool             `json:"backend_reuse,omitempty"`               // BACKEND_REUSE = ON
	Continuity       Continuity       `json:"continuity,omitempty"`                  // "": SESSION
	// AllowRelaxedCommit allows a default of synchronous_commit below on (ALLOW_RELAXED_COMMIT = ON).
	AllowRelaxedCommit bool       `json:"allow_relaxed_commit,omitempty"`
	Databases          []string   `json:"databases,omitempty"` // registered for health, routing and views
	Listeners          []Listener `json:"listeners,omitempty"`
	// Recorded holds accepted options that have no effect here, by their name in the language.
	Recorded map[string]string `json:"recorded,omitempty"`

	later later
}

// Continuity is what happens to client sessions in a failover.
type Continuity string

// The settings of CONTINUITY. OFF ends every session. With the zero value each session moves to the new primary whose
// state can be read and made again there. REPLAY does that, and executes a transaction again that was open on a server
// that is lost.
const (
	ContinuityOff    Continuity = "OFF"
	ContinuityReplay Continuity = "REPLAY"
)

// SessionMove is what a planned failover would do now with a session of the primary's server, or with a reader of the
// server that would take over.
type SessionMove struct {
	Replica  ReplicaID `json:"replica"`
	User     string    `json:"user"`
	Database string    `json:"database"`
	Client   string    `json:"client"`
	Since    time.Time `json:"since"`
	Why      string    `json:"why,omitempty"` // why it would end; empty: it would move
	// Waits: it is busy. A failover waits for the end of its transaction, and moves it then as far as is known. Cut is
	// what becomes of it if that takes too long and the failover cuts it; empty: the listener of its client decides.
	// Why is not empty then: programs of an earlier version look at that alone.
	Waits bool   `json:"waits,omitempty"`
	Cut   string `json:"cut,omitempty"`
}

// The defaults of Options that are not zero values.
const (
	DefaultConditionLevel = 3
	DefaultHealthTimeout  = 10 * time.Second
)

// FailureDetection is what may begin a takeover. FAST (also ""): evidence and votes, or the end of the leader's lease.
// ADAPTIVE: the same, and an administrator says which pause of the leader is never evidence. STRICT: only the end of
// the lease.
type FailureDetection string

// The values of FAILURE_DETECTION.
const (
	DetectFast     FailureDetection = "FAST"
	DetectStrict   FailureDetection = "STRICT"
	DetectAdaptive FailureDetection = "ADAPTIVE"
)

// CommitBarrier selects the answer to a client about a commit whose wait was cut short. "": by revoking and holding.
// STRICT: no answer leaves before the listener itself has seen the flush.
type CommitBarrier string

// BarrierStrict is COMMIT_BARRIER = STRICT.
const BarrierStrict CommitBarrier = "STRICT"

// BackupPreference is where a backup job should run. It is advice only.
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
	Addresses []string `json:"addresses,omitempty"` // virtual addresses with prefix length, such as 10.0.0.9/24; they follow the primary
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

// Detection returns FAILURE_DETECTION. A value that this version does not know counts as the most careful one.
func (o Options) Detection() FailureDetection {
	switch o.FailureDetection {
	case "", DetectFast:
		return DetectFast
	case DetectAdaptive:
		return DetectAdaptive
	case DetectStrict:
	}
	return DetectStrict
}

// Strict reports whether every commit is confirmed before a client is told of it (COMMIT_BARRIER = STRICT). A value
// that this version does not know counts as the most careful one.
func (o Options) Strict() bool { return o.CommitBarrier != "" }

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
	// Maintenance keeps this replica from being promoted by the agents, and from readers; nil: nothing does.
	Maintenance *Maintenance `json:"maintenance,omitempty"`
	// Parameters are settings of PostgreSQL that this replica's server has, in place of the group's.
	Parameters map[string]string `json:"parameters,omitempty"`

	later later
}

// PrimaryAllow is which intents a replica takes as the primary: ALL (also for "") or READ_WRITE, which refuses read
// intent.
type PrimaryAllow string

// The values of ALLOW_CONNECTIONS of a primary role.
const (
	PrimaryAllowAll       PrimaryAllow = "ALL"
	PrimaryAllowReadWrite PrimaryAllow = "READ_WRITE"
)

// RotationPhase is how far a change of the group's certificate authority has come.
type RotationPhase string

// The phases of a rotation, in their order. In each phase every member does one thing and reports it; then the next
// phase begins.
const (
	RotationTrust RotationPhase = "TRUST" // members learn to trust the new authority; no member uses a certificate of it yet
	RotationIssue RotationPhase = "ISSUE" // members get certificates from it; both authorities are trusted
	RotationDrop  RotationPhase = "DROP"  // members stop trusting the old authority
)

// Rotation is a change of the group's certificate authority under way. It does not contain the private key: replicas
// hand that to each other.
type Rotation struct {
	Pin         string        `json:"pin"`                 // hex SHA-256 of the new authority's public key
	Certificate string        `json:"certificate"`         // of the new authority, in PEM
	Signature   []byte        `json:"signature,omitempty"` // of the certificate, by the authority that is replaced
	Phase       RotationPhase `json:"phase"`
	Done        []ReplicaID   `json:"done,omitempty"` // members that have completed the phase
	Hold        bool          `json:"hold,omitempty"` // TRUST does not end without an administrator: clients must learn of the new authority, too

	later later
}

// Held reports whether the rotation waits for an administrator, even after all members have completed the phase.
func (r Rotation) Held() bool { return r.Hold && r.Phase == RotationTrust }

// RotationWaits lists the members that the rotation's phase waits for, in the order of the configuration.
func (g Group) RotationWaits() (ids []ReplicaID) {
	if g.Rotation == nil {
		return nil
	}
	for _, r := range g.Replicas {
		if !slices.Contains(g.Rotation.Done, r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// RotationTurn reports whether a member may interrupt its part in the quorum for the rotation now. Members take turns
// in the order of the configuration.
func (g Group) RotationTurn(id ReplicaID) bool {
	for _, waits := range g.RotationWaits() {
		if r, _ := g.Replica(waits); r.Voter || waits == id {
			return waits == id
		}
	}
	return false
}

// RotationStep records that a member has completed a phase of the rotation to the authority with that pin. Once every
// member has, it begins the next phase or ends the rotation. It changes nothing if the phase is over. It replaces the
// Rotation and does not modify it.
func (g *Group) RotationStep(id ReplicaID, pin string, phase RotationPhase) {
	if g.Rotation == nil || g.Rotation.Pin != pin || g.Rotation.Phase != phase {
		return
	}
	next := *g.Rotation
	if !slices.Contains(next.Done, id) {
		next.Done = append(slices.Clone(next.Done), id)
	}
	g.Rotation = &next
	if len(g.RotationWaits()) > 0 || next.Held() {
		return
	}
	next.Done = nil
	switch phase {
	case RotationTrust:
		next.Phase = RotationIssue
	case RotationIssue:
		next.Phase = RotationDrop
	case RotationDrop:
		g.Rotation = nil
	}
}

package ag

import "time"

// GroupID is the UUID of an availability group. It is in every certificate and in every key of the quorum store.
type GroupID string

// ReplicaID names one member of the group (a replica or the witness). It is chosen at init or join, matches
// [a-z][a-z0-9_]{0,29}, and is never reused for another node.
type ReplicaID string

// CopyID is the UUID of one copy of the data: made anew whenever a data directory is created, seeded, rewound or restored.
// Copies, not members, hold data (safety specification 1.4).
type CopyID string

// Role is what a replica is at this moment, in the words of the availability-group views.
type Role string

// The three roles. RESOLVING: not known, or not allowed to serve writes and not following anybody.
const (
	RolePrimary   Role = "PRIMARY"
	RoleSecondary Role = "SECONDARY"
	RoleResolving Role = "RESOLVING"
)

// AvailabilityMode is a replica's configured way of taking part in commits.
type AvailabilityMode string

// The availability modes. CONFIGURATION_ONLY is the witness: a vote without data.
const (
	SynchronousCommit  AvailabilityMode = "SYNCHRONOUS_COMMIT"
	AsynchronousCommit AvailabilityMode = "ASYNCHRONOUS_COMMIT"
	ConfigurationOnly  AvailabilityMode = "CONFIGURATION_ONLY"
)

// FailoverMode says whether a replica may become primary without a person.
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

// CommitRule is the group's way of choosing how many synchronous secondaries a commit waits for.
type CommitRule string

// The commit rules. QUORUM waits for as many as simultaneous failures can be survived (ANY n); ALL waits for every
// synchronized secondary, as SQL Server does.
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
	Join             JoinState        `json:"join_state,omitempty"` // beside "", it is suspended too
	Major            int              `json:"major,omitempty"`      // PostgreSQL major version, 0 for the witness
	Allow            AllowConnections `json:"secondary_allow,omitempty"`
	Options          ReplicaOptions   `json:"options,omitzero"`
}

// JoinState is how far a node of the quorum has become a replica of the group: "" it is one.
type JoinState string

// The join states of a node that is no replica yet, or no more. ADD REPLICA and then JOIN on the node itself make it one.
const (
	NotJoined JoinState = "NOT_JOINED" // added, and to be joined
	Detached  JoinState = "DETACHED"   // a node of the quorum only
)

// SuspendReason is who suspended a replica's data movement: "" and USER a person, PARTNER a forced failover.
type SuspendReason string

// The reasons of a suspension.
const (
	SuspendUser    SuspendReason = "USER"
	SuspendPartner SuspendReason = "PARTNER"
)

// Part reports whether the replica was made one of the group's, joined or not.
func (r Replica) Part() bool { return r.Join != Detached }

// HasData reports whether the replica holds a copy of the database; a witness does not.
func (r Replica) HasData() bool { return r.AvailabilityMode != ConfigurationOnly }

// AllowConnections is a secondary's answer to clients: NO, READ_ONLY (the default, also for "") or ALL.
type AllowConnections string

// The values of ALLOW_CONNECTIONS of a secondary role.
const (
	AllowNo       AllowConnections = "NO"
	AllowReadOnly AllowConnections = "READ_ONLY"
	AllowAll      AllowConnections = "ALL"
)

// Group is the wish: what administrators configured. It lives under /config in the store, is changed by compare-and-swap
// by whoever administers, and the leader reconciles the Record towards it (safety specification 1.6).
type Group struct {
	ID             GroupID       `json:"id"`
	Name           string        `json:"name"`
	SystemID       string        `json:"system_identifier"` // of the PostgreSQL cluster; every copy must carry it
	Replicas       []Replica     `json:"replicas"`
	CommitRule     CommitRule    `json:"commit_rule"`
	Required       *int          `json:"required_synchronized_secondaries,omitempty"` // nil: by the table of safety specification 7
	SessionTimeout time.Duration `json:"session_timeout"`                             // a silent member is dropped after this; default 10 s
	Profile        string        `json:"profile"`                                     // lease profile: default, fast, wan
	HBA            string        `json:"hba,omitempty"`                               // listener rules of the group, pg_hba.conf syntax; "": the default
	Superuser      string        `json:"superuser,omitempty"`                         // bootstrap superuser of the cluster; "": postgres
	Options        Options       `json:"options,omitzero"`
	// External is how many voting members the etcd has on which an administrator founded the group; 0: the quorum is embedded in its nodes.
	External int `json:"external_quorum,omitempty"`
	// Draft says that there is no group yet, or no more: nodes with a quorum, one of which has the data. CREATE makes it a group.
	Draft bool `json:"draft,omitempty"`
	// Rotation is the change of the certificate authority under way; nil: there is none.
	Rotation *Rotation `json:"rotation,omitempty"`
}

// Replica returns the configured replica of that id.
func (g Group) Replica(id ReplicaID) (Replica, bool) {
	for _, r := range g.Replicas {
		if r.ID == id {
			return r, true
		}
	}
	return Replica{}, false
}

// Votes reports whether the member votes by now: in an embedded quorum it only is to vote until its learner is promoted. On an
// external one a vote is about the death of a leader, and needs no member of the store.
func (g Group) Votes(r Replica) bool { return r.Voter && (r.EtcdID != 0 || g.External > 0) }

// Voting returns how many members vote by now.
func (g Group) Voting() (n int) {
	for _, r := range g.Replicas {
		if g.Votes(r) {
			n++
		}
	}
	return n
}

// Survives reports whether the quorum keeps its majority without a member. An external one does not rest on any of them.
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
	for _, r := range g.Replicas {
		if r.Voter {
			n++
		}
	}
	return n
}

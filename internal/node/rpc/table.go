package rpc

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// The methods that nodes call at each other. Package node offers each of them to the
// callers that its line names; docs/internals/protocol.md describes them.
var (
	// Ping answers with the newest record that the node has seen, as soon as the node answers at all.
	Ping = Method[Nothing, marks.Seen]{"ping", members}
	// Claim asks a member which quorum it belongs to or founds, also before the node is complete.
	Claim = Method[Nothing, recovery.Claim]{"claim", replicas}
	// Seal asks a member for its promise, and for the end of its WAL.
	Seal = Method[agent.SealRequest, ag.SealReport]{"seal", replicas}
	// Position asks a member how far its copy is.
	Position = Method[Nothing, agent.Positions]{"position", members}
	// PrepareTakeover asks the target of a planned failover to be ready for it.
	PrepareTakeover = Method[agent.TakeoverRequest, Nothing]{"stand-ready", replicas}
	// ReleaseReaders asks the target of a planned failover to have its readers continue elsewhere.
	ReleaseReaders = Method[agent.TakeoverRequest, Nothing]{"release-readers", replicas}
	// Trust lifts the quarantine of a member's copy; the answer is why it was under quarantine.
	Trust = Method[Nothing, string]{"trust", replicas}

	// Leave asks a replica to take the caller out of the group.
	Leave = Method[Nothing, Nothing]{"leave", members}

	// Decisions asks a node what it decided lately and why, and what it sees.
	Decisions = Method[Nothing, decisions.Report]{"decisions", members}

	// Renew has a replica sign a certificate request; the answer is the chain.
	Renew = Method[[]byte, []byte]{"renew-certificate", members}
	// AuthorityKey asks another replica for the key of the authority with this pin.
	AuthorityKey = Method[string, []byte]{"authority-key", replicas}

	// Signs asks a member whether its program knows signed configurations.
	Signs = Method[Nothing, bool]{"signs", members}
	// SignsRecord asks a member whether its program knows signed records.
	SignsRecord = Method[Nothing, bool]{"signs-record", members}
	// Tell has a replica write what a member tells of its own part in the group: a witness cannot sign the
	// configuration.
	Tell = Method[ag.MemberStep, Nothing]{"tell", members}

	// Report returns the facts that a node shows of itself in the views.
	Report = Method[Nothing, catalog.Node]{"report", members}
	// Journal asks a node for its latest decisions and events.
	Journal = Method[Nothing, catalog.Journal]{"journal", members}
	// Settings asks a node for its server's settings. A witness is not told those that may hold a secret.
	Settings = Method[Nothing, []catalog.Setting]{"settings", members}
	// CreateDatabase asks the primary for a database; the answer is whether it was created.
	CreateDatabase = Method[string, bool]{"database", replicas}
	// CheckParameters asks a replica whether its server could have these settings, by name; the answer is the names
	// that take effect only at its next start.
	CheckParameters = Method[map[string]*string, []string]{"check-settings", replicas}
	// WeighParameters asks a replica how much memory its server would take with these settings, by name.
	WeighParameters = Method[map[string]string, Weight]{"weigh-settings", replicas}
	// RestartServer asks a secondary to restart its PostgreSQL server.
	RestartServer = Method[Nothing, Nothing]{"restart-server", replicas}
	// RestartPrimary asks the primary to restart its PostgreSQL server in place.
	RestartPrimary = Method[api.RestartRequest, Nothing]{"restart-primary", replicas}
	// Program asks a member for the version of its agent, and of the program that is installed there.
	Program = Method[Nothing, api.Program]{"program", members}
	// RestartAgent asks a member to replace its agent by the installed program.
	RestartAgent = Method[api.AgentRequest, Nothing]{"restart-agent", replicas}
	// MajorPrograms asks a replica for its programs of another major version.
	MajorPrograms = Method[api.MajorNeeds, api.MajorPrograms]{"major-programs", replicas}
	// MajorFollow asks a replica to take a copy of the cluster that the group has passed to.
	MajorFollow = Method[api.MajorNeeds, Nothing]{"major-follow", replicas}
	// RestartListener asks a node to open its client ports anew.
	RestartListener = Method[Nothing, Nothing]{"restart-listener", replicas}
	// SessionMoves asks the primary which sessions of its server a planned failover would move.
	SessionMoves = Method[Nothing, []ag.SessionMove]{"session-moves", replicas}
	// Role asks a replica for a role that logs in, and for the age of the copy that it was read from.
	Role = Method[string, AgedRole]{"role", replicas}
	// Viewer asks a replica whether a role may look at the console, and for the roles of which it is a member. By that
	// a witness, which may not ask for a verifier, lets users look.
	Viewer = Method[string, RoleThatLooks]{"viewer", members}
	// Progress asks a replica how far its server is in the history of an epoch.
	Progress = Method[Nothing, listener.Progress]{"standing", replicas}
	// Durable asks the primary whether a position that a secondary has replayed is durable.
	Durable = Method[DurableRequest, bool]{"durable", replicas}
	// Cancel asks a node to cancel the statement of the session with that key.
	Cancel = Method[listener.CancelKey, Nothing]{"cancel", replicas}
	// Seed asks a replica for a new copy, or for a verification of the one it has.
	Seed = Method[api.SeedRequest, seeding.Operation]{"seed", replicas}
	// CancelSeeding ends the copy or the verification that is under way at a replica.
	CancelSeeding = Method[Nothing, seeding.Operation]{"seed-cancel", replicas}
	// Seedings asks a replica for its copies and verifications, the oldest first.
	Seedings = Method[Nothing, []seeding.Operation]{"seedings", members}
	// BackupStep asks the primary for a step of a backup that the caller makes of its own copy.
	BackupStep = Method[backup.StepRequest, backup.StepAnswer]{"backup-step", replicas}
	// BackupRun asks a replica to make a backup of its server; the answer does not wait for its end.
	BackupRun = Method[backup.RunRequest, backup.Run]{"backup-run", replicas}
	// BackupActivity asks a replica for its work on backups.
	BackupActivity = Method[Nothing, backup.Activity]{"backup-activity", members}
	// Link asks a node to describe its link to a member.
	Link = Method[ag.ReplicaID, api.Link]{"link", members}
)

// AgedRole is a role as a node's server has it, and how old the copy may be that it was read from.
type AgedRole struct {
	login.Role
	Age     time.Duration
	Missing bool // the role does not exist; Rounds is known nevertheless
}

// RoleThatLooks is what a replica tells a witness of a role: no verifier, and nothing that the role may change.
type RoleThatLooks struct {
	Looks    bool          // it may log in, and look at the console
	MemberOf []string      // nil unless Looks
	Age      time.Duration // how old the copy may be that says so
}

// Weight is the memory of a replica's host in bytes, and the arithmetic if its server may take more than that; else "".
type Weight struct {
	Host    uint64 `json:"host"`
	Warning string `json:"warning,omitempty"`
}

// DurableRequest is a position of the history that a secondary streams from the primary in that epoch.
type DurableRequest struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

package rpc

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// The methods that nodes call at each other. Package node offers each of them; docs/internals/protocol.md describes
// them.
var (
	// Ping answers with the newest record that the node has seen, as soon as the node answers at all.
	Ping = Method[Nothing, marks.Seen]{"ping"}
	// Seal asks a member for its promise, and for the end of its WAL.
	Seal = Method[agent.SealRequest, ag.SealReport]{"seal"}
	// Position asks a member how far its copy is.
	Position = Method[Nothing, agent.Positions]{"position"}
	// PrepareTakeover asks the target of a planned failover to be ready for it.
	PrepareTakeover = Method[agent.TakeoverRequest, Nothing]{"stand-ready"}
	// Trust lifts the quarantine of a member's copy; the answer is why it was under quarantine.
	Trust = Method[Nothing, string]{"trust"}

	// Decisions asks a node what it decided lately and why, and what it sees.
	Decisions = Method[Nothing, decisions.Report]{"decisions"}

	// Renew has a replica sign a certificate request; the answer is the chain.
	Renew = Method[[]byte, []byte]{"renew-certificate"}
	// AuthorityKey asks another replica for the key of the authority with this pin.
	AuthorityKey = Method[string, []byte]{"authority-key"}

	// Report returns the facts that a node shows of itself in the views.
	Report = Method[Nothing, catalog.Node]{"report"}
	// Journal asks a node for its latest decisions and events.
	Journal = Method[Nothing, catalog.Journal]{"journal"}
	// Settings asks a node for its server's settings.
	Settings = Method[Nothing, []catalog.Setting]{"settings"}
	// CreateDatabase asks the primary for a database; the answer is whether it was created.
	CreateDatabase = Method[string, bool]{"database"}
	// RestartListener asks a node to open its client ports anew.
	RestartListener = Method[Nothing, Nothing]{"restart-listener"}
	// Role asks a replica for a role that logs in, and for the age of the copy that it was read from. A witness is
	// refused.
	Role = Method[string, AgedRole]{"role"}
	// Progress asks a replica how far its server is in the history of an epoch.
	Progress = Method[Nothing, listener.Progress]{"standing"}
	// Durable asks the primary whether a position that a secondary has replayed is durable.
	Durable = Method[DurableRequest, bool]{"durable"}
	// Cancel asks a node to cancel the statement of the session with that key.
	Cancel = Method[listener.CancelKey, Nothing]{"cancel"}
	// Seed asks a replica for a new copy, or for a verification of the one it has.
	Seed = Method[api.SeedRequest, seeding.Operation]{"seed"}
	// CancelSeeding ends the copy or the verification that is under way at a replica.
	CancelSeeding = Method[Nothing, seeding.Operation]{"seed-cancel"}
	// Seedings asks a replica for its copies and verifications, the oldest first.
	Seedings = Method[Nothing, []seeding.Operation]{"seedings"}
	// Link asks a node to describe its link to a member.
	Link = Method[ag.ReplicaID, api.Link]{"link"}
)

// AgedRole is a role as a node's server has it, and how old the copy may be that it was read from.
type AgedRole struct {
	login.Role
	Age time.Duration
}

// DurableRequest is a position of the history that a secondary streams from the primary in that epoch.
type DurableRequest struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

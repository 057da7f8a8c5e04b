package metrics

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/lib/storage"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/replication"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// Facts are what a node knows of itself and the group at one moment.
type Facts struct {
	Uptime time.Duration
	Build  Build
	// Known reports that the agent has had a turn. Before that, the status has the group as it was last seen, and
	// nothing of the record.
	Known       bool
	Status      api.Status
	Transitions map[ag.Rule]uint64 // how often each rule became the one that decides
	Failovers   decisions.Failovers
	Lease       *time.Duration // left of the right to act as the primary; nil: this node is not the primary
	Space       []agent.Space
	Storage     []storage.Volume
	Expiry      map[string]time.Time // of certificates, by what they are for
	Logs        Logs

	Server *Server // nil on a witness
	Backup *Backup // nil where nothing is known of backups

	BackupRuns map[ag.ReplicaID]BackupRun // what the replicas make and restore
	Clients    *Clients                   // nil where no clients are served
	Console    console.Counts
	Browsers   *web.Counts        // nil where there is no console in the browser
	Hooks      *Hooks             // nil where there is no directory of commands
	Webhooks   map[string]Webhook // by name; nil where there are none
	Endpoint   Endpoint
	HTTP       uint64 // connections refused at the HTTP port
}

// Build is the program that runs, and the version of PostgreSQL beside it.
type Build struct{ Version, Commit, PostgreSQL string }

// Logs counts the files of the agent's log that were replaced because they were large, and those that could not be.
type Logs struct{ Replaced, Failed uint64 }

// Hooks counts the commands that were run for events, and the events that were left out.
type Hooks struct{ Done, Failed, Dropped uint64 }

// Webhook is what was counted of a receiver of events.
type Webhook struct {
	Sent, Failed                uint64 // tries
	Dropped, Refused, Abandoned uint64 // events
	Waiting                     int
	Failing                     time.Duration
}

// Endpoint is what the port between nodes has counted.
type Endpoint struct {
	Refused uint64
	Relayed endpoint.RelayStatus
}

// Server is what is known of this node's PostgreSQL.
type Server struct {
	Commits   replication.PenaltyTotals
	Seedings  []seeding.Operation // of this node's copy, oldest first
	Streams   []Stream            // to the members, on the primary
	Answers   bool                // the fields that follow are of a server that answered lately
	Waiting   int                 // sessions whose commit waits for synchronous replication
	Flushed   ag.LSN
	Replayed  ag.LSN  // 0 on the primary
	Replay    float64 // bytes per second, lately
	Slots     []Slot
	Pending   *int // settings that wait for a restart of the server; nil: not known
	Fences    uint64
	LastFence time.Time // zero: none is remembered
	Ends      uint64    // servers that ended since the keeper started
	Log       *ServerLog
}

// Backup is what is known of the group's backups, and of the archiving of this node's server.
type Backup struct {
	Age              *time.Duration // since the newest backup ended; nil: there is none, or it is not known
	Node             string         // the replica on which it was made; "": it is not known
	Primary, Failing bool           // the server archives; its last try failed
	Waiting          int            // segments to be archived
	Failed           int64          // tries that failed
	Behind, FullIn   *time.Duration // how long the archive lacks WAL, and until the disk of WAL is full; nil: it does not, and it will not be
	Kept             int64          // bytes that wait
}

// BackupRun is what is known of a replica's work on backups.
type BackupRun struct {
	UnderWay    bool    // it makes one
	Done        float64 // the part of its files that is copied
	Interrupted int     // restores whose process is gone and whose directory is there
}

// Stream is the stream of WAL to a member.
type Stream struct {
	Member                 ag.ReplicaID
	SendQueue, Lag, Redo   int64         // bytes not sent, not durable, and durable but not replayed
	Behind, ReplayedBehind time.Duration // since the primary went beyond what is durable and replayed there; 0: it has not
}

// Slot is a replication slot of this node's server.
type Slot struct {
	Name     string
	Active   bool
	Retained int64 // bytes of WAL that are kept for it
}

// ServerLog is what the server's log says of cancelled waits.
type ServerLog struct {
	Confirmed uint64 // answers that it spared a confirmation
	Sound     bool
}

// Clients is what the listener has counted, and its sessions.
type Clients struct {
	listener.Stats
	Sessions map[Sessions]int // of clients that are connected here
	Others   int              // sessions whose client is connected to another node
}

// Sessions are the properties by which sessions are counted.
type Sessions struct {
	Intent      ag.Intent
	Path, State string
}

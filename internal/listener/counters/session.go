package counters

import (
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/continuity"
)

// Session is one session as status and views show it.
type Session struct {
	ID         uint64       `json:"id"`
	User       string       `json:"user"`
	Database   string       `json:"database"`
	ClientAddr string       `json:"client_addr"`
	TLS        string       `json:"tls,omitempty"`          // version; empty without TLS
	TLSName    string       `json:"tls_name,omitempty"`     // server name of the handshake (SNI); empty without one
	Identity   string       `json:"tls_identity,omitempty"` // common name of the client's certificate; empty without one
	Intent     ag.Intent    `json:"intent"`
	Entry      int          `json:"list_entry,omitempty"` // place in the read-only routing list; 0 for READ_WRITE
	Replica    ag.ReplicaID `json:"replica"`
	Epoch      ag.Epoch     `json:"epoch"`
	PID        uint32       `json:"pid"`   // of the backend; 0 if relayed
	State      string       `json:"state"` // idle, active, idle in transaction
	Since      time.Time    `json:"since"`
	Relayed    bool         `json:"relayed"` // the client is at another node's listener
	BytesIn    uint64       `json:"bytes_in"`
	BytesOut   uint64       `json:"bytes_out"`
	Path       string       `json:"path"`    // PathKernel, PathLoop or PathGoroutines
	Backend    string       `json:"backend"` // own, ahead or reused
	// Outlook returns what would become of it in each event now; nil: the client is at another node's listener, which
	// knows.
	Outlook func() continuity.Outlook `json:"-"`
}

// The carriers of a session's bytes: the kernel alone, an event loop, or two goroutines (for sessions from or to
// another node).
const (
	PathKernel     = "kernel"
	PathLoop       = "loop"
	PathGoroutines = "goroutines"
)

// The backend of a session: started for it, opened ahead, or used by another client before.
const (
	BackendOwn    = "own"
	BackendAhead  = "ahead"
	BackendReused = "reused"
)

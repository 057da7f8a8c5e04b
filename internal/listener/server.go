package listener

import (
	"context"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// CancelKey is what a client sends to cancel a query: the process id and the secret of BackendKeyData.
type CancelKey struct {
	PID    uint32
	Secret uint32
}

// SessionInfo is one session as status and views show it.
type SessionInfo struct {
	ID         uint64       `json:"id"`
	User       string       `json:"user"`
	Database   string       `json:"database"`
	ClientAddr string       `json:"client_addr"`
	TLS        string       `json:"tls,omitempty"` // version, empty without TLS
	Intent     ag.Intent    `json:"intent"`
	Replica    ag.ReplicaID `json:"replica"`
	Epoch      ag.Epoch     `json:"epoch"`
	PID        uint32       `json:"pid"`   // of the backend
	State      string       `json:"state"` // connecting, idle, active, in transaction
	Since      time.Time    `json:"since"`
	Relayed    bool         `json:"relayed"` // the client is at another node's listener
	BytesIn    uint64       `json:"bytes_in"`
	BytesOut   uint64       `json:"bytes_out"`
}

// RoutedKey counts sessions by replica and intent.
type RoutedKey struct {
	Replica ag.ReplicaID
	Intent  ag.Intent
}

// Stats are counters since the start.
type Stats struct {
	Accepted  uint64
	Rejected  map[string]uint64 // by reason
	Cancels   uint64            // delivered to a replica
	Routed    map[RoutedKey]uint64
	FellBack  uint64        // read-only sessions sent to the primary for want of a readable secondary
	Gated     uint64        // times an answer was held by the gate
	GatedTime time.Duration // in all
	Cut       map[string]uint64
	Open      int // sessions now
	PreAuth   int // connections not yet authenticated now
	Waiting   int // logins that wait for a replica now
}

// Server is the listener of one node.
type Server struct{ cfg Config }

// New opens the listen addresses; Serve accepts on them.
func New(cfg Config) (*Server, error) { d, err := cfg.withDefaults(); return &Server{cfg: d}, err }

// Serve accepts clients until ctx is done or Shutdown is called, then ends what is open and returns when nothing runs any more.
func (s *Server) Serve(ctx context.Context) error { <-ctx.Done(); return nil }

// Addrs are the addresses in use; with port 0 in the configuration, the real ones.
func (s *Server) Addrs() (readWrite, readOnly []net.Addr) { return nil, nil }

// Shutdown stops accepting, ends idle sessions at once and the others as they become idle, all of them when ctx is done.
func (s *Server) Shutdown(ctx context.Context) {}

// SetRules replaces the rules for logins from now on.
func (s *Server) SetRules(rules []Rule) {}

// CloseEpoch ends read-write sessions that were opened under an epoch before that one, and returns how many.
func (s *Server) CloseEpoch(before ag.Epoch, why string) int { return 0 }

// CloseReplica ends the sessions on that replica; an empty intent means both intents. It returns how many.
func (s *Server) CloseReplica(id ag.ReplicaID, intent ag.Intent, why string) int { return 0 }

// HoldNew makes new read-write logins wait (bounded by ConnectWait) until it is called with false.
func (s *Server) HoldNew(hold bool) {}

// Sessions lists the open sessions.
func (s *Server) Sessions() []SessionInfo { return nil }

// Stats returns the counters.
func (s *Server) Stats() Stats { return Stats{} }

// Cancel delivers a cancel request whose key this node minted; false if no such session exists.
func (s *Server) Cancel(ctx context.Context, key CancelKey) bool { return false }

// ServeBackend relays a session that arrived from another node's listener to the local PostgreSQL in socketDir, checking the
// gate after each read from PostgreSQL. It returns when the session has ended and conn is closed.
func (s *Server) ServeBackend(ctx context.Context, conn net.Conn, socketDir string) { _ = conn.Close() }

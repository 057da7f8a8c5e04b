package replication

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Source is where this node's WAL comes from: the replica that leads the epoch, and how to reach its agent.
type Source struct {
	Epoch   ag.Epoch
	Replica ag.ReplicaID
	Dial    func(ctx context.Context) (net.Conn, error)
}

// UpstreamConfig is what an Upstream needs to run.
type UpstreamConfig struct {
	Dir    string       // the directory of the socket; private to the node's user
	Hello  func() Hello // the facts of this node now; called per attempt. Kind is filled in by the Upstream
	Logger *slog.Logger
}

// UpstreamStatus is what an Upstream saw last.
type UpstreamStatus struct {
	Connected  bool          // a walreceiver is joined to the source
	Replica    ag.ReplicaID  // of the source in force; empty while holding
	Epoch      ag.Epoch      // of the source in force
	Since      time.Duration // boottime of the last change of Connected
	Received   uint64        // bytes from sources, all connections since the start
	Sent       uint64        // bytes to sources
	Held       int           // local connections that wait for a source
	LastRead   time.Duration // boottime of the last byte from a source on a WAL stream
	Answer     Answer        // the last answer to a Hello of kind wal
	AnswerFrom Source        // who gave it; Dial is nil
	AnswerAt   time.Duration // boottime of it; 0: none yet
	Err        string        // the last failure to reach the source; empty after a success
}

// Upstream serves the unix socket to which the local walreceiver, pg_rewind and slot synchronization connect, and joins
// each connection to the source in force. While there is none, connections wait in silence.
type Upstream struct{}

// NewUpstream returns an Upstream without a source. Serve runs it.
func NewUpstream(cfg UpstreamConfig) *Upstream { return &Upstream{} }

// Serve listens on the socket until ctx is done.
func (u *Upstream) Serve(ctx context.Context) error { <-ctx.Done(); return nil }

// SetSource changes the source.
func (u *Upstream) SetSource(s *Source) {}

// Seal removes the source and returns when no connection to it is left.
func (u *Upstream) Seal(ctx context.Context) error { return nil }

// Status returns what the Upstream saw last.
func (u *Upstream) Status() UpstreamStatus { return UpstreamStatus{} }

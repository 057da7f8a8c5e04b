package replication

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// PrimaryFacts is what a primary says about itself in an Answer.
type PrimaryFacts struct {
	Leading   bool
	Epoch     ag.Epoch
	TLI       ag.Timeline
	Switch    ag.LSN // where TLI leaves its parent
	Timelines []ag.TimelineEntry
}

// DownstreamConfig is what a Downstream needs to run.
type DownstreamConfig struct {
	SocketDir string        // PostgreSQL's private socket directory
	Superuser func() string // the role of the walsenders
	Self      func() PrimaryFacts
	// Verify compares the history and the WAL of a Hello of kind wal with this node's; a nil Verify accepts.
	Verify func(context.Context, Hello) Answer
	// OldRowGone returns when pg_stat_replication has no row of the member left.
	OldRowGone func(context.Context, ag.ReplicaID) error
	Logger     *slog.Logger

	ProbeAfter time.Duration // silence after which a WAL stream is probed; default 3 s
	DeadAfter  time.Duration // silence after a probe that ends a WAL stream; default 10 s
}

// Stream is one stream as Downstream.Streams reports it.
type Stream struct {
	Member       ag.ReplicaID
	Copy         ag.CopyID
	Incarnation  string
	Epoch        ag.Epoch
	Session      uint64 // unique in the life of the Downstream
	Kind         string
	Streaming    bool          // the walsender is in streaming mode
	Write        ag.LSN        // the positions the secondary reported last, held feedback included
	Flush        ag.LSN        //
	Apply        ag.LSN        //
	LastFeedback time.Duration // boottime of the last status update; 0: none yet
	Since        time.Duration // boottime of the start
	Proven       uint64        // how many proofs of Prove the stream has given
}

// Downstream joins the streams of other replicas to this node's PostgreSQL.
type Downstream struct{}

// NewDownstream returns a Downstream that refuses every stream until SetEpoch says that this node leads.
func NewDownstream(cfg DownstreamConfig) *Downstream { return &Downstream{} }

// Handle serves one stream of peer and returns when it has ended.
func (d *Downstream) Handle(ctx context.Context, peer ag.ReplicaID, conn net.Conn) {}

// SetEpoch closes every stream of an older epoch, or all when not leading, and returns when they are closed.
func (d *Downstream) SetEpoch(e ag.Epoch, leading bool) {}

// Streams returns the streams that are joined to PostgreSQL.
func (d *Downstream) Streams() []Stream { return nil }

// Changed signals that a flush position moved or a stream began or ended.
func (d *Downstream) Changed() <-chan struct{} { return nil }

// Prove returns when the walsender of each member has shown that it works with the settings in force at the call.
func (d *Downstream) Prove(ctx context.Context, members []ag.ReplicaID) error { return nil }

// HoldFeedback keeps feedback from PostgreSQL while hold is true.
func (d *Downstream) HoldFeedback(hold bool) {}

// Drop closes the streams of member.
func (d *Downstream) Drop(member ag.ReplicaID, why string) {}

// Close ends every stream and refuses new ones.
func (d *Downstream) Close() {}

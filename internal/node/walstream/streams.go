package walstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// checkedWAL is how much WAL before the start of a stream both ends compare by checksum
// (docs/internals/safety.md, "Timelines").
const checkedWAL = 16 << 10

// Upstream is where the local walreceiver connects, as the agent wants it.
type Upstream struct {
	*replication.Upstream
	links *Links
}

// NewUpstream returns the source of the local walreceiver, which reaches it by links.
func NewUpstream(up *replication.Upstream, l *Links) *Upstream { return &Upstream{up, l} }

// Follow makes the local walreceiver stream from a leader.
func (u *Upstream) Follow(leader ag.Replica, e ag.Epoch) {
	u.Upstream.SetSource(&replication.Source{Epoch: e, Replica: leader.ID, Dial: func(ctx context.Context) (net.Conn, error) {
		return u.links.Dial(ctx, leader)
	}})
}

// Hold removes the local walreceiver's source: its connections are held until another source is set.
func (u *Upstream) Hold() { u.Upstream.SetSource(nil) }

// Status returns what the local walreceiver is doing.
func (u *Upstream) Status() agent.UpstreamStatus { return describeUpstream(u.Upstream.Status()) }

// describeUpstream takes over an answer only of the source and the epoch in force: an earlier one says nothing of them.
func describeUpstream(s replication.UpstreamStatus) agent.UpstreamStatus {
	answered := s.AnswerAt != 0 && s.AnswerEpoch == s.Epoch && s.AnswerFrom == s.Replica
	return agent.UpstreamStatus{
		Connected: s.Connected, Held: s.Held > 0, Source: s.Replica, Epoch: s.Epoch, Diverged: answered && s.Answer.Code == replication.CodeDiverged,
		Gone: answered && s.Answer.Code == replication.CodeGone, At: s.AnswerAt, Detail: s.Err, LastRead: s.LastRead,
	}
}

// Downstream feeds the members, as the agent wants it.
type Downstream struct{ *replication.Downstream }

// Lead makes this node the source of an epoch, or ends that.
func (d *Downstream) Lead(e ag.Epoch, leading bool) { d.Downstream.SetEpoch(e, leading) }

// Streams returns the members that stream from this node now.
func (d *Downstream) Streams() []agent.Stream {
	var out []agent.Stream
	for _, s := range d.Downstream.Streams() {
		if s.Kind == replication.KindWAL && s.Streaming {
			out = append(out, agent.Stream{
				Member: s.Member, Copy: s.Copy, Flush: s.Flush, Apply: s.Apply, Session: s.Session,
				LastFeedback: max(s.LastFeedback, s.Since),
			})
		}
	}
	return out
}

// Streams are the WAL streams of this node in both directions, as package replication needs them. Its functions may be
// called only once Ready is closed, but for InForce.
type Streams struct {
	StreamsConfig
}

// StreamsConfig has the parts of Streams.
type StreamsConfig struct {
	Self        ag.ReplicaID
	Incarnation string // of this process
	Server      WALFiles
	Agent       func() Decider
	Ready       <-chan struct{} // closed once there is an agent
}

// WALFiles is the server as far as streams need it; *postgres.Instance is one.
type WALFiles interface {
	EndOfWAL(ctx context.Context) (ag.Position, error)
	WALChecksum(ctx context.Context, end ag.Position, length int) (crc uint32, ok bool, err error)
	Keeps(ctx context.Context, lsn ag.LSN) (keeps bool, from ag.LSN, err error)
	MissingRedo(ctx context.Context) (at ag.LSN, missing bool, err error)
	WalsenderRows(ctx context.Context, application string) (int, error)
}

// Decider is the agent as far as streams need it; *agent.Agent is one.
type Decider interface {
	View() *ag.View
	Facts() agent.Facts
}

// Hello describes this node's copy to the primary it wants to stream from.
func (s *Streams) Hello() replication.Hello {
	h := replication.Hello{Member: s.Self, Incarnation: s.Incarnation}
	if v := s.Agent().View(); v != nil {
		h.Copy, h.Position = v.Local.Copy, v.Local.Position
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if pos, err := s.Server.EndOfWAL(ctx); err == nil {
		h.Position = pos
	} else if at, missing, err := s.Server.MissingRedo(ctx); err == nil && missing && h.Position.LSN == 0 {
		h.Needs = at
	}
	if crc, ok, err := s.Server.WALChecksum(ctx, h.Position, checkedWAL); err == nil && ok {
		h.CRC, h.CRCLen = crc, checkedWAL
	}
	return h
}

// Facts are this node's as a source.
func (s *Streams) Facts() replication.PrimaryFacts {
	f := s.Agent().Facts()
	out := replication.PrimaryFacts{Leading: f.Leading, Epoch: f.Epoch, Timelines: f.Timelines}
	if len(f.Timelines) > 0 {
		last := f.Timelines[len(f.Timelines)-1]
		out.TLI, out.Switch = last.TLI, last.Switch
	}
	return out
}

// Verify refuses a copy that is not a prefix of this primary's history, by its timeline and by the checksum of its last
// WAL.
func (s *Streams) Verify(ctx context.Context, h replication.Hello) replication.Answer {
	f := s.Agent().Facts()
	theirs := ag.View{Local: ag.Local{Position: h.Position}, Record: ag.Record{State: ag.State{Timelines: f.Timelines}}}
	if theirs.Diverged() {
		return replication.Answer{Code: replication.CodeDiverged, Message: fmt.Sprintf("its WAL ends at %s, which is not on this primary's history", h.Position)}
	}
	at := cmp.Or(h.Position.LSN, h.Needs)
	if keeps, from, err := s.Server.Keeps(ctx, at); err == nil && !keeps && at != 0 && h.Kind == replication.KindWAL {
		return replication.Answer{Code: replication.CodeGone, Message: fmt.Sprintf("WAL is kept from %s on; the WAL after %s is gone", from, at)}
	}
	if h.CRCLen == checkedWAL {
		crc, ok, err := s.Server.WALChecksum(ctx, h.Position, checkedWAL)
		if err == nil && ok && crc != h.CRC {
			return replication.Answer{Code: replication.CodeDiverged, Message: fmt.Sprintf("the WAL before %s differs", h.Position)}
		}
	}
	return replication.Answer{OK: true}
}

// OldRowGone waits until no walsender of the member is left: PostgreSQL counts every row of a name as an
// acknowledgement.
func (s *Streams) OldRowGone(ctx context.Context, member ag.ReplicaID) error {
	var last error
	err := retry.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		rows, err := s.Server.WalsenderRows(ctx, string(member))
		last = err
		return err == nil && rows == 0, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("the old walsender of %s is still there", member), err, last)
	}
	return nil
}

// InForce is what commits on this node wait for: so many of those members.
func (s *Streams) InForce() ([]ag.ReplicaID, int) {
	select {
	case <-s.Ready:
	default:
		return nil, 0
	}
	v := s.Agent().View()
	if v == nil || v.Record.Epoch.Leader != s.Self {
		return nil, 0
	}
	members := make([]ag.ReplicaID, 0, len(v.Record.State.V))
	for _, m := range v.Record.State.V {
		members = append(members, m.ID)
	}
	return members, v.Record.State.K
}

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// checkedWAL is how much WAL before the start of a stream both ends compare by checksum
// (docs/internals/safety.md, "Timelines").
const checkedWAL = 16 << 10

// upstream is where the local walreceiver connects, as the agent wants it.
type upstream struct {
	up    *replication.Upstream
	links *links
}

func (u *upstream) Follow(leader ag.Replica, e ag.Epoch) {
	u.up.SetSource(&replication.Source{Epoch: e, Replica: leader.ID, Dial: func(ctx context.Context) (net.Conn, error) {
		return u.links.Dial(ctx, leader)
	}})
}

func (u *upstream) Hold() { u.up.SetSource(nil) }

func (u *upstream) Seal(ctx context.Context) error { return u.up.Seal(ctx) }

func (u *upstream) Status() agent.UpstreamStatus {
	s := u.up.Status()
	answered := s.AnswerAt != 0 && s.AnswerEpoch == s.Epoch && s.AnswerFrom == s.Replica
	return agent.UpstreamStatus{
		Connected: s.Connected, Held: s.Held > 0, Source: s.Replica, Epoch: s.Epoch, Diverged: answered && s.Answer.Code == replication.CodeDiverged,
		Gone: answered && s.Answer.Code == replication.CodeGone, At: s.AnswerAt, Detail: s.Err,
	}
}

// downstream feeds the members, as the agent wants it.
type downstream struct{ down *replication.Downstream }

func (d *downstream) Lead(e ag.Epoch, leading bool) { d.down.SetEpoch(e, leading) }

func (d *downstream) Feed(e ag.Epoch, to ag.ReplicaID) { d.down.Feed(e, to) }

func (d *downstream) Changed() <-chan struct{} { return d.down.Changed() }

func (d *downstream) HoldFeedback(hold bool) { d.down.HoldFeedback(hold) }

func (d *downstream) Drop(member ag.ReplicaID, why string) { d.down.Drop(member, why) }

func (d *downstream) Prove(ctx context.Context, members []ag.ReplicaID) error {
	return d.down.Prove(ctx, members)
}

func (d *downstream) Streams() []agent.Stream {
	var out []agent.Stream
	for _, s := range d.down.Streams() {
		if s.Kind == replication.KindWAL && s.Streaming {
			out = append(out, agent.Stream{
				Member: s.Member, Copy: s.Copy, Flush: s.Flush, Apply: s.Apply, Session: s.Session,
				LastFeedback: max(s.LastFeedback, s.Since),
			})
		}
	}
	return out
}

// hello describes this node's copy to the primary it wants to stream from.
func (n *node) hello() replication.Hello {
	h := replication.Hello{Member: n.self, Incarnation: n.incarnation}
	if v := n.agent.View(); v != nil {
		h.Copy, h.Position = v.Local.Copy, v.Local.Position
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if pos, err := n.pg.EndOfWAL(ctx); err == nil {
		h.Position = pos
	}
	if crc, ok, err := n.pg.WALChecksum(ctx, h.Position, checkedWAL); err == nil && ok {
		h.CRC, h.CRCLen = crc, checkedWAL
	}
	return h
}

// facts are this node's as a source.
func (n *node) facts() replication.PrimaryFacts {
	f := n.agent.Facts()
	out := replication.PrimaryFacts{Leading: f.Leading, Epoch: f.Epoch, Timelines: f.Timelines}
	if len(f.Timelines) > 0 {
		last := f.Timelines[len(f.Timelines)-1]
		out.TLI, out.Switch = last.TLI, last.Switch
	}
	return out
}

// verifyHello refuses a copy that is not a prefix of this primary's history, by its timeline and by the checksum of its last WAL.
func (n *node) verifyHello(ctx context.Context, h replication.Hello) replication.Answer {
	f := n.agent.Facts()
	theirs := ag.View{Local: ag.Local{Position: h.Position}, Record: ag.Record{State: ag.State{Timelines: f.Timelines}}}
	if theirs.Diverged() {
		return replication.Answer{Code: replication.CodeDiverged, Message: fmt.Sprintf("its WAL ends at %s, which is not on this primary's history", h.Position)}
	}
	if keeps, from, err := n.pg.Keeps(ctx, h.Position.LSN); err == nil && !keeps && h.Position.LSN != 0 && h.Kind == replication.KindWAL {
		return replication.Answer{Code: replication.CodeGone, Message: fmt.Sprintf("WAL is kept from %s on; the WAL after %s is gone", from, h.Position)}
	}
	if h.CRCLen == checkedWAL {
		crc, ok, err := n.pg.WALChecksum(ctx, h.Position, checkedWAL)
		if err == nil && ok && crc != h.CRC {
			return replication.Answer{Code: replication.CodeDiverged, Message: fmt.Sprintf("the WAL before %s differs", h.Position)}
		}
	}
	return replication.Answer{OK: true}
}

// oldRowGone waits until no walsender of the member is left: PostgreSQL counts every row of a name as an acknowledgement.
func (n *node) oldRowGone(ctx context.Context, member ag.ReplicaID) error {
	for {
		rows, err := n.pg.WalsenderRows(ctx, string(member))
		if err == nil && rows == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the old walsender of %s is still there", member), ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

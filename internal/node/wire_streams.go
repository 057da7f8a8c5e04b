package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
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

// peers reaches the other agents over the control stream.
type peers struct {
	control  *endpoint.Control
	endpoint *endpoint.Endpoint
}

func (p *peers) Ping(ctx context.Context, r ag.Replica) (seen agent.SeenMark, err error) {
	if err = p.control.Call(ctx, r, "ping", nil, &seen); errors.Is(err, syscall.ECONNREFUSED) {
		err = errors.Join(agent.ErrRefused, err)
	}
	return seen, err
}

func (p *peers) Seal(ctx context.Context, r ag.Replica, req agent.SealRequest) (ag.SealReport, error) {
	var out ag.SealReport
	return out, p.control.Call(ctx, r, "seal", req, &out)
}

func (p *peers) Position(ctx context.Context, r ag.Replica) (agent.Positions, error) {
	var out agent.Positions
	return out, p.control.Call(ctx, r, "position", nil, &out)
}

func (p *peers) StandReady(ctx context.Context, r ag.Replica, req agent.ReadyRequest) error {
	return p.control.Call(ctx, r, "stand-ready", req, nil)
}

// handle offers a method that waits until every part of the node is there: the endpoint answers before that.
func (n *node) handle(method string, f func(context.Context, endpoint.Identity, json.RawMessage) (any, error)) {
	n.control.Handle(method, func(ctx context.Context, peer endpoint.Identity, body json.RawMessage) (any, error) {
		if !n.awaitReady(ctx) {
			return nil, errors.New("this node is still starting")
		}
		return f(ctx, peer, body)
	})
}

// serveControl offers this node's methods to the other nodes.
func (n *node) serveControl() {
	n.control.Handle("ping", func(context.Context, endpoint.Identity, json.RawMessage) (any, error) {
		select {
		case <-n.ready:
			return n.agent.Seen(), nil
		default:
			return agent.SeenMark{}, nil // it is here, and has seen nothing yet
		}
	})
	n.handle("seal", func(ctx context.Context, peer endpoint.Identity, body json.RawMessage) (any, error) {
		var req agent.SealRequest
		if err := json.Unmarshal(body, &req); err != nil {
			return nil, err
		}
		if req.Candidate != peer.ID {
			return nil, fmt.Errorf("%s asks for a seal in the name of %s", peer.ID, req.Candidate)
		}
		return n.agent.Seal(ctx, req)
	})
	n.handle("position", func(ctx context.Context, _ endpoint.Identity, _ json.RawMessage) (any, error) {
		return n.agent.Position(ctx)
	})
	n.handle("stand-ready", func(ctx context.Context, peer endpoint.Identity, body json.RawMessage) (any, error) {
		var req agent.ReadyRequest
		if err := json.Unmarshal(body, &req); err != nil {
			return nil, err
		}
		if req.From != peer.ID {
			return nil, fmt.Errorf("%s asks in the name of %s", peer.ID, req.From)
		}
		return nil, n.agent.StandReady(ctx, req)
	})
	n.handle("decisions", func(context.Context, endpoint.Identity, json.RawMessage) (any, error) { return n.testify(), nil })
	n.handle(methodRenew, n.renewFor)
	n.handle(methodAuthorityKey, n.authorityKey)
	n.serveDesk()
	n.handle("trust", func(ctx context.Context, _ endpoint.Identity, _ json.RawMessage) (any, error) {
		if n.pg == nil {
			return nil, errors.New("a witness holds no data")
		}
		return n.agent.Trust(ctx)
	})
	n.handle("role", func(ctx context.Context, peer endpoint.Identity, body json.RawMessage) (any, error) {
		if peer.Kind != endpoint.KindReplica {
			return nil, errors.New("a witness serves no clients and is told no verifiers")
		}
		var user string
		if err := json.Unmarshal(body, &user); err != nil {
			return nil, err
		}
		if n.pg == nil {
			return nil, errors.New("this node runs no PostgreSQL")
		}
		return n.agedRole(ctx, user)
	})
	n.handle("durable", n.durableHere)
	n.handle(methodLink, n.linkFor)
	n.handle("standing", func(ctx context.Context, _ endpoint.Identity, _ json.RawMessage) (any, error) { return n.standing(ctx) })
	n.language.serveControl(n.handle)
	n.handle("cancel", func(ctx context.Context, _ endpoint.Identity, body json.RawMessage) (any, error) {
		return n.cancelHere(ctx, body)
	})
}

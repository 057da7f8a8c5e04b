package agenttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Upstream returns the node's agent.Upstream.
func (n *Node) Upstream() agent.Upstream { return (*upstream)(n) }

type upstream Node

func (u *upstream) n() *Node { return (*Node)(u) }

func (u *upstream) Follow(leader ag.Replica, e ag.Epoch) {
	u.n().locked(func() {
		if u.source != leader.ID || u.sourceEp != e { // else the stream that is there goes on
			u.announced = u.inside
		}
		u.source, u.sourceEp = leader.ID, e
	})
}

func (u *upstream) Hold() { u.n().locked(func() { u.source, u.sourceEp = "", 0 }) }

func (u *upstream) Seal(ctx context.Context) error {
	u.Hold()
	return ctx.Err()
}

func (u *upstream) Status() (s agent.UpstreamStatus) {
	u.n().locked(func() {
		p := u.n().up()
		ok := p != nil && u.n().prefix(p)
		s = agent.UpstreamStatus{Connected: ok, Source: u.source, Epoch: u.sourceEp, Diverged: p != nil && !ok, At: boottime.Now()}
	})
	return s
}

// Downstream returns the node's agent.Downstream.
func (n *Node) Downstream() agent.Downstream { return (*downstream)(n) }

type downstream Node

func (d *downstream) n() *Node { return (*Node)(d) }

func (d *downstream) Lead(e ag.Epoch, leading bool) {
	d.n().locked(func() {
		d.leading, d.only = 0, ""
		if leading {
			d.leading = e
		}
	})
}

func (d *downstream) Feed(e ag.Epoch, to ag.ReplicaID) {
	d.n().locked(func() { d.leading, d.only = e, to })
}

func (d *downstream) Streams() (out []agent.Stream) {
	d.n().locked(func() {
		for _, s := range d.n().streamers() {
			out = append(out, agent.Stream{Member: s.ID, Copy: s.announced, Flush: s.end(), Apply: s.end(), Session: 1, LastFeedback: s.heardAt()})
		}
	})
	return out
}

func (d *downstream) Changed() <-chan struct{} { return d.changed }

func (d *downstream) Prove(ctx context.Context, members []ag.ReplicaID) error {
	for _, m := range members {
		if !slices.ContainsFunc(d.Streams(), func(s agent.Stream) bool { return s.Member == m }) {
			return fmt.Errorf("%s does not stream", m)
		}
	}
	return ctx.Err()
}

func (d *downstream) HoldFeedback(hold bool) { d.n().locked(func() { d.held = hold }) }

func (d *downstream) Drop(member ag.ReplicaID, _ string) {
	d.n().locked(func() { d.events = append(d.events, "drop "+string(member)) })
}

// Peers returns the node's agent.Peers.
func (n *Node) Peers() agent.Peers { return (*peers)(n) }

type peers Node

// rtt is the duration of a call between two nodes.
const rtt = time.Millisecond

func (p *peers) reach(ctx context.Context, r ag.Replica) (Agent, error) {
	_ = retry.Sleep(ctx, rtt)
	return p.w.reach(ctx, p.ID, r.ID)
}

func (p *peers) Ping(ctx context.Context, r ag.Replica) (marks.Seen, error) {
	a, err := p.reach(ctx, r)
	if err != nil {
		return marks.Seen{}, err
	}
	return a.Seen(), nil
}

func (p *peers) Seal(ctx context.Context, r ag.Replica, req agent.SealRequest) (ag.SealReport, error) {
	p.w.called("seal " + string(r.ID))
	a, err := p.reach(ctx, r)
	if err != nil {
		return ag.SealReport{}, err
	}
	if err := p.w.nodes[r.ID].begin(ctx, "seal"); err != nil {
		return ag.SealReport{}, err
	}
	return a.Seal(ctx, req)
}

func (p *peers) Position(ctx context.Context, r ag.Replica) (agent.Positions, error) {
	a, err := p.reach(ctx, r)
	if err != nil {
		return agent.Positions{}, err
	}
	return a.Position(ctx)
}

func (p *peers) PrepareTakeover(ctx context.Context, r ag.Replica, req agent.TakeoverRequest) error {
	a, err := p.reach(ctx, r)
	if err != nil {
		return err
	}
	return a.PrepareTakeover(ctx, req)
}

func (p *peers) ReleaseReaders(ctx context.Context, r ag.Replica, req agent.TakeoverRequest) error {
	a, err := p.reach(ctx, r)
	if err != nil {
		return err
	}
	if err := p.w.nodes[r.ID].begin(ctx, "release"); err != nil {
		return err
	}
	return a.ReleaseReaders(ctx, req)
}

// Sessions returns the node's agent.Sessions, which records its calls.
func (n *Node) Sessions() agent.Sessions { return (*sessions)(n) }

type sessions Node

func (s *sessions) note(format string, args ...any) {
	(*Node)(s).locked(func() { s.events = append(s.events, fmt.Sprintf(format, args...)) })
}

func (s *sessions) Publish(r *ag.Routes)              { (*Node)(s).locked(func() { s.routes = r }) }
func (s *sessions) CloseOlder(e ag.Epoch, why string) { s.note("close older than %d: %s", e, why) }
func (s *sessions) CloseLocal(why string)             { s.note("close local: %s", why) }
func (s *sessions) CloseReaders(why string)           { s.note("close readers: %s", why) }
func (s *sessions) Hold(on bool)                      { s.note("hold %v", on) }

func (s *sessions) Drain(on bool)                             { s.note("drain %v", on) }
func (s *sessions) ReadAhead(context.Context, func(int, int)) { s.note("read ahead") }
func (s *sessions) ReadStates(context.Context)                { s.note("read states") }
func (s *sessions) ReadRelayedStates(context.Context)         { s.note("read relayed states") }
func (s *sessions) CloseServer(why string)                    { s.note("close server: %s", why) }

// ContinueReaders waits until ctx ends while the node has StuckReaders.
func (s *sessions) ContinueReaders(ctx context.Context) {
	s.note("continue readers")
	var stuck bool
	(*Node)(s).locked(func() { stuck = s.stuckReaders })
	if stuck {
		<-ctx.Done()
	}
}

// GateMoved does nothing, because nothing here remembers the gate.
func (s *sessions) GateMoved() {}

func (s *sessions) Busy() (k int) {
	(*Node)(s).locked(func() { k = s.busy })
	return k
}

func (s *sessions) CutBusy(why string) {
	s.note("cut busy: %s", why)
	(*Node)(s).locked(func() { s.busy = 0 })
}

// Seeder returns the node's agent.Seeder.
func (n *Node) Seeder() agent.Seeder { return (*seeder)(n) }

type seeder Node

func (s *seeder) Seed(ctx context.Context, job agent.SeedJob, progress func(string)) (ag.CopyID, error) {
	n := (*Node)(s)
	n.locked(func() { n.seeds++ })
	if err := n.begin(ctx, "seed"); err != nil {
		return "", err
	}
	if err := job.Begins(); err != nil {
		return "", err
	}
	progress("copying")
	if err := n.copyFrom(ctx, job.From.ID); err != nil {
		return "", errors.Join(errors.New("seeding failed"), err)
	}
	id := agent.NewCopyID()
	n.locked(func() { n.inside = id })
	return id, nil
}

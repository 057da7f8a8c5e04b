package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
)

// reportLimit is how long another node may take to say how it is; then what it published last is shown.
const reportLimit = 700 * time.Millisecond

// maxShown bounds the sessions a node reports.
const maxShown = 500

// sample is what is remembered from one report to the next.
type sample struct {
	mu   sync.Mutex // guards the fields below
	at   time.Time
	lsn  ag.LSN
	rate float64
	sent map[ag.ReplicaID]rated // to each member
}

// rated is a position and how fast it moved lately, in bytes per second.
type rated struct {
	lsn  ag.LSN
	rate float64
}

// step notes where a position is d after the last time. A rate is that of the last time it moved.
func (r rated) step(at ag.LSN, d time.Duration) rated {
	if r.lsn != 0 && at > r.lsn && d < time.Minute {
		r.rate = float64(at-r.lsn) / d.Seconds()
	}
	r.lsn = at
	return r
}

// serveControl offers what other nodes ask for when a statement is run there.
func (e *executor) serveControl(gate rpc.Gate) {
	rpc.Handle(gate, rpc.Report, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) (catalog.Node, error) {
		return e.report(ctx), nil
	})
	rpc.Handle(gate, rpc.RestartListener, func(context.Context, certs.Identity, rpc.Nothing) (rpc.Nothing, error) {
		return rpc.Nothing{}, e.n.clients.Restart()
	})
	rpc.Handle(gate, rpc.Journal, func(context.Context, certs.Identity, rpc.Nothing) (catalog.Journal, error) {
		return e.journal(), nil
	})
	rpc.Handle(gate, rpc.Settings, func(ctx context.Context, _ certs.Identity, _ rpc.Nothing) ([]catalog.Setting, error) {
		return e.settingsHere(ctx)
	})
	rpc.Handle(gate, rpc.CreateDatabase, func(ctx context.Context, _ certs.Identity, name string) (bool, error) {
		return e.createHere(ctx, name)
	})
}

// report says how this node is, at this moment.
func (e *executor) report(ctx context.Context) catalog.Node {
	n := e.n
	out := catalog.Node{Connected: true}
	<-n.ready
	out.Uptime = n.agent.Uptime()
	v := n.agent.View()
	if v == nil {
		return out
	}
	out.Role, out.Data, out.Server, out.Busy = v.Role(), v.Local.Data, v.Local.Server, v.Busy
	if p := n.agent.Plan(); p != nil {
		out.Because, out.Open = p.Because, p.Open
	}
	if s := n.agent.Snapshot(); s != nil {
		st := s.Statuses[n.self]
		out.Progress, out.Streaming = st.Progress, st.Stream
	}
	if n.seedJobs != nil {
		out.Seedings = seedings(n.seedJobs.Operations())
	}
	for _, s := range v.Streams {
		out.Streams = append(out.Streams, catalog.Stream{Member: s.Member, Open: s.Open, Flush: s.Flush, Silent: s.Silent})
	}
	if out.Role == ag.RolePrimary {
		out.Lease = max(boottime.Until(n.agent.LeaseUntil()), 0)
	}
	if n.pg != nil {
		e.reportServer(ctx, &out, v)
		e.reportLinks(&out)
	}
	e.reportSessions(&out)
	return out
}

func (e *executor) reportServer(ctx context.Context, out *catalog.Node, v *ag.View) {
	ctx, cancel := context.WithTimeout(ctx, reportLimit/2)
	defer cancel()
	out.Position = v.Local.Position
	out.Streaming = out.Server == ag.ServerRecovery && e.n.up.Status().Connected
	facts, err := e.n.pg.ServerFacts(ctx)
	if err == nil {
		out.Position.LSN, out.Replay, out.Commit = max(facts.Flush, out.Position.LSN), facts.Replay, facts.Commit
		for _, d := range facts.Databases {
			out.Databases = append(out.Databases, catalog.Database{OID: d.OID, Name: d.Name})
		}
	}
	for _, s := range e.n.down.Streams() {
		for i := range out.Streams {
			if out.Streams[i].Member == s.Member && s.Streaming {
				x := &out.Streams[i]
				x.Flush, x.Apply, x.Sent = max(x.Flush, s.Flush), s.Apply, s.Sent
				if s.LastSent != 0 {
					x.Idle = max(boottime.Now()-s.LastSent, 1)
				}
			}
		}
	}
	at := out.Replay
	if out.Server == ag.ServerWritable {
		at = out.Position.LSN
	}
	s := &e.last
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := time.Since(s.at); d > time.Second {
		if s.lsn != 0 && at > s.lsn && d < time.Minute {
			s.rate = float64(at-s.lsn) / d.Seconds()
		}
		sent := map[ag.ReplicaID]rated{}
		for _, x := range out.Streams {
			sent[x.Member] = s.sent[x.Member].step(x.Sent, d)
		}
		s.at, s.lsn, s.sent = time.Now(), at, sent
	}
	out.LogRate = s.rate
	for i := range out.Streams {
		out.Streams[i].Rate = s.sent[out.Streams[i].Member].rate
	}
}

// reportLinks adds what carries the log, and what commits pay for it.
func (e *executor) reportLinks(out *catalog.Node) {
	if e.n.links != nil {
		for _, k := range e.n.links.Describe() {
			out.Links = append(out.Links, catalog.Link{
				Peer: k.Peer, Transport: k.Transport, Codec: k.Codec, RTT: k.RTT, Sent: k.Sent, Encoded: k.SentEncoded, Received: k.Received, Resent: k.Resent,
				Carried: k.Carried, Via: k.Via,
			})
		}
	}
	if p := e.n.penalty; p != nil {
		t := p.Totals()
		out.Commits = &catalog.Commits{Waits: t.Blocks, Waited: t.Waited, Max: t.Max, Mean: t.Mean, P50: t.P50, P95: t.P95, P99: t.P99}
	}
}

func (e *executor) reportSessions(out *catalog.Node) {
	out.Routes = e.n.clients.Routes()
	server := e.n.clients.Server()
	if server == nil {
		return
	}
	out.Places = e.n.clients.Places()
	stats := server.Stats()
	out.FellBack, out.Lagged = stats.FellBack, stats.Lagged
	for _, s := range stats.LastMinute {
		out.Readers = append(out.Readers, catalog.Second{At: s.At, Readers: s.Readers, Routed: s.Routed, Pct: s.RoutedPct()})
	}
	for _, s := range server.Sessions() {
		if s.Relayed || len(out.Sessions) == maxShown { // the client is at another node, which shows it
			continue
		}
		out.Sessions = append(out.Sessions, catalog.Session{
			ID: s.ID, User: s.User, Database: s.Database, Client: s.ClientAddr, TLS: s.TLS, TLSName: s.TLSName, Identity: s.Identity, Intent: s.Intent, Entry: s.Entry, Replica: s.Replica,
			State: s.State, Since: s.Since, In: s.BytesIn, Out: s.BytesOut, PID: s.PID, Path: s.Path, Backend: s.Backend,
		})
	}
}

// facts gathers what the whole group says of itself: from each node that answers, at this moment, and from the record.
func (e *executor) facts(ctx context.Context) catalog.Facts {
	n := e.n
	f := catalog.Facts{Now: time.Now(), Self: n.self, Nodes: map[ag.ReplicaID]catalog.Node{}, Version: e.version()}
	v, snap := n.agent.View(), n.agent.Snapshot()
	if v == nil || snap == nil {
		v, snap = &ag.View{Self: n.self}, &agent.Snapshot{}
	}
	f.Group, f.Record, f.Quorum = snap.Group, snap.Record, v.Quorum
	if g := n.members.Group(); f.Group.ID == "" && g != nil {
		f.Group = *g
	}
	f.Profile = f.Group.Profile
	if r := n.clients.Routes(); r != nil {
		f.Primary = r.Primary
		f.WriteOpen = r.WriteOpen && (r.Primary == n.self || slices.Contains(v.Reach, r.Primary))
		if !f.WriteOpen && r.Primary != n.self && !slices.Contains(v.Reach, r.Primary) {
			f.Primary = ""
		}
	}
	f.Journals = sync.OnceValue(func() map[ag.ReplicaID]catalog.Journal { return e.journals(ctx, f.Group, v.Reach) })
	f.Settings = sync.OnceValue(func() map[ag.ReplicaID][]catalog.Setting { return e.settings(ctx, f.Group, v.Reach) })
	var reached []ag.Replica
	for _, r := range f.Group.Replicas {
		if r.ID != n.self && slices.Contains(v.Reach, r.ID) {
			reached = append(reached, r)
		}
		f.Nodes[r.ID] = n.published(r.ID, snap.Statuses[r.ID])
	}
	own := make(chan catalog.Node, 1)
	go func() { own <- e.report(ctx) }()
	answers, _ := rpc.Each(ctx, reached, func(ctx context.Context, r ag.Replica) (catalog.Node, error) {
		ctx, cancel := context.WithTimeout(ctx, reportLimit)
		defer cancel()
		return rpc.Call(ctx, n.control, r, rpc.Report, rpc.Nothing{})
	})
	for id, node := range answers {
		node.Connected = true
		f.Nodes[id] = node
	}
	f.Nodes[n.self] = <-own
	return f
}

// published is what a node that does not answer said of itself last.
func (n *node) published(id ag.ReplicaID, s agent.Status) catalog.Node {
	return catalog.Node{
		Role: ag.RoleResolving, Data: s.Data, Position: s.Position, Because: "does not answer", Seedings: seedings(seedjobs.LastKnown(id, s, n.agent.Heard(id))),
	}
}

// version is PostgreSQL's, of this node or, on a witness, of a replica's major.
func (e *executor) version() string {
	if e.n.pg != nil {
		return e.n.pg.Version()
	}
	if g := e.n.members.Group(); g != nil {
		for _, r := range g.Replicas {
			if r.Major != 0 {
				return fmt.Sprintf("%d.0", r.Major)
			}
		}
	}
	return "15.0"
}

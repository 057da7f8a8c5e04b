package status

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/coverage"
)

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

// recentFor is for how long what a node said of its log is used for estimates once it does not say it any more: a
// server that hangs writes and replays nothing. Until it is known that it hangs, its estimates are those of before.
const recentFor = 10 * time.Second

// recent has what nodes said of their logs lately.
type recent struct {
	mu sync.Mutex // guards of
	of map[ag.ReplicaID]logState
}

// logState is what a node said of its log.
type logState struct {
	at     time.Time
	replay ag.LSN
	commit *time.Time
	rate   float64
}

// keep notes what a node says of its log.
func (r *recent) keep(id ag.ReplicaID, n catalog.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[ag.ReplicaID]logState{}
	}
	r.of[id] = logState{time.Now().Add(-n.Stale), n.Replay, n.Commit, n.LogRate}
}

// fill gives the report of a node whose server does not answer what was said lately.
func (r *recent) fill(id ag.ReplicaID, n *catalog.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.of[id]; ok && time.Since(was.at) < recentFor && n.Server != ag.ServerDown {
		n.Replay, n.Commit, n.LogRate = max(n.Replay, was.replay), was.commit, was.rate
		n.Stale = max(time.Since(was.at), 1)
	}
}

// step notes where a position is d after the last time. A rate is that of the last time it moved.
func (r rated) step(at ag.LSN, d time.Duration) rated {
	if r.lsn != 0 && at > r.lsn && d < time.Minute {
		r.rate = float64(at-r.lsn) / d.Seconds()
	}
	r.lsn = at
	return r
}

// Report returns how this node is, at this moment.
func (s *Service) Report(ctx context.Context) catalog.Node {
	out := catalog.Node{Connected: true}
	out.Uptime, out.Networks = s.Agent.Uptime(), networks()
	out.Console, out.Certificates = s.Node.ConsoleAddress(), s.Expiry()
	v := s.Agent.View()
	if v == nil {
		return out
	}
	out.Role, out.Data, out.Server, out.Busy = v.Role(), v.Local.Data, v.Local.Server, v.Busy
	out.Silent = v.Local.Health.Unresponsive()
	if p := s.Agent.Plan(); p != nil {
		out.Because, out.Open = p.Because, p.Open
	}
	if snap := s.Agent.Snapshot(); snap != nil {
		st := s.said(snap, s.Self)
		out.Progress, out.Streaming, out.Storage = st.Progress, st.Stream, st.Storage
		out.Offline = st.Offline
	}
	if s.Seedings != nil {
		out.Seedings = seedings(s.Seedings())
	}
	if s.Backups != nil {
		out.Backup = s.Backups.Latest()
	}
	for _, x := range v.Streams {
		out.Streams = append(out.Streams, catalog.Stream{Member: x.Member, Open: x.Open, Flush: x.Flush, Silent: x.Silent})
	}
	if out.Role == ag.RolePrimary {
		out.Lease = max(boottime.Until(s.Agent.LeaseUntil()), 0)
	}
	if s.Server != nil {
		s.reportServer(ctx, &out, v)
		s.reportLinks(&out)
	}
	s.reportSessions(&out)
	return out
}

// maxNetworks bounds the addresses that a node reports of itself.
const maxNetworks = 64

// networks returns the addresses of the devices that are up, with their subnets, without those of the loopback device;
// nil if the kernel does not say.
func networks() (out []netip.Prefix) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, d := range devices {
		if d.Flags&net.FlagUp == 0 || d.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, _ := d.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && len(out) < maxNetworks {
				out = append(out, p)
			}
		}
	}
	return out
}

func (s *Service) reportServer(ctx context.Context, out *catalog.Node, v *ag.View) {
	ctx, cancel := context.WithTimeout(ctx, reportLimit/2)
	defer cancel()
	out.Position = v.Local.Position
	out.Streaming = out.Server == ag.ServerRecovery && s.Upstream.Status().Connected
	facts, err := s.Server.ServerFacts(ctx)
	if err == nil {
		out.Position.LSN, out.Replay, out.Commit = max(facts.Flush, out.Position.LSN), facts.Replay, facts.Commit
		for _, d := range facts.Databases {
			out.Databases = append(out.Databases, catalog.Database{OID: d.OID, Name: d.Name})
		}
	} else {
		s.recent.fill(s.Self, out)
	}
	for _, d := range s.Downstream.Streams() {
		for i := range out.Streams {
			if out.Streams[i].Member == d.Member && d.Streaming {
				x := &out.Streams[i]
				x.Flush, x.Apply, x.Sent = max(x.Flush, d.Flush), d.Apply, d.Sent
				if d.LastSent != 0 {
					x.Idle = max(boottime.Now()-d.LastSent, 1)
				}
			}
		}
	}
	at := out.Replay
	if out.Server == ag.ServerWritable {
		at = out.Position.LSN
	}
	last := &s.last
	last.mu.Lock()
	defer last.mu.Unlock()
	if d := time.Since(last.at); d > time.Second {
		if last.lsn != 0 && at > last.lsn && d < time.Minute {
			last.rate = float64(at-last.lsn) / d.Seconds()
		}
		sent := map[ag.ReplicaID]rated{}
		for _, x := range out.Streams {
			sent[x.Member] = last.sent[x.Member].step(x.Sent, d)
		}
		last.at, last.lsn, last.sent = time.Now(), at, sent
	}
	out.LogRate = last.rate
	if err == nil {
		s.recent.keep(s.Self, *out)
	}
	for i := range out.Streams {
		out.Streams[i].Rate = last.sent[out.Streams[i].Member].rate
	}
}

// reportLinks adds what carries the log, and what commits pay for it.
func (s *Service) reportLinks(out *catalog.Node) {
	if s.Links != nil {
		for _, k := range s.Links.Describe() {
			out.Links = append(out.Links, catalog.Link{
				Peer: k.Peer, Transport: k.Transport, Codec: k.Codec, RTT: k.RTT, Sent: k.Sent, Encoded: k.SentEncoded, Received: k.Received, Resent: k.Resent,
				Carried: k.Carried, Via: k.Via,
			})
		}
	}
	if p := s.Commits; p != nil {
		t := p.Totals()
		out.Commits = &catalog.Commits{Waits: t.Blocks, Waited: t.Waited, Max: t.Max, Mean: t.Mean, P50: t.P50, P95: t.P95, P99: t.P99}
	}
}

func (s *Service) reportSessions(out *catalog.Node) {
	out.Routes = s.Clients.Routes()
	server := s.Listener()
	if server == nil {
		return
	}
	out.Places = s.Clients.Places()
	stats := server.Stats()
	out.FellBack, out.Lagged = stats.FellBack, stats.Lagged
	for _, m := range stats.LastMinute {
		out.Readers = append(out.Readers, catalog.Second{At: m.At, Readers: m.Readers, Routed: m.Routed, Pct: m.RoutedPct()})
	}
	out.Outlooks = outlooks(server.Continuity())
	s.reportCoverage(out)
	for _, x := range server.Sessions() {
		if x.Relayed || len(out.Sessions) == maxShown { // the client is at another node, which shows it
			continue
		}
		shown := catalog.Session{
			ID: x.ID, User: x.User, Database: x.Database, Client: x.ClientAddr, TLS: x.TLS, TLSName: x.TLSName, Identity: x.Identity, Intent: x.Intent, Entry: x.Entry, Replica: x.Replica,
			State: x.State, Since: x.Since, In: x.BytesIn, Out: x.BytesOut, PID: x.PID, Path: x.Path, Backend: x.Backend,
		}
		if x.Outlook != nil {
			o := x.Outlook()
			shown.Failover, shown.NodeLoss, shown.ServerLoss, shown.Transaction = prospect(o.Failover), prospect(o.Node), prospect(o.Server), prospect(o.Transaction)
			shown.Commit = prospect(o.Commit)
			shown.Statement = o.Statement
		}
		out.Sessions = append(out.Sessions, shown)
	}
}

// reportCoverage adds what became known of the sessions in the last week.
func (s *Service) reportCoverage(out *catalog.Node) {
	if s.Coverage == nil {
		return
	}
	share := func(x coverage.Share) catalog.Share { return catalog.Share{Kept: x.Kept, Why: x.Why()} }
	span := func(x coverage.Span) catalog.Coverage {
		return catalog.Coverage{
			Begin: x.Begin, Looks: x.Looks, Sessions: x.Sessions, Open: x.Open,
			Failover: share(x.Failover), NodeLoss: share(x.Node), ServerLoss: share(x.Server), Replayed: share(x.Replayed),
		}
	}
	h := s.Coverage.Read()
	for _, x := range h.Hours {
		out.Coverage = append(out.Coverage, span(x))
	}
	for _, x := range h.Owners {
		out.Owners = append(out.Owners, catalog.OwnerCoverage{Application: x.Application, User: x.User, Others: x.Others, Coverage: span(x.Span)})
	}
}

// outlooks returns what would become of the sessions of a listener.
func outlooks(list []listener.ContinuityGroup) (out []catalog.Outlook) {
	for _, g := range list {
		out = append(out, catalog.Outlook{
			Replica: ag.ReplicaID(g.Replica), Application: g.Application, User: g.User, Others: g.Others, Sessions: g.Sessions, Statement: g.Statement,
			Failover: prospect(g.Failover), NodeLoss: prospect(g.Node), ServerLoss: prospect(g.Server), Transaction: prospect(g.Transaction), Commit: prospect(g.Commit),
		})
	}
	return out
}

func prospect(p listener.Prospect) catalog.Prospect {
	return catalog.Prospect{Fate: string(p.Fate), Why: p.Why}
}

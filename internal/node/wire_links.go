package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// links are the links of WAL between this node and others, dialled and accepted.
type links struct {
	Endpoint *endpoint.Endpoint
	hub      *link.Hub
	options  func(ag.ReplicaID) ag.ReplicaOptions // as the group's configuration has them now
	self     ag.ReplicaID
	log      *slog.Logger
	found    link.Estimator
	Adapt    func(*endpoint.Conn) link.Transport // nil: as they are; a measurement may have them do without something

	mu      sync.Mutex // guards what follows
	dialers map[string]*link.Dialer
	dialled map[*link.Conn]struct{}
}

// NewLinks returns links whose accepted ones are given to serve. The endpoint is set before anything is dialled.
func NewLinks(self ag.ReplicaID, options func(ag.ReplicaID) ag.ReplicaOptions, log *slog.Logger, serve func(context.Context, ag.ReplicaID, net.Conn)) *links {
	l := &links{self: self, options: options, log: log, dialers: map[string]*link.Dialer{}, dialled: map[*link.Conn]struct{}{}}
	l.hub = &link.Hub{
		Serve:     func(ctx context.Context, c *link.Conn) { serve(ctx, ag.ReplicaID(c.Peer()), c) },
		Configure: func(peer string) link.Config { return l.config(ag.ReplicaID(peer)) },
	}
	return l
}

// config is that of a link whose secondary is the named one: its options say how it is fed.
func (l *links) config(secondary ag.ReplicaID) link.Config {
	return link.Config{Logger: l.log, Bandwidth: &l.found, Compression: func() codec.Setting {
		w, err := codec.Parse("LOG_COMPRESSION", l.options(secondary).LogCompression)
		if err != nil {
			return codec.Setting{Auto: true}
		}
		return w
	}}
}

func (l *links) prefer() link.Preference {
	p, err := link.ParsePreference(l.options(l.self).Transport)
	if err != nil {
		return link.PreferAuto
	}
	return p
}

// Serve is the endpoint's handler of class wal.
func (l *links) Serve(ctx context.Context, peer certs.Identity, conn net.Conn) {
	c, ok := conn.(*endpoint.Conn)
	if !ok {
		return
	}
	if err := l.hub.Handle(ctx, string(peer.ID), l.transport(c)); err != nil {
		l.log.Debug("leg ended", "peer", peer.ID, "kind", c.Kind(), "cause", err)
	}
}

func (l *links) transport(c *endpoint.Conn) link.Transport {
	if l.Adapt != nil {
		return l.Adapt(c)
	}
	return c
}

// Dial opens a link to another replica.
func (l *links) Dial(ctx context.Context, to ag.Replica) (net.Conn, error) {
	c, err := l.dialer(to).Dial(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.dialled[c] = struct{}{}
	l.mu.Unlock()
	c.AfterEnd(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.dialled, c)
	})
	return c, nil
}

// dialer returns the one that remembers what the way to that replica is like.
func (l *links) dialer(to ag.Replica) *link.Dialer {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(to.ID) + " " + to.Endpoint
	if d := l.dialers[key]; d != nil {
		return d
	}
	d := &link.Dialer{
		Config: l.config(l.self), Peer: string(to.ID), Prefer: l.prefer,
		Open: func(ctx context.Context, kind string) (link.Transport, error) {
			c, err := l.Endpoint.DialBy(ctx, kind, to.Endpoint, endpoint.ClassWAL, to.ID)
			if err != nil {
				return nil, err // not a nil *Conn in an interface
			}
			return l.transport(c), nil
		},
		Final: func(err error) bool {
			var refused *endpoint.RefusedError
			return errors.As(err, &refused) || errors.Is(err, endpoint.ErrIdentity) || errors.Is(err, endpoint.ErrClosed)
		},
	}
	l.dialers[key] = d
	return d
}

// Status describes every link, accepted ones first.
func (l *links) Status() []link.Status {
	all := l.hub.Links()
	l.mu.Lock()
	for c := range l.dialled {
		all = append(all, c)
	}
	l.mu.Unlock()
	out := make([]link.Status, 0, len(all))
	for _, c := range all {
		out = append(out, c.Status())
	}
	slices.SortFunc(out, func(a, b link.Status) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}

// describe is status as administrators see it.
func (l *links) describe() []api.Link {
	var out []api.Link
	for _, s := range l.Status() {
		out = append(out, describeStatus(s))
	}
	return out
}

func describeStatus(s link.Status) api.Link {
	a := api.Link{
		Peer: ag.ReplicaID(s.Peer), Dialled: s.Dialled, Twice: s.Twice, Reason: s.Reason, RTT: float64(s.RTT.Microseconds()) / 1000,
		Packets: s.Packets, Lost: s.Lost, Codec: s.Codec, Sent: s.Sent, SentEncoded: s.SentEncoded, Ratio: s.Ratio(),
		EncodeSeconds: s.SendBusy.Seconds(), Received: s.Received, ReceivedEncoded: s.ReceivedCoded, DecodeSeconds: s.ReceiveBusy.Seconds(),
		SentTwice: s.SentTwice, Resent: s.Resent, Doubles: s.Doubles, Carried: s.Carried,
	}
	for _, leg := range s.Legs {
		text := strings.TrimSpace(leg.Kind + " " + leg.Congestion)
		if leg.Via != "" {
			text += " by way of " + leg.Via
		}
		a.Legs = append(a.Legs, text)
		if leg.Main {
			a.Transport, a.Congestion, a.Rate, a.Via = leg.Kind, leg.Congestion, leg.Rate, ag.ReplicaID(leg.Via)
		}
	}
	if a.Via != "" {
		a.Reason = fmt.Sprintf("%s does not answer directly, and %s relays; %s", a.Peer, a.Via, a.Reason)
	}
	for _, e := range s.Events {
		a.Events = append(a.Events, api.LinkEvent(e))
	}
	return a
}

// Close ends every link and waits for them.
func (l *links) Close() {
	l.hub.Close()
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.dialled))
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
		c.Wait()
	}
}

// metrics are the counters of the links, for Prometheus.
func (l *links) metrics(out map[string]float64) {
	for _, s := range l.Status() {
		for name, v := range map[string]float64{
			"coterie_link_sent_bytes":             float64(s.Sent),
			"coterie_link_sent_encoded_bytes":     float64(s.SentEncoded),
			"coterie_link_encode_seconds":         s.SendBusy.Seconds(),
			"coterie_link_received_bytes":         float64(s.Received),
			"coterie_link_received_encoded_bytes": float64(s.ReceivedCoded),
			"coterie_link_decode_seconds":         s.ReceiveBusy.Seconds(),
			"coterie_link_sent_twice_bytes":       float64(s.SentTwice),
			"coterie_link_resent_bytes":           float64(s.Resent),
		} {
			out[fmt.Sprintf("%s{peer=%q}", name, s.Peer)] += v
		}
		out[fmt.Sprintf("coterie_link_round_trip_seconds{peer=%q}", s.Peer)] = s.RTT.Seconds()
		out[fmt.Sprintf("coterie_link_carried_bytes_per_second{peer=%q}", s.Peer)] = float64(s.Carried)
	}
}

const (
	linkCall  = 8 * time.Second
	linkPings = 5 // on a way that carries no WAL, so that there is something to measure
)

// Paths describes the links of this node and the paths that they would take.
type Paths struct {
	Self     ag.ReplicaID
	Members  *membership.Members
	Links    *links // nil on a witness
	Endpoint *endpoint.Endpoint
	Control  *endpoint.Control
}

// Describe describes the link of WAL with a member, or, if there is none now, the way to it and what a link would choose.
func (p *Paths) Describe(ctx context.Context, id ag.ReplicaID) (a api.Link, err error) {
	to, known := p.Members.Replica(id)
	if !known || id == p.Self {
		return a, fmt.Errorf("%s is no other member of this group", id)
	}
	if p.Links != nil {
		all := p.Links.describe()
		if i := slices.IndexFunc(all, func(l api.Link) bool { return l.Peer == id && l.Transport != "" }); i >= 0 {
			return all[i], nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, linkCall-time.Second)
	defer cancel()
	for range linkPings {
		if _, err := rpc.Call(ctx, p.Control, to, rpc.Ping, rpc.Nothing{}); err != nil {
			return a, fmt.Errorf("%s does not reach %s: %w", p.Self, id, err)
		}
	}
	w := p.Endpoint.PathTo(id)
	if w.RTT == 0 {
		return a, errors.New("the kernel does not tell what the way is like")
	}
	prefer, wish := link.PreferAuto, codec.Setting{Auto: true}
	if p, err := link.ParsePreference(to.Options.Transport); err == nil {
		prefer = p
	}
	if c, err := codec.Parse("LOG_COMPRESSION", to.Options.LogCompression); err == nil {
		wish = c
	}
	carried := int64(0)
	if p.Links != nil {
		carried = p.Links.found.Rate(string(id))
	}
	s := link.Predict(link.PathStats{RTT: w.RTT, Sent: w.Sent, Lost: w.Lost, Congestion: w.Congestion, Carried: carried}, link.Options{Prefer: prefer, Compression: wish})
	s.Peer = string(id)
	a = describeStatus(s)
	a.Idle, a.Rate, a.Via = true, w.Rate, w.Via
	return a, nil
}

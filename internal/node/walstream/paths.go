package walstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

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

// PathLimit bounds a question about the path between two members.
const PathLimit = 8 * time.Second

const (
	linkPings = 5 // on a path that carries no WAL, so that it can be measured
)

// Paths describes the links of this node and the paths that they would take.
type Paths struct {
	Self     ag.ReplicaID
	Members  *membership.Members
	Links    *Links // nil on a witness
	Endpoint *endpoint.Endpoint
	Control  *endpoint.Control
}

// Describe describes the link of WAL with a member, or, if none exists now, the path to it and the choices of a link.
func (p *Paths) Describe(ctx context.Context, id ag.ReplicaID) (a api.Link, err error) {
	to, known := p.Members.Replica(id)
	if !known || id == p.Self {
		return a, fmt.Errorf("%s is no other member of this group", id)
	}
	if p.Links != nil {
		all := p.Links.Describe()
		if i := slices.IndexFunc(all, func(l api.Link) bool { return l.Peer == id && l.Transport != "" }); i >= 0 {
			return all[i], nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, PathLimit-time.Second)
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
		carried = p.Links.bandwidth.Rate(string(id))
	}
	s := link.Predict(link.PathStats{RTT: w.RTT, Sent: w.Sent, Lost: w.Lost, Congestion: w.Congestion, Carried: carried}, link.Options{Prefer: prefer, Compression: wish})
	s.Peer = string(id)
	a = describeStatus(s)
	a.Idle, a.Rate, a.Via = true, w.Rate, w.Via
	return a, nil
}

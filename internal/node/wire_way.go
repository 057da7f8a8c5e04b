package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

const (
	linkCall  = 8 * time.Second
	linkPings = 5 // on a way that carries no WAL, so that there is something to measure
)

// Link says what the way between two members is like: the first one is asked.
func (m *admin) Link(ctx context.Context, req api.LinkRequest) (a api.Link, err error) {
	for _, id := range []ag.ReplicaID{req.From, req.To} {
		if _, known := m.n.members.Replica(id); !known {
			return a, fail.Usagef("%s is not a member of this group", id)
		}
	}
	if req.From == req.To {
		return a, fail.Usagef("name two members")
	}
	if req.From == m.n.self {
		return m.n.linkTo(ctx, req.To)
	}
	ctx, cancel := context.WithTimeout(ctx, linkCall)
	defer cancel()
	from, _ := m.n.members.Replica(req.From)
	return rpc.Call(ctx, m.n.control, from, rpc.Link, req.To)
}

// linkTo describes the link of WAL with a member, or, if there is none now, the way to it and what a link would choose.
func (n *node) linkTo(ctx context.Context, id ag.ReplicaID) (a api.Link, err error) {
	to, known := n.members.Replica(id)
	if !known || id == n.self {
		return a, fmt.Errorf("%s is no other member of this group", id)
	}
	if n.links != nil {
		all := n.links.describe()
		if i := slices.IndexFunc(all, func(l api.Link) bool { return l.Peer == id && l.Transport != "" }); i >= 0 {
			return all[i], nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, linkCall-time.Second)
	defer cancel()
	for range linkPings {
		if _, err := rpc.Call(ctx, n.control, to, rpc.Ping, rpc.Nothing{}); err != nil {
			return a, fmt.Errorf("%s does not reach %s: %w", n.self, id, err)
		}
	}
	w := n.endpoint.PathTo(id)
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
	if n.links != nil {
		carried = n.links.found.Rate(string(id))
	}
	s := link.Predict(link.PathStats{RTT: w.RTT, Sent: w.Sent, Lost: w.Lost, Congestion: w.Congestion, Carried: carried}, link.Options{Prefer: prefer, Compression: wish})
	s.Peer = string(id)
	a = describeStatus(s)
	a.Idle, a.Rate, a.Via = true, w.Rate, w.Via
	return a, nil
}

package walstream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

// Links are the links of WAL between this node and others, dialled and accepted.
type Links struct {
	Endpoint  *endpoint.Endpoint
	hub       *link.Hub
	options   func(ag.ReplicaID) ag.ReplicaOptions // as the group's configuration has them now
	self      ag.ReplicaID
	log       *slog.Logger
	bandwidth link.Estimator
	Adapt     func(*endpoint.Conn) link.Transport // nil: as they are; a measurement may have them do without something

	mu      sync.Mutex // guards what follows
	dialers map[string]*link.Dialer
	dialled map[*link.Conn]struct{}
}

// NewLinks returns links whose accepted ones are given to serve. The endpoint is set before anything is dialled.
func NewLinks(self ag.ReplicaID, options func(ag.ReplicaID) ag.ReplicaOptions, log *slog.Logger, serve func(context.Context, ag.ReplicaID, net.Conn)) *Links {
	l := &Links{self: self, options: options, log: log, dialers: map[string]*link.Dialer{}, dialled: map[*link.Conn]struct{}{}}
	l.hub = &link.Hub{
		Serve:     func(ctx context.Context, c *link.Conn) { serve(ctx, ag.ReplicaID(c.Peer()), c) },
		Configure: func(peer string) link.Config { return l.config(ag.ReplicaID(peer)) },
	}
	return l
}

// config is that of a link whose secondary is the named one: its options say how it is fed.
func (l *Links) config(secondary ag.ReplicaID) link.Config {
	return link.Config{Logger: l.log, Bandwidth: &l.bandwidth, Compression: func() codec.Setting {
		w, err := codec.Parse("LOG_COMPRESSION", l.options(secondary).LogCompression)
		if err != nil {
			return codec.Setting{Auto: true}
		}
		return w
	}}
}

func (l *Links) prefer() link.Preference {
	p, err := link.ParsePreference(l.options(l.self).Transport)
	if err != nil {
		return link.PreferAuto
	}
	return p
}

// Serve is the endpoint's handler of class wal.
func (l *Links) Serve(ctx context.Context, peer certs.Identity, conn net.Conn) {
	c, ok := conn.(*endpoint.Conn)
	if !ok {
		return
	}
	if err := l.hub.Handle(ctx, string(peer.ID), l.transport(c)); err != nil {
		l.log.Debug("leg ended", "peer", peer.ID, "kind", c.Kind(), "cause", err)
	}
}

func (l *Links) transport(c *endpoint.Conn) link.Transport {
	if l.Adapt != nil {
		return l.Adapt(c)
	}
	return c
}

// Dial opens a link to another replica.
func (l *Links) Dial(ctx context.Context, to ag.Replica) (net.Conn, error) {
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

// dialer returns the dialer that remembers the properties of the path to that replica.
func (l *Links) dialer(to ag.Replica) *link.Dialer {
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
func (l *Links) Status() []link.Status {
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

// Describe is status as administrators see it.
func (l *Links) Describe() []api.Link {
	var out []api.Link
	for _, s := range l.Status() {
		out = append(out, describeStatus(s))
	}
	return out
}

// Close ends every link and waits for them.
func (l *Links) Close() {
	l.hub.Close()
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.dialled))
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
		c.Wait()
	}
}

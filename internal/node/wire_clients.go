package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/samples"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/clientport"
	"github.com/coteriedb/coterie/internal/node/operations"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// newClientPort returns this node's client ports, which are opened when everything else exists. Most of what they ask
// is made later.
func (n *node) newClientPort() *clientport.Port {
	return clientport.New(clientport.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Logger: n.log,
		Group:    n.members.Group,
		Reserved: settings.Reserved,
		View:     func() *ag.View { return n.agent.View() },
		Plan:     func() *ag.Plan { return n.agent.Plan() },
		Snapshot: func() *agent.Snapshot { return n.agent.Snapshot() },
		Gate:     func() time.Duration { return n.agent.Gate() },
		Lease:    func() time.Duration { return n.agent.LeaseUntil() },
		Read:     func(ctx context.Context) (agent.Snapshot, error) { return n.ports.Read(ctx) },
		Removed:  func() bool { return n.status.Removed() },
		Server: func() clientport.Server {
			if n.pg == nil {
				return nil
			}
			return n.pg
		},
		Log:      n.serverSays,
		Upstream: func() agent.UpstreamStatus { return walstream.NewUpstream(n.up, n.links).Status() },
		Streams:  func() []agent.Stream { return (&walstream.Downstream{Downstream: n.down}).Streams() },
		Moved:    func() <-chan struct{} { return n.down.Moved() },
		Dial: func(ctx context.Context, to ag.Replica) (net.Conn, error) {
			return n.endpoint.Dial(ctx, to.Endpoint, endpoint.ClassSQL, to.ID)
		},
		Peers:   clientPeers{n},
		Console: func() console.Backend { return operations.Executor{Service: n.operate} },
	})
}

// outlooks returns what would become of the sessions of this node's clients.
func (n *node) outlooks() []listener.ContinuityGroup {
	if s := n.clients.Server(); s != nil {
		return s.Continuity()
	}
	return nil
}

// newWeb returns the console in the browser. Logins are checked as those at the client ports are.
func (n *node) newWeb(past func(samples.Span) web.History) *web.Server {
	return web.New(web.Config{
		Self: n.self, Logger: n.log.With("part", "web"), Status: n.status.Status, Seeding: n.status.Seeding, Group: func() ag.Group { return *n.members.Group() }, Certificate: n.webCertificate, LooksOnly: n.pg == nil,
		ClientCAs: n.clients.ClientCAs, CheckClient: n.clients.CheckClient,
		Backend: func() console.Backend { return operations.Executor{Service: n.operate} },
		LogIn: func(ctx context.Context, a web.Attempt) (web.Account, error) {
			who, err := n.clients.LogIn(ctx, listener.PasswordLogin(a))
			return web.Account(who), err
		},
		Try: n.operate.Failover, Holds: n.operate.Holds, Token: n.operate.CreateToken, Note: n.operate.Note, History: past,
		Look: func(ctx context.Context, user string) (web.Account, error) {
			who, err := n.clients.Look(ctx, user)
			return web.Account(who), err
		},
	})
}

// webCertificate returns the certificate of the console's port: that of the client ports. A witness has none of these,
// nobody to sign one, and shows that of the node.
func (n *node) webCertificate() *tls.Certificate {
	if n.cfg.Kind == "witness" {
		return n.pki.Identity().Certificate()
	}
	return n.clients.Certificate()
}

// serveSession serves a session that another node's listener runs on this node's server.
func (n *node) serveSession(ctx context.Context, _ certs.Identity, conn net.Conn) {
	if n.awaitReady(ctx) {
		n.clients.ServeBackend(ctx, conn)
	}
}

// clientPeers calls the client ports of other nodes. It implements clientport.Peers.
type clientPeers struct{ n *node }

func (p clientPeers) Role(ctx context.Context, to ag.Replica, user string) (login.Role, time.Duration, error) {
	r, err := rpc.Call(ctx, p.n.control, to, rpc.Role, user)
	if err == nil && r.Missing {
		err = login.ErrNoRole
	}
	return r.Role, r.Age, err
}

func (p clientPeers) Viewer(ctx context.Context, to ag.Replica, user string) (clientport.Viewer, error) {
	v, err := rpc.Call(ctx, p.n.control, to, rpc.Viewer, user)
	return clientport.Viewer(v), err
}

func (p clientPeers) Progress(ctx context.Context, to ag.Replica) (listener.Progress, error) {
	return rpc.Call(ctx, p.n.control, to, rpc.Progress, rpc.Nothing{})
}

func (p clientPeers) Durable(ctx context.Context, to ag.Replica, e ag.Epoch, lsn ag.LSN) (bool, error) {
	return rpc.Call(ctx, p.n.control, to, rpc.Durable, rpc.DurableRequest{Epoch: e, LSN: lsn})
}

func (p clientPeers) Cancel(ctx context.Context, to ag.Replica, key listener.CancelKey) error {
	_, err := rpc.Call(ctx, p.n.control, to, rpc.Cancel, key)
	return err
}

// stillThere returns nil if a member that was given up for lost is at its address, or may be.
func (n *node) stillThere(ctx context.Context, r ag.Replica) error {
	err := endpoint.Answers(ctx, n.pki.Identity(), r.Endpoint, r.ID)
	if errors.Is(err, endpoint.ErrNamesake) { // it may be the member, in a group with another authority
		return nil
	}
	return err
}

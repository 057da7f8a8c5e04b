package embedded

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"google.golang.org/grpc"
)

// errNotServing is the error of a member that is stopping or has not found a quorum yet.
var errNotServing = errors.New("the quorum member does not serve")

const (
	peerBodyTimeout = 5 * time.Minute // for a whole request of another member, which may be a snapshot; etcd's own choice
	peerIdleTimeout = time.Minute
	localDial       = 5 * time.Second // a client waits as long for a member that has not found a quorum yet
)

// services serves peers and clients on connections that are handed over, instead of on sockets of its own. A socket in
// between would cost two more wake-ups of the process for every message of an idle quorum.
type services struct {
	peers, clients *handover
	http           *http.Server
	ready          chan struct{} // closed when clients are served
	wg             sync.WaitGroup
}

func newServices() *services {
	return &services{peers: newHandover(), clients: newHandover(), ready: make(chan struct{})}
}

// servePeers begins to serve the other members.
func (m *Member) servePeers() {
	m.services.http = &http.Server{
		Handler: etcdhttp.NewPeerHandler(m.etcd.GetLogger(), m.server), ReadTimeout: peerBodyTimeout, IdleTimeout: peerIdleTimeout,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // a peer that hung up
	}
	m.services.wg.Go(func() { _ = m.services.http.Serve(m.services.peers) })
}

// serveClients begins to serve clients; etcd calls it when every service is registered.
func (m *Member) serveClients(g *grpc.Server) {
	m.grpc.Store(g)
	m.services.wg.Go(func() { _ = g.Serve(m.services.clients) })
	close(m.services.ready)
}

// close ends all connections and waits for the servers, which have been stopped before.
func (s *services) close() {
	_ = s.peers.Close()
	_ = s.clients.Close()
	if s.http != nil {
		_ = s.http.Close()
	}
	s.wg.Wait()
}

// ServePeer serves another member on a connection that is authenticated already, and returns when it is closed.
func (m *Member) ServePeer(ctx context.Context, conn net.Conn) {
	m.services.peers.serve(ctx, writeLimit{conn})
}

// ServeClient serves a client of the store on a connection that is authenticated already, and returns when it is
// closed.
func (m *Member) ServeClient(ctx context.Context, conn net.Conn) {
	if m.waitServing(ctx) != nil {
		_ = conn.Close()
		return
	}
	m.services.clients.serve(ctx, conn)
}

// DialClient connects a client of this process to the member, without a socket.
func (m *Member) DialClient(ctx context.Context) (net.Conn, error) {
	if err := m.waitServing(ctx); err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	if err := m.services.clients.give(ctx, there); err != nil {
		return nil, errors.Join(err, here.Close(), there.Close())
	}
	return here, nil
}

func (m *Member) waitServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, localDial)
	defer cancel()
	if m.failure.err() != nil {
		return errNotServing
	}
	select {
	case <-m.services.ready:
		return nil
	case <-m.Done():
	case <-m.failure.done:
	case <-ctx.Done():
	}
	return errNotServing
}

// writeLimit bounds each write to another member, as etcd's own listener does: its streams do not notice otherwise that
// a peer reads nothing.
type writeLimit struct{ net.Conn }

func (c writeLimit) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(rafthttp.ConnWriteTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// handover is a net.Listener whose connections were accepted elsewhere.
type handover struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func newHandover() *handover { return &handover{conns: make(chan net.Conn), over: make(chan struct{})} }

// give hands a connection to the server, which then has to close it.
func (h *handover) give(ctx context.Context, c net.Conn) error {
	select {
	case h.conns <- c:
		return nil
	case <-h.over:
		return errNotServing
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve gives a connection and returns when it is closed, at the latest when ctx is done.
func (h *handover) serve(ctx context.Context, c net.Conn) {
	g := &given{Conn: c, closed: make(chan struct{})}
	if h.give(ctx, g) == nil {
		select {
		case <-g.closed:
			return
		case <-ctx.Done():
		}
	}
	_ = g.Close()
}

// Accept, Close and Addr make a handover a net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.over:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.over) })
	return nil
}

// Addr returns a placeholder.
func (h *handover) Addr() net.Addr { return &net.UnixAddr{Name: "handed over", Net: "unix"} }

// given is a connection whose closed channel is closed with it.
type given struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (g *given) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

const (
	certForClient = x509.ExtKeyUsageClientAuth
	certForServer = x509.ExtKeyUsageServerAuth
)

// Serve accepts streams until ctx is done, then closes every live connection, dialled ones included, and returns when
// all handlers have. It can be called once.
func (e *Endpoint) Serve(ctx context.Context) error {
	if err := e.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.shutdown()
	defer cancel()
	defer func() { _ = e.listener.Close() }()
	defer context.AfterFunc(ctx, func() { _ = e.listener.Close() })()

	config := e.serverTLS()
	if e.quic != nil {
		defer e.quic.close()
		wg.Go(func() { e.serveQUIC(ctx, &wg) })
	}
	e.log.Info("endpoint open", "address", e.listener.Addr().String())
	for {
		raw, err := e.accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept on the endpoint's port: %w", err)
		}
		hs := e.handshakes.admit(ctx, raw)
		if hs == nil {
			_ = raw.Close()
			return nil
		}
		wg.Go(func() { e.serveConn(ctx, raw, hs, config) })
	}
}

// accept retries after temporary errors, such as too many open files.
func (e *Endpoint) accept(ctx context.Context) (net.Conn, error) {
	delay := 5 * time.Millisecond
	for {
		raw, err := e.listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return raw, err
		}
		e.log.Warn("the endpoint could not accept a connection", "error", err, "retry_in", delay)
		select {
		case <-time.After(delay):
			delay = min(2*delay, time.Second)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serveConn authenticates one connection and hands it to its class. One goroutine per connection.
func (e *Endpoint) serveConn(ctx context.Context, raw net.Conn, hs *handshake, config *tls.Config) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	under := &plug{raw}
	server := tls.Server(under, config)
	c := &Conn{Conn: server, raw: raw, e: e, inbound: true, since: time.Now(), cancel: cancel}
	defer func() { _ = c.raw.Close() }()

	err := e.authenticate(ctx, c, server)
	if err == nil {
		err = c.readBlocking()
		under.Conn = c.raw
	}
	e.handshakes.done(hs)
	if err != nil {
		e.log.Debug("connection refused", "remote", raw.RemoteAddr().String(), "reason", err)
		return
	}
	if c.class == ClassJoin {
		e.serveJoin(ctx, c)
		return
	}
	e.serveAuthenticated(ctx, c)
}

// serveAuthenticated authorises the connection of a known peer and hands it to its class.
func (e *Endpoint) serveAuthenticated(ctx context.Context, c *Conn) {
	// Tracked before it is authorised: a change of the record in between then finds it among the live ones.
	err := e.track(c)
	defer c.release()
	if err == nil {
		err = e.permit(c)
	}
	if c.class != ClassEtcdPeer {
		if werr := writeVerdict(c.Conn, err); werr != nil && err == nil {
			return
		}
	}
	if err != nil {
		e.logRefusal(c, err)
		_ = c.Close()
		return
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	defer recovered(e.log, c)
	e.handlers[c.class](ctx, c.peer, c)
}

// authenticate runs the handshake and sets peer and class. Its deadline also covers the verdict.
func (e *Endpoint) authenticate(ctx context.Context, c *Conn, server *tls.Conn) error {
	if err := c.raw.SetDeadline(time.Now().Add(e.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	if err := server.HandshakeContext(ctx); err != nil {
		return err
	}
	cs := server.ConnectionState()
	c.class = classOf(cs.NegotiatedProtocol)
	if err := tune(c.raw, c.class); err != nil {
		return err
	}
	if c.class == ClassJoin {
		c.key = countKey{ClassJoin, hostOf(c.raw.RemoteAddr())}
		return nil
	}
	return e.identify(c, cs)
}

// identify verifies the peer's certificate on an accepted connection and sets its identity.
func (e *Endpoint) identify(c *Conn, cs tls.ConnectionState) error {
	if e.handlers[c.class] == nil {
		return fmt.Errorf("class %q is not served here", c.class)
	}
	if len(cs.PeerCertificates) == 0 {
		return errors.New("no certificate") // cannot happen: the handshake requires one
	}
	var err error
	c.peer, err = e.cfg.Node.Verify(cs.PeerCertificates[0], certForClient)
	c.pin = certs.KeyPin(cs.PeerCertificates[0])
	c.key = countKey{c.class, c.peer.String()}
	return err
}

// logRefusal warns once in ten seconds per peer and class: a removed member tries again and again.
func (e *Endpoint) logRefusal(c *Conn, reason error) {
	level := slog.LevelDebug
	e.mu.Lock()
	if last, ok := e.refused[c.key]; !ok || time.Since(last) > 10*time.Second {
		level = slog.LevelWarn
		e.refused[c.key] = time.Now()
	}
	e.mu.Unlock()
	e.log.Log(context.Background(), level, "stream refused", "peer", c.peer.ID, "class", c.class, "reason", reason)
}

// recovered keeps a panic of one stream's handler from ending the process.
func recovered(log *slog.Logger, c *Conn) {
	if p := recover(); p != nil {
		log.Error("a stream's handler panicked", "peer", c.peer.ID, "class", c.class, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
}

// handshakeGrace is how long a connection may take to authenticate before it can be evicted for another one. An honest
// handshake takes a few round trips.
const handshakeGrace = 500 * time.Millisecond

// handshakes is the set of connections that have not authenticated yet. It is bounded; when it is full, the oldest
// connection of the address that holds the most places makes room, so that a flood from one address harms that address.
type handshakes struct {
	max   int
	freed chan struct{}

	mu   sync.Mutex
	live map[*handshake]struct{}
}

type handshake struct {
	conn  net.Conn
	host  string
	began time.Time
}

func newHandshakes(limit int) *handshakes {
	return &handshakes{max: limit, freed: make(chan struct{}, 1), live: make(map[*handshake]struct{})}
}

// admit waits for a place and returns it, or nil when ctx ended first. One goroutine, the accepting one, calls it.
func (h *handshakes) admit(ctx context.Context, conn net.Conn) *handshake {
	hs := &handshake{conn: conn, host: hostOf(conn.RemoteAddr()), began: time.Now()}
	for {
		wait := h.try(hs)
		if wait <= 0 {
			return hs
		}
		t := time.NewTimer(wait)
		select {
		case <-h.freed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// try takes a place if one is free or can be freed, else it returns how long until one can be freed.
func (h *handshakes) try(hs *handshake) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.live) >= h.max {
		victim := h.victim()
		if wait := handshakeGrace - time.Since(victim.began); wait > 0 {
			return wait
		}
		delete(h.live, victim)
		_ = victim.conn.Close()
	}
	h.live[hs] = struct{}{}
	return 0
}

func (h *handshakes) victim() *handshake {
	held := make(map[string]int)
	for hs := range h.live {
		held[hs.host]++
	}
	var worst *handshake
	for hs := range h.live {
		if worst == nil || held[hs.host] > held[worst.host] || held[hs.host] == held[worst.host] && hs.began.Before(worst.began) {
			worst = hs
		}
	}
	return worst
}

// done releases the place of a connection that has authenticated or ended.
func (h *handshakes) done(hs *handshake) {
	h.mu.Lock()
	delete(h.live, hs)
	h.mu.Unlock()
	select {
	case h.freed <- struct{}{}:
	default:
	}
}

func (h *handshakes) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.live)
}

// hostOf returns the key that a connection is counted by: its IPv4 address, or its IPv6 /64, since one host has many
// IPv6 addresses.
func hostOf(addr net.Addr) string {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := ap.Addr().Unmap()
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

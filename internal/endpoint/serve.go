package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
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
		hs := e.handshakes.admit(raw.RemoteAddr(), func() { _ = raw.Close() })
		if hs == nil {
			_ = raw.Close()
			continue
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
func (e *Endpoint) serveConn(ctx context.Context, raw net.Conn, hs *admission.Place, config *tls.Config) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	under := &plug{raw}
	server := tls.Server(under, config)
	c := &Conn{Conn: server, raw: raw, e: e, inbound: true, since: time.Now(), cancel: cancel}
	defer func() { _ = c.raw.Close() }()
	defer recovered(e.log, c) // from the first byte of a stranger on
	defer hs.Leave()

	err := e.authenticate(ctx, c, server)
	if err == nil {
		err = c.readBlocking()
		under.Conn = c.raw
	}
	hs.Leave()
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
	// Tracked before it is authorised: a change of the configuration in between then finds it among the
	// live ones.
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
	if !c.relayed { // that address is the relay's, which may be removed while this member stays
		e.handshakes.met(c.raw.RemoteAddr(), c.peer, c.pin)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return
	}
	defer func() { _ = c.Close() }()
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
	c.class, c.relayed = classOf(cs.NegotiatedProtocol), strings.HasSuffix(cs.NegotiatedProtocol, relayedMark)
	if err := tune(c.raw, c.class); err != nil {
		return err
	}
	if c.class == ClassJoin {
		c.key = countKey{ClassJoin, admission.Key(c.raw.RemoteAddr())}
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
	c.pin, c.hosts = certs.KeyPin(cs.PeerCertificates[0]), certs.HostsOf(cs.PeerCertificates[0])
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

// recovered keeps a panic in the code that serves one connection from ending the process.
func recovered(log *slog.Logger, c *Conn) {
	if p := recover(); p != nil {
		log.Error("the code that serves a connection panicked", "peer", c.peer.ID, "class", c.class, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
}

// Bounds for connections that have not authenticated yet. A stranger is a caller of an address by which this node has
// met no member since it started, in either direction.
const (
	// handshakeGrace is how long a connection may take to authenticate before it can be evicted for another one of its
	// own address, or where no address has more than its share. An honest handshake takes a few round trips.
	handshakeGrace = 500 * time.Millisecond

	eachStranger  = 8    // part of the places that one stranger may have: 1/8
	memberPlaces  = 1024 // of the addresses of members
	eachMember    = 512  // of one such address: after a failover a node opens a connection for each client session
	rememberedFor = 1024 // addresses
)

// Handshakes of strangers, by what they cost: a signature and a key exchange, some tenth of a millisecond.
var (
	eachStrangersRate = admission.Rate{PerSecond: 64, Burst: 128}
	allStrangersRate  = admission.Rate{PerSecond: 256, Burst: 512}
)

// Lines about refused joins in the log, of one address and of all.
var (
	eachJoinLines = admission.Rate{PerSecond: 1, Burst: 20}
	allJoinLines  = admission.Rate{PerSecond: 20, Burst: 200}
)

// handshakes bounds the connections that have not authenticated yet. It never makes the accepting goroutine wait: a
// connection without a place is closed at once, or takes the place of another one.
type handshakes struct {
	strangers *admission.Places
	members   *admission.Places
	datagrams *admission.Places // of strangers by QUIC; the library cannot evict them
	rate      *admission.Budget // and remembers the addresses of members
	mu        sync.Mutex
	owners    *admission.Recent[string, []owner] // the members met by those addresses; guarded by mu
	joinLines *admission.Budget                  // lines about refused joins in the log
	unlogged  atomic.Uint64                      // those that were not logged since the last line
}

// owner is a member that was met by an address. Several may be behind one.
type owner struct {
	peer certs.Identity
	pin  string
}

// maxOwners is how many members of one address are remembered.
const maxOwners = 32

func newHandshakes(limit int) *handshakes {
	return &handshakes{
		strangers: admission.NewPlaces(limit, limit/eachStranger, handshakeGrace),
		members:   admission.NewPlaces(memberPlaces, eachMember, handshakeGrace),
		datagrams: admission.NewPlaces(limit/2, limit/2/eachStranger, handshakeGrace),
		rate:      admission.NewBudget(eachStrangersRate, allStrangersRate, rememberedFor),
		owners:    admission.NewRecent[string, []owner](rememberedFor),
		joinLines: admission.NewBudget(eachJoinLines, allJoinLines, rememberedFor),
	}
}

// admit returns a place for a connection from that address, nil if there is none. evict ends the connection if its
// place is given to another one; nil means that it cannot be ended.
func (h *handshakes) admit(from net.Addr, evict func()) *admission.Place {
	host, now := admission.Key(from), boottime.Now()
	switch {
	case h.rate.Known(host):
		return h.members.Enter(host, now, evict)
	case !h.rate.Spend(host, 1, now):
		return nil
	case evict == nil:
		return h.datagrams.Enter(host, now, nil)
	}
	return h.strangers.Enter(host, now, evict)
}

// met notes that a member has authenticated itself from that address, or answered there.
func (h *handshakes) met(at net.Addr, peer certs.Identity, pin string) {
	key := admission.Key(at)
	h.rate.Succeeded(key, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	who := h.owners.At(key)
	if m := (owner{peer, pin}); !slices.Contains(*who, m) && len(*who) < maxOwners {
		*who = append(*who, m)
	}
}

// forget makes the addresses strangers' again by which only members were met that are not trusted any more.
func (h *handshakes) forget(trusted func(certs.Identity, string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range h.owners.Keys() {
		who := h.owners.At(key)
		*who = slices.DeleteFunc(*who, func(m owner) bool { return trusted(m.peer, m.pin) != nil })
		if len(*who) == 0 {
			h.owners.Drop(key)
			h.rate.Forget(key)
		}
	}
}

// Refused returns how many connections were closed at once since the start, because their address or all together had
// as many that had not authenticated as there are places for, or were too many a second.
func (e *Endpoint) Refused() uint64 { return e.handshakes.refused() }

func (h *handshakes) refused() uint64 {
	return h.rate.Refused() + h.strangers.Refused() + h.members.Refused() + h.datagrams.Refused()
}

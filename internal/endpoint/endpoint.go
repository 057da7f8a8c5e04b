package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// Class is a kind of stream between nodes. The dialling side names it by ALPN, the accepting side decides by the
// group's configuration whether that peer may open it.
type Class string

// The classes.
const (
	ClassControl  Class = "control"   // remote calls (Control)
	ClassHeart    Class = "heart"     // heartbeats of a primary, and their echo
	ClassWAL      Class = "wal"       // a replication stream
	ClassSeed     Class = "seed"      // a copy of the data
	ClassSQL      Class = "sql"       // a client session served by another node
	ClassQuorum   Class = "quorum"    // a client of the quorum store
	ClassRelay    Class = "relay"     // a byte pipe to a third member
	ClassBack     Class = "back"      // on which the accepting side opens what it cannot dial
	ClassJoin     Class = "join"      // a node without a certificate, with a token
	ClassEtcdPeer Class = "etcd-peer" // no ALPN, or http/1.1: the quorum store's members among themselves
)

const protoHTTP = "http/1.1"

// ordered fixes the server's preference should a peer offer several protocols.
var ordered = []Class{ClassControl, ClassHeart, ClassWAL, ClassSeed, ClassSQL, ClassQuorum, ClassRelay, ClassBack, ClassEtcdPeer}

// proto returns the ALPN protocol of the class.
func (c Class) proto() string {
	if c == ClassEtcdPeer {
		return protoHTTP
	}
	return "coterie-" + string(c) + "/1"
}

// relayedProto returns the ALPN protocol of a connection of the class that goes by way of another member. It comes from
// that member's address.
func (c Class) relayedProto() string { return c.proto() + relayedMark }

const relayedMark = "-relayed"

// classOf returns the class of a negotiated protocol.
func classOf(proto string) Class {
	if proto == "" {
		return ClassEtcdPeer
	}
	for _, c := range append([]Class{ClassJoin}, ordered...) {
		if c.proto() == proto || c.relayedProto() == proto && slices.Contains(relayedClasses, c) {
			return c
		}
	}
	return ""
}

// userTimeout bounds how long sent bytes may stay unacknowledged before the connection is given up. Linux counts a
// receiver that does not read (a zero window) as silence too. So the classes whose receiver may rightly be slow (a
// client that pauses in a result, or a disk), and the connections that may carry them, have no such bound. Their death
// is noticed by keep-alives or by the other classes.
func (c Class) userTimeout() time.Duration {
	if c == ClassSQL || c == ClassSeed || c == ClassRelay || c == ClassBack {
		return 0
	}
	return 10 * time.Second
}

// Handler serves one accepted stream, a *Conn. ctx ends when the connection is closed on this side: by the handler, by
// CloseUnauthorised or the end of Serve (that the peer closed it is seen by reading). The endpoint closes conn when
// the handler returns, and Serve waits for that.
type Handler func(ctx context.Context, peer certs.Identity, conn net.Conn)

// Config is what an endpoint needs. Zero limits mean their defaults.
type Config struct {
	Node   *certs.Node
	Listen string // host:port

	// Authorize decides by the group's configuration whether a member, known by its identity and the pin of its key,
	// may open a class of stream here. It is called for every connection and again by CloseUnauthorised; its error is
	// sent to the peer. It must not block.
	Authorize func(peer certs.Identity, pin string, class Class) error

	// Trust, if set, returns an error if a dialled member is not trusted. Without it the certificate suffices.
	Trust func(peer certs.Identity, pin string) error

	// Relays lists the members that may relay to a member that does not answer; nil: none.
	Relays func(to ag.ReplicaID) []Relay

	// Member returns a member's address in the configuration, to which this node relays for others; nil: it relays
	// nothing.
	Member func(id ag.ReplicaID) (addr string, ok bool)

	// Handlers serve the classes; a class without a handler is not offered. NewControl adds class control.
	Handlers map[Class]Handler

	// Join admits a node that proved nothing yet: verify reports whether the joiner knows the secret of a stored
	// token's hash, and holds for this TLS session only. Consuming the token (by compare-and-swap) is Join's business;
	// see StoredToken.Check. Nil: class join is not offered.
	Join func(ctx context.Context, tokenID string, verify func(secretHash []byte) bool, req JoinRequest) (JoinGrant, error)

	Logger *slog.Logger

	MaxHandshakes    int           // connections that have not authenticated yet; default 128
	HandshakeTimeout time.Duration // for the handshake and the authorisation; default 5 s
	MaxConns         map[Class]int // live accepted connections of one peer in one class; see defaultMaxConns
}

var defaultMaxConns = map[Class]int{
	ClassControl: 64, ClassHeart: 8, ClassWAL: 32, ClassSeed: 64, ClassSQL: 4096, ClassQuorum: 64, ClassRelay: 32, ClassBack: 32, ClassEtcdPeer: 64,
	ClassJoin: 4, // of one network address
}

// maxJoins bounds the joins of all addresses together.
const maxJoins = 32

// Errors of Dial.
var (
	// ErrClosed means that the endpoint has stopped.
	ErrClosed = errors.New("the endpoint is closed")
	// ErrIdentity means that a node other than the wanted one answered.
	ErrIdentity = errors.New("another node answered")
)

// RefusedError is a member's refusal to serve a stream.
type RefusedError struct {
	Peer    certs.Identity
	Class   Class
	Message string
}

// Error returns the peer, the class and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refused a %s stream: %s", e.Peer.ID, e.Class, e.Message)
}

// Endpoint is a node's port towards the other nodes of its group. Make it with New, add to it (NewControl), then Serve.
// Dial works before and during Serve.
type Endpoint struct {
	cfg        Config
	log        *slog.Logger
	handlers   map[Class]Handler
	handshakes *handshakes

	mu         sync.Mutex
	listener   net.Listener
	quic       *quicPort // nil: UDP could not be bound
	closed     bool
	conns      map[*Conn]struct{}
	counts     map[countKey]int
	refused    map[countKey]time.Time // when a refusal was last logged as a warning
	relayCache relayCache
	ranked     ranked
	over       chan struct{} // closed when Serve ends
}

// countKey is the key by which live connections are counted for their limits.
type countKey struct {
	class Class
	peer  string
}

// New returns an endpoint. It starts and binds nothing yet.
func New(c Config) *Endpoint {
	if c.MaxHandshakes <= 0 {
		c.MaxHandshakes = 128
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Endpoint{
		cfg:        c,
		log:        c.Logger,
		handlers:   make(map[Class]Handler),
		handshakes: newHandshakes(c.MaxHandshakes),
		conns:      make(map[*Conn]struct{}),
		counts:     make(map[countKey]int),
		refused:    make(map[countKey]time.Time),
		relayCache: newRelayCache(),
		ranked:     ranked{wal: make(map[*Conn]struct{}), seeds: make(map[*Conn]struct{})},
		over:       make(chan struct{}),
	}
	if c.Member != nil {
		e.handlers[ClassRelay] = e.serveRelay
		e.handlers[ClassBack] = e.serveBack
	}
	for class, h := range c.Handlers {
		e.handlers[class] = h
	}
	return e
}

// Listen binds the port. Serve does it too; call it before to learn Addr, or that the port is taken, early.
func (e *Endpoint) Listen() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	if e.listener != nil {
		return nil
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(context.Background(), "tcp", e.cfg.Listen)
	if err != nil {
		return fmt.Errorf("open the endpoint's port: %w", err)
	}
	e.listener = l
	if e.handlers[ClassWAL] == nil {
		return nil // nothing is served by QUIC here
	}
	if e.quic, err = e.listenQUIC(l.Addr()); err != nil {
		e.log.Warn("UDP is not served: streams of WAL go by TCP only", "address", l.Addr().String(), "error", err)
	}
	return nil
}

// Addr returns the bound address, nil before Listen.
func (e *Endpoint) Addr() net.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return nil
	}
	return e.listener.Addr()
}

// Peer describes one live connection.
type Peer struct {
	Identity certs.Identity
	Pin      string
	Class    Class
	Inbound  bool
	Kind     string // KindTCP or KindQUIC
	Remote   string
	Since    time.Time
	Via      ag.ReplicaID // the member that relays it; "": none
	RelayTo  ag.ReplicaID // the member that this node relays it to; "": none
}

// Peers lists the live connections between this node and others, accepted and dialled.
func (e *Endpoint) Peers() []Peer {
	conns := e.live()
	peers := make([]Peer, 0, len(conns))
	for _, c := range conns {
		peers = append(peers, Peer{c.peer, c.pin, c.class, c.inbound, c.Kind(), c.raw.RemoteAddr().String(), c.since, c.via, c.relays()})
	}
	return peers
}

// CloseUnauthorised asks again about every live connection, closes those that would be refused now, and returns how
// many. Call it when the configuration changed: a member removed there is cut off at once.
func (e *Endpoint) CloseUnauthorised() int {
	n := 0
	for _, c := range e.live() {
		if err := e.permit(c); err != nil {
			e.log.Warn("closing a stream that is no longer allowed", "peer", c.peer.ID, "class", c.class, "reason", err)
			c.abort()
			n++
		}
	}
	if e.cfg.Trust != nil {
		e.handshakes.forget(e.cfg.Trust)
	}
	return n
}

// permit returns the error of the callback for the connection's direction. Joins are governed by their token.
func (e *Endpoint) permit(c *Conn) error {
	switch {
	case c.class == ClassJoin:
		return nil
	case !c.inbound && e.cfg.Trust == nil:
		return nil
	case !c.inbound:
		return e.cfg.Trust(c.peer, c.pin)
	case e.cfg.Authorize == nil:
		return errors.New("this node authorises nobody")
	}
	if err := e.cfg.Authorize(c.peer, c.pin, c.class); err != nil {
		return err
	}
	return e.mayRelay(c)
}

func (e *Endpoint) live() []*Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	conns := make([]*Conn, 0, len(e.conns))
	for c := range e.conns {
		conns = append(conns, c)
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return a.since.Compare(b.since) })
	return conns
}

// track makes the connection one that Peers lists and that CloseUnauthorised and the end of Serve close. Accepted ones
// are limited per peer and class.
func (e *Endpoint) track(c *Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	if c.inbound {
		limit, ok := e.cfg.MaxConns[c.class]
		if !ok {
			limit = defaultMaxConns[c.class]
		}
		if e.counts[c.key] >= limit {
			return fmt.Errorf("%d %s streams from there are open already", limit, c.class)
		}
		all := countKey{class: c.class}
		if c.class == ClassJoin && e.counts[all] >= maxJoins {
			return fmt.Errorf("%d joins are under way already", maxJoins)
		}
		e.counts[c.key]++
		e.counts[all]++
	}
	e.conns[c] = struct{}{}
	e.rank(c)
	return nil
}

func (e *Endpoint) forget(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.conns[c]; !ok {
		return
	}
	delete(e.conns, c)
	delete(e.ranked.wal, c)
	delete(e.ranked.seeds, c)
	if !c.inbound {
		return
	}
	for _, k := range []countKey{c.key, {class: c.class}} {
		if e.counts[k]--; e.counts[k] == 0 {
			delete(e.counts, k)
		}
	}
}

// shutdown makes Dial and Listen fail from now on and closes every live connection.
func (e *Endpoint) shutdown() {
	e.mu.Lock()
	if !e.closed {
		close(e.over)
	}
	e.closed = true
	e.mu.Unlock()
	for _, c := range e.live() {
		c.abort()
	}
	e.relayCache.wg.Wait()
}

// serverTLS chooses by what the peer offers: class join alone and without a certificate, everything else with one.
func (e *Endpoint) serverTLS() *tls.Config {
	join := e.baseTLS()
	join.NextProtos = []string{ClassJoin.proto()}
	base := e.memberTLS(ordered)
	asMember := base.GetConfigForClient
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if e.cfg.Join != nil && slices.Equal(hello.SupportedProtos, join.NextProtos) {
			return join, nil
		}
		return asMember(hello)
	}
	return base
}

// memberTLS serves members, for those of the classes that have a handler.
func (e *Endpoint) memberTLS(classes []Class) *tls.Config {
	base := e.baseTLS()
	base.ClientAuth = tls.RequireAndVerifyClientCert // identify reads the identity
	for _, class := range classes {
		if e.handlers[class] != nil {
			if slices.Contains(relayedClasses, class) { // first: the other side offers the plain one too
				base.NextProtos = append(base.NextProtos, class.relayedProto())
			}
			base.NextProtos = append(base.NextProtos, class.proto())
		}
	}
	member := base.Clone()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := member.Clone()
		now.ClientCAs = e.cfg.Node.Authorities() // it changes while the authority is rotated
		return now, nil
	}
	return base
}

// baseTLS holds what both sides share. Sessions are not resumed: a full handshake takes as many round trips, and each
// one proves the key again. Records are full-sized from the start, since streams are long.
func (e *Endpoint) baseTLS() *tls.Config {
	cert := e.cfg.Node.Certificate // a method: the certificate is renewed while the endpoint serves
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert(), nil },
		GetClientCertificate:        func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert(), nil },
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
}

package endpoint

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// keepAlive notices a dead peer of a silent connection within about ten seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}

// notSent is the bytes of a WAL stream that may wait in the socket for their first transmission before Write blocks.
const notSent = 256 << 10

// closeGrace bounds the wait of Close for the TLS close notification, which may wait for a full send buffer.
const closeGrace = time.Second

// Conn is one authenticated stream between two nodes. Dial returns one, and handlers get one.
type Conn struct {
	net.Conn          // *tls.Conn over raw, or *quicStream
	raw      net.Conn // closing it cuts the connection at once
	e        *Endpoint
	peer     certs.Identity
	pin      string
	hosts    []string // the names of the peer's certificate, on accepted connections
	class    Class
	inbound  bool
	since    time.Time
	key      countKey
	cancel   context.CancelFunc // ends the handler's context; nil on dialled connections
	once     sync.Once
	via      ag.ReplicaID                 // the member that relays a dialled connection
	relayed  bool                         // an accepted connection came by way of another member
	relayTo  atomic.Pointer[ag.ReplicaID] // the member that an accepted one is relayed to
	bucket   atomic.Pointer[bucket]       // limits a copy's bytes; nil: no limit
	over     chan struct{}                // closed once it is released; copies only
}

// Peer returns the identity of the other end; zero for class join.
func (c *Conn) Peer() certs.Identity { return c.peer }

// Pin returns the pin of the peer's key.
func (c *Conn) Pin() string { return c.pin }

// Class returns the stream's class.
func (c *Conn) Class() Class { return c.class }

// Close sends the TLS close notification and closes, within a second even if the peer reads nothing.
func (c *Conn) Close() error {
	c.release()
	t := time.AfterFunc(closeGrace, func() { _ = c.raw.Close() })
	defer t.Stop()
	return c.Conn.Close()
}

// abort cuts the connection without a farewell. It never blocks.
func (c *Conn) abort() {
	_ = c.raw.Close()
	c.release()
}

func (c *Conn) release() {
	c.once.Do(func() {
		c.e.forget(c)
		if c.over != nil {
			close(c.over)
		}
		if c.cancel != nil {
			c.cancel()
		}
	})
}

// ConnectionState returns what TLS agreed on.
func (c *Conn) ConnectionState() tls.ConnectionState {
	switch s := c.Conn.(type) {
	case *tls.Conn:
		return s.ConnectionState()
	case *relayedConn:
		return s.ConnectionState()
	case *quicStream:
		return s.conn.ConnectionState().TLS
	}
	return tls.ConnectionState{}
}

// CloseWrite ends this direction.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Abort cuts the connection without a farewell. It never blocks.
func (c *Conn) Abort() { c.abort() }

// tune sets the socket options of a class.
func tune(raw net.Conn, class Class) error {
	tcp, ok := raw.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := errors.Join(tcp.SetNoDelay(true), tcp.SetKeepAliveConfig(keepAlive)); err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	sc, err := tcp.SyscallConn()
	if err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	var serr error
	err = sc.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(class.userTimeout().Milliseconds()))
		if class == ClassWAL {
			// Bytes that wait in the socket cannot be overtaken, nor sent by another leg.
			serr = errors.Join(serr, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSent))
		}
	})
	if err := errors.Join(err, serr); err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	return nil
}

// nearTrip is the round trip up to which the reader of a WAL stream blocks in the system call: waking it costs more
// than the path.
const nearTrip = 1500 * time.Microsecond

// readBlocking makes the reader of a WAL stream over a short path block in the system call (rawconn). Call it before
// the stream is used.
func (c *Conn) readBlocking() error {
	if _, ok := c.raw.(*net.TCPConn); !ok || c.class != ClassWAL {
		return nil
	}
	if rtt, _, _ := c.Counters(); rtt == 0 || rtt > nearTrip {
		return nil
	}
	n, err := rawconn.Take(c.raw)
	if err != nil {
		return err
	}
	c.raw = n
	return nil
}

// plug is the connection below the TLS of an accepted connection. It can be replaced after the handshake, when the
// class is known.
type plug struct{ net.Conn }

// Each stream but those of the classes join and etcd-peer begins with the accepting side's verdict, so that a Dial that
// returned without error was allowed. The verdict is one byte, and after a refusal its text with a two-byte length.
const (
	verdictRefused  = 0
	verdictAccepted = 1
	maxVerdict      = 1024
)

func writeVerdict(w io.Writer, refusal error) error {
	if refusal == nil {
		_, err := w.Write([]byte{verdictAccepted})
		return err
	}
	text := refusal.Error()
	text = text[:min(len(text), maxVerdict)]
	buf := binary.BigEndian.AppendUint16([]byte{verdictRefused}, uint16(len(text)))
	_, err := w.Write(append(buf, text...))
	return err
}

// readVerdict returns the refusal's text, or "" when the stream was accepted.
func readVerdict(r io.Reader) (refusal string, err error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return "", err
	}
	if head[0] == verdictAccepted {
		return "", nil
	}
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return "", err
	}
	n := int(binary.BigEndian.Uint16(head[1:]))
	if head[0] != verdictRefused || n > maxVerdict {
		return "", errors.New("the peer does not speak this version of the protocol")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", err
	}
	if n == 0 {
		return "no reason given", nil
	}
	return string(text), nil
}

// Dial opens a stream of that class to the node want at addr, and returns once that node has allowed it. It fails when
// the node at addr is another one (ErrIdentity), is not of this group, or refuses (*RefusedError). An empty want takes
// any member. Without an earlier deadline in ctx it gives up after twice the handshake timeout. The connection is a
// *Conn.
func (e *Endpoint) Dial(ctx context.Context, addr string, class Class, want ag.ReplicaID) (net.Conn, error) {
	if class == ClassJoin || class == ClassEtcdPeer || class == ClassRelay || !slices.Contains(ordered, class) {
		return nil, fmt.Errorf("class %q is not dialled", class)
	}
	c, err := e.DialBy(ctx, KindTCP, addr, class, want)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialBy is Dial by a transport of choice, KindTCP or KindQUIC. By QUIC only streams of class wal are served.
func (e *Endpoint) DialBy(ctx context.Context, kind, addr string, class Class, want ag.ReplicaID) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*e.cfg.HandshakeTimeout)
	defer cancel()
	dial := e.dialTCP
	if kind == KindQUIC {
		dial = e.dialQUIC
	}
	c, err := dial(ctx, addr, class, want)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return c, nil
}

func (e *Endpoint) dialDirect(ctx context.Context, addr string, class Class, want ag.ReplicaID) (*Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Conn{raw: raw, e: e, class: class, since: time.Now()}
	if err := errors.Join(tune(raw, class), c.readBlocking()); err != nil {
		_ = raw.Close()
		return nil, err
	}
	client := tls.Client(c.raw, e.clientTLS(c, want))
	c.Conn = client
	return c, e.conclude(ctx, c, func() error { return client.HandshakeContext(ctx) })
}

// conclude runs the handshake and greet, and cuts the connection if one of them fails.
func (e *Endpoint) conclude(ctx context.Context, c *Conn, handshake func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.raw.Close() })
	err := handshake()
	if err == nil {
		err = e.greet(c)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.abort()
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = errors.Join(ctx.Err(), err)
		}
	}
	return err
}

// greet checks whether this node trusts the peer, and reads whether the peer allows the stream.
func (e *Endpoint) greet(c *Conn) error {
	if err := e.track(c); err != nil {
		return err
	}
	if err := e.permit(c); err != nil {
		return fmt.Errorf("%s is not trusted: %w", c.peer.ID, err)
	}
	if c.via == "" {
		e.handshakes.met(c.raw.RemoteAddr(), c.peer, c.pin)
	}
	refusal, err := readVerdict(c.Conn)
	if err != nil {
		return fmt.Errorf("wait for %s to allow a %s stream: %w", c.peer.ID, c.class, err)
	}
	if refusal != "" {
		return &RefusedError{Peer: c.peer, Class: c.class, Message: refusal}
	}
	return nil
}

// Answers returns nil if that member is at addr: what answers there proves by its key that it is, whether or not it
// takes this node for a member. Anybody may take connections at an address that a member has left. A member whose
// certificate has expired is there all the same, and so is one whose certificate a wrong clock finds invalid.
func Answers(ctx context.Context, node *certs.Node, addr string, member ag.ReplicaID) (err error) {
	for range answersTries { // in a flood a member may have no place for a handshake
		var network *net.OpError
		if err = answers(ctx, node, addr, member); err == nil || errors.Is(err, ErrIdentity) || errors.Is(err, ErrNamesake) || errors.As(err, &network) && network.Op == "dial" || retry.Sleep(ctx, answersPause) != nil {
			return err
		}
	}
	return err
}

// ErrSilent means that something takes connections at an address and says nothing: a process that is stopped or
// overloaded, or a firewall.
var ErrSilent = errors.New("it takes connections and says nothing")

// ErrNamesake means that something names itself as the member of the group that is looked for, by a certificate of an
// authority that is not known here: the group may have another one since this node was away. Anybody can make such a
// certificate, so it proves nothing; but a member that runs must not be taken for a stranger.
var ErrNamesake = errors.New("it names itself as that member, by a certificate of an authority that is not known here")

const (
	answersTries = 3
	answersPause = 200 * time.Millisecond
)

func answers(ctx context.Context, node *certs.Node, addr string, member ag.ReplicaID) error {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	e := &Endpoint{cfg: Config{Node: node}}
	config := e.clientTLS(&Conn{raw: raw, e: e, class: ClassControl}, member)
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the peer shows no certificate")
		}
		id, err := node.Issued(cs.PeerCertificates[0], certForServer)
		switch {
		case errors.Is(err, certs.ErrAuthority) && id.ID == member:
			return ErrNamesake
		case err == nil && id.ID != member:
			return fmt.Errorf("%w: it is %s, wanted was %s", ErrIdentity, id.ID, member)
		}
		return err
	}
	err = tls.Client(raw, config).HandshakeContext(ctx)
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// clientTLS verifies the peer by its identity in place of a host name; InsecureSkipVerify turns off the check of the
// name.
func (e *Endpoint) clientTLS(c *Conn, want ag.ReplicaID) *tls.Config {
	config := e.baseTLS()
	config.NextProtos = []string{c.class.proto()}
	if c.via != "" { // a member of an earlier version takes the other one
		config.NextProtos = []string{c.class.relayedProto(), c.class.proto()}
	}
	config.InsecureSkipVerify = true // VerifyConnection below verifies chain, group and identity
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the peer shows no certificate")
		}
		id, err := e.cfg.Node.Verify(cs.PeerCertificates[0], certForServer)
		if err != nil {
			return err
		}
		if want != "" && id.ID != want {
			return fmt.Errorf("%w: it is %s, wanted was %s", ErrIdentity, id.ID, want)
		}
		if !slices.Contains(config.NextProtos, cs.NegotiatedProtocol) {
			return fmt.Errorf("%s does not serve class %s", id.ID, c.class)
		}
		c.peer, c.pin = id, certs.KeyPin(cs.PeerCertificates[0])
		return nil
	}
	return config
}

package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Dial opens a stream of that class to the node want at addr, and returns once that node has allowed it. It fails when the
// node at addr is another one (ErrIdentity), is not of this group, or refuses (*RefusedError). An empty want takes any member.
// Without an earlier deadline in ctx it gives up after twice the handshake timeout. The connection is a *Conn.
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
	if err := errors.Join(tune(raw, class), c.hasten()); err != nil {
		_ = raw.Close()
		return nil, err
	}
	client := tls.Client(c.raw, e.clientTLS(c, want))
	c.Conn = client
	return c, e.conclude(ctx, c, func() error { return client.HandshakeContext(ctx) })
}

// conclude shakes hands, has the peer judged here and this node judged there, or cuts the connection.
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

// greet has the peer judged here and this node judged there.
func (e *Endpoint) greet(c *Conn) error {
	if err := e.track(c); err != nil {
		return err
	}
	if err := e.permit(c); err != nil {
		return fmt.Errorf("%s is not trusted: %w", c.peer.ID, err)
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

// clientTLS verifies the peer by its identity in place of a host name, which is what InsecureSkipVerify turns off.
func (e *Endpoint) clientTLS(c *Conn, want ag.ReplicaID) *tls.Config {
	config := e.baseTLS()
	config.NextProtos = []string{c.class.proto()}
	config.InsecureSkipVerify = true // VerifyConnection below verifies chain, group and identity
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the peer shows no certificate")
		}
		id, err := e.cfg.Node.verify(cs.PeerCertificates[0], certForServer)
		if err != nil {
			return err
		}
		if want != "" && id.ID != want {
			return fmt.Errorf("%w: it is %s, wanted was %s", ErrIdentity, id.ID, want)
		}
		if cs.NegotiatedProtocol != c.class.proto() {
			return fmt.Errorf("%s does not serve class %s", id.ID, c.class)
		}
		c.peer, c.pin = id, KeyPin(cs.PeerCertificates[0])
		return nil
	}
	return config
}

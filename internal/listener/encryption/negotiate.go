package encryption

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/scram"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// Client is a connection of which nothing was read yet.
type Client struct {
	Certificate func() *tls.Certificate           // the one in use, nil for none; a nil function means no TLS
	CAs         func() *x509.CertPool             // the authorities of client certificates; nil: none is asked for
	Check       func([][]*x509.Certificate) error // whether the chains of one may be believed; nil: they may
	Longest     int                               // bytes of a startup packet
	Pay         func(context.Context) error       // returns when a handshake may be made
	Waits       func()                            // is called when it is the client's turn again
	Refused     func(error)                       // hears why a certificate is refused

	// The layers of the connection, which Negotiate sets, also where it returns an error.
	Conn        net.Conn // as it came, or TLS over it
	TLS         *tls.ConnectionState
	Binding     []byte // for SCRAM-SHA-256-PLUS
	Handshaking bool   // a TLS handshake has not ended: no error can be sent
	raw         net.Conn
}

// Negotiate answers the requests that may come before the StartupMessage, and returns that message, or a CancelRequest,
// without its length. Nothing is read past the current packet, so no byte that arrived before a change of layer can be
// taken for one that arrived after it.
func (c *Client) Negotiate(ctx context.Context, raw net.Conn) ([]byte, error) {
	c.raw, c.Conn = raw, raw
	var first [1]byte
	if _, err := io.ReadFull(raw, first[:]); err != nil {
		return nil, err
	}
	var in io.Reader = &prefixConn{Conn: raw, prefix: first[:]}
	ssl, gss := false, false
	if cert := c.certificate(); first[0] == pgwire.FirstTLSByte && cert != nil {
		c.Handshaking = true
		if err := c.Pay(ctx); err != nil {
			return nil, err
		}
		if err := c.startTLS(ctx, &prefixConn{Conn: raw, prefix: first[:]}, cert, true); err != nil {
			return nil, err
		}
		ssl, in = true, c.Conn
	}
	for {
		packet, err := pgwire.ReadPacket(in, c.Longest)
		if err != nil {
			return nil, err
		}
		c.Waits() // again: a client that answers does not count as waiting
		in = c.Conn
		switch code := binary.BigEndian.Uint32(packet); {
		case code == pgwire.SSLRequest && !ssl && len(packet) == 4:
			ssl = true
			if err := c.answerSSL(ctx); err != nil {
				return nil, err
			}
			in = c.Conn
		case code == pgwire.GSSENCRequest && !gss && len(packet) == 4:
			gss = true
			if _, err := c.Conn.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		default:
			return packet, nil
		}
	}
}

// certificate returns the certificate for the client's TLS; nil: none.
func (c *Client) certificate() *tls.Certificate {
	if c.Certificate == nil {
		return nil
	}
	return c.Certificate()
}

// answerSSL answers an SSLRequest, and starts TLS if there is a certificate.
func (c *Client) answerSSL(ctx context.Context) error {
	cert := c.certificate()
	if cert == nil {
		_, err := c.Conn.Write([]byte{'N'})
		return err
	}
	if waiting, _ := socket.Peek(c.raw); waiting {
		return pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "received unencrypted data after SSL request")
	}
	if err := c.Pay(ctx); err != nil {
		return err
	}
	if _, err := c.Conn.Write([]byte{'S'}); err != nil {
		return err
	}
	return c.startTLS(ctx, c.raw, cert, false)
}

// startTLS runs the TLS handshake over below. direct: without an SSLRequest before it.
func (c *Client) startTLS(ctx context.Context, below net.Conn, cert *tls.Certificate, direct bool) error {
	cfg := &tls.Config{
		Certificates:           []tls.Certificate{*cert},
		MinVersion:             tls.VersionTLS12,
		NextProtos:             []string{"postgresql"},
		SessionTicketsDisabled: true,
		// Small first records help browsers that start to render; here they are system calls.
		DynamicRecordSizingDisabled: true,
	}
	if c.CAs != nil {
		if cfg.ClientCAs = c.CAs(); cfg.ClientCAs != nil {
			cfg.ClientAuth, cfg.VerifyConnection = tls.VerifyClientCertIfGiven, c.verify
		}
	}
	conn := tls.Server(&eventloop.Below{Conn: below}, cfg)
	c.Handshaking = true
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	c.Handshaking = false
	c.Waits()
	state := conn.ConnectionState()
	if direct && state.NegotiatedProtocol != "postgresql" {
		return errors.New("direct TLS without ALPN protocol \"postgresql\"")
	}
	c.Conn, c.TLS, c.Binding = conn, &state, scram.ChannelBinding(cert)
	return nil
}

// verify ends the handshake of a client whose certificate is revoked, or has a name that is not plain text. Its chain
// is verified already.
func (c *Client) verify(s tls.ConnectionState) error {
	if len(s.VerifiedChains) == 0 {
		return nil // it gave none
	}
	_, err := clientcert.Name(s.PeerCertificates[0])
	if errors.Is(err, clientcert.ErrManyNames) {
		err = nil // only a rule that compares the name minds
	}
	if err == nil && c.Check != nil {
		err = c.Check(s.VerifiedChains)
	}
	if err != nil {
		c.Refused(err)
	}
	return err
}

// prefixConn returns bytes that were read before, then those of the connection.
type prefixConn struct {
	net.Conn
	prefix []byte
}

func (p *prefixConn) Read(b []byte) (int, error) {
	if len(p.prefix) > 0 {
		n := copy(b, p.prefix)
		p.prefix = p.prefix[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

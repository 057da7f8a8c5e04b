package encryption

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// patience bounds each test.
const patience = 30 * time.Second

// request returns a packet of that code with its length.
func request(code uint32, body ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(b, code), body...)
}

// connected returns both ends of a connection on this machine.
func connected(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	_, _ = client.SetDeadline(time.Now().Add(patience)), server.SetDeadline(time.Now().Add(patience))
	return client, server
}

// certificate returns one that signs itself.
func certificate(t *testing.T, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// result is what became of a negotiation.
type result struct {
	c      *Client
	packet []byte
	err    error
}

// negotiates begins a negotiation at the server's end.
func negotiates(t *testing.T, c *Client, raw net.Conn) <-chan result {
	t.Helper()
	c.Longest, c.Waits = 1000, func() {}
	if c.Pay == nil {
		c.Pay = func(context.Context) error { return nil }
	}
	done := make(chan result, 1)
	go func() {
		packet, err := c.Negotiate(t.Context(), raw)
		done <- result{c, packet, err}
	}()
	return done
}

// answers sends a request and expects one byte.
func answers(t *testing.T, conn net.Conn, b []byte, want byte) {
	t.Helper()
	var got [1]byte
	_, _ = conn.Write(b)
	if _, err := io.ReadFull(conn, got[:]); err != nil || got[0] != want {
		t.Fatalf("answered %q, %v, want %q", got, err, want)
	}
}

// with returns what offers that certificate.
func with(cert *tls.Certificate) func() *tls.Certificate {
	return func() *tls.Certificate { return cert }
}

// Without a certificate each request for encryption is refused once. A second one of the same kind is the packet.
func TestWithoutACertificate(t *testing.T) {
	for name, c := range map[string]*Client{"no function": {}, "none in use": {Certificate: with(nil)}} {
		t.Run(name, func(t *testing.T) {
			conn, server := connected(t)
			done := negotiates(t, c, server)
			answers(t, conn, request(pgwire.SSLRequest), 'N')
			answers(t, conn, request(pgwire.GSSENCRequest), 'N')
			_, _ = conn.Write(request(pgwire.SSLRequest))
			r := <-done
			if r.err != nil || binary.BigEndian.Uint32(r.packet) != pgwire.SSLRequest || r.c.Conn != server || r.c.TLS != nil || r.c.Handshaking {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A cancel request comes without a request for encryption, or after one.
func TestCancelRequest(t *testing.T) {
	conn, server := connected(t)
	done := negotiates(t, &Client{}, server)
	answers(t, conn, request(pgwire.SSLRequest), 'N')
	_, _ = conn.Write(request(pgwire.CancelRequest, 0, 0, 0, 1, 0, 0, 0, 2))
	if r := <-done; r.err != nil || !bytes.Equal(r.packet, request(pgwire.CancelRequest, 0, 0, 0, 1, 0, 0, 0, 2)[4:]) {
		t.Errorf("%+v", r)
	}
}

// The packet comes through TLS, begun by a request or directly.
func TestTLS(t *testing.T) {
	cert := certificate(t, "localhost")
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	settings := &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"postgresql"}}
	for _, direct := range []bool{false, true} {
		conn, server := connected(t)
		paid := 0
		done := negotiates(t, &Client{Certificate: with(cert), Pay: func(context.Context) error { paid++; return nil }}, server)
		if !direct {
			answers(t, conn, request(pgwire.SSLRequest), 'S')
		}
		inside := tls.Client(conn, settings)
		_, _ = inside.Write(request(pgwire.Protocol3, 'x'))
		r := <-done
		if r.err != nil || !bytes.Equal(r.packet, request(pgwire.Protocol3, 'x')[4:]) || r.c.TLS == nil || r.c.Conn == server || len(r.c.Binding) == 0 || r.c.Handshaking || paid != 1 {
			t.Errorf("direct %v: %+v, %d handshakes paid", direct, r, paid)
		}
	}
}

// Bytes behind the request, in clear, would be taken for bytes that came through TLS.
func TestBytesInClear(t *testing.T) {
	conn, server := connected(t)
	_, _ = conn.Write(append(request(pgwire.SSLRequest), request(pgwire.Protocol3)...))
	r := <-negotiates(t, &Client{Certificate: with(certificate(t, "localhost"))}, server)
	if bad, ok := pgwire.AsError(r.err); !ok || bad.Code != pgwire.StateProtocolViolation || r.c.Conn != server {
		t.Errorf("%+v", r)
	}
}

// A client that speaks TLS at once has to name the protocol, or another server's client could be sent here.
func TestDirectWithoutTheProtocol(t *testing.T) {
	conn, server := connected(t)
	done := negotiates(t, &Client{Certificate: with(certificate(t, "localhost"))}, server)
	_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
	if r := <-done; r.err == nil || r.c.TLS != nil || r.c.Conn != server {
		t.Errorf("%+v", r)
	}
}

// The budget is asked before the work of a handshake.
func TestNothingIsLeftToPay(t *testing.T) {
	spent := errors.New("spent")
	conn, server := connected(t)
	done := negotiates(t, &Client{Certificate: with(certificate(t, "localhost")), Pay: func(context.Context) error { return spent }}, server)
	_, _ = conn.Write(request(pgwire.SSLRequest))
	if r := <-done; !errors.Is(r.err, spent) || r.c.Handshaking {
		t.Errorf("by a request: %+v", r)
	}
	conn, server = connected(t)
	done = negotiates(t, &Client{Certificate: with(certificate(t, "localhost")), Pay: func(context.Context) error { return spent }}, server)
	_, _ = conn.Write([]byte{pgwire.FirstTLSByte})
	if r := <-done; !errors.Is(r.err, spent) || !r.c.Handshaking {
		t.Errorf("directly: %+v", r)
	}
}

// A client's certificate that may not be believed any more ends the handshake.
func TestClientCertificate(t *testing.T) {
	cert, own := certificate(t, "localhost"), certificate(t, "alice")
	pool := x509.NewCertPool()
	pool.AddCert(own.Leaf)
	revoked := errors.New("revoked")
	for _, want := range []error{nil, revoked} {
		conn, server := connected(t)
		var heard error
		done := negotiates(t, &Client{
			Certificate: with(cert), CAs: func() *x509.CertPool { return pool }, Refused: func(err error) { heard = err },
			Check: func([][]*x509.Certificate) error { return want },
		}, server)
		inside := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*own}, NextProtos: []string{"postgresql"}})
		_, _ = inside.Write(request(pgwire.Protocol3))
		if r := <-done; !errors.Is(r.err, want) || !errors.Is(heard, want) || r.c.Handshaking != (want != nil) {
			t.Errorf("check says %v: %+v; %v was heard", want, r, heard)
		}
	}
}

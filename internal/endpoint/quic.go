package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
)

// The transports of a stream.
const (
	KindTCP  = "tcp"
	KindQUIC = "quic"
)

// quicClasses are the classes served by QUIC. Its price in processor time is paid where loss makes TCP wait.
var quicClasses = []Class{ClassWAL}

// ErrNoUDP is returned by an endpoint without a UDP socket: it does not serve WAL, or the port was taken.
var ErrNoUDP = errors.New("this node does not use UDP")

const (
	quicIdle      = 10 * time.Second
	quicKeepAlive = 3 * time.Second
	quicLinger    = 500 * time.Millisecond // for the peer to read the end of a stream
	quicGreeting  = 1                      // the dialling side's first byte: a stream becomes visible when something is sent on it
)

// quicPort is the UDP socket with the number of the TCP port. Accepted and dialled connections share it.
type quicPort struct {
	transport *quic.Transport
	listener  *quic.Listener
	socket    *net.UDPConn
}

func (q *quicPort) close() {
	_ = q.listener.Close()
	_ = q.transport.Close()
	_ = q.socket.Close()
}

func quicConfig(handshake time.Duration) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout: handshake, MaxIdleTimeout: quicIdle, KeepAlivePeriod: quicKeepAlive, EnableDatagrams: true,
		MaxIncomingStreams: 1, MaxIncomingUniStreams: -1,
		InitialStreamReceiveWindow: 4 << 20, InitialConnectionReceiveWindow: 4 << 20,
		MaxStreamReceiveWindow: 16 << 20, MaxConnectionReceiveWindow: 16 << 20,
	}
}

func (e *Endpoint) listenQUIC(tcp net.Addr) (*quicPort, error) {
	// Otherwise the library prints to standard error that the kernel's limit of a socket's buffer is low.
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	at, ok := tcp.(*net.TCPAddr)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: at.Port, Zone: at.Zone})
	if err != nil {
		return nil, err
	}
	// A source address counts only after an answer from it, so that this node cannot be made to flood another one.
	t := &quic.Transport{Conn: socket, VerifySourceAddress: func(net.Addr) bool { return true }, ConnContext: e.admitQUIC}
	l, err := t.Listen(e.memberTLS(quicClasses), quicConfig(e.cfg.HandshakeTimeout))
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &quicPort{t, l, socket}, nil
}

// handshakePlace is the key of a connection's place among those that have not authenticated yet, in its context.
type handshakePlace struct{}

// admitQUIC gives a connection whose source address is proven a place for its handshake. It keeps the place until
// identify has verified the peer, or until its end.
func (e *Endpoint) admitQUIC(ctx context.Context, from *quic.ClientInfo) (context.Context, error) {
	hs := e.handshakes.admit(from.RemoteAddr, nil)
	if hs == nil {
		return nil, errors.New("too many connections are being opened")
	}
	context.AfterFunc(ctx, hs.Leave)
	return context.WithValue(ctx, handshakePlace{}, hs), nil
}

// serveQUIC accepts until ctx is done or the socket is closed.
func (e *Endpoint) serveQUIC(ctx context.Context, wg *sync.WaitGroup) {
	for {
		qc, err := e.quic.listener.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil {
				e.log.Error("UDP is served no longer", "error", err)
			}
			return
		}
		wg.Go(func() { e.serveQUICConn(ctx, qc) })
	}
}

func (e *Endpoint) serveQUICConn(ctx context.Context, qc *quic.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newQUICStream(qc)
	c := &Conn{Conn: s, raw: quicRaw{s}, e: e, inbound: true, since: time.Now(), cancel: cancel}
	defer s.abort()
	defer recovered(e.log, c)
	cs := qc.ConnectionState().TLS
	c.class = classOf(cs.NegotiatedProtocol)
	err := e.identify(c, cs)
	if err == nil && !slices.Contains(quicClasses, c.class) {
		err = fmt.Errorf("class %q is not served by QUIC", c.class)
	}
	if err == nil {
		err = s.accept(ctx, e.cfg.HandshakeTimeout)
	}
	if hs, ok := qc.Context().Value(handshakePlace{}).(*admission.Place); ok {
		hs.Leave()
	}
	if err != nil {
		e.log.Debug("connection refused", "remote", qc.RemoteAddr().String(), "reason", err)
		return
	}
	e.serveAuthenticated(ctx, c)
}

func (e *Endpoint) dialQUIC(ctx context.Context, addr string, class Class, want ag.ReplicaID) (*Conn, error) {
	e.mu.Lock()
	port := e.quic
	e.mu.Unlock()
	if port == nil {
		return nil, ErrNoUDP
	}
	if !slices.Contains(quicClasses, class) {
		return nil, fmt.Errorf("class %q is not served by QUIC", class)
	}
	to, err := resolveUDP(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &Conn{e: e, class: class, since: time.Now()}
	qc, err := port.transport.Dial(ctx, to, e.clientTLS(c, want), quicConfig(e.cfg.HandshakeTimeout))
	if err != nil {
		return nil, quicError(err)
	}
	s := newQUICStream(qc)
	c.Conn, c.raw = s, quicRaw{s}
	return c, e.conclude(ctx, c, func() error { return s.open(ctx) })
}

func resolveUDP(ctx context.Context, addr string) (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	return &net.UDPAddr{IP: ips[0].Unmap().AsSlice(), Port: n, Zone: ips[0].Zone()}, nil
}

// quicStream is a QUIC connection with its only stream, as a net.Conn.
type quicStream struct {
	conn   *quic.Conn
	stream *quic.Stream

	// writing is taken for a Write, and to close the stream: the library does not support both at once. A Write that
	// waits for room while the stream is closed would wait for ever, even after the end of the connection.
	writing chan struct{}
}

func newQUICStream(conn *quic.Conn) *quicStream {
	return &quicStream{conn: conn, writing: make(chan struct{}, 1)}
}

func (s *quicStream) open(ctx context.Context) (err error) {
	if s.stream, err = s.conn.OpenStreamSync(ctx); err == nil {
		_, err = s.stream.Write([]byte{quicGreeting})
	}
	return quicError(err)
}

func (s *quicStream) accept(ctx context.Context, patience time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.stream, err = s.conn.AcceptStream(ctx); err != nil {
		return err
	}
	_ = s.stream.SetDeadline(time.Now().Add(patience))
	var b [1]byte
	if _, err := io.ReadFull(s.stream, b[:]); err != nil {
		return err
	}
	if b[0] != quicGreeting {
		return errors.New("no greeting")
	}
	return nil
}

// quicError gives errors the same meaning as with TCP: net.ErrClosed means that this side closed the connection.
func quicError(err error) error {
	var app *quic.ApplicationError
	switch {
	case err == nil || err == io.EOF: //nolint:errorlint // the stream returns it unwrapped
		return err
	case errors.As(err, &app) && app.Remote:
		return io.EOF
	case errors.As(err, &app):
		return net.ErrClosed
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return fmt.Errorf("quic: %v", err) //nolint:errorlint // the library's errors all unwrap to net.ErrClosed
}

func (s *quicStream) Read(p []byte) (int, error) {
	n, err := s.stream.Read(p)
	return n, quicError(err)
}

func (s *quicStream) Write(p []byte) (int, error) {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	n, err := s.stream.Write(p)
	return n, quicError(err)
}

// CloseWrite ends this direction once a Write under way has returned.
func (s *quicStream) CloseWrite() error {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	return s.stream.Close()
}

// Close ends the stream and gives the peer a moment to read the data under way. A Write under way has the same moment
// to end. Then the connection is cut, which ends that Write, too.
func (s *quicStream) Close() error {
	defer s.abort()
	if s.stream == nil {
		return nil
	}
	t := time.NewTimer(quicLinger)
	defer t.Stop()
	select {
	case s.writing <- struct{}{}:
	case <-s.conn.Context().Done():
		return nil
	case <-t.C:
		return nil
	}
	err := s.stream.Close()
	<-s.writing
	if err != nil {
		return nil //nolint:nilerr // it was cancelled: nothing is under way
	}
	select {
	case <-s.conn.Context().Done():
	case <-t.C:
	}
	return nil
}

func (s *quicStream) abort() { _ = s.conn.CloseWithError(0, "") }

func (s *quicStream) LocalAddr() net.Addr                { return s.conn.LocalAddr() }
func (s *quicStream) RemoteAddr() net.Addr               { return s.conn.RemoteAddr() }
func (s *quicStream) SetDeadline(t time.Time) error      { return s.stream.SetDeadline(t) }
func (s *quicStream) SetReadDeadline(t time.Time) error  { return s.stream.SetReadDeadline(t) }
func (s *quicStream) SetWriteDeadline(t time.Time) error { return s.stream.SetWriteDeadline(t) }

// quicRaw is the connection under a stream; closing it cuts the stream.
type quicRaw struct{ *quicStream }

func (r quicRaw) Close() error {
	r.abort()
	return nil
}

package listener

import (
	"crypto/tls"
	"io"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/listener/socket"
)

// loopConn is the connection below a client's TLS. On a loop it uses the loop's side: a read that would have to wait
// returns a temporary error there, after which TLS can be called again.
type loopConn struct {
	net.Conn
	side *side // nil: no loop carries the session yet
	dry  bool  // the last read got less than it asked for: nothing more until the next event
}

// errLater is that temporary error.
var errLater net.Error = laterError{}

type laterError struct{}

func (laterError) Error() string   { return "nothing to read at present" }
func (laterError) Timeout() bool   { return false }
func (laterError) Temporary() bool { return true }

func (u *loopConn) Read(b []byte) (int, error) {
	if u.side == nil {
		return u.Conn.Read(b)
	}
	if u.dry || len(b) == 0 {
		return 0, errLater
	}
	n, err := socket.Receive(u.side.fd, b)
	switch {
	case socket.WouldWait(err):
		u.dry = true
		return 0, errLater
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	u.dry = n < len(b)
	return n, nil
}

func (u *loopConn) Write(b []byte) (int, error) {
	if u.side == nil {
		return u.Conn.Write(b)
	}
	if err := u.side.send(b, u.side.p.mayQueue()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close does nothing once a loop has the connection. The same is true of the deadlines.
func (u *loopConn) Close() error {
	if u.side == nil {
		return u.Conn.Close()
	}
	return nil
}

func (u *loopConn) SetDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetDeadline(t)
	}
	return nil
}

func (u *loopConn) SetReadDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetReadDeadline(t)
	}
	return nil
}

func (u *loopConn) SetWriteDeadline(t time.Time) error {
	if u.side == nil {
		return u.Conn.SetWriteDeadline(t)
	}
	return nil
}

// fromTLS carries decrypted bytes, as far as they may be read now. epoll does not report bytes that stay in TLS:
// updateInterest looks for them.
func (p *loopSession) fromTLS(events bool) {
	if events {
		p.tlsConn.dry = false
	}
	buf := p.loop.buf
	for range fairShare {
		if !p.readsClient() {
			break
		}
		n, err := p.tls.Read(buf[:tlsRead])
		if err == errLater { //nolint:errorlint // our own
			p.tlsPending = false
			return
		}
		p.received(buf[:n], err)
	}
	p.tlsPending = p.phase != closed
}

// tlsRead is the longest plaintext of one record. fairShare is how many records a session may bring while others
// wait.
const (
	tlsRead   = 16 << 10
	fairShare = 4
)

// toClient writes to the client, through its TLS if there is one.
func (p *loopSession) toClient(b []byte) error {
	if p.tls == nil {
		return p.client.send(b, p.mayQueue())
	}
	_, err := p.tls.Write(b)
	return err
}

// tlsOf returns the TLS of a client on a loopable connection; nil if it is plain.
func (x *session) tlsOf() *tls.Conn {
	c, _ := x.client.(*tls.Conn)
	return c
}

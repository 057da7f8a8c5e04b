package eventloop

import (
	"io"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/listener/socket"
)

// Below is the connection below a client's TLS. On a loop it uses the loop's writer: a read that would have to wait
// returns ErrLater there, after which TLS can be called again.
type Below struct {
	net.Conn
	w      *Writer     // nil: no loop carries the connection yet
	queues func() bool // whether writes may wait for the end of the turn
	dry    bool        // the last read got less than it asked for: nothing more until the next event
}

// ErrLater is the temporary error of a read for which nothing has arrived.
var ErrLater net.Error = laterError{}

type laterError struct{}

func (laterError) Error() string   { return "nothing to read at present" }
func (laterError) Timeout() bool   { return false }
func (laterError) Temporary() bool { return true }

// Carry has the connection use that writer's socket. queues tells whether writes may wait for the end of the turn.
func (u *Below) Carry(w *Writer, queues func() bool) { u.w, u.queues = w, queues }

// Leave has the connection use conn, off the loop.
func (u *Below) Leave(conn net.Conn) { *u = Below{Conn: conn} }

// Refill notes that something may have arrived.
func (u *Below) Refill() { u.dry = false }

func (u *Below) Read(b []byte) (int, error) {
	if u.w == nil {
		return u.Conn.Read(b)
	}
	if u.dry || len(b) == 0 {
		return 0, ErrLater
	}
	n, err := socket.Receive(u.w.FD, b)
	switch {
	case socket.WouldWait(err):
		u.dry = true
		return 0, ErrLater
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	u.dry = n < len(b)
	return n, nil
}

func (u *Below) Write(b []byte) (int, error) {
	if u.w == nil {
		return u.Conn.Write(b)
	}
	if err := u.w.Send(b, u.queues()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close does nothing once a loop has the connection. The same is true of the deadlines.
func (u *Below) Close() error {
	if u.w == nil {
		return u.Conn.Close()
	}
	return nil
}

// SetDeadline is that of the connection, off the loop.
func (u *Below) SetDeadline(t time.Time) error {
	if u.w == nil {
		return u.Conn.SetDeadline(t)
	}
	return nil
}

// SetReadDeadline is that of the connection, off the loop.
func (u *Below) SetReadDeadline(t time.Time) error {
	if u.w == nil {
		return u.Conn.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline is that of the connection, off the loop.
func (u *Below) SetWriteDeadline(t time.Time) error {
	if u.w == nil {
		return u.Conn.SetWriteDeadline(t)
	}
	return nil
}

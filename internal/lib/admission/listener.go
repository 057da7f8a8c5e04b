package admission

import (
	"net"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Listener accepts connections that have a place. It never waits for one, so that no caller keeps those of the others
// waiting: a connection without a place is closed at once.
type Listener struct {
	net.Listener
	Places *Places
}

// Accept returns the next connection with a place, which its Close gives back.
func (l Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if p := l.Places.Enter(Key(c.RemoteAddr()), boottime.Now(), func() { _ = c.Close() }); p != nil {
			return &placed{c, p}, nil
		}
		_ = c.Close()
	}
}

// placed is a connection with a place.
type placed struct {
	net.Conn
	place *Place
}

// Close closes the connection and gives its place back.
func (c *placed) Close() error {
	c.place.Leave()
	return c.Conn.Close()
}

package api

import (
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Bounds for connections to the HTTP port, which takes requests from any client. One that sends nothing ends after
// idleHTTP. A newcomer that finds no place takes the oldest one of its own address, or of the address with the most, or
// is closed at once; see admission.Places.
const (
	maxHTTPConns  = 256
	eachHTTPConns = 64 // of one address
	graceHTTP     = time.Second
	idleHTTP      = 10 * time.Second
)

// fairListener accepts connections that have a place. It never waits for one, so that no caller keeps the health checks
// of the others waiting.
type fairListener struct {
	net.Listener
	places *admission.Places
}

func (l fairListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if p := l.places.Enter(admission.Key(c.RemoteAddr()), boottime.Now(), func() { _ = c.Close() }); p != nil {
			return &placed{c, p}, nil
		}
		_ = c.Close()
	}
}

// placed is a connection with a place, which Close gives back.
type placed struct {
	net.Conn
	place *admission.Place
}

func (c *placed) Close() error {
	c.place.Leave()
	return c.Conn.Close()
}

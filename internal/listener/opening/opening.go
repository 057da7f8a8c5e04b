// Package opening opens a session of PostgreSQL: what is sent first, and what PostgreSQL answers until the session is
// ready.
//
// It must not know clients, or how a server is reached.
package opening

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// authenticationOK is the kind of authentication request that asks for nothing more.
const authenticationOK = 0

// Hello describes for whom a connection to a replica's PostgreSQL is opened. The session's own startup packet
// follows on the connection; nothing of the hello has to be sent.
type Hello struct {
	User       string    // empty for a cancel request
	Database   string    // without any @ro suffix
	ClientAddr string    // host:port of the client, or "local"
	Intent     ag.Intent // the client's intent
	Epoch      ag.Epoch  // of the routes by which the replica was chosen
	Cancel     bool      // the connection carries one CancelRequest packet and nothing else
}

// Greeting is what PostgreSQL sends between AuthenticationOk and the first ReadyForQuery, with the place of its
// cancel key.
type Greeting struct {
	Bytes []byte
	KeyAt int     // offset of pid and secret in bytes
	Key   [8]byte // pid and secret
}

// PID returns the process of the backend.
func (g Greeting) PID() uint32 { return binary.BigEndian.Uint32(g.Key[:]) }

// Copy returns the greeting for one client, whose key replaces the backend's in it.
func (g Greeting) Copy() Greeting {
	g.Bytes = bytes.Clone(g.Bytes)
	return g
}

// Start sends a startup packet to the server of that replica and reads up to ReadyForQuery.
func Start(conn net.Conn, in *bufio.Reader, packet []byte, id ag.ReplicaID) (g Greeting, err error) {
	if len(packet) > 10_000 {
		return g, pgwire.Fatal("malformed", pgwire.StateProtocolViolation, "the startup packet is too long")
	}
	if _, err := conn.Write(packet); err != nil {
		return g, fmt.Errorf("start a session on replica %s: %w", id, err)
	}
	for len(g.Bytes) < pgwire.MaxControl {
		typ, body, err := pgwire.ReadMessage(in, pgwire.MaxControl)
		if err != nil {
			return g, fmt.Errorf("start a session on replica %s: %w", id, err)
		}
		switch typ {
		case 'R':
			if len(body) < 4 || binary.BigEndian.Uint32(body) != authenticationOK {
				return g, fmt.Errorf("start a session on replica %s: its private socket asks for a password", id)
			}
			continue
		case 'E':
			return g, backendRefusal(id, body)
		case 'K':
			if len(body) != 8 {
				return g, fmt.Errorf("start a session on replica %s: cancel key of %d bytes", id, len(body))
			}
			copy(g.Key[:], body)
			g.KeyAt = len(g.Bytes) + 5
		}
		g.Bytes = pgwire.AppendMessage(g.Bytes, typ, body)
		if typ == 'Z' {
			if g.KeyAt == 0 {
				return g, fmt.Errorf("start a session on replica %s: no cancel key", id)
			}
			return g, nil
		}
	}
	return g, fmt.Errorf("start a session on replica %s: the greeting is too long", id)
}

// backendRefusal returns PostgreSQL's own refusal as an error for the client.
func backendRefusal(id ag.ReplicaID, body []byte) error {
	code := pgwire.ErrorField(body, 'C')
	if code == pgwire.StateCannotConnect { // starting up, shutting down, in recovery: temporary
		return fmt.Errorf("start a session on replica %s: %s", id, pgwire.ErrorField(body, 'M'))
	}
	return &pgwire.Error{
		Reason: "postgresql", Code: code, Message: pgwire.ErrorField(body, 'M'),
		Detail: pgwire.ErrorField(body, 'D'), Hint: pgwire.ErrorField(body, 'H'),
	}
}

package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/opening"
)

// Kind is what backends must have in common to stand for each other.
type Kind struct {
	Packet      string // the startup packet
	Fingerprint string
	Epoch       ag.Epoch
}

// Backend is a session of the local server between its start and a client, or between two clients.
type Backend struct {
	Kind
	Replica     ag.ReplicaID
	Hello       opening.Hello
	NotReusable bool // may not serve a second client
	Used        bool // has served a client
	Conn        net.Conn
	Greeting    opening.Greeting
	Generation  uint64 // generation of the pool when it was opened
	Born        time.Time
	since       time.Time // when it entered the pool
}

// wake has the server answer an empty query, so that its idle timers start again.
func (b *Backend) wake(within time.Duration) bool { return b.Ask("", within) == nil }

// Ask sends a query without rows and reads its answer.
func (b *Backend) Ask(query string, within time.Duration) error {
	_ = b.Conn.SetDeadline(time.Now().Add(within))
	defer func() { _ = b.Conn.SetDeadline(time.Time{}) }()
	if _, err := b.Conn.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, query))); err != nil {
		return err
	}
	var answer []byte
	for piece := make([]byte, 256); ; {
		n, err := b.Conn.Read(piece)
		if err != nil {
			return err
		}
		answer = append(answer, piece[:n]...)
		switch whole, expected := AnsweredIdle(answer); {
		case !expected, len(answer) > pgwire.MaxControl:
			return errors.New("unexpected answer")
		case whole:
			return nil
		}
	}
}

// AnsweredIdle checks the answer to a query without rows. whole: it is complete, the session is idle, and nothing
// follows. expected: it has no message that does not belong there.
func AnsweredIdle(b []byte) (whole, expected bool) {
	for len(b) >= 5 {
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		switch {
		case n < 5 || n > pgwire.MaxControl:
			return false, false
		case len(b) < n:
			return false, true
		case b[0] == 'Z':
			ok := len(b) == n && string(b[5:n]) == "I"
			return ok, ok
		case bytes.IndexByte([]byte("CISNA"), b[0]) < 0:
			return false, false
		}
		b = b[n:]
	}
	return false, true
}

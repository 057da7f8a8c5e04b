package giveback

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// A session goes back in three messages of that type. The first has the version of the exchange, the second the state,
// whose texts may be in any encoding. The client's node then ends its direction of the stream, and gets what was not
// forwarded in the third.
const (
	Message = continuity.GiveBack
	Version = "2"
)

// Bounds of the exchange: of what was not forwarded, in bytes, and of each end's time.
const (
	maxGivenBack = 4 << 20
	within       = 2 * time.Second
)

// Give gives a session back to the listener of its client, at the other end of conn. rest is what has come from there
// and was not forwarded; what still comes is added to it. The other end notices a failure. The caller closes conn.
func Give(conn net.Conn, st *continuity.State, rest []byte) {
	_ = conn.SetDeadline(time.Now().Add(within))
	var state bytes.Buffer
	if gob.NewEncoder(&state).Encode(st) != nil {
		return
	}
	b := pgwire.AppendMessage(nil, Message, []byte(Version))
	if _, err := conn.Write(pgwire.AppendMessage(b, Message, state.Bytes())); err != nil {
		return
	}
	more, err := io.ReadAll(io.LimitReader(conn, maxGivenBack))
	if rest = append(rest, more...); err == nil && len(rest) < maxGivenBack {
		_, _ = conn.Write(pgwire.AppendMessage(nil, Message, rest))
	}
}

// Take takes a session that the node at the other end of conn gives back. The first message has come, and given behind
// it; in reads what follows. asked is what this node may have asked the session and the other one has perhaps not
// forwarded; nil: nothing. Take returns what was not forwarded of the client's bytes, without that.
func Take(conn net.Conn, in io.Reader, given, asked []byte) (st *continuity.State, rest []byte, err error) {
	socket.HalfClose(conn)
	_ = conn.SetDeadline(time.Now().Add(within))
	in = io.MultiReader(bytes.NewReader(given), in)
	read := func() ([]byte, error) {
		typ, body, err := pgwire.ReadMessage(in, maxGivenBack)
		if err == nil && typ != Message {
			err = fmt.Errorf("message %q", typ)
		}
		return body, err
	}
	body, err := read()
	if err != nil {
		return nil, nil, fmt.Errorf("read its state: %w", err)
	}
	st = new(continuity.State)
	if err := gob.NewDecoder(bytes.NewReader(body)).Decode(st); err != nil {
		return nil, nil, fmt.Errorf("read its state: %w", err)
	}
	if rest, err = read(); err != nil {
		return nil, nil, fmt.Errorf("read what was not forwarded: %w", err)
	}
	if asked != nil {
		ours := false
		if rest, ours = bytes.CutPrefix(rest, asked); !ours {
			return nil, nil, errors.New("a question to it was lost")
		}
	}
	return st, rest, nil
}

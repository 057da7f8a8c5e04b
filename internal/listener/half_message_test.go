package listener

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// A client that has got half a message when its server dies gets the end of its stream and nothing else: nothing that
// it could take for the rest of the message. The session counts as one that could not be continued for that.
func TestServerDiesWithinAMessage(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		for _, text := range []string{"select repeat('x', 30000000)", "copy (select repeat('x', 30000000)) to stdout", "do $$begin raise '%', repeat('x', 30000000); end$$"} {
			conn := g.mustDial(g.rw, "user=postgres "+with)
			g.known()
			g.unasked()
			c := conn.PgConn().Conn()
			must(t, c.SetDeadline(time.Now().Add(time.Minute)))
			_, err := c.Write(pgwire.AppendMessage(nil, 'Q', append([]byte(text), 0)))
			must(t, err)
			begun := make([]byte, 1000)
			_, err = io.ReadFull(c, begun)
			must(t, err)
			epoch := g.routes.Load().Epoch
			before := g.srv.Stats().Unmoved[halfMessage]
			g.serverDies()
			g.succeeds()
			rest, err := io.ReadAll(c)
			if err != nil {
				t.Errorf("%s: the stream ends with %v", text, err)
			}
			if all := append(begun, rest...); !endsWithin(all) || bytes.Contains(all, []byte("FATAL")) {
				t.Errorf("%s: the client gets %d bytes, at the end %q", text, len(all), all[max(0, len(all)-200):])
			}
			waitFor(t, "it is counted", func() bool { return g.srv.Stats().Unmoved[halfMessage] == before+1 })
			waitFor(t, "its session has ended", func() bool { return len(g.srv.Sessions()) == 0 })
			back := *g.routes.Load()
			back.Epoch, back.Primary = epoch+2, "a"
			g.publish(&back)
			g.srv.CloseEpoch(back.Epoch, "the primary has changed")
		}
	})
}

// endsWithin reports whether a stream of messages ends within one.
func endsWithin(b []byte) bool {
	for len(b) >= 5 {
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		if n > len(b) {
			return true
		}
		b = b[n:]
	}
	return len(b) > 0
}

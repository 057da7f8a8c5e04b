package pool

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Use is what a client has done with its backend, as far as that decides whether the backend may serve another client
// of the same kind. DISCARD ALL removes most of the state that a session leaves, but not all. A setting with a dot is
// an empty string afterwards where it was NULL, and libraries and languages keep state in the process. So a backend is
// reused only if all its client sent was queries and transactions that call nothing but known functions. Functions that
// a view, a trigger or an operator calls are not seen, as docs/connecting.md says.
type Use struct {
	// Backend describes how the backend may be offered; nil: it may not.
	Backend *Backend
	tainted atomic.Bool
}

// Offer notes that a backend with that greeting may be offered after its client.
func (u *Use) Offer(b *Backend, g opening.Greeting) {
	if b.Conn == nil { // opened for this session
		b.Greeting, b.Born = g.Copy(), time.Now()
	}
	u.Backend = b
}

// Taint notes that the backend may not serve another client.
func (u *Use) Taint() { u.tainted.Store(true) }

// Clean reports whether it may.
func (u *Use) Clean() bool { return u.Backend != nil && !u.tainted.Load() }

// Request follows a request of the client. text is a part of the message's body: its beginning if begun is true, its
// end if whole is. alone reports whether it begins with a statement that needs a database which nobody is connected to.
func (u *Use) Request(typ byte, text []byte, begun, whole bool) (alone bool) {
	switch typ {
	case 'Q', 'P':
		if typ == 'P' && begun {
			_, text, _ = bytes.Cut(text, []byte{0})
		}
		alone = begun && stmt.NeedsDatabaseAlone(text)
		if !u.Clean() {
			return alone
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		if !begun || !whole || !stmt.OnlyQueries(text) { // a long text is not checked in pieces
			u.Taint()
		}
	case 'B', 'E', 'D', 'C', 'S', 'H', 'X':
	default:
		u.Taint()
	}
	return alone
}

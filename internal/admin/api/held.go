package api

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// sessionHeader has the number of a statement in its session, from 1 on.
const sessionHeader = "Coterie-Session"

// keptHTTP is how long a connection to the private socket may be idle: a session at a terminal waits for its typist.
const keptHTTP = 24 * time.Hour

// Held is what the node keeps for a connection to the private socket: a session of the console.
type Held struct {
	Value any // nil: nothing yet
	asked int // statements so far
}

type (
	connKey    struct{} // has the Held of a connection
	sessionKey struct{} // has it where the request is a statement of a session
)

func withHeld(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &Held{})
}

// SessionOf returns what is kept for the session that a request belongs to; nil: it is a statement of its own.
func SessionOf(ctx context.Context) *Held {
	h, _ := ctx.Value(sessionKey{}).(*Held)
	return h
}

// inSession tells requests of a session apart. One that its connection does not know is refused: settings and a
// transaction on which the statement may depend are gone. A connection has one request at a time.
func inSession(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h, _ := r.Context().Value(connKey{}).(*Held)
		number := r.Header.Get(sessionHeader)
		switch {
		case number == "" || h == nil:
		case number != strconv.Itoa(h.asked+1):
			write(w, http.StatusConflict, failure{Kind: fail.Unhealthy, Message: "the session has ended, as the agent was restarted or the session was idle for a day: its settings and its transaction are gone, and the statement was not run; run it again"})
			return
		default:
			h.asked++
			r = r.WithContext(context.WithValue(r.Context(), sessionKey{}, h))
		}
		next(w, r)
	}
}

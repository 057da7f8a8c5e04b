package instead

import (
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Message is the message at the end of a chunk that another one goes in place of, by the lengths of both.
type Message struct{ Of, Out int }

// OfClient returns how many of the client's bytes at the end of the chunk are among the last n bytes of what went in
// its place. Where that cannot be told they are too few: a request that went is then never taken for one that did not.
func (r Message) OfClient(n int) int { return min(n, r.Of) + max(0, n-r.Out) }

// Altered is the last piece of the client's bytes that went with a question before it, or with other bytes in its
// place.
type Altered struct {
	of, out int // its length, and that of what went
	end     Message
	since   int  // bytes that went after it
	again   bool // there was one before it
}

// Goes notes that out bytes go for the next n bytes of the client, of which end was refused.
func (a *Altered) Goes(n, out int, end Message) {
	if a.since += n; out != n || end != (Message{}) {
		*a = Altered{of: n, out: out, end: end, again: a.out > 0}
	}
}

// OfClient returns how many bytes of the client are among the last n bytes that were to go; too few if an earlier piece
// is among them.
func (a *Altered) OfClient(n int) int {
	piece := min(max(0, n-a.since), a.out)
	if a.again {
		n = min(n, a.since+a.out)
	}
	return n - piece + min(a.end.OfClient(piece), a.of)
}

// Refusing returns a Query, or a Parse of that name, that fails with the refusal.
func Refusing(typ byte, name []byte, bad *stmt.Refusal) []byte {
	text := fmt.Sprintf("DO LANGUAGE plpgsql $coterie$ BEGIN RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = %s, DETAIL = %s, HINT = %s; END $coterie$",
		literal(bad.Message), literal(bad.Detail), literal(bad.Hint))
	var body []byte
	if typ == 'P' {
		body = append(append(body, name...), 0)
	}
	body = pgwire.AppendCString(body, text)
	if typ == 'P' {
		body = append(body, 0, 0) // no types of parameters
	}
	return pgwire.AppendMessage(nil, typ, body)
}

// literal returns a string constant with that text, in which it leaves out signs that other settings give a meaning.
func literal(text string) string {
	return "'" + strings.NewReplacer("'", "''", `\`, "", "$", "").Replace(text) + "'"
}

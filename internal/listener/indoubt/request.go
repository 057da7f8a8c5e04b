package indoubt

import (
	"bytes"
	"encoding/binary"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// maxRequest bounds a request that is recognised, in bytes. Drivers need less than a hundred.
const maxRequest = 512

// headerLength is the length of a message's header in bytes.
const headerLength = 5

// Done returns the answer to the request with which b begins, if that is whole and is exactly one COMMIT that was
// executed: a Query; Parse, Bind and Execute of the unnamed statement and a Sync; or the same without Parse of a
// prepared statement that commits, as commits tells by its name. It may be COMMIT AND CHAIN, but for a prepared
// statement. nil: it is anything else.
func Done(b []byte, commits func(name []byte) bool) []byte {
	typ, body, rest := next(b)
	switch typ {
	case 'Q':
		commits, chains := stmt.Commits(body)
		if !commits {
			return nil
		}
		return ready(completed(nil), chains)
	case 'P':
		name, text, ok := bytes.Cut(body, []byte{0})
		commits, chains := stmt.Commits(text)
		if _, types, _ := bytes.Cut(text, []byte{0}); !ok || len(name) > 0 || !commits || string(types) != "\x00\x00" {
			return nil
		}
		if out := extended(pgwire.AppendMessage(nil, '1', nil), rest, nil); out != nil {
			return ready(out, chains)
		}
	case 'B', 'D':
		if name := prepared(typ, body); len(name) > 0 && commits(name) {
			if out := extended(nil, b, name); out != nil {
				return ready(out, false)
			}
		}
	}
	return nil
}

// prepared returns the name of the statement of a Bind to the unnamed portal, or of a Describe; nil: it is of none.
func prepared(typ byte, body []byte) []byte {
	if len(body) == 0 || typ == 'B' && body[0] != 0 || typ == 'D' && body[0] != 'S' {
		return nil
	}
	name, _, _ := bytes.Cut(body[1:], []byte{0})
	return name
}

// extended returns the answer to a request whose first messages were answered by out, without its end, if b has nothing
// but the rest of the execution of a statement, whose name is given.
func extended(out, b, name []byte) []byte {
	bound, executed := false, false
	for {
		typ, body, rest := next(b)
		switch {
		case typ == 'B' && !bound && bindsNothing(body, name):
			out, bound = pgwire.AppendMessage(out, '2', nil), true
		case typ == 'D' && !executed && len(body) == len(name)+2 && body[0] == 'S' && bytes.Equal(body[1:], append(name[:len(name):len(name)], 0)):
			out = pgwire.AppendMessage(pgwire.AppendMessage(out, 't', []byte{0, 0}), 'n', nil)
		case typ == 'D' && bound && !executed && string(body) == "P\x00":
			out = pgwire.AppendMessage(out, 'n', nil)
		case typ == 'E' && bound && !executed && bytes.HasPrefix(body, []byte{0}):
			out, executed = completed(out), true
		case typ == 'S' && executed:
			return out
		default:
			return nil
		}
		b = rest
	}
}

// bindsNothing reports whether a Bind is of that statement to the unnamed portal, with the number of formats but
// without parameters: PostgreSQL refuses a COMMIT with some.
func bindsNothing(body, name []byte) bool {
	portal, rest, _ := bytes.Cut(body, []byte{0})
	of, formats, _ := bytes.Cut(rest, []byte{0})
	if len(formats) == 0 || formats[0] != 0 { // 256 formats, or none at all
		return false
	}
	switch formats = formats[1:]; {
	case len(portal) > 0 || len(formats) == 0 || !bytes.Equal(of, name):
		return false
	case formats[0] == 0:
		return bytes.HasPrefix(formats[1:], []byte{0, 0})
	}
	return formats[0] == 1 && len(formats) >= 5 && formats[3] == 0 && formats[4] == 0
}

func completed(b []byte) []byte { return pgwire.AppendMessage(b, 'C', []byte("COMMIT\x00")) }

// ready appends the end of an answer. chains means that another transaction has begun.
func ready(b []byte, chains bool) []byte {
	if chains {
		return pgwire.AppendMessage(b, 'Z', []byte{'T'})
	}
	return pgwire.AppendMessage(b, 'Z', []byte{'I'})
}

// next returns the message with which b begins; the type is 0 if it is not whole, or too long.
func next(b []byte) (typ byte, body, rest []byte) {
	if len(b) < headerLength {
		return 0, nil, nil
	}
	n := binary.BigEndian.Uint32(b[1:])
	if n < 4 || n > maxRequest || int(n)+1 > len(b) {
		return 0, nil, nil
	}
	return b[0], b[headerLength : n+1], b[n+1:]
}

package gate

import (
	"bytes"

	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// HotStandby is the parameter by which PostgreSQL 14 and later report whether the server is in recovery.
const HotStandby = "in_hot_standby"

// Recovery is what the answers of a session show of its server's recovery. The zero value is a server that was in none
// when the session began, or that does not tell.
type Recovery struct{ On bool }

// Greeted notes the greeting of a session.
func (r *Recovery) Greeted(greeting []byte) {
	r.On = bytes.Contains(greeting, []byte(HotStandby+"\x00on\x00"))
}

// Over reports whether an answer shows that recovery has ended on a server that was in recovery when the session began.
// Such a session may write since, with no right of the node behind it. PostgreSQL reports the end before the
// ReadyForQuery of the first request after it; a tag that no standby sends may come earlier.
func (r *Recovery) Over(typ byte, body []byte) bool {
	switch typ {
	case 'S':
		name, value, _ := bytes.Cut(body, []byte{0})
		if string(name) != HotStandby {
			return false
		}
		was := r.On
		r.On = string(bytes.TrimRight(value, "\x00")) == "on"
		return was && !r.On
	case 'C':
		return r.On && stmt.OnlyOnPrimary(stmt.CommandTag(body))
	}
	return false
}

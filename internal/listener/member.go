package listener

import (
	"bytes"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// This file keeps streams of logical replication from passing for a member. PostgreSQL counts the acknowledgements of any walsender whose
// application_name is in synchronous_standby_names, a logical one's too, and takes the name as it is when START_REPLICATION comes: from
// the startup packet, a default of the role or the database, or whatever statement has set it since.

// posesAsMember looks at a ParameterStatus. PostgreSQL reports application_name before the ReadyForQuery of whatever has changed it.
func (x *session) posesAsMember(status []byte) bool {
	name, value, _ := bytes.Cut(status, []byte{0})
	return x.replicates && strings.EqualFold(string(name), "application_name") && startup.IsMemberName(string(value))
}

// checkGreeting looks at the name that the session has begun with: a default of its role or database may have given it.
func (x *session) checkGreeting(g greeting) *pgwire.Error {
	var f pgwire.Framer
	var bad *pgwire.Error
	_ = f.Scan(g.bytes, func(typ byte, body []byte) { // it was put together here
		if typ == 'S' && x.posesAsMember(body) {
			bad = startup.RefuseMember()
		}
	})
	return bad
}

// outOfTurn ends a session of logical replication that sends a command before the one before it is over: it might begin to stream by a
// name that nobody has seen yet.
func (x *session) outOfTurn(typ byte) bool {
	if !x.replicates || typ != 'Q' || x.owed.Load() <= 0 {
		return false
	}
	x.end(ending{"replication", "a session of logical replication takes one command at a time", true})
	return true
}

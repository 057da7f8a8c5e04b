package listener

import (
	"bytes"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// This file keeps streams of logical replication from passing for a member. PostgreSQL counts the acknowledgements of any walsender whose
// application_name is in synchronous_standby_names, a logical one's too, and takes the name as it is when START_REPLICATION comes: from
// the startup packet, a default of the role or the database, or whatever statement has set it since.

// memberPrefix begins the names by which the group's own members are known to the primary: an acknowledgement under such a name counts.
const memberPrefix = "cot_"

// ofMember says that a name is one of those, to PostgreSQL, which compares them in any case of letters.
func ofMember(name string) bool {
	return len(name) >= len(memberPrefix) && strings.EqualFold(name[:len(memberPrefix)], memberPrefix)
}

// namedAsMember refuses a stream that would pass for one of the group's own.
func namedAsMember() *pgwire.Error {
	bad := pgwire.Fatal("replication", pgwire.StateInvalidAuth, "an application_name that begins with %q is for members of the group", memberPrefix)
	bad.Hint = "Replicas of the group are added with \"coterie join\"; another standby or tool takes another name."
	return bad
}

// checkStandby looks at what the startup packet says.
func (s *startup) checkStandby() *pgwire.Error {
	if s.replication == pgwire.ReplicationNone {
		return nil
	}
	for _, p := range s.settings {
		if strings.EqualFold(p.Name, "application_name") && ofMember(p.Value) {
			return namedAsMember()
		}
	}
	return nil
}

// posesAsMember looks at a ParameterStatus. PostgreSQL reports application_name before the ReadyForQuery of whatever has changed it.
func (x *session) posesAsMember(status []byte) bool {
	name, value, _ := bytes.Cut(status, []byte{0})
	return x.replicates && strings.EqualFold(string(name), "application_name") && ofMember(string(value))
}

// checkGreeting looks at the name that the session has begun with: a default of its role or database may have given it.
func (x *session) checkGreeting(g greeting) *pgwire.Error {
	var f pgwire.Framer
	var bad *pgwire.Error
	_ = f.Scan(g.bytes, func(typ byte, body []byte) { // it was put together here
		if typ == 'S' && x.posesAsMember(body) {
			bad = namedAsMember()
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

package prospect

import (
	"strings"

	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// Unnamed is why a session cannot be moved between a Parse and a Bind of the unnamed statement.
const Unnamed = "it has parsed an unnamed statement that it has not executed"

// Session is what is known of a session, whatever is under way.
type Session struct {
	Continuity bool   // sessions are moved (CONTINUITY = SESSION or REPLAY)
	Streams    bool   // it is a session of logical replication
	Follows    bool   // its state is followed
	Local      bool   // its server is that of this node
	Texts      string // why it may not be moved by the client's texts; "": it may
	Relayed    bool   // the kernel has relayed requests of it
	Asked      bool   // its server was asked for its state
	Unchanged  bool   // nothing may have changed that since
	Told       bool   // the server has told a state that can be moved
	Refusal    string // why it has not; "": it was not asked, or has told one
	Stays      string // why it cannot be moved in a planned failover
}

// Unfit returns why the session would end with its server, whatever is under way; "": it would not.
func (s *Session) Unfit() string {
	switch {
	case !s.Continuity:
		return "CONTINUITY = OFF"
	case s.Streams:
		return "it is a session of logical replication"
	case !s.Follows:
		return "its state is not followed"
	case s.Relayed:
		return "the kernel relays its requests, which are not looked at"
	case s.Texts != "":
		return s.Texts
	case s.Unchanged && s.Refusal != "":
		return kind(s.Refusal)
	case !s.Asked || s.Unchanged && !s.Told:
		return "its state is not known yet"
	case !s.Unchanged:
		return "its state had changed and was not read since"
	}
	return ""
}

// kind returns a reason without what a server added.
func kind(why string) string {
	why, _, _ = strings.Cut(why, ":")
	return why
}

// UnderWay is what a session that is not unfit has under way.
type UnderWay struct {
	Lone     lone.Fate // what would become of its requests outside a transaction
	Kept     bool      // there are such, which are kept
	Batch    bool      // a request is partly forwarded, or has no end yet
	Owed     int       // answers that it is owed
	Cut      bool      // its one request can be cut: it has committed nothing
	Provable bool      // its one request is a COMMIT whose outcome can be asked for
}

// WouldEnd returns why the session would end if its server were lost now; "": it goes on. cut is whether a request of
// it would be cut by that.
func (u *UnderWay) WouldEnd() (why string, cut bool) {
	switch {
	case u.Lone != lone.Doubtful:
		return "", true
	case u.Batch || u.Owed > 1:
		return "a request was under way", false
	case u.Owed == 1 && !u.Cut && !u.Provable:
		if u.Kept {
			return "a statement outside a transaction was under way that may have changed something", false
		}
		return "a request was under way", false
	}
	return "", u.Owed == 1
}

// InFailover returns what would become of the session in a planned failover. busy is whether something is under way,
// unnamed whether the unnamed statement was parsed and not executed.
func (s *Session) InFailover(busy, unnamed bool) continuity.Prospect {
	known := s.Unchanged && !s.Relayed && (s.Told || s.Refusal != "")
	switch {
	case !s.Continuity:
		return ends("CONTINUITY = OFF")
	case s.Streams:
		return ends("it is a session of logical replication")
	case !s.Local && !s.Follows:
		return ends("it was opened while CONTINUITY was OFF")
	case s.Texts != "":
		return ends(s.Texts)
	case known && s.Stays != "":
		return ends(s.Stays)
	case busy:
		return continuity.Prospect{Fate: continuity.Likely, Why: "it is busy, and is waited for"}
	case unnamed:
		return ends(Unnamed)
	case known:
		return continuity.Prospect{Fate: continuity.Kept}
	}
	return continuity.Prospect{Fate: continuity.Likely, Why: "its server will be asked"}
}

func ends(why string) continuity.Prospect {
	return continuity.Prospect{Fate: continuity.Ends, Why: kind(why)}
}

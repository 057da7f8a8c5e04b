package routing

import (
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// Route is where a session is opened: a target, and the epoch of the routes that named it.
type Route struct {
	ag.Target
	Epoch    ag.Epoch
	Lossless ag.Epoch // since which nothing that was acknowledged was lost
	FellBack bool
	Entry    int             // place in the routing list; 0: the list was not used
	Changed  <-chan struct{} // closed when these routes are no longer in force; nil: routes are polled
	// Timelines are those of the primary.
	Timelines []ag.TimelineEntry
}

// Pick returns where a session of that intent goes, without the replicas passed over. turn is its number among those
// that take turns. The caller sets Changed.
func Pick(routes *ag.Routes, intent ag.Intent, turn uint64, passed ...ag.ReplicaID) (r Route, ok bool) {
	t, fellBack, ok := routes.Pick(intent, turn, passed...)
	if !ok {
		return Route{}, false
	}
	r = Route{Target: t, Epoch: routes.Epoch, Lossless: routes.Lossless, FellBack: fellBack, Timelines: routes.Timelines}
	if intent == ag.ReadOnly {
		r.Entry = routes.Entry(t.ID)
	}
	return r, true
}

// Placed is where a session is that another node's listener has sent here.
type Placed struct {
	Replica   ag.ReplicaID
	Epoch     ag.Epoch
	OnPrimary bool
}

// Place checks such a session against this node's own routes, which may be newer than those by which it came. held
// reports whether the primary here is about to stop.
func Place(routes *ag.Routes, intent ag.Intent, held func() bool) (p Placed, bad *pgwire.Error) {
	if routes == nil || routes.Promoting {
		return p, moved("this replica takes no sessions yet")
	}
	p = Placed{routes.Self, routes.Epoch, routes.Primary == routes.Self && routes.Self != ""}
	switch t, _ := routes.Target(routes.Self); {
	case p.OnPrimary && !routes.WriteOpen: // the rows that a reader would see here may not be replicated yet (S6)
		return p, moved("this replica is the primary and is not open yet")
	case p.OnPrimary && held():
		return p, moved("this replica is the primary and is about to stop")
	case intent == ag.ReadOnly && p.OnPrimary && !routes.Listed(routes.Self): // it was a secondary by the routes of the other node
		return p, moved("this replica is the primary, and its read-only routing list does not name it")
	case intent == ag.ReadWrite && !p.OnPrimary:
		return p, moved("this replica does not take READ_WRITE sessions")
	case !p.OnPrimary && !t.Readable:
		return p, moved("this replica takes no readers")
	}
	return p, nil
}

func moved(why string) *pgwire.Error {
	return pgwire.Fatal("moved", pgwire.StateCannotConnect, "%s", why)
}

// Holds reports whether the local server still has the role for which a session was opened on it.
func Holds(routes *ag.Routes, replica ag.ReplicaID, onPrimary bool) bool {
	if routes == nil || routes.Promoting || onPrimary != (routes.Primary == replica) {
		return false
	}
	t, _ := routes.Target(replica)
	return onPrimary || t.Readable
}

// Promoted reports whether a replica may have become a primary since a session was opened on it as a secondary.
// Without a primary in another epoch than that of the session, any replica of another node may be the one that is
// being promoted.
func Promoted(routes *ag.Routes, replica ag.ReplicaID, epoch ag.Epoch, local bool) bool {
	switch {
	case routes == nil:
		return true
	case local:
		return routes.Promoting || routes.Primary == replica
	}
	return routes.Primary == replica || routes.Primary == "" && routes.Epoch != epoch
}

// NeverServed refuses at once what waiting would not change: readers where the primary takes none and its list names
// no other replica.
func NeverServed(routes *ag.Routes, intent ag.Intent) *pgwire.Error {
	if intent != ag.ReadOnly || routes == nil || routes.Primary == "" || routes.TakesReaders() {
		return nil
	}
	bad := pgwire.Fatal("no routing", pgwire.StateInvalidAuth, "the primary accepts no READ_ONLY sessions, and its read-only routing list names no other replica (979)")
	bad.Hint = "Connect with READ_WRITE intent, or change READ_ONLY_ROUTING_LIST or ALLOW_CONNECTIONS of the primary."
	return bad
}

// Removed returns the error of a node that was removed from its group, which waiting would not change. Clients hear it
// that have proved nothing, so it names no member and no address.
func Removed() *pgwire.Error {
	bad := pgwire.Fatal("removed", pgwire.StateCannotConnect, "this node was removed from its availability group and serves no sessions")
	bad.Hint = "Connect to a member of the group, and take this node out of the connection string; \"coterie status\" here says what to do with the node."
	return bad
}

// NoReplica returns the error that no replica serves an intent. maxLag is by how much a copy may be behind, 0 for no
// limit; unreached is whether a replica was named and its PostgreSQL did not answer. The numbers are those of the same
// errors in SQL Server.
func NoReplica(routes *ag.Routes, intent ag.Intent, maxLag time.Duration, unreached bool) *pgwire.Error {
	number, detail := 983, "No primary takes sessions at present (983)."
	switch {
	case intent == ag.ReadWrite:
	case maxLag > 0:
		number, detail = 982, fmt.Sprintf("No replica of the read-only routing list is known to be within coterie.max_lag = %v of the primary (982).", maxLag)
	case routes.TakesReaders():
		number, detail = 982, "No replica of the primary's read-only routing list takes readers at present (982)."
	}
	bad := pgwire.Fatal("no replica", pgwire.StateCannotConnect, "no replica of the group accepts %s sessions at present (%d)", intent, number)
	bad.Detail = detail
	bad.Hint = "Try again in a moment; \"coterie status\" shows the state of the group."
	if unreached {
		bad.Detail = "A replica was named but its PostgreSQL could not be reached."
	}
	return bad
}

package continuity

import (
	"cmp"
	"slices"
	"strings"
)

// Fate is what becomes of a session.
type Fate string

// Kept: the session is moved, if the next server takes it. Likely: nothing is known that is against it, and its server
// is asked when it happens. Ends: the client has to connect again.
const (
	Kept   Fate = "KEPT"
	Likely Fate = "LIKELY"
	Ends   Fate = "ENDS"
)

// The fates of a COMMIT whose answer is lost with its server. Proved: the client gets its answer, or 40001 if it did
// not happen. Unproved: the client gets 08007.
const (
	Proved   Fate = "PROVED"
	Unproved Fate = "UNKNOWN"
)

// Prospect is what would become of a session, and why it would not be kept.
type Prospect struct {
	Fate Fate
	Why  string // why it is neither Kept nor Proved
}

// Outlook is what would become of a session in each event.
type Outlook struct {
	Replica           string // of its server
	Application, User string
	Failover          Prospect // in a planned failover of its server's role
	Node              Prospect // if the node of its server died
	Server            Prospect // if its server alone died
	Transaction       Prospect // of its open transaction, if its server died and the session went on; zero: it has none
	Commit            Prospect // of a COMMIT whose answer was lost with its server; zero: it commits nothing there
	Statement         string   // the keywords of the statement by which it would not be kept; "": not known
	Others            bool     // it stands for several applications and users, which it does not name
}

// Group is how many sessions have the same outlook.
type Group struct {
	Outlook
	Sessions int
}

// MadeBy reports whether a statement with these keywords may be why a session cannot be moved.
func MadeBy(refusal, keywords string) bool {
	has := func(part string) bool { return strings.Contains(keywords, part) }
	switch {
	case strings.Contains(refusal, "temporary"):
		return has("TEMP")
	case strings.Contains(refusal, "cursor"):
		return has("DECLARE")
	case strings.Contains(refusal, "listens"):
		return has("LISTEN")
	}
	return false
}

// Groups returns how many sessions have each outlook, in order. Of more than most groups it names the largest, and
// joins the others.
func Groups(list []Outlook, most int) []Group {
	counts := map[Outlook]int{}
	for _, o := range list {
		counts[o]++
	}
	groups := sorted(counts, func(a, b Group) int { return cmp.Or(cmp.Compare(b.Sessions, a.Sessions), byName(a, b)) })
	if len(groups) > most {
		rest := map[Outlook]int{}
		for _, g := range groups[most:] {
			rest[Outlook{
				Replica: g.Replica, Failover: Prospect{Fate: g.Failover.Fate}, Node: Prospect{Fate: g.Node.Fate}, Server: Prospect{Fate: g.Server.Fate},
				Transaction: Prospect{Fate: g.Transaction.Fate}, Commit: Prospect{Fate: g.Commit.Fate}, Others: true,
			}] += g.Sessions
		}
		groups = append(groups[:most], sorted(rest, byName)...)
	}
	slices.SortStableFunc(groups, byName)
	return groups
}

func sorted(counts map[Outlook]int, by func(a, b Group) int) (groups []Group) {
	for o, n := range counts {
		groups = append(groups, Group{o, n})
	}
	slices.SortFunc(groups, by)
	return groups
}

// byName orders groups by application and user, those without names last.
func byName(a, b Group) int {
	if a.Others != b.Others {
		if a.Others {
			return 1
		}
		return -1
	}
	return cmp.Or(
		cmp.Compare(a.Application, b.Application), cmp.Compare(a.User, b.User), cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Failover.Fate, b.Failover.Fate),
		cmp.Compare(a.Failover.Why, b.Failover.Why), cmp.Compare(a.Node.Why, b.Node.Why), cmp.Compare(a.Server.Why, b.Server.Why), cmp.Compare(a.Statement, b.Statement),
		cmp.Compare(a.Node.Fate, b.Node.Fate), cmp.Compare(a.Server.Fate, b.Server.Fate),
		cmp.Compare(a.Transaction.Fate, b.Transaction.Fate), cmp.Compare(a.Transaction.Why, b.Transaction.Why),
		cmp.Compare(a.Commit.Fate, b.Commit.Fate), cmp.Compare(a.Commit.Why, b.Commit.Why),
	)
}

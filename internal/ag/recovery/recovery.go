package recovery

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Account is what a stopped member reports about itself when the quorum's store is lost. It is enough for a person to
// choose the next leader, and for the new record to take back nothing that the member promised or saw
// (docs/internals/safety.md, "Untrusted store").
type Account struct {
	Group    ag.GroupID   `json:"group"`
	ID       ag.ReplicaID `json:"member"`
	Promised ag.Epoch     `json:"promised"`
	Epoch    ag.Epoch     `json:"epoch"`          // of the latest record that it saw
	Seq      uint64       `json:"state_sequence"` // of the latest record that it saw
	Position ag.Position  `json:"position"`       // end of WAL of its copy
	Copy     ag.CopyID    `json:"copy"`
	MaxTLI   ag.Timeline  `json:"max_tli"` // the highest timeline id that it knows to have been used
	// Unled is where the copy left the group's history for a promotion that is not known to have come to lead; zero: it
	// did not. Nothing that it has beyond was acknowledged.
	Unled ag.Position `json:"unled,omitzero"`
	// Founds is the epoch of a recovery that was begun on this member: it founds a quorum at its next start. 0: none.
	Founds ag.Epoch `json:"founds,omitempty"`
	// Store is the identity of the store of the record that it saw, in a group that was recovered before; 0: unknown.
	Store uint64 `json:"store,omitempty"`
	// Unfit is the reason why its copy cannot lead; empty if it can. A witness holds no copy.
	Unfit string `json:"unfit,omitempty"`
}

// Newer orders accounts by how much of the group's history their copies hold: by position, and where that is the same,
// by the later record seen. A record says nothing of a copy: the agent of a copy that is far behind, or suspended, sees
// what the last leader wrote when the furthest copy went down.
func (a Account) Newer(b Account) int {
	return cmp.Or(a.counts().Compare(b.counts()), cmp.Compare(a.Seq, b.Seq))
}

// ahead reports whether the copy of an account may hold acknowledged commits that the chosen one lacks. Of two logs on
// one timeline one is the beginning of the other. Timeline ids grow with the epochs. So a log on an earlier one has
// nothing beyond that was acknowledged. It may have, if failovers were forced and the chosen copy was left by one: then
// that one's history does not pass through the other's timeline, and the other's member may have seen a later record.
// Of a copy whose end cannot be read only the record tells. Of two quorums that were founded beside each other each may
// have acknowledged what the other does not have.
func (q Request) ahead(a, mine Account) bool {
	at, to := a.counts(), mine.counts()
	switch {
	case a.ID == mine.ID || a.Copy == "":
		return false
	case a.rivals(mine):
		return true
	case at.Timeline == to.Timeline && at.LSN != 0:
		return at.LSN > to.LSN
	case at.Timeline > to.Timeline:
		return true
	}
	return a.Seq > mine.Seq && !q.passes(at.Timeline)
}

// apart reports, of a copy that is ahead, whether the chosen one may hold commits that it lacks. It may if their
// quorums were founded beside each other, or if it is on a later timeline: an ordinary failover keeps every
// acknowledged commit on that, and only a forced one makes the earlier timeline the group's history again. The accounts
// do not tell which of the two it was.
func (a Account) apart(mine Account) bool {
	return a.rivals(mine) || mine.counts().Timeline > a.counts().Timeline && a.counts().LSN != 0
}

// rivals reports whether an account is of a quorum that the chosen member knows nothing of.
func (a Account) rivals(mine Account) bool {
	return a.Store != 0 && mine.Store != 0 && a.Store != mine.Store && a.Epoch >= mine.Epoch
}

// passes reports whether the history of the chosen copy passes through a timeline.
func (q Request) passes(tli ag.Timeline) bool {
	return slices.ContainsFunc(q.History, func(t ag.TimelineEntry) bool { return tli != 0 && (t.TLI == tli || t.Parent == tli) })
}

// counts returns up to where what the copy holds may have been acknowledged.
func (a Account) counts() ag.Position {
	if a.Unled.Timeline != 0 {
		return a.Unled
	}
	return a.Position
}

// Request is the request of an administrator. Every member of the group has an account or is declared lost.
type Request struct {
	Group    ag.Group     // as the choosing node last saw it
	Lead     ag.ReplicaID // the member that is to lead
	Accounts []Account
	Lost     []ag.ReplicaID
	History  []ag.TimelineEntry // of the timeline of the chosen copy
}

// Recovery replaces the contents of a lost store.
type Recovery struct {
	Group ag.Group
	Epoch ag.EpochRecord
	State ag.State
	// Ahead lists the members whose copies may hold commits that the chosen copy lacks. They are suspended until a
	// person resumes them.
	Ahead []ag.ReplicaID
	// Apart lists those of Ahead whose copy and the chosen one may each hold commits that the other lacks: no choice is
	// known to keep all.
	Apart []ag.ReplicaID
}

// serials is how far the number of the configuration jumps at a recovery. No group makes so many changes, so that no
// configuration of the lost store, which a member may have seen and the chosen one not, counts as a later one.
const serials = 1 << 32

// Recovered reports whether a configuration comes from a recovery.
func Recovered(g ag.Group) bool { return g.Serial >= serials }

// mostSkipped bounds how many timeline ids a recovery leaves out. A promotion makes a file for each, and refuses where
// they are too many. Candidates that outbid each other for days without a choice raise the epoch, and use no id.
const mostSkipped = 10_000

// distance is how far the timeline ids lie apart that two members would give to the epochs of their recoveries from the
// same accounts. Two histories with one timeline id would be taken for one.
const distance = 100

// ErrUnsafe means that the recovery may not be made as requested.
var ErrUnsafe = errors.New("this recovery would not be safe")

// Recover makes the record of a group whose quorum's store is lost or cannot be trusted. The new epoch is above every
// epoch that an account has promised or seen. The chosen member leads it, V is empty, and automatic failover is off. A
// member that is declared lost leaves the group, so that it is not admitted when it comes back. Every refusal wraps
// ErrUnsafe.
func Recover(q Request) (Recovery, error) {
	mine, err := q.check()
	if err != nil {
		return Recovery{}, fmt.Errorf("%w: %w", ErrUnsafe, err)
	}
	r := Recovery{Group: q.Group}
	r.Group.Replicas = nil
	r.Group.Serial += serials
	var epoch ag.Epoch
	var seq uint64
	var tli ag.Timeline
	for _, a := range q.Accounts {
		epoch, seq, tli = max(epoch, a.Promised, a.Epoch), max(seq, a.Seq), max(tli, a.MaxTLI, a.Position.Timeline)
		if q.ahead(a, mine) {
			r.Ahead = append(r.Ahead, a.ID)
			if a.apart(mine) {
				r.Apart = append(r.Apart, a.ID)
			}
		}
	}
	epoch++
	// An epoch uses one timeline id at most, and few epochs use one. The members that are left know theirs. So no id
	// that any member used, lost members included, is above this one.
	tli += ag.Timeline(min(epoch, mostSkipped))
	for _, old := range q.Group.Replicas {
		if old.ID < q.Lead { // the members may know each other in different orders
			tli += distance
		}
		if slices.Contains(q.Lost, old.ID) {
			continue
		}
		old.EtcdID, old.Voter = 0, old.ID == q.Lead
		if old.HasData() {
			old.FailoverMode = ag.Manual
		}
		old.Suspended = old.ID != q.Lead && (old.Suspended || slices.Contains(r.Ahead, old.ID))
		r.Group.Replicas = append(r.Group.Replicas, old)
	}
	r.Epoch = ag.EpochRecord{
		Epoch: epoch, Phase: ag.PhasePromote, Leader: q.Lead, TLI: tli, MaxTLI: tli, From: mine.Position, Copy: mine.Copy, Forced: true,
		Reason: "recovered by an operator from the loss of the quorum's store",
	}
	r.State = ag.State{Leader: q.Lead, Copy: mine.Copy, V: []ag.Member{}, Timelines: q.History, Seq: seq + 1}
	return r, nil
}

// check returns the account of the member that is to lead.
func (q Request) check() (mine Account, err error) {
	said := map[ag.ReplicaID]bool{}
	for _, a := range q.Accounts {
		switch _, in := q.Group.Replica(a.ID); {
		case a.Group != q.Group.ID:
			return mine, fmt.Errorf("the account of %s is of another group", a.ID)
		case !in:
			return mine, fmt.Errorf("%s is no member of group %s as this node last saw it", a.ID, q.Group.Name)
		case said[a.ID]:
			return mine, fmt.Errorf("there are two accounts of %s", a.ID)
		case slices.Contains(q.Lost, a.ID):
			return mine, fmt.Errorf("%s is given up for lost, and yet there is an account of it", a.ID)
		case a.Founds != 0 && a.ID != q.Lead:
			return mine, fmt.Errorf("%s is to found a new quorum itself, in epoch %d: coterie recover lead was run there. Both would lead. "+
				"Start %[1]s and have this member follow it; or run coterie recover follow --give-up-lead on %[1]s, and take its account again", a.ID, a.Founds)
		}
		said[a.ID] = true
		if a.ID == q.Lead {
			mine = a
		}
	}
	var missing []string
	for _, r := range q.Group.Replicas {
		if !said[r.ID] && !slices.Contains(q.Lost, r.ID) {
			missing = append(missing, string(r.ID))
		}
	}
	switch {
	case len(missing) > 0:
		return mine, fmt.Errorf("nothing is known of %s: give its account, or give it up for lost", strings.Join(missing, " and "))
	case mine.ID == "":
		return mine, fmt.Errorf("there is no account of %s, which is to lead", q.Lead)
	case mine.Unfit != "":
		return mine, fmt.Errorf("%s cannot lead: %s", q.Lead, mine.Unfit)
	case mine.Copy == "" || mine.Position.LSN == 0:
		return mine, fmt.Errorf("%s cannot lead: it holds no copy of the data", q.Lead)
	}
	return mine, nil
}

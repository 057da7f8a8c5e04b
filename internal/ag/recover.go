package ag

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Account is what a stopped member says of itself when the quorum's store is lost: enough for a person to choose who leads, and for
// nothing that it promised or saw to be taken back (safety specification 1.5).
type Account struct {
	Group    GroupID   `json:"group"`
	ID       ReplicaID `json:"member"`
	Promised Epoch     `json:"promised"`
	Epoch    Epoch     `json:"epoch"`          // of the latest record it saw
	Seq      uint64    `json:"state_sequence"` // of the latest record it saw
	Position Position  `json:"position"`       // end of WAL of its copy
	Copy     CopyID    `json:"copy"`
	MaxTLI   Timeline  `json:"max_tli"` // the highest timeline id that it knows to have been used
	// Unfit says why its copy cannot lead; "": it can. A witness holds none.
	Unfit string `json:"unfit,omitempty"`
}

// Newer orders accounts by how much of the group's history their copies hold: the later record seen, then the position.
func (a Account) Newer(b Account) int {
	if a.Seq != b.Seq {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	}
	return a.Position.Compare(b.Position)
}

// Recovery is what a lost store is replaced by.
type Recovery struct {
	Group Group
	Epoch EpochRecord
	State State
	// Ahead are the members whose copies may hold commits that the chosen one lacks. They are suspended until a person resumes them.
	Ahead []ReplicaID
}

// ErrRecovery is why a recovery may not be made as asked.
var ErrRecovery = errors.New("this recovery would not be safe")

// Recover makes the record of a group whose quorum's store is lost or not to be trusted: a new epoch above everything that any member of
// whom there is an account has promised or seen, led by the member that a person chose, with nobody counted in V, and with automatic
// failover off. Every member is accounted for or given up for lost; who is lost leaves the group, so that it is not admitted when it
// comes back. history is that of the chosen copy's timeline.
func Recover(g Group, lead ReplicaID, accounts []Account, lost []ReplicaID, history []TimelineEntry) (Recovery, error) {
	mine, err := checkAccounts(g, lead, accounts, lost)
	if err != nil {
		return Recovery{}, fmt.Errorf("%w: %w", ErrRecovery, err)
	}
	r := Recovery{Group: g}
	r.Group.Replicas = nil
	var epoch Epoch
	var seq uint64
	var tli Timeline
	for _, a := range accounts {
		epoch, seq, tli = max(epoch, a.Promised, a.Epoch), max(seq, a.Seq), max(tli, a.MaxTLI, a.Position.Timeline)
		if a.ID != lead && a.Copy != "" && a.Newer(mine) > 0 {
			r.Ahead = append(r.Ahead, a.ID)
		}
	}
	epoch++
	// An epoch allots one id at most, so no id that anybody ever used, those who are lost included, is above this one.
	tli += Timeline(epoch)
	for _, old := range g.Replicas {
		if slices.Contains(lost, old.ID) {
			continue
		}
		old.EtcdID, old.Voter = 0, old.ID == lead
		if old.HasData() {
			old.FailoverMode = Manual
		}
		old.Suspended = old.ID != lead && (old.Suspended || slices.Contains(r.Ahead, old.ID))
		r.Group.Replicas = append(r.Group.Replicas, old)
	}
	r.Epoch = EpochRecord{
		Epoch: epoch, Phase: PhasePromote, Leader: lead, TLI: tli, MaxTLI: tli, From: mine.Position, Copy: mine.Copy, Forced: true,
		Reason: "recovered by an operator from the loss of the quorum's store",
	}
	r.State = State{Leader: lead, Copy: mine.Copy, V: []Member{}, Timelines: history, Seq: seq + 1}
	return r, nil
}

func checkAccounts(g Group, lead ReplicaID, accounts []Account, lost []ReplicaID) (mine Account, err error) {
	said := map[ReplicaID]bool{}
	for _, a := range accounts {
		switch _, in := g.Replica(a.ID); {
		case a.Group != g.ID:
			return mine, fmt.Errorf("the account of %s is of another group", a.ID)
		case !in:
			return mine, fmt.Errorf("%s is no member of group %s as this node last saw it", a.ID, g.Name)
		case said[a.ID]:
			return mine, fmt.Errorf("there are two accounts of %s", a.ID)
		case slices.Contains(lost, a.ID):
			return mine, fmt.Errorf("%s is given up for lost, and yet there is an account of it", a.ID)
		}
		said[a.ID] = true
		if a.ID == lead {
			mine = a
		}
	}
	var missing []string
	for _, r := range g.Replicas {
		if !said[r.ID] && !slices.Contains(lost, r.ID) {
			missing = append(missing, string(r.ID))
		}
	}
	switch {
	case len(missing) > 0:
		return mine, fmt.Errorf("nothing is known of %s: give its account, or give it up for lost", strings.Join(missing, " and "))
	case mine.ID == "":
		return mine, fmt.Errorf("there is no account of %s, which is to lead", lead)
	case mine.Unfit != "":
		return mine, fmt.Errorf("%s cannot lead: %s", lead, mine.Unfit)
	case mine.Copy == "" || mine.Position.LSN == 0:
		return mine, fmt.Errorf("%s cannot lead: it holds no copy of the data", lead)
	}
	return mine, nil
}

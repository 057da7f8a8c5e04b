package leavecmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// plan is how a node leaves its group.
type plan struct {
	removed bool // the group does not have the node any more: no member is asked
	last    bool // there is no other member: the group ends
	forced  bool // no other member is asked, although the group may count this node
}

// wish is what an operator accepts.
type wish struct {
	force   bool   // the group need not be in reach
	oneCopy bool   // the primary may go on with the only copy
	command string // the command to run again
}

// decide returns how the node that answered with the status leaves its group, or why it may not now.
func decide(st api.Status, w wish) (plan, error) {
	i := slices.IndexFunc(st.Replicas, func(r api.Replica) bool { return r.Name == st.Node })
	switch {
	case st.Availability.Removed:
		return plan{removed: true}, nil
	case i < 0:
		return plan{}, fail.Unhealthyf("the agent has not seen its group yet; nothing was changed: run it again in a moment, or see coterie status")
	case len(st.Replicas) == 1:
		return plan{last: true}, nil
	}
	self, others := st.Replicas[i], slices.Delete(slices.Clone(st.Replicas), i, i+1)
	if self.Role == ag.RolePrimary || st.Primary == st.Node {
		return plan{}, leads(st.Node, others)
	}
	if !st.Quorum && w.force {
		return plan{forced: true}, nil
	}
	if !st.Quorum {
		return plan{}, fail.Unhealthyf("no majority of the quorum answers, so nobody can take %s out of the group; nothing was changed: see coterie status. "+
			"If the group is lost, %s --force takes this node out of it without asking", st.Node, w.command)
	}
	if st.Primary == "" {
		return plan{}, fail.Unhealthyf("the group has no primary at the moment, and may need this copy for its next one; nothing was changed: see coterie status")
	}
	if err := keepsVotes(st, self, others); err != nil {
		return plan{}, err
	}
	return plan{}, keepsCopies(st, self, others, w)
}

// leads returns the refusal for a primary that has other members.
func leads(self ag.ReplicaID, others []api.Replica) error {
	do, data := "", false
	for _, r := range others {
		data = data || r.Mode != ag.ConfigurationOnly
		if r.Sync == ag.Synchronized && do == "" {
			do = fmt.Sprintf("fail over first: coterie failover --to %s", r.Name)
		}
	}
	switch {
	case !data:
		do = fmt.Sprintf("it has the only copy; take the other members out first: coterie member remove %s", strings.Join(names(others), ", coterie member remove "))
	case do == "":
		do = "no secondary is synchronized; wait for one (coterie status), then coterie failover --to it"
	}
	return fail.Refusedf("%s is the primary; nothing was changed: %s", self, do)
}

// keepsVotes returns an error if the members that are left and answer would be no majority of the votes.
func keepsVotes(st api.Status, self api.Replica, others []api.Replica) error {
	if st.External > 0 || !self.Voter {
		return nil
	}
	var votes, silent []api.Replica
	for _, r := range others {
		if !r.Voter {
			continue
		}
		if votes = append(votes, r); r.Connected != "CONNECTED" || r.NoVote != "" {
			silent = append(silent, r)
		}
	}
	if answer := len(votes) - len(silent); len(votes) > 0 && answer <= len(votes)/2 {
		return fail.Refusedf("without %s, %d of %d votes of the quorum would answer, which is no majority; nothing was changed: start %s, or take it out for good with coterie member remove %s",
			self.Name, answer, len(votes), strings.Join(names(silent), ", "), silent[0].Name)
	}
	return nil
}

// keepsCopies returns an error if the primary would have no synchronized secondary left, or fewer than commits wait
// for.
func keepsCopies(st api.Status, self api.Replica, others []api.Replica, w wish) error {
	if self.Sync != ag.Synchronized {
		return nil
	}
	secondaries, waitedFor, synchronized := 0, 0, 0
	for _, r := range others {
		if r.Name == st.Primary || r.Mode == ag.ConfigurationOnly {
			continue
		}
		secondaries++
		if r.Mode == ag.SynchronousCommit && !r.Suspended {
			waitedFor++
		}
		if r.Sync == ag.Synchronized && r.Connected == "CONNECTED" {
			synchronized++
		}
	}
	switch needed := min(st.Required, waitedFor); {
	case secondaries == 0 && w.oneCopy:
	case secondaries == 0:
		return fail.Refusedf("%s has the only copy beside that of the primary %s; nothing was changed. Have another node join first, "+
			"or let the group go on with one copy: %s --leave-one-copy", self.Name, st.Primary, w.command)
	case synchronized == 0:
		return fail.Refusedf("%s has the only synchronized copy beside that of the primary %s; nothing was changed: wait until another secondary is SYNCHRONIZED (coterie status)", self.Name, st.Primary)
	case synchronized < needed:
		return fail.Refusedf("commits wait for %d secondaries, and %d beside %s are synchronized; nothing was changed: wait until others are SYNCHRONIZED (coterie status), or coterie group set required_synchronized_secondaries_to_commit=%d",
			needed, synchronized, self.Name, synchronized)
	}
	return nil
}

func names(all []api.Replica) (out []string) {
	for _, r := range all {
		out = append(out, string(r.Name))
	}
	return out
}

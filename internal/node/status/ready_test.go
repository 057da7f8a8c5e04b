package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestReadyMeansThatSomebodyTakesOver holds that the agents act as the status says. Of two replicas, the one with the
// only vote takes over from the other, and not the other way round.
func TestReadyMeansThatSomebodyTakesOver(t *testing.T) {
	r := func(id ag.ReplicaID, voter bool) ag.Replica {
		out := ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: voter}
		if voter {
			out.EtcdID = 7
		}
		return out
	}
	view := func(leader ag.ReplicaID, v ag.ReplicaID, members ...ag.Replica) ag.View {
		out := ag.View{Quorum: true, Group: ag.Group{Replicas: members}}
		for _, m := range members {
			out.Reach = append(out.Reach, m.ID)
		}
		out.Record.Epoch.Leader = leader
		if v != "" {
			out.Record.State.V, out.Record.State.K = []ag.Member{{ID: v}}, 1
		}
		return out
	}
	without := func(v ag.View, id ag.ReplicaID) ag.View {
		v.Reach = slices.DeleteFunc(slices.Clone(v.Reach), func(x ag.ReplicaID) bool { return x == id })
		return v
	}
	loose := view("a", "b", r("a", true), r("b", true), r("c", true), r("d", true), r("e", true))
	loose.Record.State.V = append(loose.Record.State.V, ag.Member{ID: "c"}) // one of both: a seal of each is needed
	external := view("a", "b", r("a", true), r("b", true), r("c", true))
	external.Group.External = 3
	manual, suspended, pending := r("b", true), r("b", true), r("c", true)
	manual.FailoverMode, suspended.Suspended, pending.EtcdID = ag.Manual, true, 0
	for name, c := range map[string]struct {
		v    ag.View
		want string
	}{
		"three":                          {view("a", "b", r("a", true), r("b", true), r("c", true)), "ready"},
		"two, the primary votes":         {view("a", "b", r("a", true), r("b", false)), "add a witness"},
		"two, the secondary votes":       {view("a", "b", r("a", false), r("b", true)), "ready"},
		"two votes and one not there":    {view("a", "b", r("a", true), r("b", true), pending), "add a witness"},
		"nobody is counted":              {view("a", "", r("a", true), r("b", true), r("c", true)), "no secondary"},
		"the only secondary is manual":   {view("a", "b", r("a", true), manual, r("c", true)), "FAILOVER_MODE"},
		"the only secondary is held off": {view("a", "b", r("a", true), suspended, r("c", true)), "suspended"},
		"the third is dead":              {without(view("a", "b", r("a", true), r("b", true), r("c", true)), "c"), "1 of 3 votes"},
		"the only synchronized is dead":  {without(view("a", "b", r("a", true), r("b", true), r("c", true), r("d", true), r("e", true)), "b"), "and 0 do"},
		"two of five, both answer":       {loose, "ready"},
		"two of five, one is dead":       {without(loose, "c"), "2 of the synchronized"},
		"an external quorum":             {without(external, "c"), "ready"},
	} {
		for _, self := range c.v.Reach { // each member that answers says the same
			v := without(c.v, self) // a node does not hear itself
			v.Self = self
			if got := failoverReady(v); !strings.Contains(got, c.want) || (c.want == "ready") != (got == "ready") {
				t.Errorf("%s, says %s: %s", name, self, got)
			}
		}
		if got := failoverReady(c.v); !strings.Contains(got, c.want) || (c.want == "ready") != (got == "ready") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

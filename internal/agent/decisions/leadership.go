package decisions

import (
	"cmp"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Change is one change of the leadership, as the decisions of the members show it.
type Change struct {
	Epoch    ag.Epoch     `json:"epoch"`               // the epoch that it led to
	From     ag.ReplicaID `json:"from"`                // the previous leader; equal to To if it took its own leadership again
	To       ag.ReplicaID `json:"to"`                  // the new leader
	Before   ag.Epoch     `json:"epoch_before"`        // the last epoch of From
	Reason   string       `json:"reason"`              // as in the record
	Forced   bool         `json:"forced,omitempty"`    // an operator accepted the loss
	Decision []Decision   `json:"decisions,omitempty"` // the decisions that led to it and carried it out, in order
}

// everyday are the rules that have nothing to do with a change of leadership.
var everyday = []ag.Rule{ag.RuleServe, ag.RuleStandBy, ag.RuleSync, ag.RuleBusy, ag.RuleWitness, ag.RuleSuspended, ag.RuleAcknowledge}

// Merge orders the decisions of several nodes: by epoch, then by the revision of the record that each saw. Those of one
// node keep their order. Clocks are not compared.
func Merge(nodes ...[]Decision) []Decision {
	all := slices.Concat(nodes...)
	slices.SortStableFunc(all, func(x, y Decision) int {
		if x.Node == y.Node {
			return cmp.Compare(x.Seq, y.Seq)
		}
		return cmp.Or(cmp.Compare(x.Epoch, y.Epoch), cmp.Compare(x.Revision(), y.Revision()))
	})
	return all
}

// led returns the record of each epoch that reached LEAD, as far as the decisions show it.
func led(all []Decision) map[ag.Epoch]ag.EpochRecord {
	out := map[ag.Epoch]ag.EpochRecord{}
	for _, d := range all {
		if e := d.View.Record.Epoch; e.Phase == ag.PhaseLead {
			out[e.Epoch] = e
		}
	}
	return out
}

// Changes returns the changes of leadership that the decisions show, oldest first, without the decisions that belong to
// them.
func Changes(all []Decision) []Change {
	who := led(all)
	epochs := make([]ag.Epoch, 0, len(who))
	for e := range who {
		epochs = append(epochs, e)
	}
	slices.Sort(epochs)
	var out []Change
	for i, e := range epochs {
		if i == 0 {
			continue
		}
		before := epochs[i-1]
		out = append(out, Change{
			Epoch: e, Before: before, From: who[before].Leader, To: who[e].Leader, Reason: who[e].Reason, Forced: who[e].Forced,
		})
	}
	return out
}

// Tell adds to a change the decisions that belong to it, from the end of the previous epoch to what the members did in
// the new one. Repeated decisions with the same reason appear once. Of serving only the opening of the gate appears. A
// planned failover that was given up does not appear: it led to no change.
func (c Change) Tell(all []Decision) Change {
	c.Decision = nil
	opened, last := false, map[ag.ReplicaID]Decision{}
	for _, d := range all {
		if d.Epoch < c.Before || d.Epoch > c.Epoch || d.Epoch == c.Before && !ends(d) {
			continue
		}
		if d.GivenUp {
			c.Decision = slices.DeleteFunc(c.Decision, func(x Decision) bool { return x.Rule == ag.RuleHandOver && x.Node == d.Node && x.Epoch == d.Epoch })
			delete(last, d.Node)
			continue
		}
		opens := !opened && d.Rule == ag.RuleServe && d.Open && d.Epoch == c.Epoch && d.Node == c.To
		was, again := last[d.Node]
		again = again && was.Rule == d.Rule && was.Because == d.Because && was.Epoch == d.Epoch
		if slices.Contains(everyday, d.Rule) && !opens || again {
			continue
		}
		opened, last[d.Node] = opened || opens, d
		c.Decision = append(c.Decision, d)
	}
	return c
}

// formation are the rules by which an epoch is formed and joined.
var formation = []ag.Rule{
	ag.RuleFollow, ag.RuleSeed, ag.RuleReseed, ag.RuleRewind, ag.RuleLead, ag.RulePromote, ag.RulePromoteAgain, ag.RuleChoose, ag.RuleSeal,
	ag.RuleAwaitDrop, ag.RuleHoldSealed,
}

// ends reports whether a decision belongs to the end of an epoch rather than to joining, seeding or following in it.
func ends(d Decision) bool {
	if d.Rule == ag.RuleStart {
		return d.Node == d.View.Record.Epoch.Leader
	}
	return !slices.Contains(everyday, d.Rule) && !slices.Contains(formation, d.Rule)
}

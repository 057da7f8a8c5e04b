package decisions

import (
	"cmp"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Change is one change of the leadership, as the decisions of the members tell it.
type Change struct {
	Epoch    ag.Epoch     `json:"epoch"`               // the epoch it led to
	From     ag.ReplicaID `json:"from"`                // who led before; the same as To: it took its own leadership again
	To       ag.ReplicaID `json:"to"`                  // who leads since
	Before   ag.Epoch     `json:"epoch_before"`        // the last epoch that From led
	Reason   string       `json:"reason"`              // as in the record
	Forced   bool         `json:"forced,omitempty"`    // an operator accepted the loss
	Decision []Decision   `json:"decisions,omitempty"` // what led to it and what it took, in order
}

// everyday are the rules that say nothing about a change of leadership.
var everyday = []ag.Rule{ag.RuleServe, ag.RuleStandBy, ag.RuleSync, ag.RuleBusy, ag.RuleWitness, ag.RuleSuspended, ag.RuleAcknowledge}

// Merge puts the decisions of several nodes into the one order they have: by epoch, then by the revision of the record that each saw,
// and those of one node as that node made them. Clocks have no part in it.
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

// led tells who led which epoch, as far as the decisions show it.
func led(all []Decision) map[ag.Epoch]ag.EpochRecord {
	out := map[ag.Epoch]ag.EpochRecord{}
	for _, d := range all {
		if e := d.View.Record.Epoch; e.Phase == ag.PhaseLead {
			out[e.Epoch] = e
		}
	}
	return out
}

// Changes lists the changes of leadership that the decisions show, oldest first, without what led to them.
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

// Tell adds to a change the decisions that belong to it: from what ended the epoch before to what the members did in the new one. What a
// node decided again for the same reason is told once; of serving, that the gate opened.
func (c Change) Tell(all []Decision) Change {
	c.Decision = nil
	opened, last := false, map[ag.ReplicaID]Decision{}
	for _, d := range all {
		if d.Epoch < c.Before || d.Epoch > c.Epoch || d.Epoch == c.Before && !ends(d) {
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

// ends tells a decision that has to do with the end of an epoch from what went on in it: joining, seeding, following.
func ends(d Decision) bool {
	if d.Rule == ag.RuleStart {
		return d.Node == d.View.Record.Epoch.Leader
	}
	return !slices.Contains(everyday, d.Rule) && !slices.Contains(formation, d.Rule)
}

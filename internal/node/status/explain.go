package status

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// DecisionReport returns this node's newest decisions, as many as fit.
func (s *Service) DecisionReport() decisions.Report {
	var t decisions.Report
	if v := s.Agent.View(); v != nil {
		slim := v.Slim()
		t.View = &slim
	}
	all := s.Agent.Decisions()
	size := 0
	for i, d := range slices.Backward(all) {
		b, err := json.Marshal(d)
		if err != nil || size+len(b) > decisions.ReportBytes {
			all = all[i+1:]
			break
		}
		size += len(b)
	}
	t.Decisions = all
	return t
}

// Decisions answers from memory.
func (s *Service) Decisions() []api.Decision {
	kept := s.Agent.Decisions()
	all := make([]api.Decision, len(kept))
	for i, d := range kept {
		all[i] = api.Decision{At: d.At, Rule: d.Rule, Because: d.Because, Epoch: d.Epoch}
	}
	return all
}

// Lineage answers from memory. The leader and the reason of a promotion are known for as long as a decision of its
// epoch is kept; its time, too, if this node saw it, and of the present one by the report of the primary.
func (s *Service) Lineage() api.Lineage {
	out := api.Lineage{SystemID: s.Members.SystemID()}
	v := s.Agent.View()
	if v == nil {
		return out
	}
	led := map[ag.Epoch]api.Change{}
	for i, d := range s.Agent.Decisions() {
		e := d.View.Record.Epoch
		if _, known := led[e.Epoch]; known || e.Phase != ag.PhaseLead {
			continue
		}
		c := api.Change{Leader: e.Leader, Reason: clipText(e.Reason)}
		if i > 0 { // the first one that is kept was made when this node came to see the epoch, or later
			c.At = d.At
		}
		led[e.Epoch] = c
	}
	if e := v.Record.Epoch; e.Phase == ag.PhaseLead {
		if snap := s.Agent.Snapshot(); snap != nil {
			if st := snap.Statuses[e.Leader]; st.Epoch == e.Epoch && !st.Leads.IsZero() {
				c := led[e.Epoch]
				c.Leader, c.Reason, c.At = e.Leader, clipText(e.Reason), st.Leads
				led[e.Epoch] = c
			}
		}
	}
	for _, t := range v.Record.State.Timelines {
		c := led[t.Epoch]
		c.Timeline, c.Parent, c.Switch = t.TLI, t.Parent, t.Switch
		out.Changes = append(out.Changes, c)
	}
	return out
}

// Explain gathers what all members in reach decided.
func (s *Service) Explain() any {
	own := s.DecisionReport()
	e := decisions.Explanation{Node: s.Self, Missing: map[ag.ReplicaID]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), decisions.ReportWait)
	defer cancel()
	var others []ag.Replica
	if g := s.Members.Group(); g != nil {
		others = slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return r.ID == s.Self })
	}
	told, failed := rpc.Each(ctx, others, func(ctx context.Context, r ag.Replica) (decisions.Report, error) {
		return rpc.Call(ctx, s.Calls, r, rpc.Decisions, rpc.Nothing{})
	})
	for id, err := range failed {
		e.Missing[id] = err.Error()
	}
	told[s.Self] = own
	e.Tell(told)
	r := s.Availability()
	if !r.Ready() {
		e.NotReady = strings.TrimPrefix(r.Automatic, "not ready: ")
	}
	if v := s.Agent.View(); r.Primary == "" || !r.Writable && v != nil && !v.Quorum { // the record may still name this node as the leader
		e.NoPrimary = r.Because
	}
	e.Failures = r.Failures
	if r.Removed {
		e.Now, e.Failures = nil, nil // the node takes part in nothing, and knows of nothing
	}
	return e
}

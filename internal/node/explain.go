package node

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// decisionReport returns this node's newest decisions, as many as fit.
func (n *node) decisionReport() decisions.Report {
	var t decisions.Report
	if v := n.agent.View(); v != nil {
		slim := v.Slim()
		t.View = &slim
	}
	all := n.agent.Decisions()
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
func (m *admin) Decisions() []api.Decision {
	kept := m.n.agent.Decisions()
	all := make([]api.Decision, len(kept))
	for i, d := range kept {
		all[i] = api.Decision{At: d.At, Rule: d.Rule, Because: d.Because, Epoch: d.Epoch}
	}
	return all
}

// Explain gathers what all members in reach decided.
func (m *admin) Explain() any {
	n := m.n
	own := n.decisionReport()
	e := decisions.Explanation{Node: n.self, Missing: map[ag.ReplicaID]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), decisions.ReportWait)
	defer cancel()
	var others []ag.Replica
	if g := n.members.Group(); g != nil {
		others = slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return r.ID == n.self })
	}
	told, failed := rpc.Each(ctx, others, func(ctx context.Context, r ag.Replica) (decisions.Report, error) {
		return rpc.Call(ctx, n.control, r, rpc.Decisions, rpc.Nothing{})
	})
	for id, err := range failed {
		e.Missing[id] = err.Error()
	}
	told[n.self] = own
	e.Tell(told)
	return e
}

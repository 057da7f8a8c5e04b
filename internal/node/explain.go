package node

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
)

// testify returns this node's newest decisions, as many as fit.
func (n *node) testify() agent.Testimony {
	var t agent.Testimony
	if v := n.agent.View(); v != nil {
		slim := v.Slim()
		t.View = &slim
	}
	all := n.agent.Decisions()
	size := 0
	for i, d := range slices.Backward(all) {
		b, err := json.Marshal(d)
		if err != nil || size+len(b) > agent.TestimonyBytes {
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
	own := n.testify()
	told := map[ag.ReplicaID]agent.Testimony{n.self: own}
	e := agent.Explanation{Node: n.self, Missing: map[ag.ReplicaID]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), agent.TestimonyWait)
	defer cancel()
	var mu sync.Mutex // guards told and e.Missing
	var wg sync.WaitGroup
	if g := n.members.Group(); g != nil {
		for _, r := range g.Replicas {
			if r.ID == n.self {
				continue
			}
			wg.Go(func() {
				var t agent.Testimony
				err := n.control.Call(ctx, r, "decisions", nil, &t)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					e.Missing[r.ID] = err.Error()
					return
				}
				told[r.ID] = t
			})
		}
	}
	wg.Wait()
	e.Tell(told)
	return e
}

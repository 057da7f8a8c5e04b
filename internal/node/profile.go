package node

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/node/fencetime"
)

// holdsEverywhere refuses a change of the group's lease profile that the host of a replica cannot hold, and shows why. A replica that has not
// said how long its host takes is not asked here: its agent refuses to start where it is too long.
func (n *node) holdsEverywhere(now, next string) error {
	p, ok := ag.Profiles[next]
	snap := n.agent.Snapshot()
	if next == now || !ok || snap == nil {
		return nil
	}
	return everyHostHolds(p, snap)
}

func everyHostHolds(p ag.Profile, snap *agent.Snapshot) error {
	for _, r := range snap.Group.Replicas {
		took := snap.Statuses[r.ID].Fence
		if took == 0 {
			continue
		}
		if err := p.WithFence(took).Validate(); err != nil {
			e := console.Errorf("55000", "the host of %s takes %v to fence a server of %d processes, which is too long: %v", r.ID,
				took.Round(time.Millisecond), fencetime.Processes, err)
			e.Hint = "coterie check --only fence measures it again; remove fence.json in the node's state directory and restart its agent to have it counted"
			return e
		}
	}
	return nil
}

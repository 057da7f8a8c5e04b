package operations

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/fencetime"
)

// Set changes settings. An impossible combination is refused before anything is written.
func (s *Service) Set(ctx context.Context, req api.SettingsRequest) (err error) {
	defer func() { err = noQuorum(err) }()
	return s.Update(ctx, func(g *ag.Group) error {
		if r := req.CommitRule; r != nil {
			if *r != ag.RuleQuorum && *r != ag.RuleAll {
				return fail.Usagef("commit rule %q: QUORUM or ALL", *r)
			}
			g.CommitRule = *r
		}
		if t := req.SessionTimeout; t != nil {
			if *t < 2*time.Second || *t > 10*time.Minute {
				return fail.Usagef("the session timeout must be between 2 s and 10 min")
			}
			g.SessionTimeout = *t
		}
		return setRequired(g, req.Required)
	})
}

func setRequired(g *ag.Group, required *int) error {
	if required == nil {
		return nil
	}
	if *required < 0 {
		g.Required = nil
		return nil
	}
	if most := g.SynchronousBeside("") - 1; *required > most {
		return fail.Refusedf("the group has %d synchronous secondaries; requiring %d would stop every commit", most, *required)
	}
	g.Required = required
	return nil
}

// holdsEverywhere refuses a change of the group's lease profile that the host of a replica cannot hold, and shows why.
// A replica that has not said how long its host takes is not asked here: its agent refuses to start where it is too
// long.
func (s *Service) holdsEverywhere(now, next string) error {
	p, ok := ag.Profiles[next]
	snap := s.Agent.Snapshot()
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
			e.Hint = "coterie check fence measures it again; remove fence.json in the node's state directory and restart its agent to have it counted"
			return e
		}
	}
	return nil
}

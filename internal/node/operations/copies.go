package operations

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/walstream"
)

// Trust ends the quarantine of a replica's copy as it is.
func (s *Service) Trust(ctx context.Context, id ag.ReplicaID) (string, error) {
	r, ok := s.Members.Replica(id)
	switch {
	case !ok:
		return "", fail.Numberedf(41167, "the group has no member %s", id).WithHint("see coterie status")
	case !r.HasData():
		return "", fail.Refusedf("%s is a witness and holds no data", id)
	case id == s.Self:
		return s.Agent.Trust(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	was, err := rpc.Call(ctx, s.Calls, r, rpc.Trust, rpc.Nothing{})
	if err != nil {
		return "", fmt.Errorf("tell %s that its copy is trusted: %w", id, err)
	}
	return was, nil
}

// Resume continues data movement.
func (s *Service) Resume(ctx context.Context, id ag.ReplicaID) (err error) {
	defer func() { err = s.noQuorum(err) }()
	if snap := s.Agent.Snapshot(); snap != nil && snap.Record.Epoch.Leader == id {
		if st, ok := snap.Statuses[id]; ok && st.Quarantine != "" {
			return fail.Refusedf("%s led last, its copy is under quarantine, and there is no primary to make it anew from: check its storage and run coterie replica resume %s --trust, or coterie failover --to another --allow-data-loss", id, id)
		}
	}
	return s.Update(ctx, func(g *ag.Group) error { return setSuspended(g, id, "") })
}

// SuspendSelf suspends this node in the group's configuration: its copy is not to be counted on.
func (s *Service) SuspendSelf(ctx context.Context) error {
	return s.Update(ctx, func(g *ag.Group) error { return setSuspended(g, s.Self, ag.SuspendUser) })
}

// setSuspended suspends a replica for the reason, or resumes it for "".
func setSuspended(g *ag.Group, id ag.ReplicaID, why ag.SuspendReason) error {
	for i := range g.Replicas {
		if g.Replicas[i].ID == id {
			if why != ag.SuspendRemoval && !g.Replicas[i].HasData() {
				return fail.Refusedf("%s is a witness and holds no data", id)
			}
			if why == "" && g.Replicas[i].Join != "" {
				return fail.Refusedf("%s is no replica of the group; on it run: coterie sql -c 'ALTER AVAILABILITY GROUP %s JOIN'", id, ddl.Brackets(g.Name))
			}
			g.Replicas[i].Suspended, g.Replicas[i].SuspendedBy = why != "", why
			return nil
		}
	}
	return fail.Numberedf(41167, "the group has no member %s", id).WithHint("see coterie status")
}

// Seed has a replica's copy made anew, or verified.
func (s *Service) Seed(ctx context.Context, req api.SeedRequest) (any, error) {
	return s.Seeds.Seed(ctx, req)
}

// CancelSeeding ends the copy or the verification that is under way at a replica.
func (s *Service) CancelSeeding(ctx context.Context, id ag.ReplicaID) (any, error) {
	return s.Seeds.Cancel(ctx, id)
}

// Seedings lists a replica's copies and verifications.
func (s *Service) Seedings(ctx context.Context, id ag.ReplicaID) (any, error) {
	return s.Seeds.List(ctx, id)
}

// Link returns what the path between two replicas is like. The first one is asked.
func (s *Service) Link(ctx context.Context, req api.LinkRequest) (a api.Link, err error) {
	from, err := s.checkLink(req)
	if err != nil {
		return a, err
	}
	if req.From == s.Self {
		return s.Path(ctx, req.To)
	}
	ctx, cancel := context.WithTimeout(ctx, walstream.PathLimit)
	defer cancel()
	return rpc.Call(ctx, s.Calls, from, rpc.Link, req.To)
}

// checkLink refuses to describe what is no link of WAL between two replicas, with a command that describes one.
func (s *Service) checkLink(req api.LinkRequest) (from ag.Replica, err error) {
	if s.Status.Removed() {
		return from, s.removed()
	}
	g := s.Members.Group()
	if g == nil {
		return from, fail.Unhealthyf("this node has not seen its group yet; try again in a moment")
	}
	var ends []ag.ReplicaID // the replicas among the two, then the others
	for _, id := range []ag.ReplicaID{req.From, req.To} {
		r, known := g.Replica(id)
		if !known {
			var names []ag.ReplicaID
			for _, r := range g.Replicas {
				names = append(names, r.ID)
			}
			return from, fail.Numberedf(41167, "the group has no member %s: its members are %s", id, ag.Names(names))
		}
		if r.HasData() && !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	if len(ends) == 2 {
		from, _ = g.Replica(req.From)
		return from, nil
	}
	for _, r := range g.Replicas {
		if r.HasData() && !slices.Contains(ends, r.ID) {
			ends = append(ends, r.ID)
		}
	}
	instead := "the group has no two replicas yet"
	if len(ends) > 1 {
		instead = fmt.Sprintf("run coterie check link %s %s", ends[0], ends[1])
	}
	for _, id := range []ag.ReplicaID{req.From, req.To} {
		if r, _ := g.Replica(id); !r.HasData() {
			return from, fail.Usagef("%s is a witness, and no WAL flows to it; %s", id, instead)
		}
	}
	return from, fail.Usagef("%s has no link to itself; %s", req.From, instead)
}

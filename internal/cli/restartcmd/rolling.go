package restartcmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// backBudget is how long a replica may take to be as well as before its restart.
const backBudget = 10 * time.Minute

// rolling restarts PostgreSQL of one replica after the other, the primary last.
type rolling struct {
	c   *cobra.Command
	cl  *api.Client
	req api.RestartRequest
}

// restarted is one line of the result.
type restarted struct {
	Replica ag.ReplicaID  `json:"replica"`
	Took    time.Duration `json:"took_ns"`
}

// restartServers restarts PostgreSQL of the named replica, of this node's for "", or of all.
func restartServers(c *cobra.Command, cl *api.Client, o serverOptions) error {
	s, err := cl.Status(c.Context())
	if err != nil {
		return cli.NoAgent(c, err)
	}
	r := rolling{c, cl, o.req}
	names, err := r.chosen(s, o)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		cli.Say(c, "no server waits for a restart; nothing to do")
	}
	done := []restarted{}
	for i, id := range names {
		cli.Say(c, "%d of %d: %s", i+1, len(names), id)
		began := time.Now()
		if err := r.one(id); err != nil {
			return fmt.Errorf("%w; %d of %d were restarted before", err, i, len(names))
		}
		took := time.Since(began)
		done = append(done, restarted{id, took})
		cli.Say(c, "PostgreSQL of %s was restarted in %v", id, took.Round(100*time.Millisecond))
	}
	if o.json {
		return cli.PrintJSON(c, done)
	}
	return nil
}

// chosen returns the replicas to be restarted in their order: asynchronous secondaries, synchronous ones, the primary.
func (r rolling) chosen(s api.Status, o serverOptions) ([]ag.ReplicaID, error) {
	if o.name == "" && !o.all && !o.pending {
		o.name = s.Node
	}
	waits := map[ag.ReplicaID]bool{}
	if o.pending {
		found, err := sqlrun.Ask(r.c, r.cl, "SELECT DISTINCT node FROM coterie.settings WHERE pending_restart")
		if err != nil {
			return nil, err
		}
		for _, row := range found.Rows {
			waits[ag.ReplicaID(fmt.Sprint(row[0]))] = true
		}
	}
	var all []api.Replica
	for _, m := range s.Replicas {
		if m.Mode == ag.ConfigurationOnly || m.Join != "" || o.pending && !waits[m.Name] || o.name != "" && m.Name != o.name {
			continue
		}
		all = append(all, m)
	}
	if o.name != "" && len(all) == 0 && !o.pending {
		return nil, fail.Usagef("the group has no replica %s with PostgreSQL", o.name)
	}
	rank := func(m api.Replica) int {
		switch {
		case m.Name == s.Primary:
			return 2
		case m.Mode == ag.SynchronousCommit:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b api.Replica) int { return rank(a) - rank(b) })
	names := make([]ag.ReplicaID, len(all))
	for i, m := range all {
		names[i] = m.Name
	}
	return names, nil
}

// one restarts the server of one replica. A primary gives the leadership away first.
func (r rolling) one(id ag.ReplicaID) error {
	ctx := r.c.Context()
	s, err := r.cl.Status(ctx)
	if err != nil {
		return cli.NoAgent(r.c, err)
	}
	was, _ := replicaOf(s, id)
	if s.Primary == id {
		if !slices.ContainsFunc(s.Replicas, func(m api.Replica) bool { return m.Name != id && m.Sync == ag.Synchronized }) {
			return fail.Refusedf("%s is the primary, and no synchronized secondary could lead meanwhile; with an outage: systemctl restart coterie there", id)
		}
		out, err := r.cl.Failover(ctx, api.FailoverRequest{Drain: r.req.Drain, Cut: r.req.Cut})
		if err != nil {
			return err
		}
		cli.Say(r.c, "%s leads now; %s was the primary", out.To, id)
		if err := r.await(id, "follow the new primary", func(m api.Replica) bool { return m.Role == ag.RoleSecondary && m.Sync == was.Sync }); err != nil {
			return err
		}
	}
	if err := r.cl.Restart(ctx, api.RestartRequest{Server: true, Replica: id}); err != nil {
		return err
	}
	return r.await(id, "be "+string(was.Sync)+" again", func(m api.Replica) bool {
		return m.Role == ag.RolePrimary || m.Server == ag.ServerRecovery && m.Sync == was.Sync // a failover may have made it lead
	})
}

// await waits until a replica is as it should be, for a few looks in succession: what this node knows of another may be
// a second old.
func (r rolling) await(id ag.ReplicaID, what string, is func(api.Replica) bool) error {
	ctx, cancel := context.WithTimeout(r.c.Context(), backBudget)
	defer cancel()
	began, said, good := time.Now(), time.Now(), 0
	for good < 8 {
		s, err := r.cl.Status(ctx)
		m, _ := replicaOf(s, id)
		if good++; err != nil || !is(m) {
			good = 0
		}
		if time.Since(said) > 3*time.Second {
			said = time.Now()
			cli.Say(r.c, "waiting for %s to %s … %v (%s)", id, what, time.Since(began).Round(time.Second), m.Sync)
		}
		if retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return fail.Unhealthyf("%s did not %s within %v; see coterie status", id, what, backBudget)
		}
	}
	return nil
}

func replicaOf(s api.Status, id ag.ReplicaID) (api.Replica, bool) {
	i := slices.IndexFunc(s.Replicas, func(m api.Replica) bool { return m.Name == id })
	if i < 0 {
		return api.Replica{}, false
	}
	return s.Replicas[i], true
}

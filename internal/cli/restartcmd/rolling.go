package restartcmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// backBudget is how long a replica may take to be as well as before its restart.
const backBudget = 10 * time.Minute

// mostRestarts is how often one command restarts a server: once for what is raised, once for what is lowered, and once
// more if the leadership changed meanwhile.
const mostRestarts = 3

// rolling restarts PostgreSQL of one replica after the other. No secondary may have less of some settings than the
// primary. So the secondaries with something to raise come first, then a primary with something to lower, in place, and
// then the other secondaries. A primary with nothing to lower is the last.
type rolling struct {
	c     *cobra.Command
	cl    *api.Client
	req   api.RestartRequest
	o     serverOptions
	times map[ag.ReplicaID]int // how often each was restarted
}

// waiting is which settings of a server wait for a restart.
type waiting struct {
	raise []string // or change in another way
	lower []string // of those of which no secondary may have less than the primary
	held  []string // of lower, with why no restart of this server lowers it yet
}

// lowers reports whether a restart lowers something.
func (w waiting) lowers() bool { return len(w.lower) > len(w.held) }

// step is the next restart.
type step struct {
	id      ag.ReplicaID
	inPlace bool
	settle  bool // what is lowered on the primary has to arrive there first
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
	r := rolling{c, cl, o.req, o, map[ag.ReplicaID]int{}}
	if r.o.name == "" && !o.all && !o.pending {
		r.o.name = s.Node
	}
	if o.dryRun {
		return r.foretell(s)
	}
	done := []restarted{}
	for {
		st, left, err := r.next()
		if err != nil && len(done) > 0 {
			return fmt.Errorf("%w; %d were restarted before", err, len(done))
		}
		if err != nil {
			return err
		}
		if st == nil {
			break
		}
		cli.Say(c, "%d of %d: %s", len(done)+1, len(done)+left, st.id)
		began := time.Now()
		err = r.one(*st)
		if c.Context().Err() != nil {
			return fail.Unhealthyf("interrupted: %d of %d were restarted before, and what was asked of %s goes on; the same command begins anew, and --pending in the place of --all leaves out what no longer waits", len(done), len(done)+left, st.id)
		}
		if err != nil && len(done)+left == 1 {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w; %d of %d were restarted before", err, len(done), len(done)+left)
		}
		took := time.Since(began)
		r.times[st.id]++
		done = append(done, restarted{st.id, took})
		cli.Say(c, "PostgreSQL of %s was restarted in %v", st.id, took.Round(100*time.Millisecond))
	}
	if len(done) == 0 {
		cli.Say(c, "no server waits for a restart; nothing to do")
	}
	r.sayKept()
	if o.json {
		return cli.PrintJSON(c, done)
	}
	return nil
}

// waits returns what waits for a restart on each server that answers.
func (r rolling) waits() (map[ag.ReplicaID]waiting, error) {
	found, err := sqlrun.Ask(r.c, r.cl, "SELECT node, name, source FROM coterie.settings WHERE pending_restart ORDER BY node, name")
	if err != nil {
		return nil, err
	}
	out := map[ag.ReplicaID]waiting{}
	for _, row := range found.Rows {
		id, name, source := ag.ReplicaID(fmt.Sprint(row[0])), fmt.Sprint(row[1]), fmt.Sprint(row[2])
		w := out[id]
		switch {
		case !strings.HasPrefix(source, api.KeptSource):
			w.raise = append(w.raise, name)
		default:
			if w.lower = append(w.lower, name); strings.HasPrefix(source, api.KeptWhile) {
				w.held = append(w.held, name+" "+source)
			}
		}
		out[id] = w
	}
	return out, nil
}

// next returns which server restarts now, of how many that are left; nil: none is.
func (r rolling) next() (*step, int, error) {
	s, err := r.cl.Status(r.c.Context())
	if err != nil {
		return nil, 0, cli.NoAgent(r.c, err)
	}
	waits, err := r.waits()
	if err != nil && (r.o.pending || len(r.times) == 0 && r.o.all) {
		return nil, 0, err
	}
	return r.choose(s, waits)
}

// choose returns what next returns, for a group with that status and what waits on its servers.
func (r rolling) choose(s api.Status, waits map[ag.ReplicaID]waiting) (*step, int, error) {
	all, known := r.left(s, waits)
	if r.o.name != "" && !known && !r.o.pending {
		return nil, 0, noServer(s, r.o.name)
	}
	if len(all) == 0 {
		return nil, 0, nil
	}
	if !s.Quorum {
		return nil, 0, fail.Unhealthyf("no majority of the quorum answers %s, so no server is restarted; start the members that do not answer, see coterie status", s.Node)
	}
	lowers := slices.ContainsFunc(all, func(m api.Replica) bool { return m.Name == s.Primary && waits[m.Name].lowers() })
	rank := func(m api.Replica) int {
		n := 0
		switch {
		case m.Name == s.Primary && lowers:
			return 2
		case m.Name == s.Primary:
			return 5
		case lowers && len(waits[m.Name].raise) == 0:
			n = 3
		}
		if m.Mode == ag.SynchronousCommit {
			n++
		}
		return n
	}
	first := slices.MinFunc(all, func(a, b api.Replica) int { return rank(a) - rank(b) })
	w := waits[first.Name]
	return &step{first.Name, first.Name == s.Primary && lowers, first.Name != s.Primary && len(w.held) > 0 && len(waits[s.Primary].lower) == 0}, len(all), nil
}

// noServer returns why a member has no PostgreSQL that this command could restart.
func noServer(s api.Status, id ag.ReplicaID) error {
	var have []string
	for _, m := range s.Replicas {
		switch {
		case m.Name == id && m.Mode == ag.ConfigurationOnly:
			return fail.Refusedf("%s is a witness, which has no PostgreSQL; to restart its agent run there: coterie restart", id)
		case m.Name == id:
			return fail.Refusedf("%s has not joined the group, so its PostgreSQL is not restarted; on it run: coterie sql -c 'ALTER AVAILABILITY GROUP %s JOIN'", id, ddl.Brackets(s.Group))
		case m.Mode != ag.ConfigurationOnly && m.Join == "":
			have = append(have, string(m.Name))
		}
	}
	return fail.Usagef("the group has no member %s; the replicas with PostgreSQL are %s", id, strings.Join(have, ", "))
}

// left returns the replicas that are still to be restarted. One is restarted again if another restart would change
// what it has. known is whether the replica is there that is named.
func (r rolling) left(s api.Status, waits map[ag.ReplicaID]waiting) (all []api.Replica, known bool) {
	primaryToo := waits[s.Primary].lowers() && (r.o.name == "" || r.o.name == s.Primary) && r.times[s.Primary] < mostRestarts
	for _, m := range s.Replicas {
		if m.Mode == ag.ConfigurationOnly || m.Join != "" || r.o.name != "" && m.Name != r.o.name {
			continue
		}
		known = true
		w, n := waits[m.Name], r.times[m.Name]
		helps := len(w.raise) > 0 || w.lowers() || primaryToo && len(w.lower) > 0 // a restart changes what it has, now or then
		switch {
		case n == 0 && (!r.o.pending || helps), n > 0 && n < mostRestarts && len(w.lower) > 0 && helps && r.o.name == "":
			all = append(all, m)
		}
	}
	return all, known
}

// sayKept says of each server that keeps more of a setting than is wanted why it does.
func (r rolling) sayKept() {
	waits, err := r.waits()
	if err != nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		w := waits[id]
		switch {
		case r.o.name != "" && r.o.name != id:
		case len(w.held) > 0:
			cli.Say(r.c, "%s still has more than is wanted: %s", id, strings.Join(w.held, ", "))
		case len(w.lower) > 0:
			cli.Say(r.c, "%s still has more than is wanted of %s: coterie settings diff says why", id, strings.Join(w.lower, ", "))
		}
	}
}

// settleBudget is how long what was lowered on the primary may take to arrive on a secondary.
const settleBudget = time.Minute

// settled waits until a secondary has seen that the primary has less.
func (r rolling) settled(id ag.ReplicaID) error {
	for end := time.Now().Add(settleBudget); ; {
		waits, err := r.waits()
		if err != nil {
			return err
		}
		switch held := waits[id].held; {
		case len(held) == 0:
			return nil
		case time.Now().After(end):
			cli.Say(r.c, "%s: %s", id, strings.Join(held, ", "))
			return nil
		}
		if err := retry.Sleep(r.c.Context(), 300*time.Millisecond); err != nil {
			return err
		}
	}
}

// one restarts the server of one replica. A primary gives the leadership away first, or restarts in place.
func (r rolling) one(st step) error {
	ctx, id := r.c.Context(), st.id
	s, err := r.cl.Status(ctx)
	if err != nil {
		return cli.NoAgent(r.c, err)
	}
	was, _ := s.Replica(id)
	if st.inPlace {
		if err := r.cl.Restart(ctx, api.RestartRequest{Server: true, Replica: id, InPlace: true, Drain: r.req.Drain, Cut: r.req.Cut}); err != nil {
			return err
		}
		return r.await(id, "lead again", func(m api.Replica) bool {
			return m.Role == ag.RolePrimary || m.Role == ag.RoleSecondary && m.Sync == was.Sync
		})
	}
	if s.Primary == id {
		if err := r.awaitHeir(s, id); err != nil {
			return err
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
	if st.settle {
		if err := r.settled(id); err != nil {
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

// heirBudget is how long a secondary that answers may take to be synchronized, as after the restart of its server that
// somebody else has begun; tests shorten it.
var heirBudget = 30 * time.Second

// awaitHeir waits until a synchronized secondary could lead in the place of the primary. None is waited for where no
// other synchronous replica answers.
func (r rolling) awaitHeir(s api.Status, id ag.ReplicaID) error {
	for end, said := time.Now().Add(heirBudget), false; ; {
		var coming []string
		for _, m := range s.Replicas {
			switch {
			case m.Name == id || m.Mode != ag.SynchronousCommit:
			case m.Sync == ag.Synchronized:
				return nil
			case m.Connected == "CONNECTED" && !m.Suspended:
				coming = append(coming, string(m.Name))
			}
		}
		if len(coming) == 0 || time.Now().After(end) {
			return fail.Refusedf("%s is the primary, and no synchronized secondary could lead meanwhile: if another restart is under way, let it end and run this again; with an outage: systemctl restart coterie there", id)
		}
		if !said {
			cli.Say(r.c, "waiting for %s to be synchronized, so that it can lead meanwhile", strings.Join(coming, " or "))
			said = true
		}
		if err := retry.Sleep(r.c.Context(), 300*time.Millisecond); err != nil {
			return err
		}
		var err error
		if s, err = r.cl.Status(r.c.Context()); err != nil {
			return cli.NoAgent(r.c, err)
		}
	}
}

// await waits until a replica is as it should be.
func (r rolling) await(id ag.ReplicaID, what string, is func(api.Replica) bool) error {
	return cli.AwaitReplica(r.c, r.cl, cli.Awaited{ID: id, What: what, Limit: backBudget}, func(_ api.Status, m api.Replica) bool { return is(m) })
}

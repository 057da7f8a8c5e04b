package operations

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// effectLimit is how long a statement waits for its effect before it reports that the effect is still to come.
const effectLimit = 90 * time.Second

// await waits until every node that answers acts on the configuration, and until each replica that the change touched
// is in its new state. It reports the effects that are still to come.
func (e Executor) await(ctx context.Context, was, is ag.Group, rev int64) []console.Notice {
	ctx, cancel := context.WithTimeout(ctx, effectLimit)
	defer cancel()
	var waiting []string
	for {
		waiting = e.missing(was, is, rev)
		if len(waiting) == 0 {
			return nil
		}
		if retry.Sleep(ctx, 30*time.Millisecond) != nil {
			return []console.Notice{{Severity: "WARNING", Message: "recorded; the effect is still to come: " + strings.Join(waiting, "; ")}}
		}
	}
}

// missing lists what of a change has not had its effect.
func (e Executor) missing(was, is ag.Group, rev int64) []string {
	snap, v := e.Agent.Snapshot(), e.Agent.View()
	if snap == nil || v == nil || snap.GroupRev < rev {
		return []string{"this node has not read it"}
	}
	var out []string
	for _, r := range is.Replicas {
		st := snap.Statuses[r.ID]
		if (r.ID == e.Self || slices.Contains(v.Reach, r.ID)) && st.Config < rev {
			out = append(out, fmt.Sprintf("%s has not read it", r.ID))
		}
		old, _ := was.Replica(r.ID)
		_, counted := snap.Record.State.InV(r.ID)
		leads := snap.Record.Epoch.Leader == r.ID
		switch {
		case !r.HasData() || leads:
		case counted && (r.Suspended || r.AvailabilityMode != ag.SynchronousCommit):
			out = append(out, fmt.Sprintf("%s still counts for commits", r.ID))
		case old.Suspended && !r.Suspended && (!st.Stream || r.AvailabilityMode == ag.SynchronousCommit && !counted) && (r.ID == e.Self || slices.Contains(v.Reach, r.ID)):
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s does not follow yet: %s", r.ID, st.Progress), ": "))
		case old.AvailabilityMode == ag.AsynchronousCommit && r.AvailabilityMode == ag.SynchronousCommit && !r.Suspended && !counted && st.Stream:
			out = append(out, fmt.Sprintf("%s does not count for commits yet", r.ID))
		}
	}
	if len(out) == 0 {
		out = e.unrouted(was, is, snap.Record.Epoch.Leader)
	}
	return out
}

// unrouted lists what this node's listener does not do yet of a change that is in effect otherwise.
func (e Executor) unrouted(was, is ag.Group, leader ag.ReplicaID) []string {
	routes := e.Clients.Routes()
	if routes == nil || routes.Primary != leader {
		return nil // whom to route to is another question
	}
	if !slices.EqualFunc(routes.ReadList, is.ReadList(leader), slices.Equal[[]ag.ReplicaID]) {
		return []string{"this node's listener has the list of before"}
	}
	var out []string
	for _, r := range is.Replicas {
		old, _ := was.Replica(r.ID)
		t, ok := routes.Target(r.ID)
		if old.Suspended && !r.Suspended && r.ID != leader && r.HasData() && r.Allow != ag.AllowNo && ok && t.Healthy && !t.Readable {
			out = append(out, fmt.Sprintf("this node's listener sends no readers to %s yet", r.ID))
		}
	}
	return out
}

func (e Executor) operate(ctx context.Context, s ddl.Statement) (console.Result, error) {
	x, err := e.Store.Read(ctx)
	if err != nil {
		return console.Result{}, err
	}
	if err := s.Check(x.Group, e.where(x.Record)); err != nil {
		return console.Result{}, err
	}
	switch a := s.Action.(type) {
	case ddl.Failover:
		return e.failover(ctx, s, a)
	case ddl.RestartListener:
		return e.restartListeners(ctx, s, a, x.Group)
	case ddl.Seed:
		return e.seed(ctx, s, api.SeedRequest{Replica: ddl.ReplicaID(a.Server), Full: true})
	case ddl.CancelSeeding:
		op, err := e.Seeds.Cancel(ctx, ddl.ReplicaID(a.Server))
		return seedResult(s, op, err)
	default:
		return console.Result{}, console.Errorf("0A000", "%s is not there yet", s.Verb())
	}
}

// restartLimit bounds the restart of the listeners of all nodes.
const restartLimit = 5 * time.Second

// restartListeners has every node read its listener's certificate and rules again. A node that does not answer does so
// when it starts.
func (e Executor) restartListeners(ctx context.Context, s ddl.Statement, a ddl.RestartListener, g ag.Group) (console.Result, error) {
	r := console.Result{Tag: s.Verb()}
	if !slices.ContainsFunc(g.Options.Listeners, func(x ag.Listener) bool { return strings.EqualFold(x.Name, a.Name) }) {
		return r, console.Errorf("42704", "availability group %s has no listener %s", g.Name, a.Name).WithHint("SELECT dns_name FROM sys.availability_group_listeners")
	}
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	_, failed := rpc.Each(ctx, g.Replicas, func(ctx context.Context, m ag.Replica) (rpc.Nothing, error) {
		if m.ID == e.Self {
			return rpc.Nothing{}, e.Clients.Restart()
		}
		return rpc.Call(ctx, e.Calls, m, rpc.RestartListener, rpc.Nothing{})
	})
	for _, m := range g.Replicas {
		if err := failed[m.ID]; err != nil {
			r.Notices = append(r.Notices, console.Notice{Severity: "WARNING", Message: fmt.Sprintf("%s: %v", m.ID, err)})
		}
	}
	return r, nil
}

func (e Executor) failover(ctx context.Context, s ddl.Statement, f ddl.Failover) (console.Result, error) {
	to := e.Self
	if f.To != "" {
		to = ddl.ReplicaID(f.To)
	}
	r, err := e.Failover(ctx, api.FailoverRequest{To: to, AllowDataLoss: f.Force, Now: f.Now, NoWait: s.NoWait})
	if err != nil {
		return console.Result{}, err
	}
	out := console.Result{Tag: s.Verb()}
	if s.NoWait {
		out.Notices = []console.Notice{{Severity: "NOTICE", Message: fmt.Sprintf("the failover to %s is asked for: coterie status shows whether it is under way; SELECT at, what, because FROM coterie.events WHERE kind = 'leadership' how it ended", r.To)}}
		return out, nil
	}
	e.awaitOpen(ctx, r.To)
	out.Notices = []console.Notice{{
		Severity: "NOTICE", Message: fmt.Sprintf("%s is the primary in epoch %d after %v (was %s)", r.To, r.Epoch, r.Took.Round(time.Millisecond), r.From),
	}}
	if f.Now {
		out.Notices = append(out.Notices, console.Notice{Severity: "WARNING", Message: olderAnswers(r.From, r.To)})
	}
	if f.Force {
		out.Notices = append(out.Notices, console.Notice{
			Severity: "WARNING", Message: "every other copy is suspended as it is: look at what it has, then ALTER AVAILABILITY GROUP … RESUME REPLICA ON it",
		})
	}
	return out, nil
}

// olderAnswers returns the warning about what NOW accepts.
func olderAnswers(from, to ag.ReplicaID) string {
	return fmt.Sprintf("%s opened at once: until its lease ends, clients of %s may still be given answers that lack what is written on %s; coterie.record says for how long", to, from, to)
}

// awaitOpen waits, for a while, until this node's listener knows that the new primary takes writes.
func (e Executor) awaitOpen(ctx context.Context, primary ag.ReplicaID) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if r := e.Clients.Routes(); r != nil && r.Primary == primary && r.WriteOpen {
			return
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return
		}
	}
}

// runReport answers the statements that change nothing.
func (e Executor) runReport(ctx context.Context, s ddl.Statement) (console.Result, error) {
	f := e.Status.Facts(ctx)
	if err := s.Check(f.Group, e.where(f.Record)); err != nil {
		return console.Result{}, err
	}
	r := console.Result{Columns: console.Columns(s), Rows: [][]any{}, Tag: "SELECT"}
	switch a := s.Action.(type) {
	case ddl.Script:
		if !f.Group.Draft {
			for line := range strings.Lines(ddl.ScriptText(f.Group)) {
				r.Rows = append(r.Rows, []any{strings.TrimRight(line, "\n")})
			}
		}
	case ddl.TraceFlags:
		for _, t := range a.TraceStatus(f.Group) {
			on := int64(0)
			if t.On {
				on = 1
			}
			r.Rows = append(r.Rows, []any{int64(t.Flag), on, on, int64(0)})
		}
	case ddl.ExplainFailover:
		for _, e := range f.ExplainFailover() {
			r.Rows = append(r.Rows, []any{string(e.Replica), e.Ready, e.Because})
		}
	case ddl.VerifyRouting:
		for _, t := range e.settled(ctx, f).VerifyRouting() {
			var target, entry any
			if t.Target != "" {
				target = string(t.Target)
			}
			if t.Entry > 0 {
				entry = int64(t.Entry)
			}
			r.Rows = append(r.Rows, []any{string(t.Node), string(t.Intent), target, entry, strings.Join(t.Passed, "; ")})
		}
	default:
	}
	return r, nil
}

// settling is how long after its start an agent may not have met every member: what it knows of the others is no fact
// about them yet.
const settling = 3 * time.Second

// settled returns the facts once this node knows the routes and the members of the group, or has run for long enough to
// say that it does not see them.
func (e Executor) settled(ctx context.Context, f catalog.Facts) catalog.Facts {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for f.Nodes[e.Self].Uptime < settling && !whole(f) && retry.Sleep(ctx, 50*time.Millisecond) == nil {
		f = e.Status.Facts(ctx)
	}
	return f
}

// whole reports whether the primary takes writes and every node answers, with routes where it serves clients.
func whole(f catalog.Facts) bool {
	for _, r := range f.Group.Replicas {
		n := f.Nodes[r.ID]
		if !n.Connected || n.Routes == nil && (r.Listener != "" || r.ReadOnly != "") {
			return false
		}
	}
	return f.WriteOpen
}

// seed runs SEED REPLICA: a present copy is compared as a whole and replaced where it differs. It returns once the copy
// is asked for.
func (e Executor) seed(ctx context.Context, s ddl.Statement, req api.SeedRequest) (console.Result, error) {
	op, err := e.Seeds.Seed(ctx, req)
	return seedResult(s, op, err)
}

// seedResult returns the result of a statement that began or ended op.
func seedResult(s ddl.Statement, op seeding.Operation, err error) (console.Result, error) {
	r := console.Result{Tag: s.Verb()}
	if err == nil {
		r.Notices = []console.Notice{{
			Severity: "NOTICE", Message: fmt.Sprintf("%s: %s (operation %s); see sys.dm_hadr_physical_seeding_stats", op.Target, strings.ToLower(string(op.State)), op.ID),
		}}
	}
	return r, err
}

package operations

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Set changes settings. An impossible combination is refused before anything is written.
func (s *Service) Set(ctx context.Context, req api.SettingsRequest) (err error) {
	defer func() { err = s.noQuorum(err) }()
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
	if most := max(g.TakePart("")-1, 0); *required > most {
		return fail.Refusedf("%d of the secondaries take part in commits; requiring %d would stop every commit. "+
			"Make another replica SYNCHRONOUS_COMMIT first, or resume a suspended one", most, *required)
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

// Holds returns why the host of a replica cannot hold a lease profile; nil: each can, as far as it has said.
func (s *Service) Holds(profile string) error {
	if g := s.Members.Group(); g != nil {
		return s.holdsEverywhere(g.Profile, profile)
	}
	return nil
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

// checkTime is how long the replicas may take to judge new settings of PostgreSQL.
const checkTime = 20 * time.Second

// checkParameters has each replica judge the settings of PostgreSQL that its server would get, before anything is
// written. A setting that one refuses is refused. Nobody answering is a refusal, too; a replica that does not answer,
// beside others that do, is named in a notice.
func (e Executor) checkParameters(ctx context.Context, old, next ag.Group) (notices []console.Notice, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	asked := map[ag.ReplicaID]map[string]*string{}
	var replicas []ag.Replica
	for _, r := range next.Replicas {
		if change := changeOf(old.ParametersOf(r.ID), next.ParametersOf(r.ID)); len(change) > 0 && r.HasData() {
			asked[r.ID] = change
			replicas = append(replicas, r)
		}
	}
	if len(replicas) == 0 {
		return nil, nil
	}
	for _, change := range asked {
		if err := relaxes(next, change); err != nil {
			return nil, err
		}
	}
	answers, failed := rpc.Each(ctx, replicas, func(ctx context.Context, r ag.Replica) ([]string, error) {
		if r.ID == e.Self {
			return e.CheckParameters(ctx, asked[r.ID])
		}
		return rpc.Call(ctx, e.Calls, r, rpc.CheckParameters, asked[r.ID])
	})
	notice := func(format string, a ...any) {
		notices = append(notices, console.Notice{Severity: "NOTICE", Message: fmt.Sprintf(format, a...)})
	}
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		err := failed[id]
		if kind := fail.KindOf(err); kind == fail.Usage || kind == fail.Refused {
			return nil, fmt.Errorf("on %s: %w", id, err)
		}
		if len(answers) == 0 { // as of a replica without a copy yet: this server judges in its place
			if _, err := e.CheckParameters(ctx, asked[id]); err != nil {
				return nil, fmt.Errorf("in place of %s, which did not say (%w): %w", id, failed[id], err)
			}
		}
		notice("%s did not say whether its server takes the settings: %v", id, rpc.Plainly(err))
	}
	notices = append(notices, e.weigh(ctx, replicas, asked)...)
	var waits []string
	for _, names := range answers {
		waits = append(waits, names...)
	}
	slices.Sort(waits)
	if waits = slices.Compact(waits); len(waits) > 0 {
		notice("%s: in force when each server has been restarted; coterie check settings names those that wait", strings.Join(waits, ", "))
	}
	if grow := slices.DeleteFunc(waits, func(name string) bool { return !slices.Contains(limits, name) }); len(grow) > 0 {
		notice("%s: no secondary may have less than the primary; coterie restart --postgres --pending restarts the servers in an order that keeps to it", strings.Join(grow, ", "))
	}
	return notices, nil
}

// weigh returns a notice if a server may take more memory than its host has with the settings that it would get: of the
// smallest host. A replica that does not say, as one of an earlier version, is not told of: it has judged each setting.
func (e Executor) weigh(ctx context.Context, replicas []ag.Replica, asked map[ag.ReplicaID]map[string]*string) []console.Notice {
	answers, _ := rpc.Each(ctx, replicas, func(ctx context.Context, r ag.Replica) (rpc.Weight, error) {
		if r.ID == e.Self {
			return e.WeighParameters(ctx, given(asked[r.ID]))
		}
		return rpc.Call(ctx, e.Calls, r, rpc.WeighParameters, given(asked[r.ID]))
	})
	var least ag.ReplicaID
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if w := answers[id]; w.Warning != "" && (least == "" || w.Host < answers[least].Host) {
			least = id
		}
	}
	if least == "" {
		return nil
	}
	return []console.Notice{{Severity: "NOTICE", Message: fmt.Sprintf("on %s: %s", least, answers[least].Warning)}}
}

// limits are the settings of which a standby must not have less than its primary.
var limits = []string{"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"}

// sessions are the settings by which a server has room for sessions.
var sessions = []string{"max_connections", "superuser_reserved_connections", "reserved_connections"}

// changeOf returns the values of next that are not in old. Of the settings by which a server has room for sessions it
// has those that are taken back, too, without a value: what else is configured may be too little.
func changeOf(old, next map[string]string) map[string]*string {
	out := map[string]*string{}
	for name, value := range next {
		if before, had := old[name]; !had || before != value {
			out[name] = &value
		}
	}
	for _, name := range sessions {
		_, had := old[name]
		if _, has := next[name]; had && !has {
			out[name] = nil
		}
	}
	return out
}

// relaxes refuses a default of synchronous_commit with which commits are acknowledged before a secondary has them.
func relaxes(g ag.Group, change map[string]*string) error {
	given := change["synchronous_commit"]
	if given == nil {
		return nil
	}
	value := *given
	if g.Options.AllowRelaxedCommit || slices.Contains([]string{"on", "remote_apply", "true", "yes", "1"}, strings.ToLower(value)) {
		return nil
	}
	return fail.Error{
		Kind: fail.Refused, Hint: "ALTER AVAILABILITY GROUP name SET (ALLOW_RELAXED_COMMIT = ON) allows it; a session may always choose for itself",
		Err: fmt.Errorf("synchronous_commit = %s would have commits acknowledged before a secondary has them, and a failover would lose them", value),
	}
}

// CheckParameters returns an error if this node's server could not have one of the settings, and the names of those
// that take effect only at its next start.
func (s *Service) CheckParameters(ctx context.Context, change map[string]*string) (restart []string, err error) {
	if s.Server == nil {
		return nil, fail.Refusedf("a witness has no PostgreSQL")
	}
	if len(change) > 1000 {
		return nil, fail.Usagef("%d settings at once", len(change))
	}
	values := given(change)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		later, err := s.Server.CheckParameter(ctx, name, values[name])
		if err != nil {
			return nil, err
		}
		if later {
			restart = append(restart, name)
		}
	}
	if err := s.Server.CheckRoom(ctx, change); err != nil {
		return nil, err
	}
	if _, _, err := s.Server.Weigh(ctx, values); fail.KindOf(err) == fail.Refused { // all together; else each was judged
		return nil, err
	}
	return restart, s.Vouch(values)
}

// given returns the values of a change, without the settings that it takes back.
func given(change map[string]*string) map[string]string {
	values := map[string]string{}
	for name, value := range change {
		if value != nil {
			values[name] = *value
		}
	}
	return values
}

// WeighParameters returns how much memory this node's server would take with the settings.
func (s *Service) WeighParameters(ctx context.Context, values map[string]string) (rpc.Weight, error) {
	if s.Server == nil {
		return rpc.Weight{}, fail.Refusedf("a witness has no PostgreSQL")
	}
	host, warning, err := s.Server.Weigh(ctx, values)
	return rpc.Weight{Host: host, Warning: warning}, err
}

const (
	// maintenanceEvery is how often a node looks for maintenance whose time has come.
	maintenanceEvery = time.Second
	// leaderFirst is how much later than the leader another node ends maintenance, which it does where none leads.
	leaderFirst = 15 * time.Second
)

// RunMaintenance ends maintenance of the group and of replicas at its time, by the leader's clock, until ctx is done.
// Where no leader is in reach it does so by the clock of this node.
func (s *Service) RunMaintenance(ctx context.Context) error {
	retry.Every(ctx, maintenanceEvery, func() {
		v := s.Agent.View()
		if v == nil || !v.Quorum || s.Node.Kind == certs.KindWitness { // which does not sign the configuration
			return
		}
		now := time.Now()
		if e := v.Record.Epoch; e.Leader != s.Self {
			if e.Phase == ag.PhaseLead && slices.Contains(v.Reach, e.Leader) {
				return // by the leader's clock: this one may be ahead
			}
			now = now.Add(-leaderFirst)
		}
		over := v.Group.MaintenanceOver(now)
		if len(over) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		err := s.Update(ctx, func(g *ag.Group) error { g.EndMaintenance(now); return nil })
		s.Logger.Info("maintenance ends at its time", "of", over, "err", err)
		s.Agent.Wake()
	})
	return nil
}

// checkRules refuses rules for logins that no listener could honour, before they are written.
func (e Executor) checkRules(ctx context.Context, old, next ag.Group) (notices []console.Notice, err error) {
	if next.HBA == old.HBA || next.HBA == "" {
		return nil, nil
	}
	warnings, err := e.Clients.JudgeRules(next.HBA, origins(next, e.Status.Facts(ctx).Nodes))
	if err != nil {
		refused := console.Errorf("F0000", "the rules cannot be used: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		refused.Hint = "nothing was changed; correct those lines"
		return nil, refused
	}
	for _, w := range warnings {
		notices = append(notices, console.Notice{Severity: "WARNING", Message: w})
	}
	return notices, nil
}

// origins returns the addresses from which sessions come now, and from which those on members would.
func origins(g ag.Group, nodes map[ag.ReplicaID]catalog.Node) (out []netip.Addr) {
	for _, r := range g.Replicas {
		n := nodes[r.ID]
		for _, s := range n.Sessions {
			if at, err := netip.ParseAddrPort(s.Client); err == nil {
				out = append(out, at.Addr())
			}
		}
		host, _, _ := net.SplitHostPort(r.Endpoint)
		if at, err := netip.ParseAddr(host); err == nil {
			out = append(out, at)
			continue
		}
		for _, p := range n.Networks { // its endpoint is a name
			out = append(out, p.Addr())
		}
	}
	return out
}

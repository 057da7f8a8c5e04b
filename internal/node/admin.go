package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// admin is the node as administrators see it.
type admin struct{ n *node }

// Status answers from memory: the last view, the last reports of the others, the last pings.
func (m *admin) Status() api.Status {
	n := m.n
	s := api.Status{Group: n.cfg.GroupName, GroupID: ag.GroupID(n.cfg.Group), Node: n.self}
	v, snap := n.agent.View(), n.agent.Snapshot()
	if v == nil || snap == nil {
		v, snap = &ag.View{Self: n.self}, &agent.Snapshot{}
		if g := n.members.Group(); g != nil {
			v.Group = *g
		}
	}
	if v.Group.Name != "" {
		s.Group = v.Group.Name // CREATE AVAILABILITY GROUP may have named it anew
	}
	s.Draft = v.Group.Draft
	e, st := v.Record.Epoch, v.Record.State
	s.Epoch, s.Phase, s.Quorum, s.Voters, s.Profile = e.Epoch, e.Phase, v.Quorum, v.Group.Voting(), v.Group.Profile
	s.External = v.Group.External
	if q := n.cfg.Quorum; q != nil {
		s.QuorumEndpoints = q.Endpoints
	}
	s.CommitRule, s.SyncMembers, s.SyncCount, s.Timeline = v.Group.CommitRule, st.V, st.K, st.Basis.Timeline
	_, s.Required = v.Group.CommitTarget(v.Group.SynchronousBeside(st.Leader))
	if v.Op.Epoch == e.Epoch && v.Op.ID != "" {
		s.Operation = fmt.Sprintf("%s to %s", strings.ToLower(string(v.Op.Kind)), v.Op.To)
	}
	if p := n.agent.Plan(); p != nil {
		s.Rule, s.Because = p.Rule, p.Because
	}
	if r := n.clients.Routes(); r != nil {
		answers := r.Primary == n.self || slices.Contains(v.Reach, r.Primary)
		s.Primary, s.WriteOpen = r.Primary, r.WriteOpen && answers // a primary that died has said that it is open
	}
	head := snap.Statuses[e.Leader].Position
	if e.Leader == n.self {
		head = v.Local.Position
		s.AnswersUntil = fmt.Sprintf("%v left", boottime.Until(n.agent.LeaseUntil()).Round(time.Millisecond))
	}
	for _, r := range v.Group.Replicas {
		s.Replicas = append(s.Replicas, m.replica(*v, snap, r, head))
	}
	if n.links != nil {
		s.Links = n.links.Describe()
	}
	for _, p := range n.endpoint.Peers() {
		if p.RelayTo != "" {
			s.Relays = append(s.Relays, api.Relay{From: p.Identity.ID, To: p.RelayTo, Since: p.Since})
		}
	}
	leader := snap.Statuses[e.Leader]
	s.WaitsFor = fmt.Sprintf("%d of %v", leader.SyncN, leader.SyncP)
	s.FailoverReady = failoverReady(*v)
	s.Rotation, s.Authority = rotationOf(v.Group), n.pki.Identity().Authority()
	return s
}

func failoverReady(v ag.View) string {
	switch {
	case v.Untrusted != "":
		return "not ready: " + v.Untrusted + "; a person must decide who leads"
	case !v.Quorum:
		return "not ready: no majority of the quorum answers"
	case v.Record.State.K == 0:
		return "not ready: no secondary is synchronized"
	case !v.Group.Survives(v.Record.Epoch.Leader):
		return "not ready: the primary has the vote that decides, and two nodes cannot tell a dead primary from a cut link; add a witness or a third replica"
	case !slices.ContainsFunc(v.Record.State.V, func(m ag.Member) bool { return takesOver(v.Group, m.ID) }):
		return "not ready: no synchronized secondary may take over by itself (FAILOVER_MODE = MANUAL, or suspended)"
	}
	return unanswered(v)
}

// unanswered is what keeps those that answer now from taking over, should the primary die: too few voters, or too few of the synchronized.
func unanswered(v ag.View) string {
	leader, votes := v.Record.Epoch.Leader, 0
	for _, r := range v.Group.Replicas {
		if r.ID != leader && v.Group.Votes(r) && slices.Contains(v.Reach, r.ID) {
			votes++
		}
	}
	if voting := v.Group.Voting(); v.Group.External == 0 && votes <= voting/2 {
		return fmt.Sprintf("not ready: without the primary %d of %d votes would be left, which is no majority; start what does not answer", votes, voting)
	}
	var there []ag.ReplicaID
	for _, m := range v.Record.State.V {
		if slices.Contains(v.Reach, m.ID) {
			there = append(there, m.ID)
		}
	}
	if need := v.Record.State.SealsNeeded(); len(there) < need {
		return fmt.Sprintf("not ready: %d of the synchronized secondaries would have to answer, and %d do; start those that do not", need, len(there))
	}
	if !slices.ContainsFunc(there, func(id ag.ReplicaID) bool { return takesOver(v.Group, id) }) {
		return "not ready: no synchronized secondary that answers may take over by itself (FAILOVER_MODE = MANUAL, or suspended)"
	}
	return "ready"
}

// takesOver reports whether a member's agent may claim the leadership of its own accord.
func takesOver(g ag.Group, id ag.ReplicaID) bool {
	r, ok := g.Replica(id)
	return ok && r.FailoverMode == ag.Automatic && r.AvailabilityMode == ag.SynchronousCommit && !r.Suspended
}

func (m *admin) replica(v ag.View, snap *agent.Snapshot, r ag.Replica, head ag.Position) api.Replica {
	st, mine := snap.Statuses[r.ID], r.ID == m.n.self
	out := api.Replica{
		Name: r.ID, Role: st.Role, Mode: r.AvailabilityMode, FailoverMode: r.FailoverMode, Voter: v.Group.Votes(r), Suspended: r.Suspended, Join: r.Join,
		Endpoint: r.Endpoint, Listener: r.Listener, ReadOnly: r.ReadOnly, HTTP: r.HTTP, Position: st.Position, Server: st.Server, Data: st.Data,
		Busy: st.Busy, Progress: st.Progress, Because: st.Because, Connected: "CONNECTED", Sync: ag.NotSynchronizing,
	}
	out.NoVote = st.NoVote
	if mine {
		out.NoVote = m.n.quorum.NoVote()
	}
	out.Ill, out.Concern, out.Quarantine, out.StoodDown = st.Ill, st.Concern, st.Quarantine, st.StoodDown
	if mine {
		out.Role, out.Position, out.Server, out.Data, out.Busy = v.Role(), v.Local.Position, v.Local.Server, v.Local.Data, v.Busy
		out.Local = m.process()
	} else if !slices.Contains(v.Reach, r.ID) {
		out.Role, out.Connected, out.Server, out.Busy, out.Progress, out.Because = ag.RoleResolving, "DISCONNECTED", "", "", "", "does not answer"
		return out
	}
	if out.Role == "" || out.Role == ag.RolePrimary && (r.ID != v.Record.Epoch.Leader || !mine && st.Epoch != v.Record.Epoch.Epoch) { // it said so before it hung or died
		out.Role = ag.RoleResolving
	}
	if !r.HasData() {
		return out
	}
	out.Sync = syncState(v, st, out)
	if head.LSN != 0 && out.Position.LSN != 0 {
		lag := max(int64(head.LSN)-int64(out.Position.LSN), 0)
		out.LagBytes = &lag
	}
	return out
}

func syncState(v ag.View, st agent.Status, r api.Replica) ag.SyncState {
	_, counted := v.Record.State.InV(r.Name)
	switch {
	case r.Busy == "seed":
		return ag.Initializing
	case r.Busy == "rewind":
		return ag.Reverting
	case r.Role == ag.RolePrimary:
		return ag.Synchronized
	case r.Role != ag.RoleSecondary:
		return ag.NotSynchronizing
	case counted && v.Record.State.K > 0 && st.Stream:
		return ag.Synchronized
	case st.Stream:
		return ag.Synchronizing
	}
	return ag.NotSynchronizing
}

func (m *admin) process() *api.Process {
	p := &api.Process{Dir: m.n.layout.Dir, Sockets: m.n.layout.Sockets(), Agent: os.Getpid(), Uptime: m.n.agent.Uptime()}
	if m.n.server != nil {
		if st, err := m.n.server.Seen(); err == nil {
			p.Keeper, p.Postgres = st.KeeperPID, st.Postmaster
		}
	}
	if s := m.n.clients.Server(); s != nil {
		p.Sessions = len(s.Sessions())
	}
	return p
}

// Metrics are few until the metrics issue names them all.
func (m *admin) Metrics() map[string]float64 {
	out := map[string]float64{"coterie_uptime_seconds": m.n.agent.Uptime().Seconds()}
	for rule, k := range m.n.agent.Fired() {
		out[fmt.Sprintf("coterie_rule_fired_total{rule=%q}", rule)] = float64(k)
	}
	if v := m.n.agent.View(); v != nil {
		out["coterie_epoch"] = float64(v.Record.Epoch.Epoch)
		out["coterie_quorum"] = truth(v.Quorum)
		out["coterie_primary"] = truth(v.Role() == ag.RolePrimary)
	}
	if s := m.n.clients.Server(); s != nil {
		st := s.Stats()
		out["coterie_sessions_accepted_total"] = float64(st.Accepted)
		out["coterie_sessions_open"] = float64(st.Open)
		out["coterie_answers_held_total"] = float64(st.Gated)
		out["coterie_answers_held_seconds_total"] = st.GatedTime.Seconds()
		out["coterie_logins_by_loops_total"] = float64(st.LoopLogins)
		out["coterie_writes_together_total"] = float64(st.BatchedWrites)
		out["coterie_sessions_lent_to_kernel_total"] = float64(st.Offloaded)
		out["coterie_requests_by_kernel_total"] = float64(st.RelayedByKernel)
		for why, k := range st.KernelPath {
			out[fmt.Sprintf("coterie_sessions_back_from_kernel_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_backends_waiting"] = float64(st.Pool.Waiting)
		out[`coterie_backends_taken_total{from="ahead"}`] = float64(st.Pool.Ahead)
		out[`coterie_backends_taken_total{from="reused"}`] = float64(st.Pool.Reused)
		for why, k := range st.Pool.Dropped {
			out[fmt.Sprintf("coterie_backends_dropped_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_routing_fallbacks_total"] = float64(st.FellBack)
		out["coterie_logins_queued_total"] = float64(st.Queued)
		out["coterie_routing_lagged_total"] = float64(st.Lagged)
		for k, count := range st.Routed {
			out[fmt.Sprintf("coterie_sessions_routed_total{intent=%q,replica=%q}", k.Intent, k.Replica)] = float64(count)
		}
		if last := st.LastMinute; len(last) > 0 {
			out["coterie_routed_pct"] = last[len(last)-1].RoutedPct()
		}
	}
	if m.n.links != nil {
		m.n.links.Metrics(out)
	}
	r := m.n.endpoint.Relayed()
	out["coterie_relays_open"], out["coterie_relays_total"], out["coterie_relayed_bytes_total"] = float64(r.Open), float64(r.Total), float64(r.Bytes)
	return out
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// failoverBudget bounds the wait for a failover beside its drain: a checkpoint may take most of it.
const failoverBudget = 12 * time.Minute

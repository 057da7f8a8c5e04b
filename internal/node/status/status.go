package status

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

// Status answers from memory: the last view, the last reports of the others, the last pings.
func (s *Service) Status() api.Status {
	out := api.Status{Group: s.Node.GroupName, GroupID: ag.GroupID(s.Node.Group), Node: s.Self}
	v, snap := s.Agent.View(), s.Agent.Snapshot()
	if v == nil || snap == nil {
		v, snap = &ag.View{Self: s.Self}, &agent.Snapshot{}
		if g := s.Members.Group(); g != nil {
			v.Group = *g
		}
	}
	if v.Group.Name != "" {
		out.Group = v.Group.Name // CREATE AVAILABILITY GROUP may have named it anew
	}
	out.Draft = v.Group.Draft
	e, st := v.Record.Epoch, v.Record.State
	out.Epoch, out.Phase, out.Quorum, out.Voters, out.Profile = e.Epoch, e.Phase, v.Quorum, v.Group.Voting(), v.Group.Profile
	out.External = v.Group.External
	if q := s.Node.Quorum; q != nil {
		out.QuorumEndpoints = q.Endpoints
	}
	out.CommitRule, out.SyncMembers, out.SyncCount, out.Timeline = v.Group.CommitRule, st.V, st.K, st.Basis.Timeline
	_, out.Required = v.Group.CommitTarget(v.Group.SynchronousBeside(st.Leader))
	if v.Op.Epoch == e.Epoch && v.Op.ID != "" {
		out.Operation = fmt.Sprintf("%s to %s", strings.ToLower(string(v.Op.Kind)), v.Op.To)
	}
	if p := s.Agent.Plan(); p != nil {
		out.Rule, out.Because = p.Rule, p.Because
	}
	if r := s.Clients.Routes(); r != nil {
		answers := r.Primary == s.Self || slices.Contains(v.Reach, r.Primary)
		out.Primary, out.WriteOpen = r.Primary, r.WriteOpen && answers // a primary that died has said that it is open
	}
	head := snap.Statuses[e.Leader].Position
	if e.Leader == s.Self {
		head = v.Local.Position
		out.AnswersUntil = fmt.Sprintf("%v left", boottime.Until(s.Agent.LeaseUntil()).Round(time.Millisecond))
	}
	for _, r := range v.Group.Replicas {
		out.Replicas = append(out.Replicas, s.replica(*v, snap, r, head))
	}
	if s.Links != nil {
		out.Links = s.Links.Describe()
	}
	for _, p := range s.Endpoint.Peers() {
		if p.RelayTo != "" {
			out.Relays = append(out.Relays, api.Relay{From: p.Identity.ID, To: p.RelayTo, Since: p.Since})
		}
	}
	leader := snap.Statuses[e.Leader]
	out.WaitsFor = fmt.Sprintf("%d of %v", leader.SyncN, leader.SyncP)
	out.FailoverReady = failoverReady(*v)
	if s.Log != nil && !s.Log.Unread() {
		out.LogWeakness = s.Log.Weakness()
	}
	out.Rotation, out.Authority = RotationOf(v.Group), s.Authority()
	return out
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

// unanswered is what keeps those that answer now from taking over, should the primary die: too few voters, or too few
// of the synchronized.
func unanswered(v ag.View) string {
	leader, votes := v.Record.Epoch.Leader, 0
	for _, r := range v.Group.Replicas {
		if r.ID != leader && v.Group.Votes(r) && answers(v, r.ID) {
			votes++
		}
	}
	if voting := v.Group.Voting(); v.Group.External == 0 && votes <= voting/2 {
		return fmt.Sprintf("not ready: without the primary %d of %d votes would be left, which is no majority; start what does not answer", votes, voting)
	}
	var there []ag.ReplicaID
	for _, m := range v.Record.State.V {
		if answers(v, m.ID) {
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

// answers reports whether a member gave a sign of life lately. This node, which is not in Reach, does.
func answers(v ag.View, id ag.ReplicaID) bool { return id == v.Self || slices.Contains(v.Reach, id) }

// takesOver reports whether a member's agent may claim the leadership of its own accord.
func takesOver(g ag.Group, id ag.ReplicaID) bool {
	r, ok := g.Replica(id)
	return ok && r.FailoverMode == ag.Automatic && r.AvailabilityMode == ag.SynchronousCommit && !r.Suspended
}

func (s *Service) replica(v ag.View, snap *agent.Snapshot, r ag.Replica, head ag.Position) api.Replica {
	st, mine := snap.Statuses[r.ID], r.ID == s.Self
	out := api.Replica{
		Name: r.ID, Role: st.Role, Mode: r.AvailabilityMode, FailoverMode: r.FailoverMode, Voter: v.Group.Votes(r), Suspended: r.Suspended, Join: r.Join,
		Endpoint: r.Endpoint, Listener: r.Listener, ReadOnly: r.ReadOnly, HTTP: r.HTTP, Position: st.Position, Server: st.Server, Data: st.Data,
		Busy: st.Busy, Progress: st.Progress, Because: st.Because, Connected: "CONNECTED", Sync: ag.NotSynchronizing,
	}
	out.NoVote = st.NoVote
	if mine {
		out.NoVote = s.NoVote()
	}
	out.Ill, out.Concern, out.Quarantine, out.StoodDown = st.Ill, st.Concern, st.Quarantine, st.StoodDown
	if mine {
		out.Role, out.Position, out.Server, out.Data, out.Busy = v.Role(), v.Local.Position, v.Local.Server, v.Local.Data, v.Busy
		out.Local = s.process()
	} else if !slices.Contains(v.Reach, r.ID) {
		out.Role, out.Connected, out.Server, out.Busy, out.Progress, out.Because = ag.RoleResolving, "DISCONNECTED", "", "", "", "does not answer"
		return out
	}
	// It reported that before it hung or died.
	if out.Role == "" || out.Role == ag.RolePrimary && (r.ID != v.Record.Epoch.Leader || !mine && st.Epoch != v.Record.Epoch.Epoch) {
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

func (s *Service) process() *api.Process {
	p := &api.Process{Dir: s.Layout.Dir, Sockets: s.Layout.Sockets(), Agent: os.Getpid(), Uptime: s.Agent.Uptime()}
	if s.Keeper != nil {
		if st, err := s.Keeper.Seen(); err == nil {
			p.Keeper, p.Postgres = st.KeeperPID, st.Postmaster
		}
	}
	if l := s.Listener(); l != nil {
		p.Sessions = len(l.Sessions())
	}
	return p
}

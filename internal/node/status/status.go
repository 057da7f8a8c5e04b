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
	out := api.Status{Group: s.Node.GroupName, GroupID: ag.GroupID(s.Node.Group), Node: s.Self, Uptime: s.Agent.Uptime()}
	v, snap := s.lastSeen()
	if v.Group.Name != "" {
		out.Group = v.Group.Name // CREATE AVAILABILITY GROUP may have named it anew
	}
	out.Draft, out.Version = v.Group.Draft, s.version()
	e, st := v.Record.Epoch, v.Record.State
	out.Epoch, out.Phase, out.Quorum, out.Voters, out.Profile = e.Epoch, e.Phase, v.Quorum, v.Group.Voting(), v.Group.Profile
	out.External = v.Group.External
	if q := s.Node.Quorum; q != nil {
		out.QuorumEndpoints = q.Endpoints
	}
	out.CommitRule, out.SyncMembers, out.SyncCount, out.Timeline = v.Group.CommitRule, st.V, st.K, st.Basis.Timeline
	out.Required = v.Group.RequiredBeside(st.Leader)
	if v.Op.Epoch == e.Epoch && v.Op.ID != "" && carriedOut(*v) {
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
	for _, r := range v.Group.Awaited {
		out.Awaited = append(out.Awaited, r.ID)
	}
	out.Links, out.Relays = s.connections()
	leader := s.said(snap, e.Leader)
	out.WaitsFor = waitsFor(leader.SyncN, leader.SyncP)
	out.Availability = s.Availability()
	out.FailoverReady = out.Availability.Automatic
	out.WriteOpen = out.WriteOpen && out.Availability.Writable
	withoutPrimary(&out, e.Leader)
	if since := leader.Leads; out.Primary == e.Leader && leader.Epoch == e.Epoch && !since.IsZero() {
		out.PrimarySince = &since
	}
	if s.Log != nil && !s.Log.Unread() {
		out.LogWeakness = s.Log.Weakness()
	}
	out.Configuration, out.Requests, out.Record = s.Endorsed.Report(), s.Endorsed.Requests(), s.Endorsed.RefusedRecord()
	out.Rotation, out.Authority, out.Maintenance = RotationOf(v.Group), s.Authority(), v.Group.Maintenance
	return out
}

// carriedOut reports whether the member that has to carry out the request of this epoch answers: the primary, or the
// target of a forced failover. Nothing is under way without it.
func carriedOut(v ag.View) bool {
	by := v.Record.Epoch.Leader
	if v.Op.Kind == ag.OpForced {
		by = v.Op.To
	}
	return by == v.Self || slices.Contains(v.Reach, by)
}

// lastSeen returns the last view and the last snapshot. While nothing was read yet since the agent began, the members
// are those that this node remembers.
func (s *Service) lastSeen() (*ag.View, *agent.Snapshot) {
	v, snap := s.Agent.View(), s.Agent.Snapshot()
	if snap == nil {
		snap = &agent.Snapshot{}
	}
	if v == nil {
		v = &ag.View{Self: s.Self}
	}
	if g := s.Members.Group(); v.Group.ID == "" && g != nil {
		remembered := *v
		remembered.Group = *g
		v = &remembered
	}
	return v, snap
}

// withoutPrimary takes back what members reported of the time before, where no primary is believed to lead: that one of
// them is it. Where the leader of the record answers and is no primary, nothing is received from one.
func withoutPrimary(out *api.Status, leader ag.ReplicaID) {
	still := true
	for i := range out.Replicas {
		r := &out.Replicas[i]
		if r.Role == ag.RolePrimary && r.Name != out.Node && out.Availability.Primary == "" {
			r.Role = ag.RoleResolving
		}
		still = still && (r.Name != leader || r.Connected != "CONNECTED" || r.Role == ag.RolePrimary)
	}
	if still {
		return
	}
	for i := range out.Replicas {
		if r := &out.Replicas[i]; r.Sync == ag.Synchronized || r.Sync == ag.Synchronizing {
			r.Sync = ag.NotSynchronizing
		}
	}
}

// connections returns the links that carry WAL, and what this node relays between others.
func (s *Service) connections() (links []api.Link, relays []api.Relay) {
	if s.Links != nil {
		links = s.Links.Describe()
	}
	for _, p := range s.Endpoint.Peers() {
		if p.RelayTo != "" {
			relays = append(relays, api.Relay{From: p.Identity.ID, To: p.RelayTo, Since: p.Since})
		}
	}
	return links, relays
}

func (s *Service) replica(v ag.View, snap *agent.Snapshot, r ag.Replica, head ag.Position) api.Replica {
	st, mine := s.said(snap, r.ID), r.ID == s.Self
	out := api.Replica{
		Name: r.ID, Role: st.Role, Mode: r.AvailabilityMode, FailoverMode: r.FailoverMode, Voter: v.Group.Votes(r), Suspended: r.Suspended, Join: r.Join, Allow: r.Allow,
		Endpoint: r.Endpoint, Listener: r.Listener, ReadOnly: r.ReadOnly, HTTP: r.HTTP, Position: st.Position, Server: st.Server, Data: st.Data,
		Busy: st.Busy, Progress: st.Progress, Because: st.Because, Connected: "CONNECTED", Sync: ag.NotSynchronizing, Maintenance: r.Options.Maintenance,
	}
	out.NoVote = st.NoVote
	if mine {
		out.NoVote = s.NoVote()
	}
	out.Offline = st.Offline
	out.Ill, out.Silent, out.Concern, out.Quarantine, out.StoodDown = st.Ill, st.Silent, st.Concern, st.Quarantine, st.StoodDown
	if mine {
		out.Role, out.Position, out.Server, out.Data, out.Busy = v.Role(), v.Local.Position, v.Local.Server, v.Local.Data, v.Busy
		out.Local = s.process()
	} else if !slices.Contains(v.Reach, r.ID) {
		out.Role, out.Connected, out.Server, out.Busy, out.Progress, out.Because = ag.RoleResolving, "DISCONNECTED", "", "", "", "does not answer"
	}
	if !r.HasData() {
		out.Role, out.Sync = api.RoleWitness, ""
		return out
	}
	if out.Connected != "CONNECTED" {
		return out
	}
	// It reported that before it hung or died.
	if out.Role == "" || out.Role == ag.RolePrimary && (r.ID != v.Record.Epoch.Leader || !mine && st.Epoch != v.Record.Epoch.Epoch) {
		out.Role = ag.RoleResolving
	}
	out.Sync = syncState(v, st, out)
	if head.LSN != 0 && out.Position.LSN != 0 && out.Data != ag.DataPartial && out.Data != ag.DataEmpty {
		lag := behind(head.LSN, max(out.Position.LSN, streamed(v, r.ID)))
		out.LagBytes = &lag
	}
	return out
}

// streamed returns what a member has on disk as its stream from this primary tells, which is more recent than its own
// report; 0 if it tells nothing.
func streamed(v ag.View, id ag.ReplicaID) ag.LSN {
	if v.Record.Epoch.Leader != v.Self {
		return 0
	}
	for _, s := range v.Streams {
		if s.Member == id && s.Open {
			return s.Flush
		}
	}
	return 0
}

// Seeding reports whether Status shows a replica whose copy is being made, without making a status.
func (s *Service) Seeding() bool {
	v, snap := s.Agent.View(), s.Agent.Snapshot()
	if v == nil || snap == nil {
		return false
	}
	return slices.ContainsFunc(v.Group.Replicas, func(r ag.Replica) bool {
		busy := snap.Statuses[r.ID].Busy
		if r.ID == s.Self {
			busy = v.Busy
		}
		return busy == "seed" && r.HasData() && (r.ID == s.Self || slices.Contains(v.Reach, r.ID))
	})
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

// waitsFor returns what commits wait for: 1 of n2, n3.
func waitsFor(n int, members []ag.ReplicaID) string {
	if len(members) == 0 {
		return "no secondary"
	}
	return fmt.Sprintf("%d of %s", n, ag.Names(members))
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/api"
	"github.com/coteriedb/coterie/internal/boottime"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
)

// manager is the node as administrators see it.
type manager struct{ n *node }

// Status answers from memory: the last view, the last reports of the others, the last pings.
func (m *manager) Status() api.Status {
	n := m.n
	s := api.Status{Group: n.cfg.GroupName, GroupID: ag.GroupID(n.cfg.Group), Node: n.self}
	v, snap := n.agent.View(), n.agent.Snapshot()
	if v == nil || snap == nil {
		v, snap = &ag.View{Self: n.self}, &agent.Snapshot{}
		if g := n.group.Load(); g != nil {
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
	_, s.Required = v.Group.CommitTarget(countSync(v.Group, st.Leader))
	if v.Op.Epoch == e.Epoch && v.Op.ID != "" {
		s.Operation = fmt.Sprintf("%s to %s", strings.ToLower(string(v.Op.Kind)), v.Op.To)
	}
	if p := n.agent.Plan(); p != nil {
		s.Rule, s.Because = p.Rule, p.Because
	}
	if r := n.sessions.routes.Load(); r != nil {
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
		s.Links = n.links.describe()
	}
	for _, p := range n.endpoint.Peers() {
		if p.RelayTo != "" {
			s.Relays = append(s.Relays, api.Relay{From: p.Identity.ID, To: p.RelayTo, Since: p.Since})
		}
	}
	leader := snap.Statuses[e.Leader]
	s.WaitsFor = fmt.Sprintf("%d of %v", leader.SyncN, leader.SyncP)
	s.FailoverReady = failoverReady(*v)
	s.Rotation, s.Authority = rotationOf(v.Group), n.identity.Authority()
	return s
}

func countSync(g ag.Group, leader ag.ReplicaID) int {
	k := 0
	for _, r := range g.Replicas {
		if r.ID != leader && r.AvailabilityMode == ag.SynchronousCommit {
			k++
		}
	}
	return k
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
	return "ready"
}

// takesOver reports whether a member's agent may claim the leadership of its own accord.
func takesOver(g ag.Group, id ag.ReplicaID) bool {
	r, ok := g.Replica(id)
	return ok && r.FailoverMode == ag.Automatic && r.AvailabilityMode == ag.SynchronousCommit && !r.Suspended
}

func (m *manager) replica(v ag.View, snap *agent.Snapshot, r ag.Replica, head ag.Position) api.Replica {
	st, mine := snap.Statuses[r.ID], r.ID == m.n.self
	out := api.Replica{
		Name: r.ID, Role: st.Role, Mode: r.AvailabilityMode, FailoverMode: r.FailoverMode, Voter: v.Group.Votes(r), Suspended: r.Suspended, Join: r.Join,
		Endpoint: r.Endpoint, Listener: r.Listener, ReadOnly: r.ReadOnly, HTTP: r.HTTP, Position: st.Position, Server: st.Server, Data: st.Data,
		Busy: st.Busy, Progress: st.Progress, Because: st.Because, Connected: "CONNECTED", Sync: ag.NotSynchronizing,
	}
	out.NoVote = st.NoVote
	if mine {
		out.NoVote = m.n.noVote()
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

func (m *manager) process() *api.Process {
	p := &api.Process{Dir: m.n.layout.Dir, Sockets: m.n.layout.Sockets(), Agent: os.Getpid(), Uptime: m.n.agent.Uptime()}
	if m.n.keeper != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if st, err := m.n.keeper.Status(ctx); err == nil {
			p.Keeper, p.Postgres = st.KeeperPID, st.Postmaster
		}
	}
	if s := m.n.sessions.server; s != nil {
		p.Sessions = len(s.Sessions())
	}
	return p
}

// Metrics are few until the metrics issue names them all.
func (m *manager) Metrics() map[string]float64 {
	out := map[string]float64{"coterie_uptime_seconds": m.n.agent.Uptime().Seconds()}
	for rule, k := range m.n.agent.Fired() {
		out[fmt.Sprintf("coterie_rule_fired_total{rule=%q}", rule)] = float64(k)
	}
	if v := m.n.agent.View(); v != nil {
		out["coterie_epoch"] = float64(v.Record.Epoch.Epoch)
		out["coterie_quorum"] = truth(v.Quorum)
		out["coterie_primary"] = truth(v.Role() == ag.RolePrimary)
	}
	if s := m.n.sessions.server; s != nil {
		st := s.Stats()
		out["coterie_sessions_accepted_total"] = float64(st.Accepted)
		out["coterie_sessions_open"] = float64(st.Open)
		out["coterie_answers_held_total"] = float64(st.Gated)
		out["coterie_answers_held_seconds_total"] = st.GatedTime.Seconds()
		out["coterie_backends_waiting"] = float64(st.Warm.Waiting)
		out[`coterie_backends_taken_total{from="ahead"}`] = float64(st.Warm.Ahead)
		out[`coterie_backends_taken_total{from="reused"}`] = float64(st.Warm.Reused)
		for why, k := range st.Warm.Dropped {
			out[fmt.Sprintf("coterie_backends_dropped_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_routing_fallbacks_total"] = float64(st.FellBack)
		out["coterie_routing_lagged_total"] = float64(st.Lagged)
		for k, count := range st.Routed {
			out[fmt.Sprintf("coterie_sessions_routed_total{intent=%q,replica=%q}", k.Intent, k.Replica)] = float64(count)
		}
		if last := st.LastMinute; len(last) > 0 {
			out["coterie_routed_pct"] = last[len(last)-1].RoutedPct()
		}
	}
	if m.n.links != nil {
		m.n.links.metrics(out)
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

// Failover asks for a failover through the store, so that it is carried out by whoever must, and waits for its end.
func (m *manager) Failover(ctx context.Context, req api.FailoverRequest) (api.FailoverResult, error) {
	start := time.Now()
	x, err := m.n.store.Read(ctx)
	if err != nil {
		return api.FailoverResult{}, api.Unhealthy("no majority of the quorum answers, and nobody may be promoted without it: " + err.Error())
	}
	to, err := failoverTarget(x, req)
	if err != nil {
		return api.FailoverResult{}, err
	}
	if x.Op != nil && opEpoch(x.Op) == x.Record.Epoch.Epoch {
		return api.FailoverResult{}, api.Unhealthy("another failover is under way; see coterie status")
	}
	op := ag.Op{
		ID: string(agent.NewCopyID()), Kind: ag.OpPlanned, To: to, Epoch: x.Record.Epoch.Epoch, Drain: req.Drain, Cut: req.Cut,
	}
	if req.AllowDataLoss {
		op.Kind = ag.OpForced
		if err := m.suspendOthers(ctx, to); err != nil {
			return api.FailoverResult{}, err
		}
	}
	b, err := json.Marshal(op)
	if err != nil {
		return api.FailoverResult{}, err
	}
	_, err = m.n.store.PutOp(ctx, x.OpRev, x.Record.Revs.Epoch, b)
	switch {
	case errors.Is(err, etcd.ErrConflict):
		return api.FailoverResult{}, api.Unhealthy("somebody else has asked for a failover, or one has happened, at this very moment; see coterie status")
	case err != nil:
		return api.FailoverResult{}, fmt.Errorf("ask for the failover: %w", err)
	}
	m.n.agent.Wake()
	if req.NoWait {
		return api.FailoverResult{From: x.Record.Epoch.Leader, To: to, Epoch: x.Record.Epoch.Epoch}, nil
	}
	return m.awaitFailover(ctx, start, x, op)
}

func opEpoch(raw json.RawMessage) ag.Epoch {
	var op ag.Op
	_ = json.Unmarshal(raw, &op) // void when unreadable
	return op.Epoch
}

// failoverTarget checks what can be known beforehand.
func failoverTarget(x etcd.Snapshot, req api.FailoverRequest) (ag.ReplicaID, error) {
	leader := x.Record.Epoch.Leader
	if req.To == "" {
		for _, mem := range x.Record.State.V {
			if req.To == "" {
				req.To = mem.ID
			}
		}
		if req.To == "" {
			return "", api.Unhealthy("no secondary is synchronized; a failover now would lose data: name one with --to and --allow-data-loss to accept that")
		}
	}
	r, ok := x.Group.Replica(req.To)
	_, synced := x.Record.State.InV(req.To)
	switch {
	case !ok:
		return "", api.Refused(fmt.Sprintf("the group has no replica %s; see coterie status", req.To))
	case !r.HasData():
		return "", api.Refused(fmt.Sprintf("%s is a witness and holds no data", req.To))
	case req.To == leader && x.Record.Epoch.Phase == ag.PhaseLead:
		return "", api.Refused(fmt.Sprintf("%s is the primary already", req.To))
	case !req.AllowDataLoss && x.Record.Epoch.Phase != ag.PhaseLead:
		return "", api.Unhealthy("the group has no primary at the moment; a planned failover needs one")
	case !req.AllowDataLoss && (!synced || x.Record.State.K == 0):
		return "", api.Refused(fmt.Sprintf("%s is not SYNCHRONIZED: a planned failover to it could lose commits; wait for it, or accept loss with --allow-data-loss", req.To))
	}
	return req.To, nil
}

// suspendOthers keeps every other copy as it is after a forced failover, until a person has looked and resumes it.
func (m *manager) suspendOthers(ctx context.Context, to ag.ReplicaID) error {
	return m.n.updateGroup(ctx, func(g *ag.Group) error {
		for i := range g.Replicas {
			if g.Replicas[i].HasData() {
				r := &g.Replicas[i]
				r.Suspended, r.SuspendedBy = r.ID != to || r.Join != "", ""
				if r.Suspended {
					r.SuspendedBy = ag.SuspendPartner
				}
			}
		}
		return nil
	})
}

// failoverBudget bounds the wait for a failover beside its drain: a checkpoint may take most of it.
const failoverBudget = 12 * time.Minute

// awaitFailover waits until the target leads, or the request was given up.
func (m *manager) awaitFailover(ctx context.Context, start time.Time, was etcd.Snapshot, op ag.Op) (api.FailoverResult, error) {
	budget := failoverBudget + op.Drain
	if op.Kind == ag.OpForced {
		budget = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		x, err := m.n.store.Read(ctx)
		e := x.Record.Epoch
		switch {
		case err == nil && e.Leader == op.To && e.Phase == ag.PhaseLead && e.Epoch > was.Record.Epoch.Epoch:
			return api.FailoverResult{From: was.Record.Epoch.Leader, To: op.To, Epoch: e.Epoch, Took: time.Since(start)}, nil
		case err == nil && e.Phase == ag.PhaseLead && (e.Epoch > was.Record.Epoch.Epoch || x.Op == nil):
			return api.FailoverResult{}, m.givenUp(ctx, was.Record.Epoch.Leader, e.Leader, op)
		}
		select {
		case <-ctx.Done():
			return api.FailoverResult{}, api.Unhealthy(fmt.Sprintf("the failover to %s has not ended after %v; see coterie status", op.To, budget))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// givenUp says why a failover did not take place: the primary that was to carry it out publishes that.
func (m *manager) givenUp(ctx context.Context, primary, leader ag.ReplicaID, op ag.Op) error {
	for range 40 {
		x, err := m.n.store.Read(ctx)
		var st agent.Status
		if err == nil && json.Unmarshal(x.Statuses[primary], &st) == nil && st.HandOver != nil && st.HandOver.Op == op.ID {
			text := fmt.Sprintf("planned failover to %s: %s", op.To, st.HandOver.Error)
			if st.HandOver.Refused {
				return api.Refused(text)
			}
			return api.Unhealthy(text)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return api.Unhealthy(fmt.Sprintf("the failover to %s was given up and %s leads; coterie explain shows why", op.To, leader))
}

// CreateToken makes a join token that any replica of the group honours once.
func (m *manager) CreateToken(ctx context.Context, req api.TokenRequest) (api.TokenResult, error) {
	n := m.n
	ca := n.ca.Load()
	if ca == nil {
		return api.TokenResult{}, api.Refused("a witness cannot admit members; run this on a replica")
	}
	var addresses []string
	for _, r := range n.group.Load().Replicas {
		if r.HasData() {
			addresses = append(addresses, r.Endpoint)
		}
	}
	var quorum endpoint.TokenQuorum
	if q := n.cfg.Quorum; q != nil {
		quorum = endpoint.TokenQuorum{Endpoints: q.Endpoints, CA: q.CA, Cert: q.Cert, Key: q.Key}
	}
	text, stored, err := endpoint.NewToken(ca, req.Role, addresses, quorum, req.TTL)
	if err != nil {
		return api.TokenResult{}, &api.Error{Kind: "usage", Message: err.Error()}
	}
	value, err := json.Marshal(stored)
	if err != nil {
		return api.TokenResult{}, err
	}
	if err := n.store.PutToken(ctx, etcd.Token{ID: stored.ID, Value: value, Expires: stored.Expires}); err != nil {
		return api.TokenResult{}, fmt.Errorf("store the token: %w", err)
	}
	verb := "join"
	if req.Role == "witness" {
		verb = "witness"
	}
	return api.TokenResult{Token: text, Role: req.Role, Expires: stored.Expires, Command: "coterie " + verb + " " + text}, nil
}

// Remove takes a member out in an order that is safe at every step: it is dropped from V, its vote is taken, then its place in the
// configuration, which revokes its certificate and lets its slot be dropped.
func (m *manager) Remove(ctx context.Context, id ag.ReplicaID) error {
	n := m.n
	x, err := n.store.Read(ctx)
	if err != nil {
		return err
	}
	r, ok := x.Group.Replica(id)
	if !ok {
		return api.Refused(fmt.Sprintf("the group has no member %s", id))
	}
	if x.Record.Epoch.Leader == id {
		return api.Refused(fmt.Sprintf("%s is the primary; coterie failover first", id))
	}
	if err := n.updateGroup(ctx, func(g *ag.Group) error { return setSuspended(g, id, true) }); err != nil {
		return err
	}
	if err := m.awaitDropped(ctx, id); err != nil {
		return err
	}
	if r.EtcdID != 0 {
		if err := n.store.RemoveMember(ctx, r.EtcdID); err != nil {
			return fmt.Errorf("take the vote of %s: %w", id, err)
		}
	}
	var unvote []ag.Replica
	err = n.updateGroup(ctx, func(g *ag.Group) error {
		unvote = nil
		g.Replicas = slices.DeleteFunc(g.Replicas, func(r ag.Replica) bool { return r.ID == id })
		assignVotes(g)
		for i := range g.Replicas {
			if !g.Replicas[i].Voter && g.Replicas[i].EtcdID != 0 {
				unvote = append(unvote, g.Replicas[i])
				g.Replicas[i].EtcdID = 0
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range unvote {
		if err := n.store.RemoveMember(ctx, r.EtcdID); err != nil {
			return fmt.Errorf("an even number of votes is no use, but %s keeps its own: %w", r.ID, err)
		}
	}
	return n.store.DeleteStatus(ctx, id)
}

func (m *manager) awaitDropped(ctx context.Context, id ag.ReplicaID) error {
	for {
		x, err := m.n.store.Read(ctx)
		if err != nil {
			return err
		}
		if _, in := x.Record.State.InV(id); !in {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the primary has not dropped %s from the synchronized set: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func setSuspended(g *ag.Group, id ag.ReplicaID, on bool) error {
	for i := range g.Replicas {
		if g.Replicas[i].ID == id {
			if !on && g.Replicas[i].Join != "" {
				return api.Refused(fmt.Sprintf("%s is no replica of the group; on it run: coterie sql -c 'ALTER AVAILABILITY GROUP %s JOIN'", id, brackets(g.Name)))
			}
			g.Replicas[i].Suspended, g.Replicas[i].SuspendedBy = on, ""
			if on {
				g.Replicas[i].SuspendedBy = ag.SuspendUser
			}
			return nil
		}
	}
	return api.Refused(fmt.Sprintf("the group has no member %s", id))
}

// Set changes settings; what cannot be is refused before anything is written.
func (m *manager) Set(ctx context.Context, req api.SettingsRequest) error {
	return m.n.updateGroup(ctx, func(g *ag.Group) error {
		if r := req.CommitRule; r != nil {
			if *r != ag.RuleQuorum && *r != ag.RuleAll {
				return &api.Error{Kind: "usage", Message: fmt.Sprintf("commit rule %q: QUORUM or ALL", *r)}
			}
			g.CommitRule = *r
		}
		if t := req.SessionTimeout; t != nil {
			if *t < 2*time.Second || *t > 10*time.Minute {
				return &api.Error{Kind: "usage", Message: "the session timeout must be between 2 s and 10 min"}
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
	if most := countSync(*g, "") - 1; *required > most {
		return api.Refused(fmt.Sprintf("the group has %d synchronous secondaries; requiring %d would stop every commit", most, *required))
	}
	g.Required = required
	return nil
}

package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
)

// code is a number that tools rely on, with its name.
type code struct {
	n    int64
	desc string
}

var (
	roles = map[ag.Role]code{ag.RoleResolving: {0, "RESOLVING"}, ag.RolePrimary: {1, "PRIMARY"}, ag.RoleSecondary: {2, "SECONDARY"}}

	syncStates = map[ag.SyncState]code{
		ag.NotSynchronizing: {0, "NOT SYNCHRONIZING"}, ag.Synchronizing: {1, "SYNCHRONIZING"}, ag.Synchronized: {2, "SYNCHRONIZED"},
		ag.Reverting: {3, "REVERTING"}, ag.Initializing: {4, "INITIALIZING"},
	}
	availabilityModes = map[ag.AvailabilityMode]code{
		ag.AsynchronousCommit: {0, "ASYNCHRONOUS_COMMIT"}, ag.SynchronousCommit: {1, "SYNCHRONOUS_COMMIT"}, ag.ConfigurationOnly: {4, "CONFIGURATION_ONLY"},
	}
	failoverModes     = map[ag.FailoverMode]code{ag.Automatic: {0, "AUTOMATIC"}, ag.Manual: {1, "MANUAL"}}
	secondaryAllows   = map[ag.AllowConnections]code{ag.AllowNo: {0, "NO"}, ag.AllowReadOnly: {1, "READ_ONLY"}, ag.AllowAll: {2, "ALL"}}
	primaryAllows     = map[ag.PrimaryAllow]code{ag.PrimaryAllowAll: {2, "ALL"}, ag.PrimaryAllowReadWrite: {3, "READ_WRITE"}}
	backupPreferences = map[ag.BackupPreference]code{
		ag.BackupPrimary: {0, "PRIMARY"}, ag.BackupSecondaryOnly: {1, "SECONDARY_ONLY"}, ag.BackupSecondary: {2, "SECONDARY"}, ag.BackupNone: {3, "NONE"},
	}
)

func secondaryAllow(r ag.Replica) code {
	if r.Allow == "" {
		return secondaryAllows[ag.AllowReadOnly]
	}
	return secondaryAllows[r.Allow]
}

func primaryAllow(r ag.Replica) code {
	if r.Options.PrimaryAllow == "" {
		return primaryAllows[ag.PrimaryAllowAll]
	}
	return primaryAllows[r.Options.PrimaryAllow]
}

func backupPreference(g ag.Group) ag.BackupPreference {
	if g.Options.BackupPreference == "" {
		return ag.BackupSecondary
	}
	return g.Options.BackupPreference
}

// Health is a level of health. That of a group is the worst of its replicas, that of a replica the worst of its
// databases.
type Health int64

// The levels of health, with the numbers of the views.
const (
	NotHealthy Health = iota
	PartiallyHealthy
	Healthy
)

func (h Health) code() code {
	return code{int64(h), []string{"NOT_HEALTHY", "PARTIALLY_HEALTHY", "HEALTHY"}[h]}
}

// DatabaseHealth returns the health of a copy by the mode of its replica and its state.
func DatabaseHealth(mode ag.AvailabilityMode, s ag.SyncState) Health {
	switch {
	case mode == ag.SynchronousCommit && s == ag.Synchronized, mode == ag.AsynchronousCommit && (s == ag.Synchronizing || s == ag.Synchronized):
		return Healthy
	case mode == ag.SynchronousCommit && s == ag.Synchronizing:
		return PartiallyHealthy
	}
	return NotHealthy
}

// replicaHealth returns the worst health of the replica's databases, which are in one instance and so in one state,
// except those that it does not have. A witness has none.
func (f Facts) replicaHealth(r ag.Replica) Health {
	switch {
	case !r.HasData():
		if f.Nodes[r.ID].Connected {
			return Healthy
		}
		return NotHealthy
	case r.Join != "":
		return NotHealthy
	}
	registered := func(d Database) bool { return slices.Contains(f.Group.Options.Databases, d.Name) }
	if len(f.Nodes[r.ID].Offline) > 0 || slices.ContainsFunc(f.databases(), func(d Database) bool { return registered(d) && f.absent(r, d) }) {
		return NotHealthy
	}
	return DatabaseHealth(r.AvailabilityMode, f.syncState(r))
}

func (f Facts) groupHealth() Health {
	h := Healthy
	for _, r := range f.members() {
		h = min(h, f.replicaHealth(r))
	}
	if f.Primary == "" {
		return NotHealthy
	}
	return h
}

// role returns the present role of a replica. One that does not answer, or whose report is out of date, is resolving.
func (f Facts) role(r ag.Replica) ag.Role {
	n := f.Nodes[r.ID]
	switch {
	case !n.Connected || n.Role == "", n.Role == ag.RolePrimary && r.ID != f.Record.Epoch.Leader:
		return ag.RoleResolving
	}
	return n.Role
}

// roleWord returns the role of a node, or that it is a witness, which has none.
func (f Facts) roleWord(r ag.Replica) string {
	if !r.HasData() {
		return "WITNESS"
	}
	return string(f.role(r))
}

// syncState returns the state of a copy. The primary is always SYNCHRONIZED. Nothing is while the leader answers and is
// no primary, even where its server still sends what it has.
func (f Facts) syncState(r ag.Replica) ag.SyncState {
	n, leader := f.Nodes[r.ID], f.Nodes[f.Record.Epoch.Leader]
	_, counted := f.Record.State.InV(r.ID)
	role := f.role(r)
	switch {
	case n.Busy == "seed":
		return ag.Initializing
	case n.Busy == "rewind":
		return ag.Reverting
	case role == ag.RolePrimary:
		return ag.Synchronized
	case role != ag.RoleSecondary || r.Suspended || !n.Streaming, leader.Connected && leader.Role != ag.RolePrimary:
		return ag.NotSynchronizing
	case counted && f.Record.State.K > 0:
		return ag.Synchronized
	}
	return ag.Synchronizing
}

// operational returns the operational state of a replica.
func (f Facts) operational(r ag.Replica) code {
	role := f.role(r)
	switch {
	case !f.Quorum:
		return code{5, "FAILED_NO_QUORUM"}
	case f.Nodes[r.ID].Busy == "promote" || f.Nodes[r.ID].Busy == "hand-over":
		return code{0, "PENDING_FAILOVER"}
	case role == ag.RolePrimary && !f.Nodes[r.ID].Open:
		return code{1, "PENDING"}
	case role == ag.RoleResolving && r.HasData():
		return code{3, "OFFLINE"}
	}
	return code{2, "ONLINE"}
}

// hasVote reports whether a member votes in the quorum: by the configuration, and by the quorum's own list where that
// is known.
func (f Facts) hasVote(r ag.Replica) bool {
	return f.Group.Votes(r) && f.Group.External == 0 && (f.Voters == nil || slices.Contains(f.Voters, r.EtcdID))
}

// failoverReady reports whether a failover to the copy would lose no acknowledged commit. That the record counts it is
// not enough: of the counted copies k have every acknowledged commit, and another one may lack the last of them. One
// that is SYNCHRONIZED receives them before it leads. One whose databases are not all online must not lead.
func (f Facts) failoverReady(r ag.Replica) bool {
	e, s := f.Record.Epoch, f.Record.State
	if len(f.Nodes[r.ID].Offline) > 0 {
		return false
	}
	if r.ID == e.Leader && e.Phase != ag.PhaseSeal {
		return true
	}
	_, counted := s.InV(r.ID)
	if !counted || s.K == 0 || !r.HasData() || r.Suspended {
		return false
	}
	return s.K >= len(s.V) || f.syncState(r) == ag.Synchronized || f.furthest(r)
}

// furthest reports whether the copy, by its own report of this moment, is as far as the leader's, or as the furthest of
// so many counted copies that one of them has every acknowledged commit.
func (f Facts) furthest(r ag.Replica) bool {
	here := f.Nodes[r.ID]
	known := func(n Node) bool { return n.Connected && n.Position.LSN != 0 }
	if !known(here) {
		return false
	}
	if lead := f.Nodes[f.Record.Epoch.Leader]; known(lead) && here.Position.Compare(lead.Position) >= 0 {
		return true
	}
	reported := 0
	for _, m := range f.Record.State.V {
		n := f.Nodes[m.ID]
		if !known(n) {
			continue
		}
		if n.Position.Compare(here.Position) > 0 {
			return false
		}
		reported++
	}
	return reported >= f.Record.State.SealsNeeded()
}

// PreferredForBackup reports whether a backup job should run on that replica.
func (f Facts) PreferredForBackup(id ag.ReplicaID) bool {
	on, err := f.backupPlace().On()
	return err == nil && on.Name == string(id)
}

// backupPlace returns the replicas as places for a backup.
func (f Facts) backupPlace() backup.Place {
	p := backup.Place{Preference: string(backupPreference(f.Group))}
	for _, r := range f.members() {
		if r.HasData() {
			primary := r.ID == f.Record.Epoch.Leader && f.role(r) == ag.RolePrimary
			p.Replicas = append(p.Replicas, backup.Replica{Name: string(r.ID), Priority: priority(r), Primary: primary, Unfit: f.unfitForBackup(r)})
		}
	}
	return p
}

// unfitForBackup returns why no backup can be made of that replica now; "": one can. If any replica has backups
// enabled, the others have not: their jobs would fail.
func (f Facts) unfitForBackup(r ag.Replica) string {
	n, enabled := f.Nodes[r.ID], false
	for _, other := range f.Nodes {
		enabled = enabled || other.Backup != nil && other.Backup.Enabled
	}
	b := n.Backup
	switch {
	case r.ID != f.Self && !n.Connected:
		return "it does not answer"
	case f.role(r) == ag.RoleResolving:
		return "it is neither primary nor secondary at the moment"
	case r.Join != "":
		return "it has not joined"
	case r.Suspended:
		return "its data movement is suspended"
	case r.Options.Maintenance != nil:
		return "it is under maintenance"
	case f.role(r) == ag.RoleSecondary && f.syncState(r) != ag.Synchronized && f.syncState(r) != ag.Synchronizing:
		return "it does not receive from the primary"
	case enabled && (b == nil || !b.Enabled):
		return noBackups
	case enabled && f.role(r) == ag.RoleSecondary && !b.Secondary:
		return "its version of coterie makes backups of a primary only"
	case enabled && b.Problem != "":
		return "it cannot use the repository: " + b.Problem
	}
	return ""
}

func priority(r ag.Replica) int {
	if r.Options.BackupPriority == nil {
		return 50
	}
	return *r.Options.BackupPriority
}

// Candidate is the assessment of a replica as the target of an automatic failover.
type Candidate struct {
	Replica ag.ReplicaID
	Ready   bool
	Because string
}

// ExplainFailover returns for every replica whether an automatic failover to it is possible now without loss, with the
// reason.
func (f Facts) ExplainFailover() []Candidate {
	var out []Candidate
	for _, r := range f.members() {
		why := f.hinders(r)
		c := Candidate{r.ID, why == "", why}
		if c.Ready {
			c.Because = fmt.Sprintf("has every acknowledged commit: the record counts it, of whom %d of %d must answer", f.Record.State.SealsNeeded(), len(f.Record.State.V))
		}
		out = append(out, c)
	}
	return out
}

func (f Facts) hinders(r ag.Replica) string {
	switch {
	case !r.HasData():
		return "a witness: it votes, and holds no data"
	case r.ID == f.Record.Epoch.Leader && !f.Nodes[r.ID].Connected:
		return "it led last, and does not answer"
	case r.ID == f.Record.Epoch.Leader:
		return "it leads already"
	case r.Join != "":
		return "it has not joined"
	case r.Suspended:
		return "its data movement is suspended"
	case r.Options.Maintenance != nil:
		return "it is under maintenance " + r.Options.Maintenance.String()
	case r.AvailabilityMode != ag.SynchronousCommit:
		return "it commits asynchronously"
	case r.FailoverMode != ag.Automatic:
		return "its failover mode is MANUAL"
	case !f.Nodes[r.ID].Connected:
		return "it does not answer"
	case len(f.Nodes[r.ID].Offline) > 0:
		return "these databases are not online there: " + strings.Join(f.Nodes[r.ID].Offline, ", ")
	case !f.failoverReady(r):
		if _, counted := f.Record.State.InV(r.ID); counted && f.Record.State.K > 0 {
			return "it may lack acknowledged commits: the record counts it, and it does not receive from the primary"
		}
		return "it is not SYNCHRONIZED: the record does not count it"
	case !f.Availability.Ready():
		return strings.TrimPrefix(f.Availability.Automatic, "not ready: ")
	}
	return ""
}

// Routed is the route of a new session of an intent at a node.
type Routed struct {
	Node   ag.ReplicaID
	Intent ag.Intent
	Target ag.ReplicaID // "": none, the client waits
	Entry  int          // entry of the routing list; 0: routed by intent alone
	Passed []string     // entries that were skipped, with the reasons
}

// VerifyRouting returns the routes of sessions of each intent at the listener of every node that answers, by the routes
// in force there.
func (f Facts) VerifyRouting() []Routed {
	var out []Routed
	for _, r := range f.Group.Replicas {
		routes := f.Nodes[r.ID].Routes
		if r.Listener == "" && r.ReadOnly == "" {
			continue
		}
		if routes == nil {
			why := "the node does not answer"
			switch {
			case f.Availability.Removed:
				why = "not known: the node that answers was removed from the group"
			case f.Nodes[r.ID].Connected:
				why = "its agent has just started, and has made no routes yet"
			}
			out = append(out, Routed{Node: r.ID, Passed: []string{why}})
			continue
		}
		w := Routed{Node: r.ID, Intent: ag.ReadWrite}
		if t, _, ok := routes.Pick(ag.ReadWrite, 0); ok {
			w.Target = t.ID
		} else {
			w.Passed = []string{"no primary takes writes"}
		}
		out = append(out, w, f.routeReader(r.ID, routes))
	}
	return out
}

func (f Facts) routeReader(node ag.ReplicaID, routes *ag.Routes) Routed {
	w := Routed{Node: node, Intent: ag.ReadOnly}
	t, _, ok := routes.Pick(ag.ReadOnly, 0)
	if ok {
		w.Target = t.ID
	}
	for i, set := range routes.ReadList {
		if ok && slices.Contains(set, t.ID) {
			w.Entry = i + 1
			return w
		}
		for _, id := range set {
			w.Passed = append(w.Passed, fmt.Sprintf("%s: %s", id, f.notReadable(id, routes)))
		}
	}
	if ok {
		return w
	}
	if len(slices.Concat(routes.ReadList...)) == 0 {
		w.Passed = append(w.Passed, "the routing list names no replica")
	}
	if p := routes.Primary; p != "" && f.writesOnly(p) && !slices.Contains(slices.Concat(routes.ReadList...), p) {
		w.Passed = append(w.Passed, fmt.Sprintf("%s: %s", p, writesOnly))
	}
	return w
}

// writesOnly is why a primary takes no readers.
const writesOnly = "the primary takes sessions that write only (ALLOW_CONNECTIONS = READ_WRITE)"

// writesOnly reports whether a replica takes no readers while it is the primary.
func (f Facts) writesOnly(id ag.ReplicaID) bool {
	r, _ := f.Group.Replica(id)
	return r.Options.PrimaryAllow == ag.PrimaryAllowReadWrite
}

func (f Facts) notReadable(id ag.ReplicaID, routes *ag.Routes) string {
	t, found := routes.Target(id)
	r, _ := f.Group.Replica(id)
	switch {
	case !found:
		return "no such replica"
	case id == routes.Primary && routes.WriteOpen && f.writesOnly(id):
		return writesOnly
	case id == routes.Primary:
		return "the primary is not open"
	case r.Suspended:
		return "suspended"
	case r.Options.Maintenance != nil:
		return "under maintenance"
	case r.Allow == ag.AllowNo:
		return "ALLOW_CONNECTIONS = NO"
	case !t.Healthy:
		return "does not answer"
	case !t.Readable && f.Nodes[id].Connected && (f.Nodes[id].Server != ag.ServerRecovery || f.Nodes[id].Silent): // whatever it has decided to do
		return "its server does not answer"
	case !t.Readable && f.Nodes[id].Because != "":
		return "takes no readers at present: " + f.Nodes[id].Because
	}
	return "takes no readers at present"
}

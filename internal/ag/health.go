package ag

import (
	"fmt"
	"slices"
	"time"
)

// IllGrace is how long an ill replica leaves the leadership to the others before it takes it anyway: an ill primary is
// better than none.
const IllGrace = 5 * time.Second

// Health is what a node's probes report about its server, its disks and the group's databases. The zero value is
// healthy.
type Health struct {
	Level    int    `json:"level,omitempty"`   // the lowest FAILURE_CONDITION_LEVEL that counts Because as a failure; 0: none does
	Because  string `json:"because,omitempty"` // the problem
	Restart  bool   `json:"restart,omitempty"` // a restart of the server may cure it
	Database string `json:"database,omitempty"`
}

// Unresponsive reports whether the server, as far as it runs, answers no new connection. The sessions that it has may
// live on.
func (h Health) Unresponsive() bool { return h.Level == 1 || h.Level == 2 }

// illness returns why this node is too ill to lead, by the group's options; "" if it is well enough.
func (v *View) illness() string { return v.Group.Options.Illness(v.Local.Health) }

// Illness returns what of h counts as a failure under the options; "" if nothing does. A condition counts at
// FAILURE_CONDITION_LEVEL or below. A database that is not online counts unless DB_FAILOVER is OFF.
func (o Options) Illness(h Health) string {
	switch {
	case h.Level != 0 && h.Level <= o.Level():
		return h.Because
	case h.Database != "" && !o.NoDBFailover:
		return h.Database
	}
	return ""
}

// mustStepDown reports whether this primary is ill and something can be done: another replica takes over, or its server
// is restarted. Otherwise an ill primary is better than none.
func (v *View) mustStepDown() bool {
	return v.is(PhaseLead) && v.Local.Server == ServerWritable && !v.released() && v.Busy != "hand-over" && v.illness() != "" &&
		(v.relief() || v.Local.Health.Restart)
}

// stepDown lets another replica take over from an ill primary. The agent shuts its gate BEFORE it releases, so the
// successor need not wait (docs/internals/safety.md, "Illness"); the next turn fences. If no replica could take over,
// the server is restarted instead.
func (v *View) stepDown() Plan {
	if v.relief() {
		p := v.release(v.illness())
		p.Rule = RuleStepDown
		return p
	}
	return v.fence(RuleRestart, fmt.Sprintf("%s; nobody could take over, so the server here is started again", v.illness()))
}

// relief reports whether another replica, no worse off, would take over if this primary released now. A replica gives
// up the leadership for its health or a crash only if it has not done so lately (StoodDown). So a query that
// crashes every server, or a failing storage that the replicas share, costs n-1 failovers and no more.
func (v *View) relief() bool {
	return v.Local.StoodDown == "" && v.transferee()
}

// transferee reports whether a synchronized member at least as healthy as this one could take over the leadership now.
func (v *View) transferee() bool {
	if v.Group.Maintenance != nil || v.Record.State.K < 1 || !v.quorumInReach() {
		return false
	}
	return slices.ContainsFunc(v.Record.State.V, func(m Member) bool {
		return m.ID != v.Self && v.reaches(m.ID) && v.mayLead(m.ID) && !slices.Contains(v.Unfit, m.ID)
	})
}

// yields reports whether this node leaves a free leadership to the others for now: it is ill, or has long to replay
// while another member has not.
func (v *View) yields() bool {
	if v.illness() == "" && !(v.Local.Late && v.othersReady()) {
		return false
	}
	if v.released() {
		return v.Silence < IllGrace
	}
	return v.Silence < v.Patience()+IllGrace
}

// othersReady reports whether another member may lead that has little to replay. It may not have the longest log, and
// fetches the rest of it before it is promoted.
func (v *View) othersReady() bool {
	return slices.ContainsFunc(v.Record.State.V, func(m Member) bool {
		return m.ID != v.Self && m.ID != v.Record.Epoch.Leader && v.reaches(m.ID) && v.mayLead(m.ID) &&
			!slices.Contains(v.Late, m.ID) && !slices.Contains(v.Unfit, m.ID)
	})
}

// defers reports whether this node leaves a released leadership to others, because it lately gave up the leadership
// itself for its health or a crash.
func (v *View) defers() bool {
	return v.released() && v.Local.StoodDown != "" && v.Silence < IllGrace
}

// quarantined is the turn of a node whose storage lost a write, so that its copy is not trusted. The server is not
// started before a person has decided.
func (v *View) quarantined() Plan {
	why := "quarantined: " + v.Local.Quarantine + "; coterie replica resume " + string(v.Self) + " makes the copy anew"
	holder := v.Record.Epoch.Leader == v.Self && !v.released()
	if holder && (v.Record.Epoch.Phase != PhaseLead || v.leaseHeld() && v.transferee()) {
		return v.release(why)
	}
	return Plan{Rule: RuleQuarantined, Because: why, Actions: []Action{Hold{}}}
}

// sound reports whether this node has a copy that may lead.
func (v *View) sound() bool {
	return v.Local.Data == DataPresent && v.Local.Quarantine == "" && v.Local.Renew == ""
}

// Maintenance is work of an administrator, announced so that the group does not interfere.
//
// That of the group keeps any takeover from beginning: no member votes against the leader, claims its epoch or is left
// the leadership by an ill one. A takeover that has begun is brought to its end, and an operator's failover happens.
// That of a replica keeps its copy from being promoted, as FAILOVER_MODE = MANUAL does, and readers away from it. It
// keeps its vote, and commits may wait for it.
type Maintenance struct {
	Until  time.Time `json:"until,omitzero"`   // by the clock of the member that ends it; zero: an administrator does
	Reason string    `json:"reason,omitempty"` // as the administrator has given it; "": none
}

// String says until when, and the reason.
func (m Maintenance) String() string {
	s := "with no end set"
	if !m.Until.IsZero() {
		s = "until " + m.Until.UTC().Format(time.RFC3339)
	}
	if m.Reason != "" {
		s += ": " + m.Reason
	}
	return s
}

// over reports whether its time has come.
func (m *Maintenance) over(now time.Time) bool {
	return m != nil && !m.Until.IsZero() && !now.Before(m.Until)
}

// MayTakeOver reports whether the configuration allows that the agents promote a replica without a person. It judges
// the replica alone: while the group is under maintenance, no takeover begins.
func (r Replica) MayTakeOver() bool {
	return r.AvailabilityMode == SynchronousCommit && r.FailoverMode == Automatic && !r.Suspended && r.Options.Maintenance == nil
}

// MaintenanceOver lists the maintenance whose time has come: the names of replicas, and "" for the group's.
func (g Group) MaintenanceOver(now time.Time) (names []ReplicaID) {
	if g.Maintenance.over(now) {
		names = append(names, "")
	}
	for _, r := range g.Replicas {
		if r.Options.Maintenance.over(now) {
			names = append(names, r.ID)
		}
	}
	return names
}

// EndMaintenance ends the maintenance whose time has come. It does not modify what other copies of g share.
func (g *Group) EndMaintenance(now time.Time) {
	if g.Maintenance.over(now) {
		g.Maintenance = nil
	}
	g.Replicas = slices.Clone(g.Replicas)
	for i := range g.Replicas {
		if o := &g.Replicas[i].Options; o.Maintenance.over(now) {
			o.Maintenance = nil
		}
	}
}

package major

import (
	"cmp"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Phase is how far an upgrade has come. It is on disk before the step that it names begins.
type Phase string

// The phases of an upgrade of the group, in their order. GivenUp can follow Asked and Made.
const (
	Asked   Phase = "ASKED"    // the server is to end in order, and the new cluster to be made
	Made    Phase = "MADE"     // the new cluster is complete, on disk; the group may have passed to it
	Passed  Phase = "PASSED"   // the record names the new cluster; this node's configuration file may not
	Done    Phase = "DONE"     // this node runs the new cluster
	GivenUp Phase = "GIVEN UP" // the group goes on with the old cluster
	// Following is the phase of another replica, which is to drop its copy of the old cluster for one of the new.
	Following Phase = "FOLLOWING"
)

// Mode is how pg_upgrade takes the files of the old cluster over.
type Mode string

// The modes. After Link the old cluster cannot be used any more once a server has run on the new one.
const (
	Copy Mode = "copy"
	Link Mode = "link"
)

// Cluster is one of the two database clusters of an upgrade, as a node has it.
type Cluster struct {
	Major    int         `json:"major"`
	Version  string      `json:"version"`
	BinDir   string      `json:"bin_dir"`
	Data     string      `json:"data"`
	WAL      string      `json:"wal,omitempty"`               // to which pg_wal is a link; "": none
	SystemID string      `json:"system_identifier,omitempty"` // of the new one: once it is made
	Copy     ag.CopyID   `json:"copy,omitempty"`              // the copy that leads
	End      ag.Position `json:"end,omitzero"`                // the end of its WAL, of the cluster that the group passes to
	// Timelines is the history of the cluster that the group passes to.
	Timelines []ag.TimelineEntry `json:"timelines,omitempty"`
	Initdb    []string           `json:"initdb,omitempty"` // the arguments of initdb for a cluster that can take the old one over
}

// Upgrade is the durable state of an upgrade on one node: of the whole group on the primary's, of its copy elsewhere.
type Upgrade struct {
	Phase Phase        `json:"phase"`
	Self  ag.ReplicaID `json:"node"`
	From  Cluster      `json:"from"`
	To    Cluster      `json:"to"`
	Mode  Mode         `json:"mode,omitempty"`
	Epoch ag.Epoch     `json:"epoch,omitempty"` // the leadership in which it was asked for
	Asked time.Time    `json:"asked"`           // by this machine's clock
	Until time.Time    `json:"until,omitzero"`  // not begun before then, it is given up
	// Back: the way back to a cluster that was left. Its directory is there already, and is never removed.
	Back bool `json:"back,omitempty"`
	// Whole: on a way back, the cluster To has everything that From has at its end.
	Whole bool `json:"whole,omitempty"`
	// Maintenance: it put the group under maintenance, and ends that.
	Maintenance bool `json:"maintenance,omitempty"`
	// Archive: WAL of the new cluster is archived once its backups are told of it.
	Archive bool   `json:"archive,omitempty"`
	Why     string `json:"why,omitempty"` // why it was given up, or why the last switch to green failed
	// Of an upgrade by blue/green: how far it has come, in words too; how often it was tried to pass; the fingerprint
	// of the definitions that green has; and that nothing of it is left on blue.
	Stage    Stage  `json:"stage,omitempty"`
	Progress string `json:"progress,omitempty"`
	Tries    int    `json:"tries,omitempty"`
	Print    string `json:"print,omitempty"`
	Swept    bool   `json:"swept,omitempty"`
	// Return is the way back from an upgrade by blue/green that loses nothing; nil: there was none.
	Return *Return `json:"return,omitempty"`
}

// Step is what is to be done next.
type Step string

// The steps. Each can be repeated after an interruption.
const (
	Rest   Step = "rest"    // nothing: the node starts as its configuration file says
	Make   Step = "make"    // make the new cluster anew, whatever is in its directory
	Pass   Step = "pass"    // pass the group to it
	Adopt  Step = "adopt"   // have this node's files name it
	GiveUp Step = "give up" // remove what was made, and go on with the old cluster
	Drop   Step = "drop"    // make the copy of the old cluster unusable, so that one of the new takes its place
)

// Facts are what is known when a node starts.
type Facts struct {
	Group   ag.Group
	Record  ag.Record
	Now     time.Time // by this machine's clock
	Clean   bool      // the old cluster's server ended in order
	Stopped bool      // an administrator wants the upgrade given up
	// Fixed is why this node's configuration file could not name another cluster; "": it could.
	Fixed string
}

// standing is the cluster that the group has.
type standing int

const (
	elsewhere standing = iota // another leadership than that which began the upgrade
	old
	passed
)

// stands returns which cluster the group has. A later leadership of the old cluster is elsewhere: it may have taken
// writes that the new one lacks.
func (u Upgrade) stands(f Facts) standing {
	e, st := f.Record.Epoch, f.Record.State
	switch {
	case u.To.SystemID != "" && f.Group.SystemID == u.To.SystemID:
		return passed
	case f.Group.SystemID == u.From.SystemID && e.Epoch == u.Epoch && e.Leader == u.Self && e.Phase == ag.PhaseLead &&
		st.Epoch == u.Epoch && st.Leader == u.Self && st.Copy == u.From.Copy:
		return old
	}
	return elsewhere
}

// Next returns the next step, and why where the upgrade is to be given up.
func (u Upgrade) Next(f Facts) (Step, string) {
	switch at := u.stands(f); u.Phase {
	case Asked:
		return u.mayBegin(at, f)
	case Made:
		switch {
		case at == passed:
			return Adopt, ""
		case f.Stopped:
			return GiveUp, "an administrator has given it up"
		case at == elsewhere:
			return GiveUp, fmt.Sprintf("the group has gone on without it: %s leads epoch %d", f.Record.Epoch.Leader, f.Record.Epoch.Epoch)
		case u.Filled() && !f.Clean:
			return GiveUp, fmt.Sprintf("the cluster of PostgreSQL %d has changed since that of PostgreSQL %d had everything", u.From.Major, u.To.Major)
		case f.Fixed != "": // no later step could be taken, and the group would have no primary
			return GiveUp, f.Fixed
		}
		return Pass, ""
	case Passed:
		return Adopt, ""
	case Following:
		return u.follows(f)
	case Copying: // this is another agent than the one that filled green
		return GiveUp, "the agent ended while the rows were copied; ask for it again"
	case Done, GivenUp:
	}
	return Rest, ""
}

// Filled reports whether the cluster To got everything by logical replication. It has everything only if From still
// ends where it did then.
func (u Upgrade) Filled() bool { return u.Mode == Green && (!u.Back || u.Whole) }

// mayBegin is Next before anything is made.
func (u Upgrade) mayBegin(at standing, f Facts) (Step, string) {
	switch {
	case f.Stopped:
		return GiveUp, "an administrator has given it up"
	case at != old:
		return GiveUp, fmt.Sprintf("the group has gone on without it: %s leads epoch %d", f.Record.Epoch.Leader, f.Record.Epoch.Epoch)
	case f.Now.After(u.Until):
		return GiveUp, "its time was over before it had begun"
	case f.Fixed != "":
		return GiveUp, f.Fixed
	case !f.Clean:
		return GiveUp, "the server did not end in order, which pg_upgrade needs; ask for it again"
	}
	return Make, ""
}

// follows is Next of a replica that is to have a copy of the new cluster.
func (u Upgrade) follows(f Facts) (Step, string) {
	leader, ok := f.Group.Replica(f.Record.Epoch.Leader)
	switch {
	case f.Stopped:
		return GiveUp, "an administrator has given it up"
	case f.Group.SystemID == u.From.SystemID:
		return GiveUp, "the group has the cluster of which this node's copy is"
	case !ok || leader.Major != u.To.Major || leader.ID == u.Self:
		return GiveUp, fmt.Sprintf("the primary of the group does not run PostgreSQL %d", u.To.Major)
	case f.Fixed != "":
		return GiveUp, f.Fixed
	}
	return Drop, ""
}

// Reason returns the reason of the maintenance under which an upgrade puts the group.
func (u Upgrade) Reason() string {
	return fmt.Sprintf("major upgrade from PostgreSQL %d to %d on %s", u.From.Major, u.To.Major, u.Self)
}

// Passage is the transaction by which the group passes from one cluster to the other.
type Passage struct {
	Group ag.Group
	Epoch ag.EpochRecord
	State ag.State
}

// Passage returns the configuration and record of the group on the cluster To. A new epoch is to promote this node's
// copy of it, on a timeline with an id that no cluster of the group has used. V is empty: every copy of the cluster
// that is left belongs to another system identifier, and is refused everywhere.
func (u Upgrade) Passage(f Facts) Passage {
	g := f.Group
	g.SystemID, g.Replicas = u.To.SystemID, nil
	for _, r := range f.Group.Replicas {
		if r.ID == u.Self {
			r.Major = u.To.Major
		}
		g.Replicas = append(g.Replicas, r)
	}
	u.EndMaintenance(&g)
	e := f.Record.Epoch
	tli := max(e.MaxTLI, e.TLI, u.To.End.Timeline) + 1
	return Passage{
		Group: g,
		Epoch: ag.EpochRecord{
			Epoch: e.Epoch + 1, Phase: ag.PhasePromote, Leader: u.Self, TLI: tli, MaxTLI: tli, From: u.To.End, Copy: u.To.Copy,
			Reason: fmt.Sprintf("PostgreSQL %d in place of %d", u.To.Major, u.From.Major),
		},
		State: ag.State{Leader: u.Self, Copy: u.To.Copy, V: []ag.Member{}, Timelines: u.To.Timelines, Seq: f.Record.State.Seq + 1},
	}
}

// EndMaintenance ends the maintenance under which this upgrade put the group. That of somebody else stays.
func (u Upgrade) EndMaintenance(g *ag.Group) {
	if m := g.Maintenance; u.Maintenance && m != nil && m.Reason == u.Reason() {
		g.Maintenance = nil
	}
}

// Reverse returns the way back from an upgrade that is done, to the cluster that the group left. timelines is the
// history of that cluster, and lead is the leadership in which the way back is asked for.
func (u Upgrade) Reverse(lead ag.Epoch, now, until time.Time) (Upgrade, error) {
	switch {
	case u.Phase != Done || u.Back:
		return u, fmt.Errorf("this node has made no upgrade that could be taken back (%s)", cmp.Or(u.Phase, "NONE"))
	case u.Mode == Link:
		return u, fmt.Errorf("the upgrade was made with --link: the files of PostgreSQL %d have been written to by PostgreSQL %d", u.From.Major, u.To.Major)
	}
	return Upgrade{Phase: Made, Self: u.Self, From: u.To, To: u.From, Mode: u.Mode, Epoch: lead, Asked: now, Until: until, Back: true, Archive: u.Archive}, nil
}

package availability

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// problems returns the root causes, the worst first. A consequence of another problem is left out.
func (f Facts) problems(r Report) []Problem {
	v := f.View
	if f.Removed {
		return []Problem{{Critical, string(v.Self), "this node is no member of the group any more: what it shows is what it saw last", "coterie status on a member of the group; to bring this machine back: coterie join in an empty directory"}}
	}
	var out []Problem
	add := func(s Severity, target, run, format string, a ...any) {
		out = append(out, Problem{s, target, fmt.Sprintf(format, a...), run})
	}
	group := v.Group.Name
	if f.Stray != "" {
		add(Critical, group, "coterie check quorum", "%s", f.Stray)
	}
	if f.Refused != "" {
		add(Critical, group, "coterie check security; a witness may be stolen: coterie member remove it", "%s", f.Refused)
	}
	if r.Blocked {
		add(Critical, group, "start the secondaries that do not acknowledge; coterie explain", "no commit is acknowledged for %v: %s", Age(time.Duration(r.BlockedSeconds*float64(time.Second))), r.Because)
	}
	if !r.Writable && !v.Group.Draft {
		add(Critical, group, f.nextWithoutPrimary(), "no primary takes writes: %s", r.Because)
	}
	for _, x := range v.Group.Replicas {
		out = append(out, f.memberProblems(x)...)
	}
	for _, x := range v.Group.Awaited {
		id := string(x.ID)
		add(Warning, id, "coterie member replace "+id+" makes a token for its successor; coterie member remove "+id+" gives it up", "%s was taken out to be replaced, and no node has joined in its place", id)
	}
	if why := f.unread(r); why != "" {
		add(Warning, group, "coterie routing show says why each replica is passed over", "%s", why)
	}
	for _, why := range f.Logins {
		add(Warning, string(v.Self), mendLogins(string(v.Self)), "%s", why)
	}
	for _, why := range f.Unserved {
		add(Warning, string(v.Self), "coterie check says what to do", "%s", why)
	}
	for _, why := range f.Untold {
		add(Warning, string(v.Self), "mend the receiver, or the node's way to it; coterie check security on "+string(v.Self)+" judges the files", "%s", why)
	}
	if m := v.Group.Maintenance; m != nil {
		add(Warning, group, "coterie maintenance off", "automatic failover is switched off for maintenance %s", *m)
	} else if r.Writable && !v.Group.Draft && f.wantsAutomatic() && !r.Ready() && f.Stray == "" {
		add(Warning, group, "", "automatic failover is %s", r.Automatic)
	} else if ends := f.endsWrites(r); len(ends) > 0 {
		if mute := f.mute(); len(mute) > 0 {
			var all []ag.ReplicaID
			for _, x := range ends {
				all = append(all, x.Member)
			}
			add(Warning, group, "mend what keeps "+oneOf(mute)+" from voting", "while %s does not vote, the death of %s would end writes", oneOf(mute), oneOf(all))
		} else {
			x := ends[0]
			add(Warning, group, "coterie failover --to "+string(x.Member)+", or add a witness or a third replica", "the death of %s, which is not the primary, would end writes: %s", x.Member, x.Because)
		}
	}
	slices.SortStableFunc(out, func(a, b Problem) int { return strings.Compare(string(a.Severity), string(b.Severity)) }) // Critical before Warning
	return out
}

// unread returns how readers fare where no replica takes them that the routing list of the primary names; "": one does,
// none is named, or a change of the primary has only just ended.
func (f Facts) unread(r Report) string {
	v, leader := f.View, f.View.Record.Epoch.Leader
	if f.Routes == nil || !r.Writable || v.Group.Draft || v.Since > 0 && v.Since < turning || f.handsOver() || f.Routes.Primary != leader {
		return ""
	}
	var named []string
	for _, id := range slices.Concat(f.Routes.ReadList...) {
		if x := string(id); id != leader && !slices.Contains(named, x) {
			named = append(named, x)
		}
	}
	_, _, ok := f.Routes.Pick(ag.ReadOnly, 0)
	_, _, other := f.Routes.Pick(ag.ReadOnly, 0, leader)
	p, _ := v.Group.Replica(leader)
	switch {
	case len(named) == 0 && !ok && p.Options.PrimaryAllow == ag.PrimaryAllowReadWrite:
		return fmt.Sprintf("no replica takes readers, and sessions that ask for one are refused: the routing list of %s names no other replica, and it takes sessions that write only (ALLOW_CONNECTIONS = READ_WRITE)", leader)
	case len(named) == 0 || other:
		return ""
	case !ok:
		return fmt.Sprintf("no replica takes readers, and sessions that ask for one wait and are refused: the routing list of %s names %s", leader, strings.Join(named, ", "))
	case len(p.Options.RoutingList) == 0: // by default the primary is the last entry, and what ails the others is said
		return ""
	}
	return fmt.Sprintf("readers go to the primary, since no other replica of its routing list takes them: the list of %s names %s", leader, strings.Join(named, ", "))
}

func (f Facts) nextWithoutPrimary() string {
	if f.View.Untrusted != "" {
		return "a person decides who leads: coterie recover --help"
	}
	if !f.View.Quorum {
		if !slices.ContainsFunc(f.View.Group.Replicas, func(x ag.Replica) bool { return x.Voter && !f.answers(x.ID) }) {
			return "coterie status on each member says whether it votes; where one does not though its disk is sound again: coterie restart there"
		}
		return "start the members that do not answer; if most of them are lost for good: coterie recover --help"
	}
	leader := f.View.Record.Epoch.Leader
	if left, _, missing := f.lacksRequired(); len(missing) > 0 && f.waitsToOpen() {
		return fmt.Sprintf("start %s (a suspended one: coterie replica resume NAME); or have commits wait for fewer, so that it opens at once: coterie group set required_synchronized_secondaries_to_commit=%d",
			ag.Names(missing), left)
	}
	// A leader that follows another one has lost its copy, and does not come back as a primary by itself.
	if f.answers(leader) && f.View.Record.Epoch.Phase == ag.PhaseLead && (f.handsOver() || f.Members[leader].Server != ag.ServerRecovery) {
		return "wait some seconds; if it lasts: coterie explain, the secondaries that do not answer, and log/postgres.log on " + string(leader)
	}
	if f.answers(leader) && (f.View.Record.Epoch.Phase == ag.PhaseSeal || f.View.Record.Epoch.Phase == ag.PhasePromote) {
		return "wait: it takes some seconds; if it lasts: coterie explain, the members that do not answer, and log/postgres.log on " + string(leader)
	}
	if f.forecastTakeover(leader).Outcome != Stops {
		return "wait: a failover is under way; coterie explain"
	}
	if next := f.nextInMaintenance(leader); next != "" {
		return next
	}
	return "start the members that do not answer; coterie explain; with the loss accepted: coterie failover --to NAME --allow-data-loss"
}

// waitsToOpen reports whether the leader has come to lead, and its server takes writes that it lets no client make yet.
func (f Facts) waitsToOpen() bool {
	e := f.View.Record.Epoch
	return e.Phase == ag.PhaseLead && f.answers(e.Leader) && !f.handsOver() && f.Members[e.Leader].Server == ag.ServerWritable
}

// nextInMaintenance returns what to run where only maintenance, of the group or of replicas, keeps a replica from
// taking over without loss; "": that is not so.
func (f Facts) nextInMaintenance(leader ag.ReplicaID) string {
	g := &f.View.Group
	whole := g.Maintenance != nil
	end := func(off string) string {
		if after := f.forecastTakeover(leader); after.Outcome != Stops {
			return fmt.Sprintf("start %s; or %s, and %s takes over without loss", leader, off, after.Primary)
		}
		return ""
	}
	if whole {
		g.Maintenance = nil
		if next := end("coterie maintenance off"); next != "" {
			return next
		}
	}
	g.Replicas = slices.Clone(g.Replicas)
	for i := range g.Replicas {
		x := &g.Replicas[i]
		if x.Options.Maintenance == nil {
			continue
		}
		x.Options.Maintenance = nil
		off := "coterie maintenance off " + string(x.ID)
		if whole {
			off = "coterie maintenance off --all"
		}
		if next := end(off); next != "" {
			return next
		}
	}
	return ""
}

// wantsAutomatic reports whether the group is configured so that a replica could take over without a person.
func (f Facts) wantsAutomatic() bool {
	return slices.ContainsFunc(f.View.Group.Replicas, func(x ag.Replica) bool {
		return x.ID != f.View.Record.Epoch.Leader && x.Join == "" && x.FailoverMode == ag.Automatic && x.AvailabilityMode == ag.SynchronousCommit
	})
}

// endsWrites returns the forecasts of the secondaries whose death the primary would not outlive, where nothing else is
// said of the votes: of two replicas, the one that has the only vote; of three, both while the primary has no vote.
func (f Facts) endsWrites(r Report) (out []Failure) {
	if !r.Writable || !r.Ready() || f.View.Group.Draft {
		return nil
	}
	for _, x := range r.Failures {
		m, _ := f.View.Group.Replica(x.Member)
		if x.Outcome == Stops && x.Member != r.Primary && m.HasData() {
			out = append(out, x)
		}
	}
	return out
}

// mute returns the voters that answer and do not vote.
func (f Facts) mute() (ids []ag.ReplicaID) {
	for _, x := range f.View.Group.Replicas {
		if x.Voter && f.answers(x.ID) && f.Members[x.ID].NoVote != "" {
			ids = append(ids, x.ID)
		}
	}
	return ids
}

// oneOf returns names as people say them: n1 or n2.
func oneOf(ids []ag.ReplicaID) string {
	var names []string
	for _, id := range ids {
		names = append(names, string(id))
	}
	return strings.Join(names, " or ")
}

// notStarted begins the progress of a member that does not start its server for a reason that it names.
const notStarted = "not started: "

// turning is how long after a change of the primary the servers of the others may need to follow the new one.
const turning = 10 * time.Second

// major returns the major version of a member's PostgreSQL; 0: it is not known.
func (f Facts) major(id ag.ReplicaID) int {
	r, _ := f.View.Group.Replica(id)
	return r.Major
}

// left reports whether a replica has another major version than the primary, as during a major upgrade.
func (f Facts) left(x ag.Replica) bool {
	leads := f.major(f.View.Record.Epoch.Leader)
	return leads != 0 && x.Major != 0 && leads != x.Major
}

// mendLogins returns what to do where a node refuses clients for what its files or coterie.yaml say.
func mendLogins(id string) string {
	return "on " + id + ": mend what it says; the files are read again by themselves, coterie.yaml after coterie restart"
}

// refusedClients returns why a member refuses clients.
func refusedClients(id string, m Member) (out []Problem) {
	for _, why := range m.NoLogins {
		out = append(out, Problem{Warning, id, fmt.Sprintf("clients of %s: %s", id, why), mendLogins(id)})
	}
	for _, why := range m.Unserved {
		out = append(out, Problem{Warning, id, fmt.Sprintf("clients of %s: %s", id, why), "on " + id + ": coterie check says what to do"})
	}
	return out
}

// memberProblems returns at most one root cause for a member, beside its maintenance, the loss of its vote, the clients
// that it refuses and its storage.
func (f Facts) memberProblems(x ag.Replica) []Problem {
	m, id, v := f.Members[x.ID], string(x.ID), f.View
	leader := v.Record.Epoch.Leader
	var out []Problem
	add := func(s Severity, run, format string, a ...any) {
		out = append(out, Problem{s, id, fmt.Sprintf(format, a...), run})
	}
	if m := x.Options.Maintenance; m != nil {
		add(Warning, "coterie maintenance off "+id, "%s is under maintenance %s", id, *m)
	}
	if !f.answers(x.ID) {
		since := ""
		if m.Silent > 0 {
			since = " for " + Age(m.Silent)
		}
		add(Warning, "on "+id+": systemctl status coterie, or start its agent", "%s does not answer%s", id, since)
		return out
	}
	if m.NoVote != "" {
		add(Warning, "", "%s does not vote: %s", id, m.NoVote)
	}
	if x.ID != v.Self { // of itself a node knows Facts.Logins and Facts.Unserved, which are of this moment
		out = append(out, refusedClients(id, m)...)
	}
	for _, t := range m.Storage {
		add(Warning, t.Run, "%s: %s", id, t.Finding)
	}
	if !x.HasData() || x.Join == ag.Detached || f.View.Group.Draft {
		return out
	}
	switch {
	case x.Join != "":
		add(Warning, "on "+id+": ALTER AVAILABILITY GROUP ["+f.View.Group.Name+"] JOIN in coterie sql", "%s was added to the group and has not joined", id)
	case m.Quarantine != "":
		add(Warning, "coterie replica resume "+id, "the copy of %s is under quarantine: %s", id, m.Quarantine)
	case x.Suspended && x.SuspendedBy == ag.SuspendPartner:
		add(Warning, "coterie replica resume "+id+"; what only its copy has is then kept in forked/ there", "data movement of %s is suspended since a forced failover", id)
	case x.Suspended && x.SuspendedBy == ag.SuspendRemoval:
		run := "wait until the removal or replacement is done; if it has ended before, run it again, or to keep " + id + ": coterie replica resume " + id
		add(Warning, run, "%s is being taken out of the group: its data movement is suspended", id)
	case x.Suspended:
		add(Warning, "coterie replica resume "+id, "data movement of %s is suspended", id)
	case m.Ill != "":
		add(Warning, cure(m, id, x.ID == leader), "%s is ill: %s", id, m.Ill)
	case m.Busy == "seed" || m.Busy == "rewind":
		add(Warning, "coterie replica seed "+id+" --watch", "the copy of %s is being made%s", id, after(m.Progress))
	case m.Data == ag.DataForeign && f.left(x):
		add(Warning, fmt.Sprintf("on %s: coterie upgrade major --to %d", leader, f.major(leader)), "%s holds a copy of the cluster of PostgreSQL %d, which the group has left", id, x.Major)
	case m.Data != "" && m.Data != ag.DataPresent:
		add(Warning, "coterie replica seed "+id, "%s holds no complete copy: its data directory is %s", id, m.Data)
	case m.Server == ag.ServerDown || m.Server == ag.ServerStarting:
		run := "look at log/postgres.log on " + id
		if m.Server == ag.ServerStarting || v.Since > 0 && v.Since < turning || f.handsOver() {
			run = "wait: a start, or a change of the primary, takes some seconds; if it lasts: log/postgres.log and log/agent.log on " + id
		}
		why := ""
		if m.Server == ag.ServerDown && strings.HasPrefix(m.Progress, notStarted) {
			why, run = ", "+m.Progress, "mend what it says; log/agent.log on "+id+" has more"
		}
		add(Warning, run, "the server of %s is %s%s", id, m.Server, why)
	case x.ID != leader && f.answers(leader) && f.Members[leader].Server == ag.ServerWritable && !f.handsOver() && f.View.Record.Epoch.Phase == ag.PhaseLead && !slices.Contains(f.Members[leader].Streams, x.ID):
		add(Warning, "coterie explain; coterie check link "+string(leader)+" "+id, "%s receives nothing from the primary %s, or does not acknowledge it", id, leader)
	}
	return out
}

// cure returns what to run where a member is ill. A copy that lacks files is made anew.
func cure(m Member, id string, leads bool) string {
	switch {
	case len(m.Offline) == 0:
		return "coterie check on " + id + "; log/postgres.log there; docs/health.md says what each ill is"
	case leads:
		return "coterie failover to a secondary that has it, then coterie replica seed " + id + " --full (in SQL: SEED REPLICA ON N'" + id + "'), once the disk there is sound"
	}
	return "coterie replica seed " + id + " --full (in SQL: SEED REPLICA ON N'" + id + "') makes its copy anew, once the disk under it is sound"
}

// after returns a text that follows another after a colon, if it says anything.
func after(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// Age returns a duration as people say it: 8 s, 3 min, 2 h, 4 d.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

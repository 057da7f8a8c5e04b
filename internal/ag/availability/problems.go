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
		add(Critical, group, "coterie check security; a witness may be stolen: coterie remove it", "%s", f.Refused)
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
	for _, why := range f.Logins {
		add(Warning, string(v.Self), "mend what it says; the node looks again by itself", "%s", why)
	}
	if m := v.Group.Maintenance; m != nil {
		add(Warning, group, "coterie maintenance off", "automatic failover is switched off for maintenance %s", *m)
	} else if r.Writable && !v.Group.Draft && f.wantsAutomatic() && !r.Ready() && f.Stray == "" {
		add(Warning, group, "", "automatic failover is %s", r.Automatic)
	}
	slices.SortStableFunc(out, func(a, b Problem) int { return strings.Compare(string(a.Severity), string(b.Severity)) }) // Critical before Warning
	return out
}

func (f Facts) nextWithoutPrimary() string {
	if f.View.Untrusted != "" {
		return "a person decides who leads: coterie recover --help"
	}
	if !f.View.Quorum {
		return "start the members that do not answer; if most of them are lost for good: coterie recover --help"
	}
	if f.forecastTakeover(f.View.Record.Epoch.Leader).Outcome != Stops {
		return "wait: a failover is under way; coterie explain"
	}
	return "start the members that do not answer; coterie explain; with the loss accepted: coterie failover --allow-data-loss"
}

// wantsAutomatic reports whether the group is configured so that a replica could take over without a person.
func (f Facts) wantsAutomatic() bool {
	return slices.ContainsFunc(f.View.Group.Replicas, func(x ag.Replica) bool {
		return x.ID != f.View.Record.Epoch.Leader && x.Join == "" && x.FailoverMode == ag.Automatic && x.AvailabilityMode == ag.SynchronousCommit
	})
}

// memberProblems returns at most one root cause for a member, beside its maintenance and the loss of its vote.
func (f Facts) memberProblems(x ag.Replica) []Problem {
	m, id := f.Members[x.ID], string(x.ID)
	leader := f.View.Record.Epoch.Leader
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
	if !x.HasData() || x.Join == ag.Detached || f.View.Group.Draft {
		return out
	}
	switch {
	case x.Join != "":
		add(Warning, "on "+id+": ALTER AVAILABILITY GROUP ["+f.View.Group.Name+"] JOIN in coterie sql", "%s was added to the group and has not joined", id)
	case m.Quarantine != "":
		add(Warning, "coterie resume "+id, "the copy of %s is under quarantine: %s", id, m.Quarantine)
	case x.Suspended:
		add(Warning, "coterie resume "+id, "data movement of %s is suspended", id)
	case m.Ill != "":
		add(Warning, "", "%s is ill: %s", id, m.Ill)
	case m.Busy == "seed" || m.Busy == "rewind":
		add(Warning, "coterie seed "+id+" --watch", "%s is being made a copy again: %s", id, m.Progress)
	case m.Data != "" && m.Data != ag.DataPresent:
		add(Warning, "coterie seed "+id, "%s holds no complete copy: its data directory is %s", id, m.Data)
	case m.Server == ag.ServerDown || m.Server == ag.ServerStarting:
		add(Warning, "look at log/postgres.log on "+id, "the server of %s is %s", id, m.Server)
	case x.ID != leader && f.answers(leader) && f.View.Record.Epoch.Phase == ag.PhaseLead && !slices.Contains(f.Members[leader].Streams, x.ID):
		add(Warning, "coterie explain; coterie check link "+string(leader)+" "+id, "%s receives nothing from the primary %s, or does not acknowledge it", id, leader)
	}
	return out
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

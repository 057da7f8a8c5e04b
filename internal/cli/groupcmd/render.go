package groupcmd

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// columns is the width within which the status is printed.
const columns = 100

// short returns the status for people.
func (d dashboard) short() string {
	var b strings.Builder
	d.head(&b)
	d.members(&b)
	if len(d.causes()) > 0 {
		d.problems(&b)
	} else if d.Availability.Level == availability.Healthy && !d.Draft {
		b.WriteString("\nno problems\n")
		if d.FailoverReady != availability.Ready { // as the group is made
			writeWrapped(&b, "automatic failover is ", d.FailoverReady)
		}
	}
	if d.Unknown != "" {
		writeWrapped(&b, "\nestimates and pending restarts are not known: ", d.Unknown)
	}
	if d.Backup != nil {
		writeWrapped(&b, "\nbackups: ", strings.Join(append([]string{d.Backup.text(time.Now())}, d.Backup.Running...), "; "))
		for _, what := range d.Backup.Interrupted {
			writeWrapped(&b, "\nto be done: ", what)
		}
	}
	for _, what := range d.Relaxed {
		writeWrapped(&b, "\nnot protected: ", what+"; commits under it are lost by a failover; coterie check settings says what to run")
	}
	for _, r := range d.Replicas { // no problems of the group, and worth knowing
		if r.Concern != "" {
			writeWrapped(&b, "\n"+cli.Cell(string(r.Name))+": ", r.Concern+" (no failure at this FAILURE_CONDITION_LEVEL)")
		}
		if r.StoodDown != "" {
			writeWrapped(&b, "\n", fmt.Sprintf("%s gave up the leadership at %s, and is not chosen before others for now; coterie replica resume %s --trust forgets it", r.Name, r.StoodDown, r.Name))
		}
	}
	return b.String()
}

// text returns when and on which replica the newest backup was made, and on which the next one is.
func (b backupPlace) text(now time.Time) string {
	said := "none yet"
	if b.Label != "" {
		said = fmt.Sprintf("the last, %s, ended %v ago", b.Label, now.Sub(b.Ended).Round(time.Second))
		if b.Node != "" {
			said += ", made on " + b.Node
		}
	}
	if b.Next == "" {
		return said + "; no replica can make the next one: coterie backup run says why"
	}
	return said + "; the next one is made on " + b.Next
}

// dropped returns the databases that are registered with the group, and that the primary does not have or lets nobody
// use.
func (d dashboard) dropped() (out []availability.Problem) {
	for _, x := range d.Issues {
		name, ok := strings.CutSuffix(x.Target, " on "+string(d.Primary))
		if ok && d.Primary != "" && x.Policy == databaseJoinPolicy && strings.Contains(x.Finding, "no such database") {
			out = append(out, availability.Problem{
				Severity: availability.Warning, Target: name, Finding: "the database " + name + " is registered with the group, and the primary has no such database that takes connections",
				Run: "coterie database remove " + name + ", or create it again, or let it take connections",
			})
		}
	}
	return out
}

// databaseJoinPolicy is the policy that finds a registered database which was dropped.
const databaseJoinPolicy = "Availability database join state"

// weigh adds what the views tell and the agent's judgement does not know. A group of which a problem is shown is not
// healthy.
func (d *dashboard) weigh() {
	r := &d.Availability
	r.Problems = append(slices.Clip(r.Problems), d.dropped()...)
	if all := d.causes(); len(all) > 0 && (r.Level == availability.Healthy || r.Level == "") {
		r.Level = availability.Degraded
		if r.Next == "" {
			r.Next = all[0].Run
		}
	}
}

// causes returns what is wrong, the worst first.
func (d dashboard) causes() []availability.Problem {
	return append(slices.Clone(d.Availability.Problems), d.Archive...)
}

// problems prints what is wrong, if anything is, with what to run.
func (d dashboard) problems(b *strings.Builder) {
	for i, x := range d.causes() {
		if i == 0 {
			b.WriteString("\nProblems\n")
		}
		writeWrapped(b, "  "+string(x.Severity)+"  ", x.Finding)
		if x.Run != "" {
			writeWrapped(b, "            run: ", x.Run)
		}
	}
}

// state prints how the group is, whom commits wait for, and whether the quorum answers.
func (d dashboard) state(b *strings.Builder) {
	s := d.Status
	primary, ready := "no primary", "ready"
	if s.Primary != "" && s.WriteOpen {
		primary = "primary " + string(s.Primary)
	}
	if s.FailoverReady != availability.Ready {
		ready = "NOT READY"
	}
	version := ""
	if s.Version != "" {
		version = "   PostgreSQL " + s.Version
	}
	first := func(primary string) string {
		return fmt.Sprintf("Group %s   %s   %s%s   automatic failover: %s", s.Group, d.level(!s.WriteOpen || s.Availability.Level == availability.Down), primary, version, ready)
	}
	leads := func(layout string) string {
		if primary == "no primary" {
			return ""
		}
		return since(s, time.Now(), layout)
	}
	line, said := fitting(func(layout string) string { return first(primary + leads(layout)) }, first(primary))
	cli.Linef(b, "%s\n", line)
	quorum := fmt.Sprintf("quorum of %d votes", s.Voters)
	if s.Voters == 1 {
		quorum = "quorum of 1 vote"
	}
	if s.External > 0 {
		quorum = fmt.Sprintf("quorum: external etcd of %d", s.External)
	}
	switch {
	case s.Availability.Untrusted != "":
		quorum += " is NOT believed: this is what the node saw last"
	case !s.Quorum:
		quorum += " does NOT answer: this is what the node saw last"
	}
	commits := "Commits wait for " + s.WaitsFor
	if s.Primary == "" || !s.WriteOpen {
		commits = "No writes, so no commits" // a stopped server waits for nobody, which is no lack of protection
	}
	line = fmt.Sprintf("%s   %s   epoch %d, timeline %d", commits, quorum, s.Epoch, s.Timeline)
	if !said && leads("") != "" {
		line, _ = fitting(func(layout string) string { return line + ", primary" + leads(layout) }, line)
	}
	if utf8.RuneCountInString(line) > columns {
		cli.Linef(b, "%s\n", commits)
		line = fmt.Sprintf("%s   epoch %d, timeline %d", quorum, s.Epoch, s.Timeline)
	}
	cli.Linef(b, "%s\n", line)
	if text := check.Survives(s.Availability.Failures); text != "" && s.Availability.Level != availability.Down {
		writeWrapped(b, "The group ", text)
	}
}

// sinceLayouts are how a day and a time are printed, the longest first.
var sinceLayouts = []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"}

// fitting returns the line with the longest layout that fits into the width, and whether one does; else that without.
func fitting(with func(layout string) string, without string) (line string, fits bool) {
	for _, layout := range sinceLayouts {
		if line := with(layout); utf8.RuneCountInString(line) <= columns {
			return line, true
		}
	}
	return without, false
}

// since returns since when the primary leads, in local time, without the day where it is that of now; "" if it is not
// known.
func since(s api.Status, now time.Time, layout string) string {
	if s.PrimarySince == nil {
		return ""
	}
	at := s.PrimarySince.In(now.Location())
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		layout = time.TimeOnly
	}
	return " since " + at.Format(layout)
}

// printDeaths prints what the death of each member would lead to.
func printDeaths(w io.Writer, failures []availability.Failure) error {
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	for i, f := range failures {
		if i == 0 {
			_, _ = fmt.Fprintln(t, "\nDEATH OF\tOUTCOME\tTHEN")
		}
		cli.Linef(t, "%s\t%s\t%s\n", f.Member, f.Outcome, check.Then(f))
	}
	return t.Flush()
}

// head prints what holds for the whole group.
func (d dashboard) head(b *strings.Builder) {
	s := d.Status
	if s.Draft {
		writeWrapped(b, "", fmt.Sprintf("no group yet: CREATE AVAILABILITY GROUP makes it, in coterie sql on %s", s.Primary))
		return
	}
	if s.Availability.Removed {
		cli.Linef(b, "Group %s   this node was removed from it: what follows is what it saw last, epoch %d\n", s.Group, s.Epoch)
	} else {
		d.state(b)
	}
	if url := address(s.Replicas, func(r api.Replica) string { return r.Listener }); url != "" {
		cli.Linef(b, "Connect  postgresql://%s/\n", url)
	}
	if url := address(s.Replicas, func(r api.Replica) string { return r.ReadOnly }); url != "" {
		cli.Linef(b, "to read  postgresql://%s/\n", url)
	}
	for _, line := range []struct{ about, text string }{
		{"under way: failover, ", s.Operation},
		{cli.Cell(string(s.Node)) + " confirms each commit once more while it is primary: ", s.LogWeakness},
	} {
		if line.text != "" {
			writeWrapped(b, line.about, line.text)
		}
	}
	if s.Rotation != nil {
		writeWrapped(b, "under way: rotation of the certificate authority, ", describeRotation(*s.Rotation))
	}
}

// address returns the hosts and ports of a connection string, as many as fit into a line: any of them is enough.
func address(replicas []api.Replica, of func(api.Replica) string) string {
	var out string
	for _, r := range replicas {
		switch a := of(r); {
		case a == "" || len(out)+len(a) > columns-25:
		case out == "":
			out = a
		default:
			out += "," + a
		}
	}
	return out
}

// members prints a line for each node.
func (d dashboard) members(b *strings.Builder) {
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "  NAME\tROLE\tSTATE\tHOST\tSYNC\tLAG\tFAILOVER TO IT\tNOTE")
	byName := slices.SortedFunc(slices.Values(d.Replicas), func(x, y api.Replica) int { return strings.Compare(string(x.Name), string(y.Name)) })
	for _, r := range byName {
		mark := "  "
		if r.Name == d.Node {
			mark = "* "
		}
		host := r.Listener
		if host == "" {
			host = r.Endpoint
		}
		cli.Linef(t, "%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", mark, r.Name, d.role(r), d.doing(r), host, d.synchronization(r), d.lag(r), d.failoverTo(r), d.note(r))
	}
	_ = t.Flush()
	b.WriteString("\n")
	for line := range strings.Lines(table.String()) {
		line = strings.TrimRight(line, " \n")
		if text := []rune(line); len(text) > columns {
			line = string(text[:columns-1]) + "…"
		}
		b.WriteString(line + "\n")
	}
}

// replicaTable prints a line for each node. A node that was removed knows no more than their names.
func (d dashboard) replicaTable(w io.Writer) error {
	s := d.Status
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nREPLICA\tROLE\tSYNCHRONIZATION\tMODE\tFAILOVER\tPOSITION\tBEHIND\tREADINESS\tLOSS\tRECOVERY\tCONNECTED\tNOW")
	for _, r := range s.Replicas {
		mode, role, pos, lag, now, sync := string(r.Mode), string(r.Role), r.Position.String(), "-", r.Because, string(r.Sync)
		if r.LagBytes != nil && r.Role != ag.RolePrimary {
			lag = units.Bytes(*r.LagBytes) + d.heard()
		}
		if r.Progress != "" {
			now = r.Progress
		}
		if r.Mode == ag.ConfigurationOnly {
			mode, role, pos, sync = "-", "witness", "-", "-"
		}
		name := string(r.Name)
		if r.Name == s.Node {
			name += " *"
		}
		if r.Suspended && r.Join == "" {
			sync += " (SUSPENDED)"
		}
		if r.Join != "" && r.Mode != ag.ConfigurationOnly {
			sync += " (" + string(r.Join) + ")"
		}
		ready, loss, recovery := d.estimates(string(r.Name))
		if s.Availability.Removed {
			r.Connected, role, sync, pos, lag, ready, loss, recovery, now = "not known", "?", "?", "?", "?", "?", "?", "?", ""
		}
		cli.Linef(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, role, sync, mode, r.FailoverMode, pos, lag, ready, loss, recovery, r.Connected, now)
	}
	return t.Flush()
}

// role returns the role of a member. A node that was removed knows of none: the members do not answer it.
func (d dashboard) role(r api.Replica) string {
	if d.Availability.Removed && r.Mode != ag.ConfigurationOnly {
		return "?"
	}
	if r.Mode == ag.ConfigurationOnly {
		return "witness"
	}
	return strings.ToLower(string(r.Role))
}

// doing returns the state of a member.
func (d dashboard) doing(r api.Replica) string {
	if d.Availability.Removed {
		return "not known"
	}
	return state(r)
}

func state(r api.Replica) string {
	switch {
	case r.Connected != "CONNECTED":
		return "NO ANSWER"
	case r.Join != "" && r.Mode != ag.ConfigurationOnly:
		return "not joined"
	case r.Quarantine != "":
		return "quarantine"
	case r.Suspended:
		return "suspended"
	case r.Busy != "":
		return doing(r.Busy)
	case r.Ill != "":
		return "ill"
	case r.Server == ag.ServerDown || r.Server == ag.ServerStarting:
		return strings.ToLower(string(r.Server))
	}
	return "running"
}

// doing returns what a long action of a node does, as the state of the node.
func doing(action string) string {
	switch action {
	case "start":
		return "starting"
	case "stop":
		return "stopping"
	case "restart-server", "restart-primary":
		return "restarting"
	case "promote":
		return "promoting"
	case "rewind":
		return "rewinding"
	case "seed":
		return "copying"
	case "hand-over":
		return "handing over"
	case "sync": // it settles for which secondaries commits wait
		return "setting sync"
	}
	return action
}

func (d dashboard) synchronization(r api.Replica) string {
	if d.Availability.Removed && r.Mode != ag.ConfigurationOnly {
		return "?"
	}
	switch {
	case r.Mode == ag.ConfigurationOnly || r.Role == ag.RolePrimary:
		return "-"
	case r.Sync == ag.Synchronized:
		return "sync"
	case r.Sync == ag.Synchronizing && r.Mode == ag.AsynchronousCommit:
		return "async"
	case r.Sync == ag.Synchronizing:
		return "catching up"
	}
	return "no"
}

// lag returns how far a copy is behind the primary. Where none leads, that is a comparison with what the last one told
// while it lived, which may have written more since.
func (d dashboard) lag(r api.Replica) string {
	switch {
	case r.Mode == ag.ConfigurationOnly || r.Role == ag.RolePrimary:
		return "-"
	case r.LagBytes == nil || r.Connected != "CONNECTED":
		return "?"
	}
	return units.Bytes(*r.LagBytes) + d.heard()
}

// heard marks a lag behind a primary that does not lead any more; "": one leads.
func (d dashboard) heard() string {
	if d.Availability.Level == availability.Down && d.Availability.Primary == "" {
		return ", as last heard"
	}
	return ""
}

// failoverTo returns the cost of a failover to a replica.
func (d dashboard) failoverTo(r api.Replica) string {
	i := slices.IndexFunc(d.Health, func(h replicaHealth) bool { return h.Replica == string(r.Name) })
	switch {
	case d.Availability.Removed && r.Mode != ag.ConfigurationOnly:
		return "?"
	case i < 0 || r.Name == d.Primary || r.Mode == ag.ConfigurationOnly:
		return "-"
	case r.Connected != "CONNECTED":
		return "?"
	case r.Maintenance != nil, r.Data == ag.DataPartial, r.Data == ag.DataEmpty:
		return "refused"
	case !d.Health[i].Ready:
		return "may lose data"
	case d.Health[i].Recovery == nil:
		return "no loss"
	case *d.Health[i].Recovery < 1:
		return "no loss, < 1 s"
	}
	return "no loss, " + availability.Age(time.Duration(*d.Health[i].Recovery*float64(time.Second)))
}

func (d dashboard) note(r api.Replica) string {
	var notes []string
	if slices.Contains(d.Restart, string(r.Name)) {
		notes = append(notes, "restart pending")
	}
	if r.Maintenance != nil {
		notes = append(notes, "maintenance")
	}
	if r.Mode != ag.ConfigurationOnly && r.FailoverMode == ag.Manual {
		notes = append(notes, "manual")
	}
	if !r.Voter && d.Voters > 1 && r.Connected == "CONNECTED" {
		notes = append(notes, "no vote")
	}
	if r.Allow == ag.AllowNo && r.Role == ag.RoleSecondary {
		notes = append(notes, "no readers")
	}
	if r.Progress != "" {
		notes = append(notes, r.Progress)
	}
	return strings.Join(notes, ", ")
}

// writeWrapped prints a text after a heading, in lines that fit; further lines are indented.
func writeWrapped(b *strings.Builder, heading, text string) {
	indent := strings.Repeat(" ", min(12, len(heading)))
	line := heading
	for _, word := range strings.Fields(text) {
		if len([]rune(line))+len([]rune(word)) > columns && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

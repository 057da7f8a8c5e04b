package groupcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Status returns the command status.
func Status() *cobra.Command {
	var o statusOptions
	c := &cobra.Command{
		Use: "status", GroupID: "group", Short: "Show the group as this node knows it",
		Long: `Shows whether the group takes writes, what commits wait for, whose death the group survives now, the replicas, how to connect, and what
is wrong: root causes, the worst first, each with what to run. Every node answers from its own memory, whatever else is dead; estimates and pending restarts come from the
views and may take a moment when a node hangs. The line with * is the node that answers.

--wide adds positions, modes, what the death of each member would lead to, the databases and the policies. --json prints everything; its field "format" is 1 and grows when a field is
removed or changes its meaning; docs/reference/status.md has each field.

Exit codes: 3 when there is no primary that takes writes, when no commit is acknowledged, or when no majority of the quorum answers. With --check, which prints one line, also 5
when the group is degraded: a problem is shown and clients have their service. 0 otherwise.`,
		Example: "  coterie status\n  coterie status --check || echo wake somebody",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if o.watch {
				return watchStatus(c, cl, o)
			}
			return showStatus(c, cl, o)
		},
	}
	c.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&o.watch, "watch", false, "refresh in place every second until Ctrl-C")
	c.Flags().BoolVar(&o.wide, "wide", false, "show positions, modes, the outcome of each death, databases and policies as well, in long lines")
	c.Flags().BoolVar(&o.check, "check", false, "print one line; exit code 0 healthy, 3 no service, 5 degraded")
	return c
}

// statusOptions are the options of coterie status.
type statusOptions struct{ asJSON, watch, wide, check bool }

// exitDegraded is the exit code of status --check for a group with a problem whose clients have their service.
const exitDegraded = 5

// dashboard is the output of coterie status: the status from the agent's memory, and the rows of the views.
type dashboard struct {
	Format int `json:"format"` // of this document: 1
	api.Status
	Restart []string `json:"pending_restart,omitempty"` // nodes with a setting that waits for a restart of their server
	// Relaxed are defaults with which commits are acknowledged before a secondary has them.
	Relaxed   []string         `json:"relaxed_defaults,omitempty"`
	Health    []replicaHealth  `json:"health,omitempty"`    // what a failover to each replica would cost
	Databases []databaseHealth `json:"databases,omitempty"` // each registered database on each replica, 200 at most
	// Issues are the policies that find something, 50 at most: the SQL Server way to tell what is wrong.
	Issues []issue `json:"issues,omitempty"`
	// Continuity is how many of the primary's sessions would be kept; nil: not known, or there are none.
	Continuity *continuity `json:"continuity,omitempty"`
	// Archive is what is wrong with the archive of the group's WAL.
	Archive []availability.Problem `json:"archive,omitempty"`
	Backup  *backupPlace           `json:"backup,omitempty"` // the newest backup, and the next; nil: no backups are enabled
	// Unknown is why the views did not answer. Without them pending_restart, relaxed_defaults, health, databases,
	// issues, continuity, archive and backup are absent; "": they did.
	Unknown string `json:"views,omitempty"`
}

// replicaHealth is a replica's failover readiness and the estimated cost of a failover to it, in seconds. nil means
// unknown.
type replicaHealth struct {
	Replica  string   `json:"replica"`                     // its name
	Ready    bool     `json:"no_data_loss"`                // a failover to it loses nothing
	Loss     *float64 `json:"estimated_data_loss_seconds"` // in seconds; nil: not known
	Recovery *float64 `json:"estimated_recovery_seconds"`  // in seconds, until it takes writes; nil: not known
}

// continuity is how many sessions of the primary there are, and how many of them a planned failover now would keep, and
// the death of its node or of its server alone.
type continuity struct {
	Sessions int `json:"sessions"`              // of clients, on the primary
	Failover int `json:"kept_in_failover"`      // of those, in a planned failover
	Node     int `json:"kept_when_node_dies"`   // of those, when its node dies
	Server   int `json:"kept_when_server_dies"` // of those, when only its server dies
}

// backupPlace is the newest backup, and where the next one is made.
type backupPlace struct {
	Label       string    `json:"label,omitempty"`                // its name in the repository; "": there is none
	Ended       time.Time `json:"ended,omitzero"`                 // when it ended; zero: there is none
	Node        string    `json:"made_on,omitempty"`              // the replica that made it; "": it is not known
	Next        string    `json:"next_on,omitempty"`              // the replica that makes the next one; "": no replica can
	Running     []string  `json:"under_way,omitempty"`            // backups that are being made, for people
	Interrupted []string  `json:"interrupted_restores,omitempty"` // restores that were interrupted, for people
}

type databaseHealth struct {
	Database string `json:"database"`              // its name
	Replica  string `json:"replica"`               // the name of the replica
	Sync     string `json:"synchronization_state"` // of the database there
	Ready    bool   `json:"no_data_loss"`          // a failover to the replica loses nothing of it
}

type issue struct {
	Severity string `json:"severity"` // of the policy
	Policy   string `json:"policy"`   // its name
	Target   string `json:"target"`   // a member, a database on a member, or the group
	Finding  string `json:"finding"`  // what it found
}

// The queries of a dashboard. Their columns are the fields of the structs above.
const (
	healthQuery   = "SELECT name, failover_ready, estimated_data_loss, estimated_recovery FROM coterie.replicas WHERE availability_mode <> 'CONFIGURATION_ONLY'"
	databaseQuery = `SELECT c.database_name, r.replica_server_name, s.synchronization_state_desc, c.is_failover_ready
FROM sys.dm_hadr_database_replica_cluster_states c JOIN sys.dm_hadr_database_replica_states s USING (replica_id, group_database_id)
JOIN sys.availability_replicas r USING (replica_id) ORDER BY 1, 2 LIMIT 200`
	settingsQuery = `SELECT DISTINCT node, name, value, pending_restart FROM coterie.settings
WHERE pending_restart OR name = 'synchronous_commit' OR name LIKE 'synchronous_commit of %' ORDER BY 1, 2 LIMIT 1000`
	continuityQuery = `SELECT sum(sessions), sum(CASE WHEN failover = 'ENDS' THEN 0 ELSE sessions END), sum(CASE WHEN node_loss = 'ENDS' THEN 0 ELSE sessions END),
sum(CASE WHEN server_loss = 'ENDS' THEN 0 ELSE sessions END) FROM coterie.continuity WHERE replica IN (SELECT primary_replica FROM coterie.record)`
	archiveQuery = `SELECT node, last_archived_wal, last_archived, last_failed_wal, last_failed, waiting, waiting_since, waiting_bytes, waiting_bytes_per_second, free_bytes, reason
FROM coterie.backup WHERE is_primary AND archiving AND last_failed IS NOT NULL`
	backupQuery = `SELECT node, last_backup, last_backup_label, last_backup_node, preferred, running_type, running_since, running_pct, running_phase, interrupted_restore
FROM coterie.backup WHERE enabled OR interrupted_restore IS NOT NULL ORDER BY 1`
	issueQuery = "SELECT severity, policy, target, finding FROM coterie.policies WHERE NOT ok ORDER BY severity, level, target LIMIT 50"
)

// statusLimit bounds the wait for the agent, which answers from memory.
const statusLimit = 2 * time.Second

// viewsLimit bounds the wait for the views. The status itself comes from memory and does not depend on other nodes.
const viewsLimit = 3 * time.Second

// look returns the dashboard of now. It fails only if the agent does not answer.
func look(c *cobra.Command, cl *api.Client) (dashboard, error) {
	ctx, cancel := context.WithTimeout(c.Context(), statusLimit)
	defer cancel()
	s, err := cl.Status(ctx)
	if errors.Is(err, context.DeadlineExceeded) && c.Context().Err() == nil {
		return dashboard{}, fail.Unhealthyf("the agent of %s runs and has not answered within %v: it is paused, or its machine hangs; run this on another member, and look at log/agent.log here", cli.Node(c), statusLimit)
	}
	if err != nil {
		return dashboard{}, cli.NoAgent(c, err)
	}
	d := dashboard{Format: 1, Status: s}
	d.believe()
	if err := d.askViews(c, cl); err != nil {
		d.Unknown = strings.TrimSpace(err.Error())
		if errors.Is(err, context.DeadlineExceeded) {
			d.Unknown = fmt.Sprintf("the views have not answered within %v", viewsLimit)
		}
	}
	d.weigh()
	return d, nil
}

// believe puts what the answering node has itself found before what others have reported to it: a node that no majority
// answers does not know for long whether the primary that it saw last still takes writes.
func (d *dashboard) believe() {
	r := &d.Availability
	if d.Quorum || d.Draft || r.Removed || r.Untrusted != "" || !d.WriteOpen || r.Level == availability.Down {
		return
	}
	p := availability.Problem{
		Severity: availability.Critical, Target: d.Group, Run: "start the members that do not answer; if most of them are lost for good: coterie recover --help",
		Finding: fmt.Sprintf("no majority of the quorum answers this node, so it is not known whether %s still takes writes", d.Primary),
	}
	if d.Primary == d.Node {
		p.Finding = "no majority of the quorum answers this node, which takes no writes any more when its lease ends"
	}
	r.Level, r.Next, r.Problems = availability.Down, p.Run, slices.Insert(r.Problems, 0, p)
}

func (d *dashboard) askViews(c *cobra.Command, cl *api.Client) error {
	ctx, cancel := context.WithTimeout(c.Context(), viewsLimit)
	defer cancel()
	seconds := func(v any) *float64 {
		n, ok := v.(json.Number)
		f, err := n.Float64()
		if !ok || err != nil {
			return nil
		}
		return &f
	}
	for _, q := range []struct {
		text string
		row  func([]any)
	}{
		{healthQuery, func(r []any) {
			d.Health = append(d.Health, replicaHealth{fmt.Sprint(r[0]), r[1] == true, seconds(r[2]), seconds(r[3])})
		}},
		{databaseQuery, func(r []any) {
			d.Databases = append(d.Databases, databaseHealth{fmt.Sprint(r[0]), fmt.Sprint(r[1]), fmt.Sprint(r[2]), r[3] == true})
		}},
		{issueQuery, func(r []any) {
			d.Issues = append(d.Issues, issue{fmt.Sprint(r[0]), fmt.Sprint(r[1]), fmt.Sprint(r[2]), fmt.Sprint(r[3])})
		}},
		{settingsQuery, d.addSetting},
		{continuityQuery, d.addContinuity},
		{archiveQuery, d.addArchive},
		{backupQuery, d.addBackup},
	} {
		r, err := sqlrun.AskWithin(ctx, c, cl, q.text)
		if err != nil && ctx.Err() != nil && c.Context().Err() == nil {
			return ctx.Err() // the text of err is that of a command that changes something
		}
		if err != nil {
			return err
		}
		for _, row := range r.Rows {
			q.row(row)
		}
	}
	return nil
}

// addSetting adds a row of settingsQuery.
func (d *dashboard) addSetting(r []any) {
	node, name, value := fmt.Sprint(r[0]), fmt.Sprint(r[1]), fmt.Sprint(r[2])
	if (r[3] == true || fmt.Sprint(r[3]) == "1") && !slices.Contains(d.Restart, node) {
		d.Restart = append(d.Restart, node)
	}
	if name != "synchronous_commit" && !strings.HasPrefix(name, "synchronous_commit of ") {
		return
	}
	if f, relaxed := check.RelaxedDefault(name, value); relaxed && !slices.Contains(d.Relaxed, f.What) {
		d.Relaxed = append(d.Relaxed, f.What)
	}
}

// addContinuity adds the row of continuityQuery.
func (d *dashboard) addContinuity(r []any) {
	var n [4]int
	for i := range n {
		_, _ = fmt.Sscan(fmt.Sprint(r[i]), &n[i]) // NULL without any session
	}
	if n[0] > 0 {
		d.Continuity = &continuity{n[0], n[1], n[2], n[3]}
	}
}

// addArchive adds a row of archiveQuery.
func (d *dashboard) addArchive(r []any) {
	if f, bad := check.ArchiverOf(r).Trouble(time.Now()); bad {
		d.Archive = append(d.Archive, availability.Problem{Severity: availability.Warning, Target: fmt.Sprint(r[0]), Finding: f.What, Run: f.Run})
	}
}

// addBackup adds a row of backupQuery: the nodes look at the repository at different times.
func (d *dashboard) addBackup(r []any) {
	if d.Backup == nil {
		d.Backup = &backupPlace{}
	}
	b := d.Backup
	if ended := check.TimeOf(r[1]); ended.After(b.Ended) {
		b.Ended, b.Label, b.Node = ended, fmt.Sprint(r[2]), ""
		if r[3] != nil {
			b.Node = fmt.Sprint(r[3])
		}
	}
	if r[4] == true || fmt.Sprint(r[4]) == "1" {
		b.Next = fmt.Sprint(r[0])
	}
	if r[5] != nil {
		var percent float64
		_, _ = fmt.Sscan(fmt.Sprint(r[7]), &percent) // it is a number
		at := fmt.Sprintf("%.0f %%", percent)
		if r[8] != nil {
			at = fmt.Sprint(r[8])
		}
		b.Running = append(b.Running, fmt.Sprintf("a %v backup is under way on %v for %v: %s", r[5], r[0], time.Since(check.TimeOf(r[6])).Round(time.Second), at))
	}
	if r[9] != nil {
		b.Interrupted = append(b.Interrupted, fmt.Sprintf("a restore from %v into %v was interrupted; there: coterie restore --undo DIR removes what it left", r[0], r[9]))
	}
}

func showStatus(c *cobra.Command, cl *api.Client, o statusOptions) error {
	d, err := look(c, cl)
	if err != nil {
		return err
	}
	down := !d.WriteOpen || d.Availability.Level == availability.Down
	switch {
	case o.asJSON:
		err = cli.PrintJSON(c, d)
	case o.check:
		_, err = fmt.Fprintln(cli.Out(c), cli.Cell(d.verdict(down)))
	case o.wide:
		err = d.render(cli.Out(c))
	default:
		_, err = io.WriteString(c.OutOrStdout(), cli.Paint(c, cli.Printable(d.short())))
	}
	switch {
	case err != nil:
		return err
	case down:
		return cli.ErrUnhealthy
	case o.check && d.Availability.Level == availability.Degraded:
		return cli.ExitError{Code: exitDegraded}
	}
	return nil
}

// verdict returns the state of the group in one line.
func (d dashboard) verdict(down bool) string {
	level := d.level(down)
	if p := d.causes(); len(p) > 0 {
		return level + ": " + p[0].Finding
	}
	return level
}

// level returns the state of the group in one word.
func (d dashboard) level(down bool) string {
	switch {
	case d.Availability.Removed:
		return "not known"
	case down:
		return "DOWN"
	case d.Availability.Level == "":
		return string(availability.Healthy)
	}
	return string(d.Availability.Level)
}

// watchStatus prints the status every second in place of the last one, until the context ends.
func watchStatus(c *cobra.Command, cl *api.Client, o statusOptions) error {
	for c.Context().Err() == nil {
		var page bytes.Buffer
		d, err := look(c, cl)
		switch {
		case err == nil && o.wide:
			err = d.render(&page)
		case err == nil:
			_, err = page.WriteString(d.short())
		}
		if err != nil {
			_, _ = fmt.Fprintln(&page, err)
		}
		cli.Linef(&page, "\n%s; every second until Ctrl-C", time.Now().Format("15:04:05"))
		// The end of each line and the rest of the screen are cleared, instead of the whole screen, which would
		// flicker.
		text := strings.ReplaceAll(cli.Printable(page.String()), "\n", "\x1b[K\r\n")
		if _, err := fmt.Fprint(c.OutOrStdout(), "\x1b[H"+text+"\x1b[K\x1b[J"); err != nil {
			return err
		}
		_ = retry.Sleep(c.Context(), time.Second)
	}
	_, _ = fmt.Fprintln(cli.Out(c))
	return nil
}

func readiness(noLoss bool) string {
	if noLoss {
		return "No Data Loss"
	}
	return "Data Loss"
}

func (d dashboard) render(w io.Writer) error {
	if err := d.printReplicas(w); err != nil || d.Availability.Removed {
		return err
	}
	if err := printDeaths(w, d.Availability.Failures); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	if len(d.Databases) > 0 {
		_, _ = fmt.Fprintln(t, "\nDATABASE\tREPLICA\tSYNCHRONIZATION\tFAILOVER READINESS")
		for _, x := range d.Databases {
			cli.Linef(t, "%s\t%s\t%s\t%s\n", x.Database, x.Replica, x.Sync, readiness(x.Ready))
		}
	}
	if len(d.Issues) > 0 {
		_, _ = fmt.Fprintln(t, "\nSEVERITY\tPOLICY\tTARGET\tISSUE")
		for _, x := range d.Issues {
			cli.Linef(t, "%s\t%s\t%s\t%s\n", x.Severity, x.Policy, x.Target, x.Finding)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	switch {
	case d.Unknown != "":
		cli.Linef(w, "\ndatabases and issues are not known: %s\n", d.Unknown)
	case len(d.Issues) == 0 && len(d.Availability.Problems) == 0 && !d.Draft:
		_, _ = fmt.Fprintln(w, "\nno issues")
	}
	if k := d.Continuity; k != nil {
		cli.Linef(w, "\nof the primary's %d sessions a planned failover would keep %d, the death of its node %d, of its PostgreSQL alone %d (coterie check continuity)\n", k.Sessions, k.Failover, k.Node, k.Server)
	}
	printHealth(w, d.Status)
	return nil
}

// printReplicas prints the group and a line for each node.
func (d dashboard) printReplicas(w io.Writer) error {
	s := d.Status
	primary := string(s.Primary)
	switch {
	case primary == "":
		primary = "none"
	case s.Availability.Primary != s.Primary && !s.WriteOpen:
		primary = "none (" + primary + " led last)"
	case !s.WriteOpen:
		primary += " (not open for writes)"
	}
	quorum := "ok"
	if !s.Quorum {
		quorum = "NONE: what follows is what this node saw last"
	}
	votes := fmt.Sprintf("%d voters", s.Voters)
	if s.External > 0 {
		votes = fmt.Sprintf("external etcd, members: %d", s.External)
		if !s.Quorum {
			quorum += ", of " + strings.Join(s.QuorumEndpoints, " ")
		}
	}
	if s.Availability.Removed {
		cli.Linef(w, "group %s   %s was removed from it: what follows is what it saw last, epoch %d\n", s.Group, s.Node, s.Epoch)
		for _, p := range s.Availability.Problems {
			cli.Linef(w, "%s\n  run: %s\n", p.Finding, p.Run)
		}
		return d.replicaTable(w)
	}
	if s.Draft {
		cli.Linef(w, "no group yet: CREATE AVAILABILITY GROUP makes it, in coterie sql on %s\n", primary)
	}
	if s.Availability.Primary == s.Primary {
		primary += since(s, time.Now(), sinceLayouts[0])
	}
	cli.Linef(w, "group %s   primary %s   epoch %d %s   timeline %d\n", s.Group, primary, s.Epoch, s.Phase, s.Timeline)
	cli.Linef(w, "quorum %s (%s)   commits wait for %s   automatic failover: %s\n", quorum, votes, s.WaitsFor, s.FailoverReady)
	printBlocked(w, s.Availability)
	printUnderWay(w, s)
	return d.replicaTable(w)
}

// printUnderWay prints what is done to the group now, and that commits are confirmed once more.
func printUnderWay(w io.Writer, s api.Status) {
	if s.LogWeakness != "" {
		cli.Linef(w, "%s confirms each commit once more while it is primary: %s\n", s.Node, s.LogWeakness)
	}
	if s.Operation != "" {
		cli.Linef(w, "under way: failover, %s\n", s.Operation)
	}
	if s.Rotation != nil {
		cli.Linef(w, "under way: rotation of the certificate authority, %s\n", describeRotation(*s.Rotation))
	}
}

// printBlocked prints a line if no commit is acknowledged.
func printBlocked(w io.Writer, r availability.Report) {
	if r.Blocked {
		cli.Linef(w, "NO COMMIT IS ACKNOWLEDGED, for %s: %s\n", availability.Age(time.Duration(r.BlockedSeconds*float64(time.Second))), r.Because)
	}
}

// estimates returns a replica's readiness, data loss and recovery time as texts; "-" for unknown.
func (d dashboard) estimates(name string) (ready, loss, recovery string) {
	text := func(s *float64) string {
		if s == nil {
			return "-"
		}
		return time.Duration(*s * float64(time.Second)).Round(10 * time.Millisecond).String()
	}
	for _, h := range d.Health {
		if h.Replica == name {
			return readiness(h.Ready), text(h.Loss), text(h.Recovery)
		}
	}
	return "-", "-", "-"
}

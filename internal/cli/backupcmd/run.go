package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// made is the JSON document of coterie backup run.
type made struct {
	Node    string        `json:"node"`
	Run     bool          `json:"run"` // false: the backup is another node's
	Backup  backup.Backup `json:"backup,omitzero"`
	Seconds float64       `json:"seconds"`
}

func runCommand() *cobra.Command {
	var kind string
	var ifPreferred, asJSON bool
	var replayLimit time.Duration
	c := &cobra.Command{
		Use: "run", Short: "Make a backup now", Args: cli.Args(0, "no arguments"),
		Long: `Makes a backup of the group, and removes those that are kept no longer. It runs on the replica that AUTOMATED_BACKUP_PREFERENCE and
BACKUP_PRIORITY name of those that can make one: by default a secondary, and the primary if none can. On any other node it says which node that is
and ends with 3; with --if-preferred it ends with 0 there without doing anything, so that every replica can have the same job.

On a secondary the files of that replica are copied; the primary is only asked to begin and to end the backup, and archives WAL as always. The
secondary first replays to where the backup begins, for which --replay-limit bounds the time.

A backup that a failover interrupts is void; the next one uses what it has copied.`,
		Example: "  coterie backup run --type full\n  coterie backup run --if-preferred",
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(backup.Kinds, backup.Kind(kind)) {
				return fail.Usagef("--type %q: full, diff or incr", kind)
			}
			return open(c, func(x *work) error {
				x.replayLimit = replayLimit
				m, err := x.makeBackup(backup.Kind(kind), ifPreferred)
				if err != nil {
					return err
				}
				return x.reportRun(m, asJSON)
			})
		},
	}
	c.Flags().StringVar(&kind, "type", string(backup.Incremental), "full, diff (what changed since the last full one) or incr (since the last one)")
	c.Flags().BoolVar(&ifPreferred, "if-preferred", false, "on a node that is not to make the backup, do nothing and end with 0")
	c.Flags().DurationVar(&replayLimit, "replay-limit", 10*time.Minute, "how long a secondary may take to replay to where the backup begins")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (x *work) makeBackup(kind backup.Kind, ifPreferred bool) (made, error) {
	p, tool, err := x.plan()
	if err != nil {
		return made{}, err
	}
	st, err := x.status()
	if err != nil {
		return made{}, err
	}
	on, err := x.place(st)
	switch {
	case err != nil && ifPreferred && st.Primary != "" && st.Primary != st.Node, err == nil && ifPreferred && on.Name != string(st.Node):
		return made{Node: on.Name}, nil
	case err != nil:
		return made{}, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("no replica can make the backup: %w", err)}
	case on.Name != string(st.Node):
		return made{}, fail.Unhealthyf("AUTOMATED_BACKUP_PREFERENCE and BACKUP_PRIORITY name %s for backups: run coterie backup run there (with --if-preferred the same job may run on every replica)", on.Name)
	}
	if p.Group != string(st.GroupID) {
		return made{}, fail.Refusedf("the plan of backups is that of another group; coterie backup enable --stanza NAME again")
	}
	start, run := time.Now(), x.copyPrimary
	if !on.Primary {
		run = x.copySecondary
	}
	if err := run(tool, backup.Job{Kind: kind, Node: on.Name}); err != nil {
		return made{}, x.explain(st, full(p.Repository, err))
	}
	m := made{Node: on.Name, Run: true, Seconds: time.Since(start).Seconds()}
	have, err := tool.Backups(x.c.Context())
	if err != nil {
		return m, err
	}
	last, ok := have.Last()
	if !ok || last.Ended.Before(start.Add(-2*time.Second)) { // its times are whole seconds
		return m, errors.New("pgbackrest ended without an error, and the repository has no new backup; see coterie backup list")
	}
	m.Backup = last
	return m, nil
}

// copyPrimary makes a backup of this node's server, which is the primary's.
func (x *work) copyPrimary(tool backup.Tool, j backup.Job) error {
	if err := checkpoint(x.c.Context(), x); err != nil {
		return fail.Unhealthyf("the server of this node: %w; see coterie status", err)
	}
	return tool.Run(x.c.Context(), j, x.progress("backup"))
}

// checkpoint has this node's server write one; tests replace it. The backup begins with one anyway. Until the first one
// after a failover, pg_control names the timeline before, and the tool refuses to begin.
var checkpoint = func(ctx context.Context, x *work) error {
	c, err := x.session().Connect(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Exec(ctx, "CHECKPOINT")
	return err
}

// place returns the replica that makes backups.
func (x *work) place(st api.Status) (backup.Replica, error) {
	options, err := sqlrun.Ask(x.c, x.client, "SELECT option, replica, value FROM coterie.options WHERE option LIKE '%BACKUP%'")
	if err != nil {
		return backup.Replica{}, err
	}
	fitness, err := sqlrun.Ask(x.c, x.client, "SELECT node, is_primary, unfit FROM coterie.backup")
	if err != nil {
		return backup.Replica{}, err
	}
	p, priority := backup.Place{}, map[string]int{}
	for _, row := range options.Rows {
		switch text(row[0]) {
		case "AUTOMATED_BACKUP_PREFERENCE":
			p.Preference = text(row[2])
		case "BACKUP_PRIORITY":
			if n, err := strconv.Atoi(text(row[2])); err == nil {
				priority[text(row[1])] = n
			}
		}
	}
	for _, m := range st.Replicas {
		if m.Mode == ag.ConfigurationOnly {
			continue
		}
		r := backup.Replica{Name: string(m.Name), Priority: defaultPriority, Primary: m.Name == st.Primary, Unfit: "it does not answer"}
		if n, set := priority[r.Name]; set {
			r.Priority = n
		}
		for _, row := range fitness.Rows {
			if text(row[0]) == r.Name {
				r.Unfit = text(row[2])
			}
		}
		p.Replicas = append(p.Replicas, r)
	}
	return p.On()
}

// defaultPriority is the BACKUP_PRIORITY of a replica that has none of its own.
const defaultPriority = 50

// leastRoom is what the file system of a repository has at least where a backup did not fail for want of it.
const leastRoom = 32 << 20

// full adds to an error that the repository has no room: the tool says only that it could not write.
func full(r backup.Repository, err error) error {
	var st unix.Statfs_t
	if r.Directory == "" || unix.Statfs(r.Directory, &st) != nil || int64(st.Bavail)*st.Bsize >= leastRoom {
		return err
	}
	return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%w; the repository %s is full: %s are free. Make room, as with coterie backup enable --retention and coterie backup expire, and run it again",
		err, r, units.Bytes(int64(st.Bavail)*st.Bsize))}
}

// explain adds to an error whether the leadership changed meanwhile.
func (x *work) explain(before api.Status, err error) error {
	now, asked := x.client.Status(x.c.Context())
	if asked == nil && now.Primary != before.Primary && x.c.Context().Err() == nil {
		to := "the next primary"
		if now.Primary != "" {
			to = string(now.Primary)
		}
		return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%w; the group failed over meanwhile: run it again on %s", err, to)}
	}
	return err
}

// progress returns a function that tells how far something has come, at most every two seconds and not in the first.
func (x *work) progress(what string) func(backup.Progress) {
	start, said, phase := time.Now(), time.Now(), ""
	return func(p backup.Progress) {
		if time.Since(start) < time.Second || time.Since(said) < 2*time.Second && p.Phase == phase {
			return
		}
		said, phase = time.Now(), p.Phase
		if p.Phase != "" {
			cli.Say(x.c, "%s: %s", what, p.Phase)
			return
		}
		cli.Say(x.c, "%s: %.0f %%%s", what, p.Percent, remaining(time.Since(start), p.Percent))
	}
}

// remaining returns how long the rest takes if it goes on as so far; "" as long as that means nothing.
func remaining(since time.Duration, percent float64) string {
	if percent < 1 || percent >= 100 {
		return ""
	}
	left := time.Duration(float64(since) * (100 - percent) / percent)
	return fmt.Sprintf(", about %v left", left.Round(time.Second))
}

func (x *work) reportRun(m made, asJSON bool) error {
	switch {
	case asJSON:
		return cli.PrintJSON(x.c, m)
	case !m.Run && m.Node == "":
		cli.Say(x.c, "no node can make a backup now")
	case !m.Run:
		cli.Say(x.c, "%s makes the backups", m.Node)
	default:
		_, err := fmt.Fprintf(cli.Out(x.c), "%s  %s  %s, %s in the repository, %.1f s\n", m.Backup.Label, m.Backup.Kind, units.Bytes(m.Backup.Size), units.Bytes(m.Backup.Stored), m.Seconds)
		return err
	}
	return nil
}

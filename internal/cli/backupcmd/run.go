package backupcmd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/underway"
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
	var o runOptions
	c := &cobra.Command{
		Use: "run", Short: "Make a backup now", Args: cli.Args(0, "no arguments"),
		Long: `Makes a backup of the group, and removes those that are kept no longer. It runs on the replica that AUTOMATED_BACKUP_PREFERENCE and
BACKUP_PRIORITY name of those that can make one: by default a secondary, and the primary if none can. On any other node it has that one make the
backup, and shows how far it has come; the backup goes on if this command is ended. With --here it is made on this node nevertheless. With
--if-preferred another node ends with 0 without doing anything, so that every replica can have the same job.

On a secondary the files of that replica are copied; the primary is only asked to begin and to end the backup, and archives WAL as always. The
secondary first replays to where the backup begins, for which --replay-limit bounds the time.

A backup that a failover interrupts is void; the next one uses what it has copied.`,
		Example: "  coterie backup run --type full\n  coterie backup run --if-preferred\n  coterie backup run --here",
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(backup.Kinds, backup.Kind(kind)) {
				return fail.Usagef("--type %q: full, diff or incr", kind)
			}
			if ifPreferred && o.here {
				return fail.Usagef("--here and --if-preferred exclude each other")
			}
			return open(c, func(x *work) error {
				o.kind, x.replayLimit = backup.Kind(kind), o.replayLimit
				m, err := x.makeBackup(o, ifPreferred)
				if err != nil {
					return err
				}
				return x.reportRun(m, asJSON)
			})
		},
	}
	c.Flags().StringVar(&kind, "type", string(backup.Incremental), "full, diff (what changed since the last full one) or incr (since the last one)")
	c.Flags().BoolVar(&ifPreferred, "if-preferred", false, "on a node that is not to make the backup, do nothing and end with 0")
	c.Flags().BoolVar(&o.here, "here", false, "make it on this node, whatever AUTOMATED_BACKUP_PREFERENCE and BACKUP_PRIORITY say")
	c.Flags().DurationVar(&o.replayLimit, "replay-limit", 10*time.Minute, "how long a secondary may take to replay to where the backup begins")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&o.id, "id", "", "name of the run, given by the agent that starts it for another node")
	_ = c.Flags().MarkHidden("id") // the flag exists
	return c
}

// runOptions is how a backup is to be made.
type runOptions struct {
	kind        backup.Kind
	replayLimit time.Duration
	here        bool
	id          string // "": a new one
}

// makeBackup makes a backup, here or on the replica that is to make it.
func (x *work) makeBackup(o runOptions, ifPreferred bool) (made, error) {
	if o.here || ifPreferred { // a job on a replica that could not make one is to fail
		if _, _, err := x.plan(); err != nil {
			return made{}, err
		}
	}
	st, err := x.status()
	if err != nil {
		return made{}, err
	}
	all, err := x.places(st)
	if err != nil {
		return made{}, err
	}
	if o.here {
		on, err := onlyHere(all, string(st.Node))
		if err != nil {
			return made{}, err
		}
		return x.makeHere(o, st, on)
	}
	on, err := all.On()
	switch {
	case err != nil && ifPreferred && st.Primary != "" && st.Primary != st.Node, err == nil && ifPreferred && on.Name != string(st.Node):
		return made{Node: on.Name}, nil
	case err != nil:
		return made{}, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("no replica can make the backup: %w", err)}
	case on.Name != string(st.Node):
		return x.makeThere(o, ag.ReplicaID(on.Name))
	}
	return x.makeHere(o, st, on)
}

// onlyHere returns this node as the place of a backup. It is refused where no backup can be made.
func onlyHere(all backup.Place, self string) (backup.Replica, error) {
	primary := slices.ContainsFunc(all.Replicas, func(r backup.Replica) bool { return r.Primary })
	i := slices.IndexFunc(all.Replicas, func(r backup.Replica) bool { return r.Name == self })
	switch {
	case i < 0 || !primary:
		return backup.Replica{}, fail.Unhealthyf("the group has no primary at the moment, and each backup begins and ends there")
	case all.Replicas[i].Unfit != "":
		return backup.Replica{}, fail.Unhealthyf("no backup can be made on %s now: %s", self, all.Replicas[i].Unfit)
	}
	return all.Replicas[i], nil
}

// makeHere makes a backup of this node's server, and notes how it goes for those that ask.
func (x *work) makeHere(o runOptions, st api.Status, on backup.Replica) (m made, err error) {
	p, tool, err := x.plan()
	if err != nil {
		return m, err
	}
	if p.Group != string(st.GroupID) {
		return m, fail.Refusedf("the plan of backups is that of another group; coterie backup enable --stanza NAME again")
	}
	start, run := time.Now(), x.copyPrimary
	if !on.Primary {
		run = x.copySecondary
	}
	note, err := underway.Begin(x.layout.Backup(), backup.Run{ID: cmp.Or(o.id, rand.Text()), Kind: o.kind, Started: start.UTC(), Phase: "beginning"})
	if err != nil {
		return m, err
	}
	defer func() { note.End(m.Backup, err) }()
	say := x.progress("backup")
	err = run(tool, backup.Job{Kind: o.kind, Node: on.Name}, func(p backup.Progress) { note.Tell(p); say(p) })
	if err != nil {
		return m, x.explain(st, full(p.Repository, err))
	}
	m = made{Node: on.Name, Run: true, Seconds: time.Since(start).Seconds()}
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
func (x *work) copyPrimary(tool backup.Tool, j backup.Job, each func(backup.Progress)) error {
	if err := checkpoint(x.c.Context(), x); err != nil {
		return fail.Unhealthyf("the server of this node: %w; see coterie status", err)
	}
	return tool.Run(x.c.Context(), j, each)
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

// places returns where backups may be made.
func (x *work) places(st api.Status) (backup.Place, error) {
	options, err := sqlrun.Ask(x.c, x.client, "SELECT option, replica, value FROM coterie.options WHERE option LIKE '%BACKUP%'")
	if err != nil {
		return backup.Place{}, err
	}
	fitness, err := sqlrun.Ask(x.c, x.client, "SELECT node, is_primary, unfit, enabled FROM coterie.backup")
	if err != nil {
		return backup.Place{}, err
	}
	if len(fitness.Rows) > 0 && !slices.ContainsFunc(fitness.Rows, func(row []any) bool { return row[3] == true || text(row[3]) == "1" }) {
		return backup.Place{}, fail.Refusedf("no replica that answers has backups enabled: coterie backup enable --repo DIR|s3://BUCKET/PREFIX, on the primary first")
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
	return p, nil
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
	var mu sync.Mutex // guards the rest: the tool and the stand-in for the primary both tell
	start, said, phase := time.Now(), time.Now(), ""
	return func(p backup.Progress) {
		mu.Lock()
		defer mu.Unlock()
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

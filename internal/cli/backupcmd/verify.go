package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/trial"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// drill is the JSON document of coterie backup verify --restore.
type drill struct {
	Backup    string           `json:"backup"`
	Target    string           `json:"target"`
	Timeline  uint32           `json:"timeline"`
	Bytes     int64            `json:"bytes"`
	Restore   float64          `json:"restore_seconds"`
	Recovery  float64          `json:"recovery_seconds"`
	Until     time.Time        `json:"last_commit,omitzero"` // time of the last transaction that was replayed
	Databases map[string]tally `json:"databases"`
}

// tally is what was read of a database.
type tally struct {
	Tables int   `json:"tables"`
	Read   int   `json:"tables_read"` // whole, page by page
	Rows   int64 `json:"rows"`
}

func verifyCommand() *cobra.Command {
	var dir, to, label string
	var asJSON bool
	var limit time.Duration
	c := &cobra.Command{
		Use: "verify", Short: "Find out whether the backups are of use", Args: cli.Args(0, "no arguments"),
		Long: `Reads everything in the repository and compares checksums. With --restore it is a drill instead: the last backup, or the one before the
target, is restored into a new directory, a private server replays WAL up to the end of the archive or the target, and all tables are read
for at most --read. It says what was found and how long it took, and removes the directory. Nothing of the group is touched, and nothing is
archived. It needs room for the whole database, and more where the node has its data: that disk is not filled.`,
		Example: "  coterie backup verify\n  coterie backup verify --restore /scratch/drill\n  coterie backup verify --restore /scratch/drill --to '2026-11-25 12:00:00+00'",
		RunE: func(c *cobra.Command, _ []string) error {
			target, err := backup.ParseTarget(to, time.Local)
			if err != nil {
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			if dir == "" && (c.Flags().Changed("to") || label != "") {
				return fail.Usagef("--to and --set belong to --restore DIR")
			}
			if dir != "" && !filepath.IsAbs(dir) {
				return fail.Usagef("--restore %s: give an absolute path", dir)
			}
			return open(c, func(x *work) error {
				if dir == "" {
					return x.verify()
				}
				d, err := x.drill(dir, target, label, limit)
				if err != nil {
					return err
				}
				return x.reportDrill(d, asJSON)
			})
		},
	}
	c.Flags().StringVar(&dir, "restore", "", "a directory that does not exist; it is made, and removed at the end")
	c.Flags().StringVar(&to, "to", "latest", "with --restore: a time, a position, the name of a restore point, or latest")
	c.Flags().StringVar(&label, "set", "", "with --restore: the backup to begin with (default: the last one before the target)")
	c.Flags().DurationVar(&limit, "read", 10*time.Minute, "with --restore: how long tables are read at most")
	c.Flags().BoolVar(&asJSON, "json", false, "with --restore: print JSON")
	return c
}

func (x *work) verify() error {
	_, tool, err := x.plan()
	if err != nil {
		return err
	}
	report, err := tool.Verify(x.c.Context())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cli.Out(x.c), report)
	return err
}

// drill restores into a new directory, which it removes again.
func (x *work) drill(dir string, target backup.Target, label string, limit time.Duration) (d drill, err error) {
	p, tool, err := x.plan()
	if err != nil {
		return d, err
	}
	r, have, err := choose(x.c.Context(), tool, target, label)
	if err != nil {
		return d, fail.Error{Kind: fail.Unhealthy, Err: err}
	}
	if have.ends != "" {
		return d, fail.Unhealthyf("%s; coterie check backup", have.ends)
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return d, fail.Refusedf("%s exists; nothing was changed: name a directory that can be made and removed", dir)
	} else if err != nil {
		return d, fmt.Errorf("make the directory of the drill: %w; as the node's user, make its parent writable or name another one", err)
	}
	mark, err := noted(x.c, backup.Restore{Dir: dir, Drill: true})
	defer func() { err = errors.Join(err, os.RemoveAll(dir), mark.End()) }()
	if err != nil {
		return d, err
	}
	if err := roomFor(dir, have.Size, x.cfg.PostgreSQL.Data); err != nil {
		return d, err
	}
	r.Data, r.Tablespaces = filepath.Join(dir, "data"), filepath.Join(dir, "tablespaces")
	start := time.Now()
	cli.Say(x.c, "restoring %s of %s, stanza %s, up to %s", r.Label, p.Repository, p.Stanza, r.Target)
	if err := fill(x.c.Context(), tool, r, x.progress("restore")); err != nil {
		return d, err
	}
	d = drill{Backup: r.Label, Target: r.Target.String(), Timeline: r.Timeline, Bytes: have.Size, Restore: time.Since(start).Seconds(), Databases: map[string]tally{}}
	start = time.Now()
	s, err := trial.Start(x.c.Context(), x.cfg.PostgreSQL.BinDir, r.Data, x.superuser(), x.replays())
	if err != nil {
		return d, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the backup cannot be used: %w", err)}
	}
	d.Recovery = time.Since(start).Seconds()
	doubt, err := reached(x.c.Context(), s, have, tool.Catalog)
	if doubt != "" {
		cli.Say(x.c, "%s", doubt)
	}
	if err == nil {
		err = x.look(s, &d, limit)
	}
	return d, errors.Join(err, s.Stop())
}

// found is a backup, the major version of its PostgreSQL, and why a recovery to the end of the archive ends earlier.
type found struct {
	backup.Backup
	major int
	ends  string // "": it does not

	reach   string // the last segment that a recovery to the end of the archive reads; "": it does not lead there
	reachAt uint64 // where it begins
}

// choose returns the recovery that leads to the target, without its directories, and the backup with which it begins.
func choose(ctx context.Context, tool *pgbackrest.Tool, target backup.Target, label string) (backup.Recovery, found, error) {
	have, err := tool.Catalog(ctx)
	if err != nil {
		return backup.Recovery{}, found{}, err
	}
	if have.Problem != "" && len(have.Backups) == 0 {
		return backup.Recovery{}, found{}, fmt.Errorf("the repository cannot be used: %s", have.Problem)
	}
	b, tli, err := have.Choose(target, label)
	f := found{Backup: b, major: have.Major}
	if gaps, unknown := have.Gaps(b, tli, 0); err == nil && unknown == nil && len(gaps) > 0 && target.Latest() { // at any other target PostgreSQL tells
		f.ends = fmt.Sprintf("the archive lacks %d segments of WAL behind the backup %s, from %s to %s: nothing after them can be restored with it", gaps[0].Count, b.Label, gaps[0].From, gaps[0].To)
	}
	if err == nil && target.Latest() {
		f.reach, f.reachAt = have.Reach(b, tli)
	}
	return backup.Recovery{Label: b.Label, Timeline: tli, Target: target}, f, err
}

// fill makes the directories and restores into them.
func fill(ctx context.Context, tool *pgbackrest.Tool, r backup.Recovery, each func(backup.Progress)) error {
	for _, d := range []string{r.Data, r.Tablespaces} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make a directory to restore into: %w", err)
		}
	}
	if err := tool.Restore(ctx, r, each); err != nil {
		return removed(ctx, r.Label, tool.Backups, err)
	}
	return nil
}

// replays returns a function that tells which WAL is replayed, not in the first second and at most every two.
func (x *work) replays() func(string) {
	start, said := time.Now(), time.Now()
	return func(segment string) {
		if time.Since(start) < time.Second || time.Since(said) < 2*time.Second {
			return
		}
		said = time.Now()
		cli.Say(x.c, "recovery: replaying %s", segment)
	}
}

// tables selects the tables of a database, the small ones first.
const tables = `SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' ORDER BY c.relpages, c.oid LIMIT 100000`

// look reads the tables of all databases, each whole, until the time is over.
func (x *work) look(s *trial.Server, d *drill, limit time.Duration) error {
	ctx := x.c.Context()
	until := time.Now().Add(limit)
	return s.Each(ctx, func(database string, c *pgx.Conn) error {
		rows, err := c.Query(ctx, tables)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		n := tally{Tables: len(names)}
		for _, name := range names {
			if time.Now().After(until) {
				break
			}
			var count int64
			if err := c.QueryRow(ctx, "SELECT count(t) FROM "+name+" t").Scan(&count); err != nil { // count(t) reads the rows, also where an index would do
				return fmt.Errorf("table %s: %w", name, err)
			}
			n.Read, n.Rows = n.Read+1, n.Rows+count
		}
		d.Databases[database] = n
		return nil
	})
}

// spare is what a drill leaves free of the file system of the node's own data, beside a quarter of what it restores for
// the WAL: a primary whose disk is full stops.
const spare = 1 << 30

// roomFor returns an error if the file system of a directory has no room for a database. Some room is left if data, a
// living server's, is there as well; "": there is none.
func roomFor(dir string, size int64, data string) error {
	var here, there unix.Stat_t
	why := ""
	if data != "" && unix.Stat(dir, &here) == nil && unix.Stat(data, &there) == nil && here.Dev == there.Dev {
		size, why = size+size/4+spare, "; the node's own data is on the same file system: name a directory on another one"
	}
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	free := int64(st.Bavail) * st.Bsize
	if err == nil && free < size {
		return fail.Refusedf("%s has room for %s, and %s are needed for the backup and its WAL; nothing was changed%s", dir, units.Bytes(free), units.Bytes(size), why)
	}
	return err
}

func (x *work) reportDrill(d drill, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(x.c, d)
	}
	w := cli.Out(x.c)
	cli.Linef(w, "%s can be restored up to %s: %s in %.0f s, recovery %.0f s\n", d.Backup, d.Target, units.Bytes(d.Bytes), d.Restore, d.Recovery)
	for _, name := range slices.Sorted(maps.Keys(d.Databases)) {
		n := d.Databases[name]
		cli.Linef(w, "  %-20s %d of %d tables read, %d rows\n", name, n.Read, n.Tables, n.Rows)
	}
	return nil
}

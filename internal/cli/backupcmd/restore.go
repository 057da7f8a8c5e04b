package backupcmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/backup/trial"
	"github.com/coteriedb/coterie/internal/backup/underway"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// restoring is one run of coterie restore.
type restoring struct {
	nodecmd.Restored
	repoFlags
	to, label string
	undo      string // a directory
	dryRun    bool

	secrets backup.Secrets
	target  backup.Target
	plan    backup.Plan
	c       *cobra.Command
}

// scratch begins the names of the temporary directories of restores, with the key of the repository.
const scratch = "coterie-restore-"

// Restore returns the command restore.
func Restore() *cobra.Command {
	x := &restoring{}
	c := &cobra.Command{
		Use: "restore --to TIME|LSN|NAME|latest --new-group DIR", GroupID: "node", Short: "Make a new group of a backup, as it was at a point in time", Args: cli.Args(0, "no arguments"),
		Long: `Restores a backup into a new node directory, replays WAL up to the target, and makes the node the first of a new group, with a record, a
timeline and an archive of its own. The group that was backed up is not touched, whether it lives or not, and nothing is written to its
archive. Other machines then join the new group as any.

The repository is that of this node (--node), or the one that --repo names; its key comes as for coterie backup enable. A target is a time
('2026-11-25 12:00:00+00'), a position (0/3000050), the name of a restore point, or latest, the end of the archive.

Nothing is restored into a group that is there. Rows that somebody deleted come back from the new group by COPY; if everything is lost,
the new group takes the place of the old one, with the old one's addresses.

A restore that is killed leaves what it has restored so far in its directory, and a mark there. coterie status and coterie backup list tell
it on every node, and --undo DIR removes it; so for coterie backup verify --restore.` + nodecmd.AboutJSON,
		Example: "  coterie restore --to '2026-11-25 12:00:00+00' --new-group /var/lib/coterie2 --dry-run\n" +
			"  coterie restore --repo /backup --stanza orders --to latest --new-group /var/lib/coterie --group orders2\n" +
			"  coterie restore --undo /var/lib/coterie2",
		RunE: func(c *cobra.Command, _ []string) error {
			x.c = c
			if asked, _ := c.Flags().GetBool("json"); asked && (x.undo != "" || x.dryRun) {
				return fail.Usagef("--json tells of a node that was made: leave it away with --undo and --dry-run, which make none")
			}
			if x.undo != "" {
				return x.takeBack()
			}
			return x.run()
		},
	}
	x.add(c)
	x.AddFlags(c)
	fl := c.Flags()
	fl.Lookup("repo").Usage = "the repository: an absolute directory, or s3://BUCKET/PREFIX (default: that of the node)"
	fl.Lookup("stanza").Usage = "name of the old group's part of the repository (default: that of the node; with --repo the only one)"
	fl.StringVar(&x.to, "to", "", "a time, a position, the name of a restore point, or latest")
	fl.StringVar(&x.Dir, "new-group", "", "the node directory of the new group, which is empty or does not exist")
	fl.StringVar(&x.Group, "group", "", "the name of the new group (default: that of the stanza, with _restored behind it)")
	fl.StringVar(&x.label, "set", "", "the backup to begin with (default: the last one before the target)")
	fl.StringVar(&x.undo, "undo", "", "remove what a restore or a drill into this directory has left that was interrupted, and do nothing else")
	fl.BoolVar(&x.dryRun, "dry-run", false, "say what would be done, and change nothing")
	return c
}

func (x *restoring) run() (err error) {
	if err := x.parse(); err != nil {
		return err
	}
	if x.secrets, err = x.readSecrets(); err != nil {
		return err
	}
	if err := x.from(); err != nil {
		return err
	}
	if os.Getuid() == 0 && !x.dryRun {
		if done, err := x.asServerUser(); done {
			return err
		}
	}
	if err := forgetSecrets(); err != nil { // the agent, which this process may become, does not get them
		return err
	}
	dir, remove, err := underway.Scratch(scratch) // with the secrets, for as long as this takes
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if x.plan.Stanza == "" {
		if x.plan.Stanza, err = x.only(dir); err != nil {
			return err
		}
	}
	if err := x.plan.Check(x.secrets); err != nil { // the name may come from the repository
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	if err := planfile.Prepare(dir, x.plan, x.secrets, pgbackrest.Server{Data: filepath.Join(x.Dir, "pgdata")}); err != nil {
		return err
	}
	tool := pgbackrest.New(x.plan, x.secrets, dir)
	if _, err := tool.Version(x.c.Context()); err != nil {
		return err
	}
	r, have, err := choose(x.c.Context(), tool, x.target, x.label)
	if err != nil {
		return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%w; nothing was changed", err)}
	}
	if have.ends != "" {
		cli.Say(x.c, "%s", have.ends)
	}
	if err := x.name(); err != nil {
		return err
	}
	x.Major = have.major
	if err := x.Check(x.c.Context()); err != nil {
		return err
	}
	if x.dryRun {
		return x.foretell(r, have.Backup)
	}
	mark := &underway.Mark{}
	err = x.Found(x.c, func(ctx context.Context, p nodecmd.Place) (err error) {
		if mark, err = noted(x.c, backup.Restore{Dir: p.Node}); err != nil {
			return err
		}
		return x.fill(ctx, tool, p, recoveryOf{r, have})
	})
	if err = errors.Join(err, mark.End()); err != nil {
		return err
	}
	if err := remove(); err != nil { // before the agent runs here
		return err
	}
	cli.Say(x.c, "its archive is not enabled: coterie backup enable, with a stanza of its own, once it runs")
	return x.Start(x.c)
}

// noted notes that something is restored into a directory, there and at the node that the command names, if there is
// one that this user may write to.
func noted(c *cobra.Command, r backup.Restore) (*underway.Mark, error) {
	r.ID, r.Started = rand.Text(), time.Now().UTC()
	at := ""
	if l, err := config.NewLayout(cli.Node(c)); err == nil && unix.Access(l.Backup(), unix.W_OK|unix.X_OK) == nil {
		at = l.Backup()
	}
	m, err := underway.BeginRestore(at, r)
	if err != nil {
		return &underway.Mark{}, err
	}
	return m, nil
}

// takeBack removes what an interrupted restore has left. Root does it as the user whose directory it is.
func (x *restoring) takeBack() error {
	if !filepath.IsAbs(x.undo) {
		return fail.Usagef("--undo %s: give an absolute path", x.undo)
	}
	l, err := config.NewLayout(x.undo)
	if err != nil {
		return err
	}
	if os.Getuid() == 0 && l.Owner() != 0 {
		return nodecmd.AsOwner(x.c.Context(), l, x.c.OutOrStdout(), x.c.ErrOrStderr(), os.Args[1:])
	}
	r, err := underway.Undo(l.Dir)
	if err != nil {
		return err
	}
	underway.Sweep(scratch)
	underway.Sweep(trial.Scratch)
	cli.Say(x.c, "removed what the restore into %s had left that was begun at %s", l.Dir, r.Started.Local().Format(time.DateTime))
	return nil
}

// parse looks at the flags.
func (x *restoring) parse() (err error) {
	switch {
	case x.Dir == "":
		return fail.Usagef("a restore makes a new group: name its node directory, empty or not there, with --new-group DIR. A group that is there is never written over; see docs/how-to/restore.md")
	case !filepath.IsAbs(x.Dir):
		return fail.Usagef("--new-group %s: give an absolute path", x.Dir)
	case x.to == "":
		return fail.Usagef("name the point to restore to: --to latest, a time, a position, or the name of a restore point")
	}
	if x.target, err = backup.ParseTarget(x.to, time.Local); err == nil {
		err = x.target.Reachable(time.Now())
	}
	if err != nil {
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	name := x.Group
	if name == "" {
		x.Group = "any" // until the stanza is known
	}
	err = x.CheckDir()
	x.Group = name
	if _, lost := os.Lstat(filepath.Join(x.Dir, underway.MarkFile)); err != nil && lost == nil {
		return fail.Refusedf("%s has what a restore has left that runs or was interrupted; nothing was changed: coterie restore --undo %[1]s removes it, unless it runs", x.Dir)
	}
	return err
}

// from finds the repository: that of --repo, or of this node.
func (x *restoring) from() error {
	x.plan = backup.Plan{Tool: pgbackrest.Name, Stanza: x.stanza, Retention: 1, Warn: backup.Duration(backup.DefaultWarn)}
	if x.repo == "" {
		l, err := config.NewLayout(cli.Node(x.c))
		if err != nil {
			return err
		}
		p, err := planfile.Load(l)
		if err != nil {
			return fail.Usagef("name the repository with --repo, or a node that has one with --node: %w", err)
		}
		x.plan.Repository = p.Repository
		if x.stanza == "" {
			x.plan.Stanza = p.Stanza
		}
		if x.secrets == (backup.Secrets{}) {
			if x.secrets, err = planfile.Secrets(l.Backup()); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := x.repository()
	if err != nil {
		return err
	}
	x.plan.Repository = r
	check := x.plan
	if check.Stanza == "" {
		check.Stanza = "any"
	}
	if err := check.Check(x.secrets); err != nil {
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	return nil
}

// asServerUser runs the command as the server's user, with the repository and its secrets, which only root may be able
// to read.
func (x *restoring) asServerUser() (done bool, err error) {
	args := slices.Clone(os.Args[1:])
	if x.repo == "" { // of a node directory that the server's user may not read
		r := x.plan.Repository
		args = append(args, "--repo", r.String(), "--stanza", x.plan.Stanza)
		if r.S3() {
			args = append(args, "--s3-endpoint", r.Endpoint, "--s3-region", r.Region, "--s3-ca-file", r.CA, fmt.Sprintf("--s3-path-style=%v", r.PathStyle))
		}
	}
	for name, value := range map[string]string{planfile.KeyEnv: x.secrets.Key, planfile.SecretEnv: x.secrets.Secret, planfile.PassphraseEnv: x.secrets.Passphrase, secretsReadEnv: "1"} {
		if err := os.Setenv(name, value); err != nil {
			return true, err
		}
	}
	return x.GiveDir(x.c, args)
}

// only returns the stanza of a repository that has one.
func (x *restoring) only(dir string) (string, error) {
	if err := planfile.Prepare(dir, x.plan, x.secrets, pgbackrest.Server{}); err != nil {
		return "", err
	}
	names, err := pgbackrest.New(x.plan, x.secrets, dir).Stanzas(x.c.Context())
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", fail.Usagef("the repository %s has no stanza", x.plan.Repository)
	case len(names) > 1:
		return "", fail.Usagef("the repository %s has several stanzas; name one with --stanza: %s", x.plan.Repository, strings.Join(names, ", "))
	}
	return names[0], nil
}

// name settles what the new group is called. It must not be called as the stanza: its archive would be taken for that
// of the old group.
func (x *restoring) name() error {
	if x.Group == "" {
		x.Group = x.plan.Stanza + "_restored"
	}
	if stanzaOf(x.Group) == x.plan.Stanza {
		return fail.Refusedf("the new group must not be called %s, as the stanza of the old one: both would write to one archive; choose another name with --group", x.Group)
	}
	return x.CheckDir()
}

// recoveryOf is a recovery and the backup with which it begins.
type recoveryOf struct {
	backup.Recovery
	from found
}

// fill restores into the new node directory, and leaves a cluster that belongs to no group.
func (x *restoring) fill(ctx context.Context, tool *pgbackrest.Tool, p nodecmd.Place, r recoveryOf) error {
	if err := roomFor(p.Node, r.from.Size, ""); err != nil {
		return err
	}
	w := &work{c: x.c}
	r.Data, r.Tablespaces = p.Data, filepath.Join(p.Node, "tablespaces")
	cli.Say(x.c, "restoring %s of %s, stanza %s, into %s", r.Label, x.plan.Repository, x.plan.Stanza, p.Data)
	if err := fill(ctx, tool, r.Recovery, w.progress("restore")); err != nil {
		return err
	}
	cli.Say(x.c, "recovering up to %s", r.Target)
	s, err := trial.Start(ctx, p.BinDir, p.Data, p.Superuser, w.replays())
	if err != nil {
		return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%w; nothing stays of it", err)}
	}
	doubt, err := reached(ctx, s, r.from, tool.Catalog)
	if err != nil {
		return errors.Join(fmt.Errorf("%w; nothing stays of it", err), s.Stop())
	}
	if doubt != "" {
		cli.Say(x.c, "%s", doubt)
	}
	return errors.Join(s.Forget(ctx), s.Stop())
}

// foretell prints the steps of a run without --dry-run.
func (x *restoring) foretell(r backup.Recovery, from backup.Backup) error {
	w := cli.Out(x.c)
	cli.Linef(w, "restore %s, a %s backup of %s that ended %s, from %s, stanza %s\n", r.Label, from.Kind, units.Bytes(from.Size),
		from.Ended.UTC().Format("2006-01-02 15:04:05Z07:00"), x.plan.Repository, x.plan.Stanza)
	cli.Linef(w, "replay WAL up to %s, on timeline %d\n", r.Target, r.Timeline)
	cli.Linef(w, "make the group %s, of PostgreSQL %d, with its first node in %s\n", x.Group, x.Major, x.Dir)
	cli.Say(x.c, "nothing was changed")
	return nil
}

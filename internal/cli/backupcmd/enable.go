package backupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// repoFlags say where a repository is.
type repoFlags struct {
	repo, endpoint, region, ca, secrets, stanza string
	pathStyle                                   bool
}

func (f *repoFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.repo, "repo", "", "an absolute directory that every replica reaches, or s3://BUCKET/PREFIX")
	fl.StringVar(&f.endpoint, "s3-endpoint", "", "of an S3 store, HOST or HOST:PORT")
	fl.StringVar(&f.region, "s3-region", "", "of an S3 store")
	fl.StringVar(&f.ca, "s3-ca-file", "", "the authorities of an S3 store's certificate (default: the system's)")
	fl.BoolVar(&f.pathStyle, "s3-path-style", false, "the bucket of an S3 store is in the path, not in the host name")
	fl.StringVar(&f.secrets, "secrets", "", "file, readable by you only, with lines key=…, secret=… (of an S3 store) and passphrase=… (encrypts the repository)")
	fl.StringVar(&f.stanza, "stanza", "", "name of the group's part of the repository (default: the group's name)")
}

// secretsReadEnv tells the process of the node's user that root has read the file of secrets for it.
const secretsReadEnv = "COTERIE_BACKUP_SECRETS_READ" //nolint:gosec // the name, not a secret

// readSecrets returns the secrets, and leaves them in the environment for the process of the node's user, who may not
// be able to read the file.
func (f *repoFlags) readSecrets() (backup.Secrets, error) {
	path := f.secrets
	if os.Getenv(secretsReadEnv) != "" {
		path = ""
	}
	s, err := planfile.ReadSecrets(path, os.Getenv)
	if err != nil || path == "" {
		return s, err
	}
	for name, value := range map[string]string{planfile.KeyEnv: s.Key, planfile.SecretEnv: s.Secret, planfile.PassphraseEnv: s.Passphrase, secretsReadEnv: "1"} {
		if err := os.Setenv(name, value); err != nil {
			return s, err
		}
	}
	return s, nil
}

// forgetSecrets takes the secrets out of the environment, which programs that this process runs inherit.
func forgetSecrets() (err error) {
	for _, name := range []string{planfile.KeyEnv, planfile.SecretEnv, planfile.PassphraseEnv, secretsReadEnv} {
		err = errors.Join(err, os.Unsetenv(name))
	}
	return err
}

// repository returns the repository that the flags name.
func (f *repoFlags) repository() (backup.Repository, error) {
	r, err := backup.ParseRepository(f.repo)
	if err != nil {
		return r, fail.Error{Kind: fail.Usage, Err: err}
	}
	if f.ca != "" && !filepath.IsAbs(f.ca) { // the tool runs in other directories than this one
		return r, fail.Usagef("--s3-ca-file %s: give an absolute path", f.ca)
	}
	r.Endpoint, r.Region, r.CA, r.PathStyle = f.endpoint, f.region, f.ca, f.pathStyle
	return r, nil
}

// enabling is one run of coterie backup enable.
type enabling struct {
	*work
	repoFlags
	retention               int
	warn                    time.Duration
	dryRun, replace, asJSON bool
	takeOver                bool

	secrets backup.Secrets
	st      api.Status
	before  *backup.Plan // the node's plan so far; nil: none
}

// enabled is the JSON document of coterie backup enable.
type enabled struct {
	Plan    backup.Plan `json:"plan"`
	DryRun  bool        `json:"dry_run,omitempty"`
	Version string      `json:"version"`
	Steps   []string    `json:"steps"`
	Checked bool        `json:"checked"` // a segment was archived and found
	Next    []string    `json:"next"`    // what remains to be done
}

func enableCommand() *cobra.Command {
	x := &enabling{}
	c := &cobra.Command{
		Use: "enable --repo DIR|s3://BUCKET/PREFIX", Short: "Archive WAL, and be able to make backups", Args: cli.Args(0, "no arguments"),
		Long: `Prepares this node for backups: looks for the tool, writes its configuration into the node directory (readable by the node's user only),
and makes the group's place in the repository. On the primary it also gives the group archive_mode and archive_command, as
coterie settings would. Once archive_mode is in force, which takes a restart of PostgreSQL, run it again there: it has a segment archived
and looks for it in the repository. It says what the other replicas lack.

A key or a passphrase is given in a file (--secrets) or in the environment (COTERIE_BACKUP_KEY, COTERIE_BACKUP_SECRET,
COTERIE_BACKUP_PASSPHRASE), never in an argument. Run again, it renews the configuration with what is named, and keeps the rest. After a
major upgrade of PostgreSQL it has the repository take the WAL of the new cluster.`,
		Example: "  coterie backup enable --repo /backup --dry-run\n  coterie backup enable --repo /backup --retention 4\n" +
			"  coterie backup enable --repo s3://backups/orders --s3-endpoint s3.example.org --s3-region eu-1 --secrets /root/s3.key",
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if x.secrets, err = x.readSecrets(); err != nil {
				return err
			}
			return open(c, func(w *work) error {
				x.work = w
				return x.run()
			})
		},
	}
	x.add(c)
	fl := c.Flags()
	fl.IntVar(&x.retention, "retention", 2, "full backups that are kept, with what depends on them")
	fl.DurationVar(&x.warn, "warn-after", backup.DefaultWarn, "age of the last backup from which on coterie check backup warns")
	fl.BoolVar(&x.replace, "replace", false, "take the place of an archive_command that is in force")
	fl.BoolVar(&x.takeOver, "take-over", false, "use a stanza without backups of which nothing says that it is this group's; never one to which another group or server still archives")
	fl.BoolVar(&x.dryRun, "dry-run", false, "say what would be done, and change nothing")
	fl.BoolVar(&x.asJSON, "json", false, "print JSON")
	return c
}

func (x *enabling) run() (err error) {
	if x.st, err = x.status(); err != nil {
		return err
	}
	p, err := x.wanted()
	if err != nil {
		return err
	}
	if err := mayWrite(p.Repository.Directory); err != nil {
		return err
	}
	ctx := x.c.Context()
	out := enabled{Plan: p, DryRun: x.dryRun, Steps: []string{}, Next: []string{}}
	tool := pgbackrest.New(p, x.secrets, x.layout.Backup())
	if out.Version, err = tool.Version(ctx); err != nil {
		return err
	}
	if err := x.knows(ctx, tool, out.Version); err != nil {
		return err
	}
	running, err := x.archiving(ctx, tool)
	if err != nil {
		return err
	}
	if x.dryRun {
		return x.foretell(out, tool, running)
	}
	if err := x.prepare(ctx, tool, p); err != nil {
		return err
	}
	out.Steps = append(out.Steps, "the configuration of pgBackRest is in "+x.layout.Backup(), fmt.Sprintf("%s has the stanza %s", p.Repository, p.Stanza))
	if x.st.Primary == x.st.Node {
		if err := x.archive(ctx, tool, running, &out); err != nil {
			return err
		}
	}
	lacking, err := x.others(ctx, x.st, p.Repository.String())
	if err != nil {
		return err
	}
	out.Next = append(out.Next, lacking...)
	if out.Checked {
		out.Next = append(out.Next, "coterie backup run --type full, which has the replica make it that AUTOMATED_BACKUP_PREFERENCE names")
	}
	return x.report(out)
}

// wanted returns the plan: what the flags name, and for the rest what the node has.
func (x *enabling) wanted() (backup.Plan, error) {
	p := backup.Plan{
		Tool: pgbackrest.Name, Stanza: x.stanza, Group: string(x.st.GroupID), Retention: x.retention, Warn: backup.Duration(x.warn), Since: time.Now().UTC().Truncate(time.Second),
	}
	switch old, err := planfile.Load(x.layout); {
	case err == nil:
		x.before, p.Since = &old, old.Since
		if err := x.keep(&p, old); err != nil {
			return p, err
		}
	case !errors.Is(err, planfile.ErrNone):
		return p, err
	case x.repo == "":
		return p, fail.Usagef("name the repository: --repo DIR, which every replica reaches, or --repo s3://BUCKET/PREFIX")
	}
	if p.Stanza == "" {
		p.Stanza = stanzaOf(x.st.Group)
	}
	if x.repo != "" {
		r, err := x.repository()
		if err != nil {
			return p, err
		}
		p.Repository = r
	}
	if dir := p.Repository.Directory; dir != "" && (within(dir, x.layout.Dir) || within(dir, x.cfg.PostgreSQL.Data)) {
		return p, fail.Refusedf("%s is inside the node, and would be lost with it; nothing was changed: name a directory on another machine or disk", dir)
	}
	if err := p.Check(x.secrets); err != nil {
		return p, fail.Error{Kind: fail.Usage, Err: err}
	}
	return p, nil
}

// keep gives the plan what the node has and no flag names.
func (x *enabling) keep(p *backup.Plan, old backup.Plan) error {
	if x.repo == "" && (x.endpoint != "" || x.region != "" || x.ca != "" || x.pathStyle) {
		return fail.Usagef("--s3-endpoint, --s3-region, --s3-path-style and --s3-ca-file describe the repository: name the repository with them, --repo %s", word(old.Repository.String()))
	}
	p.Repository = old.Repository
	if p.Stanza == "" {
		p.Stanza = old.Stanza
	}
	if !x.c.Flags().Changed("retention") {
		p.Retention = old.Retention
	}
	if !x.c.Flags().Changed("warn-after") {
		p.Warn = old.Warn
	}
	s, err := planfile.Secrets(x.layout.Backup())
	if errors.Is(err, fs.ErrNotExist) { // it is written anew
		err = nil
	}
	x.secrets = backup.Secrets{Key: cmp.Or(x.secrets.Key, s.Key), Secret: cmp.Or(x.secrets.Secret, s.Secret), Passphrase: cmp.Or(x.secrets.Passphrase, s.Passphrase)}
	return err
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// archiving reports whether the server archives with the command of the plan. A foreign command that is in force is
// refused.
func (x *enabling) archiving(ctx context.Context, tool backup.Tool) (bool, error) {
	mode, command, err := archiveSettings(ctx, x.work)
	switch {
	case err != nil:
		return false, fail.Unhealthyf("the server of this node does not answer: %w; see coterie status, and run coterie backup enable again", err)
	case mode == "always":
		return false, fail.Refusedf("archive_mode is always, with which several servers write to one archive; nothing was changed: coterie settings set archive_mode=on")
	case mode == "off", command == "", command == nowhere:
		return false, nil
	case command == tool.ArchiveCommand():
		return true, nil
	case x.before != nil && command == pgbackrest.ArchiveCommand(x.before.Stanza), x.replace:
		return false, nil
	}
	return false, fail.Refusedf("this server archives already, with a command of yours; nothing was changed: --replace puts that of the backups in its place")
}

// archiveSettings returns archive_mode and archive_command as this node's server has them; tests replace it.
var archiveSettings = func(ctx context.Context, x *work) (mode, command string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := x.session().Connect(ctx, nil)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = c.Close(ctx) }()
	err = c.QueryRow(ctx, "SELECT current_setting('archive_mode'), current_setting('archive_command')").Scan(&mode, &command)
	return mode, command, err
}

// prepare writes the configuration and makes the stanza. If it fails, the configuration is as it was.
func (x *enabling) prepare(ctx context.Context, tool backup.Tool, p backup.Plan) (err error) {
	undo, err := planfile.Remember(x.layout)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, undo())
		}
	}()
	if err := planfile.Prepare(x.layout.Backup(), p, x.secrets, x.server()); err != nil {
		return err
	}
	have, err := tool.Backups(ctx)
	if err != nil {
		return fmt.Errorf("the repository %s cannot be used: %w", p.Repository, err)
	}
	have.Owner, err = tool.Owner(ctx)
	if err != nil {
		return fmt.Errorf("the repository %s cannot be used: %w", p.Repository, err)
	}
	if err := x.mayUse(p, have); err != nil {
		return err
	}
	switch {
	case x.st.Primary == x.st.Node:
		cli.Say(x.c, "making the stanza %s in %s", p.Stanza, p.Repository)
		if err := x.claim(ctx, tool, p, have); err != nil {
			return err
		}
		if err := x.create(ctx, tool, p, have); err != nil {
			return err
		}
	case have.Problem != "" && len(have.Backups) == 0:
		return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the repository %s has no stanza %s yet (%s): run coterie backup enable on the primary %s first, and name the same repository", p.Repository, p.Stanza, have.Problem, x.st.Primary)}
	}
	return planfile.Save(x.layout, p)
}

// knows refuses a release of the tool that does not know the version of the cluster, before anything is changed.
func (x *enabling) knows(ctx context.Context, tool *pgbackrest.Tool, release string) error {
	dir, err := os.MkdirTemp("", "coterie-look-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()                                                        // nothing secret is in it
	if err := tool.Reads(ctx, x.cfg.PostgreSQL.Data, dir); !errors.Is(err, pgbackrest.ErrVersion) { // what else is wrong comes up later
		return nil
	}
	major, _ := os.ReadFile(filepath.Join(x.cfg.PostgreSQL.Data, "PG_VERSION")) // the server has started with it
	return fail.Refusedf("pgBackRest %s does not know PostgreSQL %s, which this group runs; nothing was changed: install a release that does on every replica (https://pgbackrest.org/release.html), or use another tool (docs/how-to/backup.md#another-tool)",
		release, strings.TrimSpace(string(major)))
}

// create makes the stanza. One of this group with WAL of another cluster was made before a major upgrade:
// it takes what the new cluster archives from then on.
func (x *enabling) create(ctx context.Context, tool backup.Tool, p backup.Plan, have backup.Catalog) error {
	place := tool.Create
	if have.System != 0 {
		now, err := systemID(ctx, x.work)
		if err != nil {
			return fail.Unhealthyf("the server of this node does not answer: %w; see coterie status, and run coterie backup enable again", err)
		}
		if now != have.System {
			if !ours(p, have) {
				return fail.Refusedf("the stanza %s in %s is of another cluster (system identifier %d, this one has %d), and nothing says that it was this group's; nothing was changed: name another one with --stanza", p.Stanza, p.Repository, have.System, now)
			}
			cli.Say(x.c, "the stanza is that of this group from before a major upgrade; what it has stays")
			place = tool.Upgrade
		}
	}
	if err := place(ctx); err != nil {
		return fmt.Errorf("the repository %s cannot be used: %w", p.Repository, err)
	}
	return nil
}

// systemID returns the system identifier of this node's server; tests replace it.
var systemID = func(ctx context.Context, x *work) (id uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := x.session().Connect(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close(ctx) }()
	var text string
	if err := c.QueryRow(ctx, "SELECT system_identifier::text FROM pg_control_system()").Scan(&text); err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// archive gives the group its settings and has a segment archived.
func (x *enabling) archive(ctx context.Context, tool backup.Tool, running bool, out *enabled) error {
	if !running {
		if err := x.alter(x.st.Group, "SET PARAMETER [archive_mode] = 'on', [archive_command] = "+ddl.Literal(tool.ArchiveCommand())); err != nil {
			return fmt.Errorf("the settings of the group: %w; run coterie backup enable again", err)
		}
		out.Steps = append(out.Steps, "archive_mode and archive_command are settings of the group")
	}
	now, err := x.archiving(ctx, tool)
	if err != nil {
		return err
	}
	if !now {
		out.Next = append(out.Next, "archive_mode takes effect at a restart: coterie restart --postgres --pending; then, on the primary, coterie backup enable once more: it checks the archive")
		return nil
	}
	cli.Say(x.c, "archiving a segment")
	if err := tool.Check(ctx); err != nil {
		return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%w; the configuration stays, and the server goes on trying: see log/postgres.log for what it says of archiving, and run coterie backup enable again", err)}
	}
	out.Checked = true
	out.Steps = append(out.Steps, "a segment was archived and is in the repository")
	return nil
}

// foretell prints the steps of a run without --dry-run.
func (x *enabling) foretell(out enabled, tool backup.Tool, running bool) error {
	hidden := backup.Secrets{Key: mask(x.secrets.Key), Secret: mask(x.secrets.Secret), Passphrase: mask(x.secrets.Passphrase)}
	out.Steps = append(out.Steps, fmt.Sprintf("write %s:\n\n%s", filepath.Join(x.layout.Backup(), pgbackrest.ConfigFile), pgbackrest.Config(out.Plan, hidden, x.server(), x.layout.Backup())))
	switch {
	case x.st.Primary != x.st.Node:
		out.Steps = append(out.Steps, fmt.Sprintf("look whether the primary %s has made the stanza %s in %s", x.st.Primary, out.Plan.Stanza, out.Plan.Repository))
	case running:
		out.Steps = append(out.Steps, "make the stanza "+out.Plan.Stanza+" if it is not there", "archive a segment and look for it")
	default:
		out.Steps = append(out.Steps, "make the stanza "+out.Plan.Stanza, "set for the group: archive_mode = on, archive_command = "+tool.ArchiveCommand(),
			"archive a segment and look for it, as soon as archive_mode is in force")
	}
	lacking, err := x.others(x.c.Context(), x.st, out.Plan.Repository.String())
	if err != nil {
		return err
	}
	out.Next = append(out.Next, lacking...)
	if err := x.report(out); err != nil || x.asJSON {
		return err
	}
	cli.Say(x.c, "nothing was changed")
	return nil
}

func mask(secret string) string {
	if secret == "" {
		return ""
	}
	return "[given]"
}

func (x *enabling) report(out enabled) error {
	if x.asJSON {
		return cli.PrintJSON(x.c, out)
	}
	w := cli.Out(x.c)
	cli.Linef(w, "pgBackRest %s, stanza %s in %s, %d full backups are kept\n", out.Version, out.Plan.Stanza, out.Plan.Repository, out.Plan.Retention)
	for _, s := range out.Steps {
		cli.Linef(w, "  %s\n", s)
	}
	if len(out.Next) > 0 {
		_, _ = fmt.Fprintln(w, "to be done:")
	}
	for _, s := range out.Next {
		cli.Linef(w, "  %s\n", s)
	}
	return nil
}

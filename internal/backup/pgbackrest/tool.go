package pgbackrest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Tool is pgBackRest with a node's configuration.
type Tool struct {
	Program string // "": the one in PATH
	// Grace is the time between SIGTERM and SIGKILL; 0: ten seconds.
	Grace time.Duration

	plan    backup.Plan
	secrets backup.Secrets
	dir     string // of the configuration
}

var _ backup.Tool = (*Tool)(nil)

// New returns the tool whose configuration is in dir. The secrets are only to be kept out of messages.
func New(p backup.Plan, s backup.Secrets, dir string) *Tool {
	return &Tool{plan: p, secrets: s, dir: dir}
}

// How long calls may take that copy nothing. The program itself waits a minute for a segment to be archived.
const (
	quick   = time.Minute
	patient = 3 * time.Minute
)

// with returns the arguments of a command of the program with the node's configuration.
func (t *Tool) with(name string, more ...string) []string {
	return append([]string{
		"--config=" + filepath.Join(t.dir, ConfigFile), "--config-include-path=" + filepath.Join(t.dir, "conf.d"), "--stanza=" + t.plan.Stanza, name,
	}, more...)
}

// Version returns the version of the program.
func (t *Tool) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	out, err := t.run(ctx, command{args: []string{"version"}})
	if err != nil {
		return "", err
	}
	version := strings.TrimPrefix(strings.TrimSpace(out), "pgBackRest ")
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 || major < 2 || major == 2 && minor < leastMinor {
		return "", fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("pgBackRest %.40q is installed, and 2.%d or later is needed", strings.TrimSpace(out), leastMinor)}
	}
	return version, nil
}

// leastMinor is the first release of 2 that annotates backups.
const leastMinor = 41

// ArchiveCommand returns the command with which a server archives. COTERIE_NODE is in the environment of every server
// that an agent starts.
func (t *Tool) ArchiveCommand() string { return ArchiveCommand(t.plan.Stanza) }

// ArchiveCommand is that of any plan with the stanza.
func ArchiveCommand(stanza string) string {
	const dir = `"${COTERIE_NODE:?restart PostgreSQL}/backup`
	return `pgbackrest --config=` + dir + `/` + ConfigFile + `" --config-include-path=` + dir + `/conf.d" --stanza=` + stanza + ` archive-push "%p"`
}

// Create makes the stanza, or brings it up to date; both are done with none there and with one there.
func (t *Tool) Create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	_, err := t.run(ctx, command{args: t.with("stanza-create")})
	return err
}

// Upgrade has the stanza take what the server of this node archives.
func (t *Tool) Upgrade(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	_, err := t.run(ctx, command{args: t.with("stanza-upgrade")})
	return err
}

// Reads reports whether the program knows the version of the cluster in a data directory: it makes a stanza of it in
// dir, which the caller removes.
func (t *Tool) Reads(ctx context.Context, data, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	none := filepath.Join(dir, "conf.d") // else files of the machine are read
	if err := os.MkdirAll(none, 0o700); err != nil {
		return err
	}
	_, err := t.run(ctx, command{args: []string{
		"--config=/dev/null", "--config-include-path=" + none, "--repo1-path=" + filepath.Join(dir, "repo"), "--lock-path=" + filepath.Join(dir, "lock"),
		"--log-level-file=off", "--log-level-console=warn", "--stanza=look", "--pg1-path=" + data, "--no-online", "stanza-create",
	}})
	return err
}

// Check has the primary archive a segment.
func (t *Tool) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	_, err := t.run(ctx, command{args: t.with("check")})
	return err
}

// Run makes a backup, and expires others.
func (t *Tool) Run(ctx context.Context, j backup.Job, each func(backup.Progress)) error {
	c := command{args: t.backupArgs(j), each: progress(each)}
	if j.Primary != nil { // the form of the argument is not the same in all versions
		c.env = []string{"PGBACKREST_BACKUP_STANDBY=y"}
	}
	_, err := t.run(ctx, c)
	return err
}

func (t *Tool) backupArgs(j backup.Job) []string {
	args := t.with("backup", "--type="+string(j.Kind), "--annotation="+groupKey+"="+t.plan.Group, "--log-level-console=detail")
	if j.Node != "" {
		args = append(args, "--annotation="+nodeKey+"="+j.Node)
	}
	if p := j.Primary; p != nil {
		args = append(args, "--pg2-path="+p.Data, "--pg2-socket-path="+p.Socket, "--pg2-port=5432", "--pg2-user="+p.Superuser,
			"--db-timeout="+strconv.Itoa(int((p.Patience+slack).Seconds())))
	}
	return args
}

// slack is how long statements of the program may take beside the patience of a backup of a secondary: its default.
const slack = 30 * time.Minute

// groupKey and nodeKey are the annotations of a backup with the group's id, and with the replica on which it was made.
const (
	groupKey = "coterie-group"
	nodeKey  = "coterie-node"
)

var percent = regexp.MustCompile(`(?:backup|restore) file .*?([0-9.]+)%\)`)

// phases are lines of the program that tell of a long step beside copying.
var phases = map[string]string{
	"wait for replay":         "waiting for replay",
	"backup start":            "waiting for the checkpoint",
	"backup stop and wait":    "waiting until its WAL is archived",
	"check archive for segm":  "looking for its WAL in the archive",
	"expire command begin":    "removing what is kept no longer",
	"remove invalid files":    "removing what is in the way",
	"sync path":               "writing to the disk",
	"restore global/pg_contr": "completing it",
}

// progress returns a reader of the program's lines.
func progress(each func(backup.Progress)) func(string) {
	var p backup.Progress
	return func(line string) {
		was := p
		if m := percent.FindStringSubmatch(line); m != nil {
			p.Percent, _ = strconv.ParseFloat(m[1], 64)
			p.Phase = ""
		}
		for part, phase := range phases {
			if strings.Contains(line, part) {
				p.Phase = phase
			}
		}
		if p != was {
			each(p)
		}
	}
}

// Verify reads the repository.
func (t *Tool) Verify(ctx context.Context) (string, error) {
	out, err := t.run(ctx, command{args: t.with("verify", "--output=text", "--verbose")})
	out = t.secrets.Hide(strings.TrimSpace(out))
	if err == nil && !strings.Contains(out, "status: ok") {
		err = fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the repository has errors:\n%s", out)}
	}
	return out, err
}

// Expire removes what is kept no longer.
func (t *Tool) Expire(ctx context.Context) error {
	_, err := t.run(ctx, command{args: t.with("expire")})
	return err
}

// Restore fills the data directory.
func (t *Tool) Restore(ctx context.Context, r backup.Recovery, each func(backup.Progress)) error {
	_, err := t.run(ctx, command{args: t.restoreArgs(r), each: progress(each)})
	return err
}

// restoreArgs returns the arguments of a restore. The timeline is always named: the server itself finds the newest one
// only if the archive has the histories of all before it.
func (t *Tool) restoreArgs(r backup.Recovery) []string {
	args := t.with("restore", "--pg1-path="+r.Data, "--set="+r.Label, "--log-level-console=detail", "--tablespace-map-all="+r.Tablespaces)
	switch {
	case !r.Target.Time.IsZero():
		args = append(args, "--type=time", "--target="+r.Target.Time.UTC().Format("2006-01-02 15:04:05.999999+00"))
	case r.Target.LSN != "":
		args = append(args, "--type=lsn", "--target="+r.Target.LSN)
	case r.Target.Name != "":
		args = append(args, "--type=name", "--target="+r.Target.Name)
	default:
		return append(args, "--type=default", "--target-timeline="+strconv.FormatUint(uint64(r.Timeline), 10))
	}
	return append(args, "--target-action=promote", "--target-timeline="+strconv.FormatUint(uint64(r.Timeline), 10))
}

// histories returns the history files of the archive by timeline. A damaged one is left out.
func (t *Tool) histories(ctx context.Context, paths map[uint32]string) (map[uint32]string, error) {
	const most = 200 // newest first; older ones are in them
	out := map[uint32]string{}
	ids := slices.Sorted(maps.Keys(paths))
	for _, tli := range ids[max(0, len(ids)-most):] {
		text, err := t.run(ctx, command{args: t.with("repo-get", paths[tli])})
		if err != nil {
			return nil, err
		}
		out[tli] = text
	}
	return out, nil
}

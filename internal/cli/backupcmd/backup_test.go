package backupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/backup/underway"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// replica makes the node directory that of a replica, with a fake agent of the group orders and a fake pgBackRest. The
// script of the tool sees its arguments.
func replica(t *testing.T, primary ag.ReplicaID, tool string) *clitest.Agent {
	t.Helper()
	a := clitest.NewAgent(t)
	c := config.Config{
		Node: "n1", Kind: "replica", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", GroupName: "orders", Endpoint: config.Address{Listen: ":5022", Advertise: "n1:5022"},
		PostgreSQL: &config.PostgreSQL{BinDir: "/bin", Data: a.Layout.Data(), Superuser: "postgres"},
	}
	if err := c.Save(a.Layout.Dir); err != nil {
		t.Fatal(err)
	}
	st := api.Status{Group: "orders", GroupID: ag.GroupID(c.Group), Node: "n1", Primary: primary}
	for _, n := range []ag.ReplicaID{"n1", "n2", "w"} {
		st.Replicas = append(st.Replicas, api.Replica{Name: n, Mode: ag.SynchronousCommit})
	}
	st.Replicas[2].Mode = ag.ConfigurationOnly
	a.SetStatus(st)
	a.OnSQL("FROM coterie.backup", []string{"node", "enabled", "repository", "problem"}, []any{"n1", false, nil, nil}, []any{"n2", false, nil, nil})
	a.OnSQL("FROM coterie.options", []string{"option", "replica", "value"}, []any{"AUTOMATED_BACKUP_PREFERENCE", nil, "PRIMARY"}, []any{"BACKUP_PRIORITY", "n1", "50"})
	fitness(a, primary, "")
	a.OnStatement("SET PARAMETER", "ALTER")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "pgbackrest"), []byte("#!/bin/sh\necho \"$@\" >> "+bin+"/asked\n[ \"$1\" = version ] && { echo pgBackRest 2.45; exit; }\n"+marks+tool), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("ASKED", filepath.Join(bin, "asked"))
	inForce(t, "off", "")
	return a
}

// fitness makes every replica fit for a backup but n2, which is unfit for that reason unless it is empty.
func fitness(a *clitest.Agent, primary ag.ReplicaID, unfit string) {
	var why any
	if unfit != "" {
		why = unfit
	}
	a.OnSQL("SELECT node, is_primary, unfit", []string{"node", "is_primary", "unfit", "enabled"}, []any{"n1", primary == "n1", nil, true}, []any{"n2", primary == "n2", why, true})
}

// marks has the fake of the tool keep the marks of owners: repo-put and repo-get.
const marks = `m="$(dirname "$0")/mark"
case "$*" in *repo-put*.claims/*) cat > /dev/null; exit;; *repo-ls*.claims*) cat "$(dirname "$0")/claims" 2> /dev/null || echo '{}'; exit;; *repo-rm*) exit;; *repo-put*) cat > "$m"; exit;; *repo-get*coterie/*) [ -e "$m" ] && exec cat "$m"; exit 1;; esac
`

// inForce makes the server say that these are its settings.
func inForce(t *testing.T, mode, command string) {
	t.Helper()
	was, wrote := archiveSettings, checkpoint
	checkpoint = func(context.Context, *work) error { return nil }
	archiveSettings = func(context.Context, *work) (string, string, error) { return mode, command, nil }
	t.Cleanup(func() { archiveSettings, checkpoint = was, wrote })
}

// empty is the answer of pgbackrest info for a repository without the stanza; one has a backup of another group.
const (
	empty   = `echo '[{"archive":[],"backup":[],"db":[],"name":"orders","status":{"code":1,"lock":{"backup":{"held":false}},"message":"missing stanza path"}}]'`
	foreign = `echo '[{"archive":[],"backup":[{"annotation":{"coterie-group":"other"},"label":"F","type":"full"}],"db":[],"name":"orders","status":{"code":0,"lock":{"backup":{"held":false}},"message":"ok"}}]'`
)

// TestEnable holds what a primary does, and that no secret is printed or stored where others could read it.
func TestEnable(t *testing.T) {
	a := replica(t, "n1", empty)
	t.Setenv(planfile.PassphraseEnv, "planted")
	dir := t.TempDir()
	r := clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", dir, "--dry-run")
	if r.Code != 0 || !strings.Contains(r.Out, "repo1-cipher-pass=[given]") || strings.Contains(r.Out+r.Said, "planted") || !strings.Contains(r.Said, "nothing was changed") {
		t.Errorf("a dry run: %+v", r)
	}
	if _, err := os.Stat(a.Layout.Backup()); !errors.Is(err, os.ErrNotExist) || len(a.Asked("SQL")) != 1 {
		t.Errorf("a dry run has written, or asked: %v, %v", err, a.Asked("SQL"))
	}
	r = clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", dir, "--json", "--retention", "3")
	var out enabled
	if err := json.Unmarshal([]byte(r.Out), &out); err != nil || r.Code != 0 || strings.Contains(r.Out+r.Said, "planted") {
		t.Fatalf("%+v, %v", r, err)
	}
	if out.Plan.Stanza != "orders" || out.Plan.Retention != 3 || out.Checked || len(out.Next) != 2 || !strings.Contains(out.Next[0], "coterie restart --postgres --pending") || !strings.Contains(out.Next[1], "n2 has no backups enabled") {
		t.Errorf("%+v", out)
	}
	if s, err := planfile.Secrets(a.Layout.Backup()); err != nil || s.Passphrase != "planted" {
		t.Errorf("%v", err)
	}
	var set []string
	for _, q := range a.Asked("SQL") {
		if text, _ := q.(string); strings.Contains(text, "SET PARAMETER") {
			set = append(set, text)
		}
	}
	if len(set) != 1 || !strings.Contains(set[0], "[archive_mode] = 'on'") || !strings.Contains(set[0], "archive-push") {
		t.Errorf("%q", set)
	}
	t.Setenv(planfile.PassphraseEnv, "") // again, and nothing is named: all is kept
	inForce(t, "on", pgbackrest.ArchiveCommand("orders"))
	if r = clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--json"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if err := json.Unmarshal([]byte(r.Out), &out); err != nil || !out.Checked || out.Plan.Retention != 3 || out.Plan.Repository.Directory != dir {
		t.Errorf("%+v, %v", out, err)
	}
	if s, err := planfile.Secrets(a.Layout.Backup()); err != nil || s.Passphrase != "planted" {
		t.Errorf("the passphrase is lost: %v", err)
	}
	t.Setenv(planfile.SecretEnv, "planted-key") // a part is named: the rest is kept
	if r = clitest.Run(t, Backup(), a.Layout.Dir, "enable"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if s, err := planfile.Secrets(a.Layout.Backup()); err != nil || s.Passphrase != "planted" {
		t.Errorf("the passphrase is lost with another key: %v", err)
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--s3-region", "eu").Refused(t, 2, "name the repository with them")
	asked, err := os.ReadFile(os.Getenv("ASKED"))
	if err != nil || strings.Contains(string(asked), "planted") || !strings.Contains(string(asked), "--stanza=orders stanza-create") {
		t.Errorf("%s, %v", asked, err)
	}
}

// TestEnableAfterMajorUpgrade has the stanza of the group take the WAL of its new cluster. One of a cluster of which
// nothing says that it was this group's is refused.
func TestEnableAfterMajorUpgrade(t *testing.T) {
	was := systemID
	t.Cleanup(func() { systemID = was })
	for _, c := range []struct {
		now   uint64
		group string // of the backup in the stanza
		asked string
	}{
		{15, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", "--stanza=orders stanza-create"},
		{16, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", "stanza-upgrade"},
		{16, "", ""},
	} {
		systemID = func(context.Context, *work) (uint64, error) { return c.now, nil }
		a := replica(t, "n1", `echo '[{"archive":[],"backup":[{"annotation":{"coterie-group":"`+c.group+`"},"label":"F","type":"full"}],"db":[{"id":1,"system-id":15,"version":"15"}],`+
			`"name":"orders","status":{"code":0,"lock":{"backup":{"held":false}},"message":"ok"}}]'`)
		r := clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", t.TempDir())
		asked, err := os.ReadFile(os.Getenv("ASKED"))
		if err != nil {
			t.Fatal(err)
		}
		if c.asked == "" {
			if r.Refused(t, 4, "says that it is this group's"); strings.Contains(string(asked), "stanza-upgrade") || strings.Contains(string(asked), "--stanza=orders stanza-create") {
				t.Errorf("%+v: %s", c, asked)
			}
			continue
		}
		if r.Code != 0 || !strings.Contains(string(asked), c.asked) {
			t.Errorf("%+v: %+v, %s", c, r, asked)
		}
	}
}

// TestEnableOfAnUnknownVersion holds that a tool which is too old for the group's PostgreSQL is refused with both
// versions, and that no configuration stays.
func TestEnableOfAnUnknownVersion(t *testing.T) {
	a := replica(t, "n1", `case "$*" in *stanza-create*) printf 'ERROR: [046]: unexpected control version = 1300 and catalog version = 202307071\n       HINT: is this version of PostgreSQL supported?\n' >&2; exit 46;; esac; `+empty)
	if err := errors.Join(os.MkdirAll(a.Layout.Data(), 0o700), os.WriteFile(filepath.Join(a.Layout.Data(), "PG_VERSION"), []byte("16\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", t.TempDir()).Refused(t, 4, "pgBackRest 2.45 does not know PostgreSQL 16, which this group runs")
	if asked, err := os.ReadFile(os.Getenv("ASKED")); err != nil || strings.Contains(string(asked), "repo-put") || strings.Contains(string(asked), "--stanza=orders") {
		t.Errorf("the repository was touched: %v, %s", err, asked)
	}
	if _, err := os.Stat(planfile.Path(a.Layout)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestEnableTakesNoStanzaOfAnother holds that the identifier of the cluster does not make a stanza the group's: a
// restored group has that of the one it was restored from.
func TestEnableTakesNoStanzaOfAnother(t *testing.T) {
	was := systemID
	t.Cleanup(func() { systemID = was })
	systemID = func(context.Context, *work) (uint64, error) { return 15, nil }
	const there = `echo '[{"archive":[],"backup":[],"db":[{"id":1,"system-id":15,"version":"15"}],"name":"orders","status":{"code":2,"lock":{"backup":{"held":false}},"message":"no valid backups"}}]'`
	a := replica(t, "n1", there)
	mark, repo := filepath.Join(filepath.Dir(os.Getenv("ASKED")), "mark"), t.TempDir()
	made := func() bool {
		asked, err := os.ReadFile(os.Getenv("ASKED"))
		return err != nil || strings.Contains(string(asked), "--stanza=orders stanza-create")
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", repo).Refused(t, 4, "nothing in it says that it is this group's")
	if err := os.WriteFile(mark, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", repo).Refused(t, 4, "is of another group (other)")
	if made() {
		t.Error("the stanza was made")
	}
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", repo, "--take-over"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	if b, err := os.ReadFile(mark); err != nil || string(b) != "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11" {
		t.Errorf("the mark: %s, %v", b, err)
	}
	if err := planfile.Remove(a.Layout); err != nil { // as another replica that leads: the mark is enough
		t.Fatal(err)
	}
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", repo); r.Code != 0 || !made() {
		t.Errorf("%+v", r)
	}
	b := replica(t, "n2", there)
	if err := os.WriteFile(filepath.Join(filepath.Dir(os.Getenv("ASKED")), "mark"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Backup(), b.Layout.Dir, "enable", "--repo", repo).Refused(t, 4, "is of another group (other)")
}

// TestEnableBesideAnother holds that a stanza which another group claims at the same time is refused, and that what a
// command left which was interrupted long ago is in nobody's way.
func TestEnableBesideAnother(t *testing.T) {
	a := replica(t, "n1", empty)
	claims := filepath.Join(filepath.Dir(os.Getenv("ASKED")), "claims")
	for at, want := range map[int64]string{time.Now().Unix(): "the group other takes this place of the repository at the same time", time.Now().Add(-2 * time.Hour).Unix(): ""} {
		if err := os.WriteFile(claims, fmt.Appendf(nil, `{".":{"type":"path"},"other":{"type":"file","size":5,"time":%d}}`, at), 0o600); err != nil {
			t.Fatal(err)
		}
		r := clitest.Run(t, Backup(), a.Layout.Dir, "enable", "--repo", t.TempDir())
		if want == "" && r.Code != 0 {
			t.Errorf("%+v", r)
		} else if want != "" {
			r.Refused(t, 4, want)
		}
		if err := planfile.Remove(a.Layout); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(filepath.Dir(claims), "mark")); err != nil && want == "" {
			t.Error("no mark")
		}
	}
}

// TestEnableIsRefused holds what is refused, and that nothing is left of it.
func TestEnableIsRefused(t *testing.T) {
	const broken = `echo "ERROR: [041]: unable to open /backup/planted: [13] Permission denied" >&2; exit 41`
	for name, tt := range map[string]struct {
		primary       ag.ReplicaID
		tool          string
		mode, command string
		args          []string
		code          int
		says          string
	}{
		"a repository of another group":  {"n1", foreign, "off", "", nil, 4, "backups of another group"},
		"a secondary first":              {"n2", empty, "off", "", nil, 3, "on the primary n2 first"},
		"an unusable repository":         {"n1", broken, "off", "", nil, 1, "Permission denied"},
		"another command archives":       {"n1", empty, "on", "cp %p /x", nil, 4, "--replace"},
		"every server archives":          {"n1", empty, "always", "cp %p /x", nil, 4, "archive_mode=on"},
		"no repository":                  {"n1", empty, "off", "", []string{}, 2, "--repo"},
		"a relative one":                 {"n1", empty, "off", "", []string{"--repo", "backup"}, 2, "absolute"},
		"a bucket without a key":         {"n1", empty, "off", "", []string{"--repo", "s3://b/p", "--s3-endpoint", "h", "--s3-region", "r"}, 2, "COTERIE_BACKUP_KEY"},
		"a file of where it is called":   {"n1", empty, "off", "", []string{"--repo", "s3://b/p", "--s3-endpoint", "h", "--s3-region", "r", "--s3-ca-file", "ca.pem"}, 2, "--s3-ca-file ca.pem: give an absolute path"},
		"a key in the URL":               {"n1", empty, "off", "", []string{"--repo", "s3://id:planted@b/p"}, 2, "--secrets FILE"},
		"inside the node it would guard": {"n1", empty, "off", "", []string{"--repo", "NODE/backups"}, 4, "inside the node"},
	} {
		t.Run(name, func(t *testing.T) {
			a := replica(t, tt.primary, tt.tool)
			t.Setenv(planfile.PassphraseEnv, "planted")
			inForce(t, tt.mode, tt.command)
			args := tt.args
			if args == nil {
				args = []string{"--repo", t.TempDir()}
			}
			for i := range args {
				args[i] = strings.Replace(args[i], "NODE", a.Layout.Dir, 1)
			}
			r := clitest.Run(t, Backup(), a.Layout.Dir, append([]string{"enable"}, args...)...)
			r.Refused(t, tt.code, tt.says)
			if strings.Contains(r.Out+r.Said, "planted") || r.Err != nil && strings.Contains(r.Err.Error(), "planted") {
				t.Errorf("a secret is printed: %+v", r)
			}
			if _, err := os.Stat(filepath.Join(a.Layout.Backup(), pgbackrest.ConfigFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("secrets are left: %v", err)
			}
		})
	}
}

// enabledNode is a replica whose backups are enabled.
func enabledNode(t *testing.T, primary ag.ReplicaID, tool string) *clitest.Agent {
	t.Helper()
	a := replica(t, primary, tool)
	p := backup.Plan{Tool: pgbackrest.Name, Stanza: "orders", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", Retention: 2, Warn: backup.Duration(time.Hour), Repository: backup.Repository{Directory: "/backup"}}
	if err := errors.Join(planfile.Prepare(a.Layout.Backup(), p, backup.Secrets{Passphrase: "planted"}, pgbackrest.Server{}), planfile.Save(a.Layout, p)); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRunElsewhere holds that a node which does not make backups has the one make it that does, and tells how it goes,
// or keeps quiet if it is told to.
func TestRunElsewhere(t *testing.T) {
	a := enabledNode(t, "n2", "exit 1")
	run := backup.Run{ID: "r", Kind: backup.Full, Started: time.Now()}
	ended, failed := run, run
	ended.End(run.Started.Add(3*time.Second), backup.Backup{Label: "20261126-120000F", Kind: backup.Full}, nil)
	failed.End(run.Started, backup.Backup{}, fail.Unhealthyf("the repository is full"))
	a.On("BackupRun", func(any) (any, error) { return run, nil })
	answers := []backup.Run{run, ended, failed, {ID: "another"}}
	a.On("BackupActivity", func(any) (any, error) {
		now := answers[0]
		answers = answers[1:]
		return backup.Activity{Run: now}, nil
	})
	r := clitest.Run(t, Backup(), a.Layout.Dir, "run", "--type", "full", "--json")
	var m made
	if err := json.Unmarshal([]byte(r.Out), &m); err != nil || r.Code != 0 || !m.Run || m.Node != "n2" || m.Backup.Label != "20261126-120000F" || m.Seconds != 3 || !strings.Contains(r.Said, "n2 makes the backup") {
		t.Errorf("%+v, %v", r, err)
	}
	want := api.BackupRunRequest{On: "n2", RunRequest: backup.RunRequest{Kind: backup.Full, ReplayLimit: 10 * time.Minute}}
	if asked := a.Asked("BackupRun"); len(asked) != 1 || asked[0] != want {
		t.Errorf("%+v", asked)
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "run").Refused(t, 3, "the backup on n2: the repository is full")
	clitest.Run(t, Backup(), a.Layout.Dir, "run").Refused(t, 3, "n2 does not know of the backup any more")
	a.On("BackupRun", func(any) (any, error) { return nil, errors.New("no such method") })
	clitest.Run(t, Backup(), a.Layout.Dir, "run").Refused(t, 1, "no such method")
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "run", "--if-preferred"); r.Code != 0 || !strings.Contains(r.Said, "n2 makes the backups") {
		t.Errorf("%+v", r)
	}
	clitest.Run(t, Backup(), a.Layout.Dir, "run", "--type", "all").Refused(t, 2, "full, diff or incr")
	clitest.Run(t, Backup(), a.Layout.Dir, "run", "--here", "--if-preferred").Refused(t, 2, "exclude each other")
}

// TestRunHere holds that a person can insist on a node, and not on one where no backup can be made; and that what it
// does is told to others while it is under way, and how it ended.
func TestRunHere(t *testing.T) {
	a := enabledNode(t, "n1", `cp NODE/run.json "$(dirname "$0")/seen"; echo "ERROR: [057]: it went away" >&2; exit 57`)
	script := filepath.Join(filepath.Dir(os.Getenv("ASKED")), "pgbackrest")
	b, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte(strings.ReplaceAll(string(b), "NODE", a.Layout.Backup())), 0o755); err != nil {
		t.Fatal(err)
	}
	a.OnSQL("FROM coterie.options", []string{"option", "replica", "value"}, []any{"AUTOMATED_BACKUP_PREFERENCE", nil, "SECONDARY"}, []any{"BACKUP_PRIORITY", "n1", "0"})
	clitest.Run(t, Backup(), a.Layout.Dir, "run", "--here", "--id", "mine").Refused(t, 1, "it went away")
	var seen backup.Run
	b, err = os.ReadFile(filepath.Join(filepath.Dir(script), "seen"))
	if err := errors.Join(err, json.Unmarshal(b, &seen)); err != nil || !seen.UnderWay() || seen.ID != "mine" || seen.Kind != backup.Incremental {
		t.Errorf("%v: %s", err, b)
	}
	if now := underway.Read(a.Layout.Backup()); now.ID != "mine" || now.UnderWay() || !strings.Contains(now.Failure, "it went away") {
		t.Errorf("%+v", now)
	}
	a.OnSQL("SELECT node, is_primary, unfit", []string{"node", "is_primary", "unfit", "enabled"}, []any{"n1", true, "it is under maintenance", true}, []any{"n2", false, nil, true})
	clitest.Run(t, Backup(), a.Layout.Dir, "run", "--here").Refused(t, 3, "no backup can be made on n1 now: it is under maintenance")
}

// TestRunWithoutBackups holds that no backup is begun elsewhere where no replica has backups enabled.
func TestRunWithoutBackups(t *testing.T) {
	a := enabledNode(t, "n1", "exit 1")
	a.On("BackupRun", func(any) (any, error) { t.Error("asked for"); return backup.Run{}, nil })
	a.OnSQL("SELECT node, is_primary, unfit", []string{"node", "is_primary", "unfit", "enabled"}, []any{"n1", true, nil, false}, []any{"n2", false, nil, false})
	for _, how := range []string{"--type=full", "--if-preferred", "--here"} {
		clitest.Run(t, Backup(), a.Layout.Dir, "run", how).Refused(t, 4, "no replica that answers has backups enabled: coterie backup enable --repo")
	}
}

// TestRunOnTheReplicaOfThePreference holds which node a job on the primary n1 finds for each preference: it makes the
// backup itself, names the other one, or says why there is none.
func TestRunOnTheReplicaOfThePreference(t *testing.T) {
	a := enabledNode(t, "n1", "exit 1")
	for _, tt := range []struct {
		preference, priority, unfit string
		code                        int
		says                        string
	}{
		{"PRIMARY", "50", "", 1, "pgbackrest"},
		{"PRIMARY", "0", "", 3, "n1: its BACKUP_PRIORITY is 0"},
		{"SECONDARY", "50", "", 3, "backup on n2"},
		{"SECONDARY", "50", "it does not receive from the primary", 1, "pgbackrest"},
		{"SECONDARY_ONLY", "100", "", 3, "backup on n2"},
		{"SECONDARY_ONLY", "100", "it is under maintenance", 3, "AUTOMATED_BACKUP_PREFERENCE is SECONDARY_ONLY, and none of the replicas that it allows can make a backup (n2: it is under maintenance)"},
		{"NONE", "51", "", 1, "pgbackrest"},
		{"NONE", "49", "", 3, "backup on n2"},
	} {
		a.On("BackupRun", func(any) (any, error) { return backup.Run{}, fail.Unhealthyf("a backup on n2 is asked for") })
		a.OnSQL("FROM coterie.options", []string{"option", "replica", "value"}, []any{"AUTOMATED_BACKUP_PREFERENCE", nil, tt.preference}, []any{"BACKUP_PRIORITY", "n1", tt.priority})
		fitness(a, "n1", tt.unfit)
		clitest.Run(t, Backup(), a.Layout.Dir, "run").Refused(t, tt.code, tt.says)
		if r := clitest.Run(t, Backup(), a.Layout.Dir, "run", "--if-preferred"); strings.HasPrefix(tt.says, "backup on ") != (r.Code == 0) {
			t.Errorf("%+v with --if-preferred: %+v", tt, r)
		}
	}
}

// TestRunFails holds that a failure says what the tool said and where to go on if the leadership changed.
func TestRunFails(t *testing.T) {
	a := enabledNode(t, "n1", `echo "ERROR: [057]: planted went away" >&2; exit 57`)
	r := clitest.Run(t, Backup(), a.Layout.Dir, "run")
	r.Refused(t, 1, "went away")
	if strings.Contains(r.Out+r.Said, "planted") || strings.Contains(r.Err.Error(), "planted") {
		t.Errorf("%+v", r)
	}
	before := api.Status{Group: "orders", GroupID: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", Node: "n1", Primary: "n1", Replicas: []api.Replica{{Name: "n1"}, {Name: "n2"}}}
	after := before
	after.Primary = "n2"
	a.SetStatus(before, after)
	clitest.Run(t, Backup(), a.Layout.Dir, "run").Refused(t, 3, "run it again on n2")
}

// TestWithoutPlan holds that every command names the one that comes first.
func TestWithoutPlan(t *testing.T) {
	a := replica(t, "n1", "exit 1")
	for _, verb := range []string{"run", "list", "expire", "disable"} {
		clitest.Run(t, Backup(), a.Layout.Dir, verb).Refused(t, 4, "coterie backup enable")
	}
}

// TestList holds that the list works without an agent's answer and is empty, not absent, in JSON.
func TestList(t *testing.T) {
	a := enabledNode(t, "n1", empty)
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "list", "--json"); r.Code != 0 || !strings.Contains(r.Out, `"backups": []`) || !strings.Contains(r.Out, "missing stanza path") {
		t.Errorf("%+v", r)
	}
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "list"); r.Code != 0 || !strings.Contains(r.Out, "no backups in /backup, stanza orders") {
		t.Errorf("%+v", r)
	}
}

// TestListOfOthers holds that a node without a repository shows what the replicas tell, and what is under way on each.
func TestListOfOthers(t *testing.T) {
	a := replica(t, "n1", "exit 1")
	a.OnSQL("running_type", make([]string, 12), []any{"n1", false, nil, nil, nil, nil, nil, nil, nil, nil, nil, "/scratch/new"},
		[]any{"n2", true, "/backup", "2026-11-26 12:00:00+00", "20261126-120000F", "n2", "diff", "2026-11-27 12:00:00+00", 43.25, nil, nil, nil})
	r := clitest.Run(t, Backup(), a.Layout.Dir, "list")
	for _, want := range []string{
		"n2: the last backup in /backup is 20261126-120000F, which ended 2026-11-26 12:00:00+00, made on n2", "a diff backup is under way on n2 since 2026-11-27 12:00:00+00: 43 %",
		"a restore from n1 into /scratch/new was interrupted; there: coterie restore --undo DIR",
	} {
		if r.Code != 0 || !strings.Contains(r.Out, want) {
			t.Errorf("no %q in %+v", want, r)
		}
	}
}

// TestExpireWaits holds that nothing is removed while another node makes a backup.
func TestExpireWaits(t *testing.T) {
	a := enabledNode(t, "n1", empty)
	row := func(kind any) []any {
		return []any{"n2", true, "/backup", nil, nil, nil, kind, "2026-11-27 12:00:00+00", 43.25, nil, nil, nil}
	}
	a.OnSQL("running_type", make([]string, 12), row("diff"))
	clitest.Run(t, Backup(), a.Layout.Dir, "expire").Refused(t, 3, "a diff backup is under way on n2 since ")
	a.OnSQL("running_type", make([]string, 12), row(nil))
	if r := clitest.Run(t, Backup(), a.Layout.Dir, "expire"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestUndo holds that what an interrupted restore left is found, refused as a place for another one, and removed.
func TestUndo(t *testing.T) {
	a := enabledNode(t, "n1", empty)
	dir := filepath.Join(t.TempDir(), "new")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, "pgdata"), 0o700), os.WriteFile(filepath.Join(dir, underway.MarkFile), []byte(`{"id":"x","dir":"`+dir+`","started":"2026-11-27T00:00:00Z"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Restore(), a.Layout.Dir, "--to", "latest", "--new-group", dir).Refused(t, 4, "coterie restore --undo "+dir)
	if r := clitest.Run(t, Restore(), a.Layout.Dir, "--undo", dir); r.Code != 0 || !strings.Contains(r.Said, "removed what the restore into "+dir) {
		t.Errorf("%+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	clitest.Run(t, Restore(), a.Layout.Dir, "--undo", dir).Refused(t, 4, "has no mark of a restore that was interrupted")
	clitest.Run(t, Restore(), a.Layout.Dir, "--undo", "new").Refused(t, 2, "give an absolute path")
}

// TestDisable holds that servers do not keep all WAL until they restart, and that the secrets go.
func TestDisable(t *testing.T) {
	a := enabledNode(t, "n2", "exit 1")
	r := clitest.Run(t, Backup(), a.Layout.Dir, "disable", "--yes")
	if r.Code != 0 || !strings.Contains(r.Said, "on n2, which may have") {
		t.Errorf("%+v", r)
	}
	asked := a.Asked("SQL")
	if text, _ := asked[len(asked)-1].(string); !strings.Contains(text, "[archive_mode] = 'off', [archive_command] = N'/bin/true'") {
		t.Errorf("%q", asked)
	}
	if _, err := os.Stat(filepath.Join(a.Layout.Backup(), pgbackrest.ConfigFile)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestDisableLeavesAnotherArchive holds that a node which is the last to be disabled does not end the archive that the
// group has by then with another command.
func TestDisableLeavesAnotherArchive(t *testing.T) {
	a := enabledNode(t, "n2", "exit 1")
	inForce(t, "on", "barman-wal-archive host orders %p")
	r := clitest.Run(t, Backup(), a.Layout.Dir, "disable", "--yes")
	if r.Code != 0 || !strings.Contains(r.Said, "goes on archiving") || len(a.Asked("SQL")) != 0 {
		t.Errorf("%+v, %q", r, a.Asked("SQL"))
	}
	if _, err := os.Stat(filepath.Join(a.Layout.Backup(), pgbackrest.ConfigFile)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestRemaining holds the estimate of what is left.
func TestRemaining(t *testing.T) {
	for percent, want := range map[float64]string{0: "", 0.5: "", 25: ", about 30s left", 100: ""} {
		if got := remaining(10*time.Second, percent); got != want {
			t.Errorf("%v: %q", percent, got)
		}
	}
}

// gapped answers as a repository that has a backup and lacks the segment behind it.
const gapped = `case "$*" in *repo-ls*) echo '{"000000010000000000000003-d164464becb505913dfe815745ffcd80b77c8863.zst":{"type":"file","size":9},"000000010000000000000005-d164464becb505913dfe815745ffcd80b77c8863.zst":{"type":"file","size":9}}';;
*info*) echo '[{"archive":[{"id":"15-1"}],"backup":[{"archive":{"start":"000000010000000000000003","stop":"000000010000000000000003"},"label":"F","lsn":{"start":"0/3000028","stop":"0/3000100"},"timestamp":{"start":1,"stop":2},"type":"full"}],"db":[{"id":1,"system-id":1,"version":"15"}],"name":"orders","status":{"code":0,"lock":{"backup":{"held":false}},"message":"ok"}}]';;
esac`

// TestEndOfAnArchiveWithAGap holds that the drill does not take a gap for the end of the archive, and that a restore
// says that it ends there.
func TestEndOfAnArchiveWithAGap(t *testing.T) {
	a := enabledNode(t, "n1", gapped)
	dir := filepath.Join(t.TempDir(), "drill")
	clitest.Run(t, Backup(), a.Layout.Dir, "verify", "--restore", dir).Refused(t, 3, "the archive lacks 1 segments of WAL behind the backup F, from 000000010000000000000004")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	t.Setenv(planfile.PassphraseEnv, "planted")
	r := clitest.Run(t, Restore(), a.Layout.Dir, "--to", "latest", "--new-group", dir, "--dry-run")
	if !strings.Contains(r.Said, "nothing after them can be restored") {
		t.Errorf("%+v", r)
	}
	if os.Getenv(planfile.PassphraseEnv) != "" {
		t.Error("the agent, which a restore becomes, would have the passphrase in its environment")
	}
}

// TestRoomFor holds that a drill beside the node's own data leaves some of its disk free.
func TestRoomFor(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * st.Bsize
	if err := roomFor(dir, free/2, "/proc"); err != nil {
		t.Error(err)
	}
	if err := roomFor(dir, 2*free, "/proc"); err == nil || strings.Contains(err.Error(), "own data") {
		t.Error(err)
	}
	if err := roomFor(dir, free-free/10, t.TempDir()); err == nil || !strings.Contains(err.Error(), "own data is on the same file system") {
		t.Error(err)
	}
}

package pgbackrest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// fake returns a tool whose program is a script.
func fake(t *testing.T, script string) *Tool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pgbackrest")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	x := New(backup.Plan{Stanza: "orders", Group: "g"}, backup.Secrets{Key: "planted-id", Secret: "planted-key", Passphrase: "planted-words"}, "/node/backup")
	x.Program = path
	return x
}

// TestConfig holds that the configuration has what the plan wants, and that its secrets can be read back.
func TestConfig(t *testing.T) {
	s := backup.Secrets{Key: "id", Secret: "a=b", Passphrase: "some words"}
	p := backup.Plan{Stanza: "orders", Retention: 3, Repository: backup.Repository{Bucket: "b", Prefix: "/p", Endpoint: "h:1", Region: "r", PathStyle: true, CA: "/ca"}}
	text := Config(p, s, Server{Data: "/d", Socket: "/s", Superuser: "postgres"}, "/node/backup")
	for _, line := range []string{
		"repo1-type=s3", "repo1-path=/p", "repo1-s3-bucket=b", "repo1-s3-endpoint=h:1", "repo1-s3-region=r", "repo1-s3-uri-style=path", "repo1-storage-ca-file=/ca",
		"repo1-cipher-type=aes-256-cbc", "repo1-retention-full=3", "lock-path=/node/backup/lock", "[orders]", "pg1-path=/d", "pg1-socket-path=/s", "pg1-user=postgres",
		"[global:info]\nio-timeout=5", "[global:archive-push]\nio-timeout=15",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if got := SecretsOf(text); got != s {
		t.Errorf("%+v", got)
	}
	p.Repository = backup.Repository{Directory: "/backup"}
	if text = Config(p, backup.Secrets{}, Server{Data: "/d"}, "/n"); !strings.Contains(text, "\nrepo1-path=/backup\n") || strings.Contains(text, "cipher") || strings.Contains(text, "io-timeout") || strings.Contains(text, "pg1-user") {
		t.Error(text)
	}
}

// TestStoreAway holds that the real program tells soon, and with its own words, that nobody listens at an S3 store's
// address: within half a minute, as a node's question needs.
func TestStoreAway(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the program's patience")
	}
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	dir := t.TempDir()
	s := backup.Secrets{Key: "planted-id", Secret: "planted-key"}
	p := backup.Plan{Stanza: "orders", Group: "g", Retention: 1, Repository: backup.Repository{Bucket: "b", Prefix: "/p", Endpoint: l.Addr().String(), Region: "r", PathStyle: true}}
	if err := errors.Join(l.Close(), os.WriteFile(filepath.Join(dir, ConfigFile), []byte(Config(p, s, Server{Data: "/d"}, dir)), 0o600), os.Mkdir(filepath.Join(dir, "conf.d"), 0o700)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := New(p, s, dir).Backups(ctx); err == nil || !strings.Contains(err.Error(), "unable to connect to '"+p.Repository.Endpoint) {
		t.Error(err)
	}
}

// TestParse reads an answer of pgBackRest 2.45.
func TestParse(t *testing.T) {
	const answer = `[{"archive":[{"database":{"id":1,"repo-key":1},"id":"15-1","max":"000000010000000000000003","min":"000000010000000000000001"}],"backup":[{"annotation":{"coterie-group":"abc-def"},"archive":{"start":"000000010000000000000002","stop":"000000010000000000000003"},"backrest":{"format":5,"version":"2.45"},"database":{"id":1,"repo-key":1},"error":false,"info":{"delta":22992527,"repository":{"delta":2823139,"size":2823139},"size":22992527},"label":"20261126-091102F","lsn":{"start":"0/2000028","stop":"0/3000050"},"prior":null,"reference":null,"timestamp":{"start":1795684262,"stop":1795684273},"type":"full"}],"cipher":"none","db":[{"id":1,"repo-key":1,"system-id":7712405140688734167,"version":"15"}],"name":"o","repo":[{"cipher":"none","key":1,"status":{"code":0,"message":"ok"}}],"status":{"code":0,"lock":{"backup":{"held":true}},"message":"ok"}}]`
	c, archives, err := Parse([]byte(answer), "o")
	if err != nil || c.Problem != "" || !c.Running || c.System != 7712405140688734167 || c.Major != 15 || !slices.Equal(archives, []string{"15-1"}) || len(c.Backups) != 1 {
		t.Fatalf("%+v, %v, %v", c, archives, err)
	}
	want := backup.Backup{
		Label: "20261126-091102F", Kind: backup.Full, Started: time.Unix(1795684262, 0).UTC(), Ended: time.Unix(1795684273, 0).UTC(), Size: 22992527, Stored: 2823139,
		Begin: "0/2000028", End: "0/3000050", BeginWAL: "000000010000000000000002", EndWAL: "000000010000000000000003", Group: "abc-def",
	}
	if c.Backups[0] != want {
		t.Errorf("%+v", c.Backups[0])
	}
	for text, problem := range map[string]string{
		`[]`: "it has no stanza o",
		`[{"archive":[],"backup":[],"db":[],"name":"o","status":{"code":1,"lock":{"backup":{"held":false}},"message":"missing stanza path"}}]`: "missing stanza path",
		`[{"archive":[],"backup":[],"db":[],"name":"o","status":{"code":2,"lock":{"backup":{"held":false}},"message":"no valid backups"}}]`:    "",
	} {
		if c, _, err := Parse([]byte(text), "o"); err != nil || c.Problem != problem {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, bad := range []string{"", "{", `{"a":1}`} {
		if _, _, err := Parse([]byte(bad), "o"); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
}

// TestParseFiles reads a listing of repo-ls.
func TestParseFiles(t *testing.T) {
	const listing = `{".":{"type":"path"},"0000000100000000":{"type":"path"},"0000000100000000/000000010000000000000001-d164464becb505913dfe815745ffcd80b77c8863.zst":{"type":"file","size":1296116,"time":1795684261},
"0000000100000000/000000010000000000000002.00000028.backup":{"type":"file","size":370},"0000000100000000/000000010000000000000002.partial-d164464becb505913dfe815745ffcd80b77c8863":{"type":"file","size":1},
"00000003.history":{"type":"file","size":41},"0000000g.history":{"type":"file","size":41},"archive.info":{"type":"file","size":253}}`
	wal, histories, err := parseFiles([]byte(listing))
	if err != nil || !slices.Equal(wal, []string{"000000010000000000000001", "000000010000000000000002.partial"}) || len(histories) != 1 || histories[3] != "00000003.history" {
		t.Errorf("%v, %v, %v", wal, histories, err)
	}
}

// TestOwner has the real program keep the marks of two groups in an encrypted repository.
func TestOwner(t *testing.T) {
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	tools, repo := map[string]*Tool{}, backup.Repository{Directory: t.TempDir()}
	for _, group := range []string{"one", "two"} {
		dir := t.TempDir()
		p, s := backup.Plan{Stanza: "orders", Group: group, Retention: 1, Repository: repo}, backup.Secrets{Passphrase: "words of " + group}
		if err := os.WriteFile(filepath.Join(dir, ConfigFile), []byte(Config(p, s, Server{Data: "/d"}, dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		tools[group] = New(p, s, dir)
	}
	if owner, err := tools["one"].Owner(t.Context()); err != nil || owner != "" {
		t.Fatalf("%q, %v", owner, err)
	}
	for _, x := range []struct{ group, other string }{{"one", ""}, {"two", "one"}, {"one", "two"}} {
		if others, err := tools[x.group].Announce(t.Context()); err != nil || strings.Join(others, " ") != x.other {
			t.Errorf("%s announces itself beside %q: %q, %v", x.group, x.other, others, err)
		}
	}
	for _, x := range tools {
		if err := x.Withdraw(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if others, err := tools["one"].Announce(t.Context()); err != nil || len(others) != 0 {
		t.Errorf("after both withdrew: %q, %v", others, err)
	}
	if err := backup.Take(t.Context(), tools["one"], "one", ""); err != nil {
		t.Fatal(err)
	}
	if err := backup.Take(t.Context(), tools["two"], "two", ""); err == nil {
		t.Error("two groups took one place")
	}
	for name, x := range tools {
		if owner, err := x.Owner(t.Context()); err != nil || owner != "one" {
			t.Errorf("%s: %q, %v", name, owner, err)
		}
		if names, err := x.Stanzas(t.Context()); err != nil || len(names) != 0 {
			t.Errorf("the mark is taken for a stanza: %q, %v", names, err)
		}
	}
	for _, text := range []string{strings.Repeat("a", 200), "", "one two", "\x1b[2J"} {
		if err := os.WriteFile(filepath.Join(repo.Directory, "coterie", "orders.group"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if owner, err := tools["two"].Owner(t.Context()); err == nil {
			t.Errorf("the mark %q is read as %q", text, owner)
		}
	}
}

// TestVersion holds which releases are enough, and the words about a program that is not there.
func TestVersion(t *testing.T) {
	for answer, want := range map[string]string{"pgBackRest 2.45": "2.45", "pgBackRest 2.57.0": "2.57.0", "pgBackRest 2.58dev": "2.58dev", "pgBackRest 2.40": "", "pgBackRest 1.29": "", "hello": ""} {
		got, err := fake(t, "echo '"+answer+"'").Version(t.Context())
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", answer, got, err)
		}
	}
	x := fake(t, "")
	x.Program = "/nonexistent/pgbackrest"
	if _, err := x.Version(t.Context()); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "apt-get install pgbackrest") {
		t.Error(err)
	}
}

// TestFailureHasTheProgramsWords holds that an error says what the program said, with its hints and without secrets.
func TestFailureHasTheProgramsWords(t *testing.T) {
	x := fake(t, `echo "WARN: something" >&2
echo "ERROR: [041]: unable to write planted-key of planted-id" >&2
echo "       HINT: is it full of planted-words?" >&2
exit 41`)
	err := x.Create(t.Context())
	if err == nil || !strings.Contains(err.Error(), "unable to write [removed] of [removed] HINT: is it full of [removed]?") || strings.Contains(err.Error(), "planted") || strings.Contains(err.Error(), "WARN") {
		t.Error(err)
	}
	if err := fake(t, "echo planted-key; exit 1").Check(t.Context()); err == nil || strings.Contains(err.Error(), "planted") {
		t.Error(err)
	}
}

// TestUnknownVersion holds that a cluster of a version that the program does not know is told by that, also where the
// program has asked its server, and warns of it only.
func TestUnknownVersion(t *testing.T) {
	const warns = `printf 'WARN: unable to check pg1: [VersionNotSupportedError] unexpected control version = 1300\nERROR: [056]: unable to find primary cluster - cannot proceed\n' >&2; exit 56`
	if err := fake(t, warns).Create(t.Context()); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

// TestSecretsAreNoArguments holds that no argument of any call has a secret in it, and that no variable of the
// administrator's environment reaches the program.
func TestSecretsAreNoArguments(t *testing.T) {
	t.Setenv("PGBACKREST_REPO1_PATH", "/elsewhere")
	t.Setenv("COTERIE_BACKUP_SECRET", "planted-key")
	x := fake(t, `echo "$@" >> "$0.args"; env >> "$0.args"; echo '[]'; echo "status: ok"`)
	ctx := t.Context()
	_ = x.Create(ctx)
	_ = x.Check(ctx)
	_ = x.Run(ctx, backup.Job{Kind: backup.Full, Node: "n1"}, func(backup.Progress) {})
	_, _ = x.Catalog(ctx)
	_, _ = x.Verify(ctx)
	_ = x.Expire(ctx)
	_ = x.Restore(ctx, backup.Recovery{Label: "l", Timeline: 3, Data: "/d", Tablespaces: "/t"}, func(backup.Progress) {})
	b, err := os.ReadFile(x.Program + ".args")
	if err != nil || !strings.Contains(string(b), "--annotation=coterie-group=g") || !strings.Contains(string(b), "--target-timeline=3") {
		t.Fatalf("%v\n%s", err, b)
	}
	if strings.Contains(string(b), "planted") || strings.Contains(string(b), "elsewhere") {
		t.Errorf("%s", b)
	}
}

// TestRestoreArguments holds that a target that is a point ends the recovery there.
func TestRestoreArguments(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 5e8, time.FixedZone("", 3600))
	for _, tt := range []struct {
		target backup.Target
		want   []string
	}{
		{backup.Target{}, []string{"--type=default"}},
		{backup.Target{Time: at}, []string{"--type=time", "--target=2026-11-26 11:00:00.5+00", "--target-action=promote"}},
		{backup.Target{LSN: "0/1"}, []string{"--type=lsn", "--target=0/1", "--target-action=promote"}},
		{backup.Target{Name: "x"}, []string{"--type=name", "--target=x", "--target-action=promote"}},
	} {
		args := fake(t, "").restoreArgs(backup.Recovery{Label: "l", Timeline: 12, Data: "/d", Tablespaces: "/t", Target: tt.target})
		for _, w := range append(tt.want, "--set=l", "--pg1-path=/d", "--target-timeline=12", "--tablespace-map-all=/t") {
			if !slices.Contains(args, w) {
				t.Errorf("%s: no %s in %q", tt.target, w, args)
			}
		}
	}
}

// TestEndKillsAll holds that nothing of a program lives when its context has ended, also what it has started and what
// does not obey.
func TestEndKillsAll(t *testing.T) {
	x := fake(t, `trap '' TERM; sh -c 'trap "" TERM; echo $$ > "$0.pid"; while :; do sleep 1; done' "$0" & wait`)
	x.Grace = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Create(ctx) }()
	var pid int
	for end := time.Now().Add(30 * time.Second); pid == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(x.Program + ".pid"); err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
	}
	cancel()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "was ended") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is not ended")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Kill(pid, 0); pid == 0 || err != nil || zombie(pid) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("process %d lives", pid)
		}
	}
	if pid == 0 {
		t.Error("the script has not run")
	}
}

// TestDeadline holds that a program which did not answer in time is told as that.
func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := fake(t, "exec sleep 60").Create(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the repository is slow or does not answer") {
		t.Error(err)
	}
}

// zombie reports whether a process has ended and waits for its parent.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

// TestProgress reads the lines of a backup.
func TestProgress(t *testing.T) {
	var got []string
	read := progress(func(p backup.Progress) { got = append(got, fmt.Sprintf("%.1f %s", p.Percent, p.Phase)) })
	for _, line := range []string{
		"P00   INFO: execute non-exclusive backup start: backup begins after the requested immediate checkpoint completes",
		"P01 DETAIL: backup file /srv/base/1/3381 (16KB, 40.25%) checksum abc", "P01 DETAIL: backup file /srv/base/1/3382 (0B, 40.25%)",
		"P01 DETAIL: restore file /srv/base/1/3382 (0B, 90.00%)", "P00   INFO: execute non-exclusive backup stop and wait for all WAL segments to archive",
	} {
		read(line)
	}
	want := []string{"0.0 waiting for the checkpoint", "40.2 ", "90.0 ", "90.0 waiting until its WAL is archived"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestAnswersAreBounded holds that a program cannot fill the memory.
func TestAnswersAreBounded(t *testing.T) {
	x := fake(t, "head -c 100000000 /dev/zero | tr '\\0' a")
	if _, err := x.Backups(t.Context()); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Error(fmt.Sprint(err)[:min(200, len(fmt.Sprint(err)))])
	}
}

// TestReads asks the program about a cluster of another version, and keeps the group's repository out of it.
func TestReads(t *testing.T) {
	dir := t.TempDir()
	tool := fake(t, `echo "$@" > `+dir+`/asked; case "$*" in *pg1-path=/new*) echo 'ERROR: [046]: unexpected control version = 1300' >&2; exit 46;; esac`)
	if err := tool.Reads(t.Context(), "/old", filepath.Join(dir, "scratch")); err != nil {
		t.Error(err)
	}
	if err := tool.Reads(t.Context(), "/new", filepath.Join(dir, "scratch")); err == nil || !strings.Contains(err.Error(), "unexpected control version") {
		t.Error(err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || !strings.Contains(string(asked), "--config=/dev/null") || !strings.Contains(string(asked), "--repo1-path="+dir+"/scratch/") {
		t.Errorf("%s %v", asked, err)
	}
}

// TestBrief holds that the refusal of an S3 store is told with its reason, and without the request and the answer.
func TestBrief(t *testing.T) {
	const answer = "HTTP request failed with 403 (Forbidden):\n*** Path/Query ***:\nGET /b/\n*** Response Content ***:\n<Error><Code>SignatureDoesNotMatch</Code><Message>planted-key</Message></Error>"
	want := "the S3 store answered 403 SignatureDoesNotMatch (the secret of the key is wrong; coterie backup enable --secrets FILE gives another one)"
	if got := brief(answer); got != want {
		t.Errorf("%q", got)
	}
	if got := brief("HTTP request failed with 503 (Slow Down)"); got != "the S3 store answered 503" {
		t.Errorf("%q", got)
	}
	if got := brief("unable to connect"); got != "unable to connect" {
		t.Errorf("%q", got)
	}
	info := `[{"name":"s","repo":[{"status":{"code":99,"message":` + strconv.Quote("[ProtocolError] "+answer) + `}}],"status":{"code":99,"lock":{"backup":{"held":false}},"message":"other"}}]`
	if _, _, err := Parse([]byte(info), "s"); err == nil || err.Error() != "pgbackrest: "+want {
		t.Error(err)
	}
	if err := fake(t, "echo 'ERROR: [103]: "+strings.ReplaceAll(answer, "\n", "\n            ")+"' >&2; exit 103").Check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "pgbackrest: "+want) || strings.Contains(err.Error(), "planted") {
		t.Error(err)
	}
}

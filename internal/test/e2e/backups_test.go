package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// backups is a group with backups enabled.
type backups struct {
	*group
	repo    string
	mounted bool // the repository is a file system of its own
}

// TestEndToEndBackups makes backups of a group with pgBackRest while it is written to: over failovers, with a
// repository that takes nothing, and with a tool and a primary that are killed in the middle.
func TestEndToEndBackups(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	t.Setenv("COTERIE_BACKUP_PASSPHRASE", planted)
	g := &backups{group: newGroup(t, lab.Options{})}
	t.Cleanup(func() { // not at the end of the step that mounts it
		if g.mounted {
			_ = unix.Unmount(g.repo, unix.MNT_DETACH)
		}
	})
	for _, step := range []struct {
		name string
		test func(*testing.T, *backups)
	}{
		{"enable", enableBackups},
		{"the repository is full", repositoryFull},
		{"F45 a primary dies that could not archive", notArchived},
		{"the tool is killed in the middle", toolKilled},
		{"F45 a primary is killed during a backup", primaryKilledDuringBackup},
		{"practise", practise},
		{"restore into a new group", restoreNewGroup},
		{"disable", disableBackups},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		for _, file := range []string{"agent.log", "keeper.log", "postgres.log"} {
			if strings.Contains(g.log(n, file), planted) {
				t.Errorf("the passphrase is in %s of %s", file, n)
			}
		}
	}
	g.judge(t)
	g.down(t)
}

// planted is the passphrase of the repository, which must be printed nowhere.
const planted = "planted-words"

// primary is the name of the primary.
func (g *backups) primary(t *testing.T) string { t.Helper(); return *g.ready(t).Primary }

// verb runs a command below coterie backup on a node.
func (g *backups) verb(t *testing.T, node string, args ...string) answer {
	t.Helper()
	a := coterie(t, append(append([]string{"backup"}, args...), "--node", g.node(node))...)
	if strings.Contains(a.out+a.err, planted) {
		t.Errorf("%q prints the passphrase", args)
	}
	return a
}

// sound waits until coterie check backup finds nothing wrong on any node.
func (g *backups) sound(t *testing.T) {
	t.Helper()
	var found []check.Finding
	g.await(t, "nothing wrong with the backups", func(s lab.Status) bool {
		for _, r := range s.Replicas {
			a := coterie(t, "check", "backup", "--json", "--node", g.node(r.Name))
			if err := json.Unmarshal([]byte(a.out), &found); err != nil {
				t.Fatalf("%v: %s%s", err, a.out, a.err)
			}
			if check.Worst(found) != check.OK {
				t.Logf("%s: %+v", r.Name, found)
				time.Sleep(2 * time.Second)
				return false
			}
		}
		return true
	})
}

func enableBackups(t *testing.T, g *backups) {
	s := g.ready(t)
	g.repo = filepath.Join(filepath.Dir(g.Dir()), "repo")
	owner, err := os.Stat(g.node("n1"))
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, g.repo)
	if os.Getuid() == 0 { // a small file system, which a step fills
		if err := unix.Mount("tmpfs", g.repo, "tmpfs", 0, "size=500m"); err == nil {
			g.mounted = true
		}
	}
	if err := os.Chmod(g.repo, 0o755); err != nil { // into a new file system everybody may write
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if a := g.verb(t, *s.Primary, "enable", "--repo", g.repo); a.code != 4 || !strings.Contains(a.err, "may not write to "+g.repo+", which belongs to root") || !strings.Contains(a.err, "chown ") {
			t.Errorf("a repository of root's: %+v", a)
		}
	}
	id := owner.Sys().(*syscall.Stat_t)
	if err := os.Chown(g.repo, int(id.Uid), int(id.Gid)); err != nil {
		t.Fatal(err)
	}
	if a := g.verb(t, secondaries(s)[0], "enable", "--repo", g.repo); a.code != 3 || !strings.Contains(a.err, "on the primary "+*s.Primary+" first") {
		t.Fatalf("a secondary first: %+v", a)
	}
	for _, n := range append([]string{*s.Primary}, secondaries(s)...) {
		if a := g.verb(t, n, "enable", "--repo", g.repo); a.code != 0 {
			t.Fatalf("%s: %s%s", n, a.out, a.err)
		}
	}
	must(t, "restart", "--postgres", "--pending", "--node", g.node("n1"))
	if a := g.verb(t, g.primary(t), "enable"); a.code != 0 || !strings.Contains(a.out, "a segment was archived") || strings.Contains(a.out, "n1 has") {
		t.Fatalf("%s%s", a.out, a.err)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if st, err := os.Stat(filepath.Join(g.node(n), "backup", "pgbackrest.conf")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", n, st.Mode(), err)
		}
	}
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = PRIMARY)") // TestEndToEndBackupsOfSecondaries has the others
	g.await(t, "the primary to be preferred", func(lab.Status) bool { return g.preferred(t) == g.primary(t) })
	primary := g.primary(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		if a := g.verb(t, n, "run", "--if-preferred", "--type", "full"); a.code != 0 || (a.out != "") != (n == primary) {
			t.Fatalf("%s: %s%s", n, a.out, a.err)
		}
	}
	g.sound(t)
	if n := g.listed(t, "n1"); n != 1 {
		t.Errorf("%d backups", n)
	}
}

// listed returns the number of backups that a node lists, and holds that no WAL is missing behind the oldest.
func (g *backups) listed(t *testing.T, node string) int {
	t.Helper()
	var out struct {
		Backups []any `json:"backups"`
		Gaps    []any `json:"gaps"`
	}
	a := g.verb(t, node, "list", "--json")
	if err := json.Unmarshal([]byte(a.out), &out); err != nil {
		t.Fatalf("%v: %s%s", err, a.out, a.err)
	}
	if len(out.Gaps) > 0 {
		t.Errorf("WAL is missing: %v", out.Gaps)
	}
	return len(out.Backups)
}

// repositoryFull fills the repository's file system while the primary is written to, and makes room again.
func repositoryFull(t *testing.T, g *backups) {
	if !g.mounted {
		t.Skip("NOT RUN: mounting a file system takes root")
	}
	s := g.ready(t)
	filler := filepath.Join(g.repo, "filler")
	if err := os.WriteFile(filler, make([]byte, 600<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the repository is not full: %v", err)
	}
	for range 3 {
		sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
		g.acknowledged(t, 20) // no commit waits for the archive
	}
	g.await(t, "every node to say what is wrong", func(lab.Status) bool {
		time.Sleep(time.Second)
		for _, n := range []string{"n1", "n2", "n3"} {
			text := strings.Join(strings.Fields(coterie(t, "status", "--node", g.node(n)).out), " ")
			if !strings.Contains(text, "archiving fails on "+*s.Primary+" since ") || !strings.Contains(text, "is full") || !strings.Contains(text, "segments wait") {
				return false
			}
		}
		a := coterie(t, "check", "backup", "--node", g.node(secondaries(s)[0]))
		return a.code == 3 && strings.Contains(a.out, "the repository "+g.repo+" is full") && strings.Contains(a.out, "coterie backup expire")
	})
	g.acknowledged(t, 20)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	g.sound(t)
	g.listed(t, *s.Primary)
	if now := g.ready(t); *now.Primary != *s.Primary {
		t.Errorf("%s led, and %s leads", *s.Primary, *now.Primary)
	}
}

// notArchived: the repository takes nothing while the primary writes several segments, and then the primary's node dies
// for good. Its secondaries had noted those segments as archived.
func notArchived(t *testing.T, g *backups) {
	was := g.ready(t)
	archive := filepath.Join(g.repo, "archive", "lab")
	st, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	away := archive + ".away"
	if err := os.Rename(archive, away); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(archive, nil, 0o400); err != nil { // no directory can be made in its place
		t.Fatal(err)
	}
	before := sql(t, g.ReadWrite(), "select archived_count from pg_stat_archiver")
	for range 3 {
		sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
		g.acknowledged(t, 20)
	}
	g.await(t, "a problem to be told", func(lab.Status) bool {
		time.Sleep(time.Second)
		a := coterie(t, "check", "backup", "--node", g.node(secondaries(was)[0]))
		return a.code == 3 && (strings.Contains(a.out, "archiving fails on "+*was.Primary) || strings.Contains(a.out, "cannot be used"))
	})
	if now := sql(t, g.ReadWrite(), "select archived_count from pg_stat_archiver"); now != before {
		t.Errorf("%s segments were archived, and %s before", now, before)
	}
	if a := g.verb(t, *was.Primary, "run"); a.code == 0 || a.out != "" {
		t.Errorf("a backup without a repository: %+v", a)
	}
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, archive); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(archive); err != nil || now.Sys().(*syscall.Stat_t).Uid != st.Sys().(*syscall.Stat_t).Uid {
		t.Fatal(err)
	}
	now := g.newPrimary(t, was)
	g.acknowledged(t, 20)
	sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
	g.await(t, "the archive without a gap", func(lab.Status) bool {
		time.Sleep(time.Second)
		a := coterie(t, "check", "backup", "--node", g.node(*now.Primary))
		return strings.Contains(a.out, "any point from") && !strings.Contains(a.out, "lacks") && !strings.Contains(a.out, "fails")
	})
	g.listed(t, *now.Primary)
	g.revive(t, *was.Primary)
	g.sound(t)
}

// running returns the process ids of the tool that works for the group.
func (g *backups) running(command string) (pids []int) {
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, e := range entries {
		line := strings.ReplaceAll(read(e), "\x00", " ")
		if strings.HasPrefix(line, "pgbackrest ") && strings.Contains(line, g.Dir()) && strings.Contains(line, " "+command+" ") {
			var pid int
			if _, err := fmt.Sscanf(e, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// during starts a backup, calls f as soon as the tool copies, and returns how the command ended.
func (g *backups) during(t *testing.T, node string, f func(pids []int)) answer {
	t.Helper()
	done := make(chan answer, 1)
	go func() { done <- g.verb(t, node, "run", "--type", "full") }()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if pids := g.running("backup"); len(pids) > 0 {
			time.Sleep(500 * time.Millisecond)
			f(pids)
			break
		}
		if time.Now().After(end) {
			t.Fatal("no tool runs")
		}
	}
	return <-done
}

func toolKilled(t *testing.T, g *backups) {
	primary := g.primary(t)
	before := g.listed(t, primary)
	a := g.during(t, primary, func(pids []int) { signal(t, pids[0], syscall.SIGKILL) })
	if a.code == 0 || a.out != "" {
		t.Fatalf("a backup whose tool was killed: %+v", a)
	}
	g.await(t, "nothing of it to be left", func(lab.Status) bool { return len(g.running("backup")) == 0 })
	if n := g.listed(t, primary); n != before {
		t.Errorf("%d backups, and %d before", n, before)
	}
	if a := g.verb(t, primary, "run", "--type", "full"); a.code != 0 {
		t.Fatalf("the next one: %s%s", a.out, a.err)
	}
	g.sound(t)
}

func primaryKilledDuringBackup(t *testing.T, g *backups) {
	was := g.ready(t)
	a := g.during(t, *was.Primary, func([]int) {
		if err := g.Kill(*was.Primary, lab.WhatPostgres); err != nil {
			t.Fatal(err)
		}
	})
	if a.code == 0 || a.out != "" {
		t.Fatalf("a backup of a primary that died: %+v", a)
	}
	now := g.nextEpoch(t, was)
	t.Logf("%s; %s leads", strings.TrimSpace(a.err), *now.Primary)
	primary := g.primary(t)
	if a := g.verb(t, primary, "run", "--type", "diff"); a.code != 0 {
		t.Fatalf("the next one: %s%s", a.out, a.err)
	}
	g.sound(t)
}

// practise restores the last backup and all WAL behind it on a secondary's machine.
func practise(t *testing.T, g *backups) {
	node, dir := secondaries(g.ready(t))[0], filepath.Join(g.repo, "drill")
	if a := g.verb(t, node, "verify"); a.code != 0 || !strings.Contains(a.out, "status: ok") {
		t.Errorf("%+v", a)
	}
	a := g.verb(t, node, "verify", "--restore", dir, "--json")
	var out struct {
		Databases map[string]struct{ Tables, Rows int }
	}
	if err := json.Unmarshal([]byte(a.out), &out); err != nil || a.code != 0 || out.Databases["postgres"].Tables < 60 || out.Databases["postgres"].Rows < 1000 {
		t.Fatalf("%v: %+v", err, a)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the drill stays: %v", err)
	}
	if a := g.verb(t, node, "verify", "--restore", g.repo); a.code != 4 {
		t.Errorf("a directory that exists: %+v", a)
	}
	g.unreadable(t, node, dir)
}

// unreadable damages the last segment in the archive. To PostgreSQL that is the end of the archive: neither a drill nor
// a restore may take it for that.
func (g *backups) unreadable(t *testing.T, node, dir string) {
	t.Helper()
	g.acknowledged(t, 20)
	segment := sql(t, g.ReadWrite(), "select pg_walfile_name(pg_switch_wal())")
	path := ""
	g.await(t, "the segment in the archive", func(lab.Status) bool {
		time.Sleep(500 * time.Millisecond)
		all, _ := filepath.Glob(filepath.Join(g.repo, "archive", "lab", "*", segment[:16], segment+"-*.zst"))
		if len(all) == 1 {
			path = all[0]
		}
		return path != "" && sql(t, g.ReadWrite(), "select (last_archived_wal >= '"+segment+"')::text from pg_stat_archiver") == "true"
	})
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := read(path)
	if err := os.Truncate(path, st.Size()/2); err != nil {
		t.Fatal(err)
	}
	if a := g.verb(t, node, "verify", "--restore", dir); a.code != 3 || !strings.Contains(a.err, "before the segment") || !strings.Contains(a.err, "because WAL could not be read") {
		t.Errorf("a drill: %+v", a)
	}
	to := filepath.Join(filepath.Dir(g.Dir()), "unreadable")
	a := coterie(t, "restore", "--to", "latest", "--new-group", to, "--node", g.node(node), "--name", "r1", "--address", "127.0.0.1", "--no-start")
	if a.code != 3 || !strings.Contains(a.err, "because WAL could not be read") {
		t.Errorf("a restore: %+v", a)
	}
	if left, err := os.ReadDir(to); len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if err := os.WriteFile(path, []byte(whole), st.Mode()); err != nil {
		t.Fatal(err)
	}
	if a := g.verb(t, node, "verify", "--restore", dir); a.code != 0 {
		t.Errorf("the archive is whole again: %+v", a)
	}
}

// restoreNewGroup brings back rows that were deleted, as a group of its own, from a backup that is older than several
// failovers.
func restoreNewGroup(t *testing.T, g *backups) {
	sql(t, g.ReadWrite(), "create table notes as select i from generate_series(1, 1000) i")
	sql(t, g.ReadWrite(), "select pg_create_restore_point('before')::text")
	sql(t, g.ReadWrite(), "delete from notes where i % 2 = 0")
	sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
	node, port := secondaries(g.ready(t))[0], ports.Range(t, 4)
	g.sound(t)
	time.Sleep(2 * time.Second) // the segment is archived: sound waits for those before it
	if a := coterie(t, "restore", "--to", "before", "--new-group", g.node(node), "--node", g.node(node)); a.code != 4 || !strings.Contains(a.err, "nothing is restored into a group that is there") {
		t.Errorf("in place: %+v", a)
	}
	dir := filepath.Join(filepath.Dir(g.Dir()), "new")
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	a := coterie(t, "restore", "--to", "before", "--new-group", dir, "--node", g.node(node), "--name", "r1", "--address", "127.0.0.1", "--endpoint", at(0), "--read-write", at(1), "--read-only", at(2),
		"--http", at(3), "--no-start")
	if a.code != 0 || strings.Contains(a.out+a.err, planted) {
		t.Fatalf("%+v", a)
	}
	agent := exec.CommandContext(t.Context(), exe, "agent", "--node", dir)
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) }
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Process.Signal(syscall.SIGTERM); _ = agent.Wait() }()
	uri, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	uri.Host = at(1)
	g.await(t, "the new group to take writes", func(lab.Status) bool {
		time.Sleep(500 * time.Millisecond)
		return coterie(t, "status", "--node", dir).code == 0
	})
	if n := sql(t, uri.String(), "select count(*)::text from notes"); n != "1000" {
		t.Errorf("the new group has %s of 1000 rows", n)
	}
	if mode := sql(t, uri.String(), "show archive_mode"); mode != "off" {
		t.Errorf("archive_mode of the new group is %s", mode)
	}
	if n := sql(t, g.ReadWrite(), "select count(*)::text from notes"); n != "500" {
		t.Errorf("the old group has %s rows", n)
	}
	g.sound(t)
}

func disableBackups(t *testing.T, g *backups) {
	primary := g.primary(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		if a := g.verb(t, n, "disable", "--yes"); a.code != 0 {
			t.Fatalf("%s: %+v", n, a)
		}
	}
	sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
	g.acknowledged(t, 20)
	g.await(t, "no WAL to be kept for the archive", func(lab.Status) bool {
		return sql(t, g.ReadWrite(), "select count(*)::text from pg_ls_archive_statusdir() where name like '%.ready'") == "0"
	})
	if a := coterie(t, "check", "backup", "--node", g.node(primary)); a.code != 0 || !strings.Contains(a.out, "no backups are enabled") {
		t.Errorf("%+v", a)
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// TestEndToEndBackupsOfSecondaries makes backups of the replica that the preference names while the group is written
// to, and has each part of it fail: the secondary, the primary, the way between them, the repository, replay.
func TestEndToEndBackupsOfSecondaries(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	o := lab.Options{}
	if os.Getuid() == 0 {
		o.Net = lab.NetNamespaces
	}
	g := &backups{group: newGroup(t, o)}
	t.Cleanup(func() {
		if g.mounted {
			_ = unix.Unmount(g.repo, unix.MNT_DETACH)
		}
	})
	for _, step := range []struct {
		name string
		test func(*testing.T, *backups)
	}{
		{"enable", enableOnSecondaries},
		{"the preference", preferences},
		{"asked for on another node", askedElsewhere},
		{"a restore is killed", restoreKilled},
		{"load on the primary", loadOfBackups},
		{"a secondary that lags", lagging},
		{"the repository is full", repositoryFullDuringBackup},
		{"the secondary dies", secondaryDies},
		{"the primary dies", primaryDies},
		{"the way to the primary is cut", wayCut},
		{"a restore has every acknowledged row", restoreAcknowledged},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	g.judge(t)
	g.down(t)
}

// madeOn is where and how the newest backup was made, as coterie backup list tells.
func (g *backups) madeOn(t *testing.T, asked string) (node, label string) {
	t.Helper()
	var out struct {
		Backups []struct{ Node, Label string }
	}
	a := g.verb(t, asked, "list", "--json")
	if err := json.Unmarshal([]byte(a.out), &out); err != nil || len(out.Backups) == 0 {
		t.Fatalf("%v: %s%s", err, a.out, a.err)
	}
	last := out.Backups[len(out.Backups)-1]
	return last.Node, last.Label
}

// preferred waits until the nodes name one replica for the next backup, and returns it. A node that is dead or cut off
// names none.
func (g *backups) preferred(t *testing.T) (node string) {
	t.Helper()
	g.await(t, "one replica to be named for backups", func(s lab.Status) bool {
		time.Sleep(500 * time.Millisecond)
		named := map[string]int{}
		for _, r := range s.Replicas {
			if r.PIDs.Agent == nil {
				continue
			}
			a := coterie(t, "sql", "--node", g.node(r.Name), "--csv", "-c", "SELECT node FROM coterie.backup WHERE preferred")
			if lines := strings.Fields(a.out); len(lines) == 2 {
				node = lines[1]
				named[node]++
			}
		}
		return len(named) == 1 && named[node] > 1
	})
	return node
}

func enableOnSecondaries(t *testing.T, g *backups) {
	s := g.ready(t)
	g.repo = filepath.Join(filepath.Dir(g.Dir()), "repo")
	owner, err := os.Stat(g.node("n1"))
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, g.repo)
	if os.Getuid() == 0 {
		if err := unix.Mount("tmpfs", g.repo, "tmpfs", 0, "size=1200m"); err == nil {
			g.mounted = true
		}
	}
	id := owner.Sys().(*syscall.Stat_t)
	if err := os.Chown(g.repo, int(id.Uid), int(id.Gid)); err != nil {
		t.Fatal(err)
	}
	for _, n := range append([]string{*s.Primary}, secondaries(s)...) {
		if a := g.verb(t, n, "enable", "--repo", g.repo); a.code != 0 {
			t.Fatalf("%s: %s%s", n, a.out, a.err)
		}
	}
	must(t, "restart", "--postgres", "--pending", "--node", g.node("n1"))
	if a := g.verb(t, g.primary(t), "enable"); a.code != 0 || !strings.Contains(a.out, "a segment was archived") {
		t.Fatalf("%s%s", a.out, a.err)
	}
	// Rows that do not compress, so that a backup takes a while.
	sql(t, g.ReadWrite(), "create table bulk as select i, (select string_agg(md5(random()::text), '') from generate_series(1, 8) x where i = i) t from generate_series(1, 300000) i")
	primary, on := g.primary(t), g.preferred(t)
	if on == primary {
		t.Fatalf("backups are to be made on the primary %s", on)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if a := g.verb(t, n, "run", "--if-preferred", "--type", "full"); a.code != 0 || (a.out != "") != (n == on) {
			t.Fatalf("%s: %s%s", n, a.out, a.err)
		}
	}
	g.sound(t)
	if node, label := g.madeOn(t, primary); node != on || !strings.HasSuffix(label, "F") {
		t.Errorf("%s was made on %q, want %s", label, node, on)
	}
}

// option sets an option of the group, or of a replica.
func (g *backups) option(t *testing.T, clause string) {
	t.Helper()
	g.says(t, g.primary(t), "ALTER AVAILABILITY GROUP [lab] "+clause)
}

// preferences has each preference obeyed on every node.
func preferences(t *testing.T, g *backups) {
	primary := g.primary(t)
	two := secondaries(g.ready(t))
	g.option(t, "MODIFY REPLICA ON N'"+two[1]+"' WITH (BACKUP_PRIORITY = 80)")
	if on := g.preferred(t); on != two[1] {
		t.Errorf("%s is preferred with 50, and %s has 80", on, two[1])
	}
	for _, n := range two {
		g.option(t, "MODIFY REPLICA ON N'"+n+"' WITH (BACKUP_PRIORITY = 0)")
	}
	if on := g.preferred(t); on != primary {
		t.Errorf("%s is preferred where no secondary may", on)
	}
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = SECONDARY_ONLY)")
	g.await(t, "a refusal", func(lab.Status) bool {
		a := g.verb(t, primary, "run", "--if-preferred")
		return a.code == 3 && strings.Contains(a.err, "AUTOMATED_BACKUP_PREFERENCE is SECONDARY_ONLY") && strings.Contains(a.err, two[0]+": its BACKUP_PRIORITY is 0")
	})
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = PRIMARY)")
	g.await(t, "a backup of the primary", func(lab.Status) bool { return g.verb(t, primary, "run").code == 0 })
	if node, _ := g.madeOn(t, two[0]); node != primary {
		t.Errorf("it was made on %q, want %s", node, primary)
	}
	for _, n := range two {
		g.option(t, "MODIFY REPLICA ON N'"+n+"' WITH (BACKUP_PRIORITY = 50)")
	}
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = SECONDARY)")
	g.await(t, "the next backup of a secondary", func(lab.Status) bool { return g.preferred(t) != primary })
	last, label := g.madeOn(t, primary)
	g.await(t, "the view to tell it", func(lab.Status) bool {
		time.Sleep(time.Second)
		a := coterie(t, "sql", "--node", g.node(two[0]), "--csv", "-c", "SELECT last_backup_node, last_backup_label FROM coterie.backup WHERE node = '"+two[0]+"'")
		return strings.Contains(a.out, last+","+label)
	})
}

// readsDuring returns the bytes that the processes of a node's server, and the tool on that node, read while f runs.
func (g *backups) readsDuring(node string, f func()) (n int64) {
	first, last, end, ended := map[string]int64{}, map[string]int64{}, make(chan bool), make(chan bool)
	look := func() {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			cwd, _ := os.Readlink(d + "/cwd")
			line := strings.ReplaceAll(read(d+"/cmdline"), "\x00", " ")
			tool := strings.HasPrefix(line, "pgbackrest ") && strings.Contains(line, g.node(node)+"/")
			var bytes int64
			if _, err := fmt.Sscanf(read(d+"/io"), "rchar: %d", &bytes); err != nil || cwd != g.data(node) && !tool {
				continue
			}
			if _, seen := first[d]; !seen && !tool {
				first[d] = bytes
			}
			last[d] = bytes
		}
	}
	look()
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
				look()
			}
		}
	}()
	f()
	close(end)
	<-ended
	for d, bytes := range last {
		n += bytes - first[d]
	}
	return n
}

// loadOfBackups measures what a backup has the primary's machine read, by where it is made.
func loadOfBackups(t *testing.T, g *backups) {
	primary, on := g.primary(t), g.preferred(t)
	full := func(node string) func() {
		return func() {
			if a := g.verb(t, node, "run", "--type", "full"); a.code != 0 {
				t.Fatalf("%s: %s%s", node, a.out, a.err)
			}
		}
	}
	idle := g.readsDuring(primary, func() { time.Sleep(5 * time.Second) })
	ofSecondary := g.readsDuring(primary, full(on))
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = PRIMARY)")
	g.await(t, "the primary to be preferred", func(lab.Status) bool { return g.preferred(t) == primary })
	ofPrimary := g.readsDuring(primary, full(primary))
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = SECONDARY)")
	g.await(t, "a secondary to be preferred", func(lab.Status) bool { return g.preferred(t) == on })
	t.Logf("bytes read at the primary: %d MB during a full backup of it, %d MB during one of a secondary, %d MB in 5 s without any", ofPrimary>>20, ofSecondary>>20, idle>>20)
	if size := int64(100 << 20); ofPrimary < size || ofSecondary > ofPrimary/2 {
		t.Errorf("%d bytes, and %d for a backup of a secondary", ofPrimary, ofSecondary)
	}
}

// lagging: replay stands still on the secondary that makes the backup.
func lagging(t *testing.T, g *backups) {
	on := g.preferred(t)
	if err := g.privately(t, on, "select pg_wal_replay_pause()"); err != nil {
		t.Fatal(err)
	}
	a := g.verb(t, on, "run", "--replay-limit", "4s")
	if a.code != 3 || !strings.Contains(a.err, on+" has not replayed within 4s to where the backup begins, so it lags far behind the primary") {
		t.Errorf("%+v", a)
	}
	if err := g.privately(t, on, "select pg_wal_replay_resume()"); err != nil {
		t.Fatal(err)
	}
	g.again(t)
}

// again makes a backup on the replica that is preferred, as soon as one can be made, and returns that replica.
func (g *backups) again(t *testing.T) (on string) {
	t.Helper()
	g.await(t, "the next backup", func(lab.Status) bool {
		on = g.preferred(t)
		a := g.verb(t, on, "run", "--type", "diff")
		if a.code != 0 {
			t.Logf("on %s: %s", on, a.err)
			time.Sleep(2 * time.Second)
		}
		for _, n := range []string{"n1", "n2", "n3"} { // the preference may name another one by then, as after a failover
			if strings.Contains(a.err, n+" makes the backup") {
				on = n
			}
		}
		return a.code == 0
	})
	if node, _ := g.madeOn(t, on); node != on {
		t.Errorf("it was made on %q, want %s", node, on)
	}
	return on
}

// repositoryFullDuringBackup leaves the repository too little room for a backup.
func repositoryFullDuringBackup(t *testing.T, g *backups) {
	if !g.mounted {
		t.Skip("NOT RUN: mounting a file system takes root")
	}
	on, filler := g.preferred(t), filepath.Join(g.repo, "filler")
	var st unix.Statfs_t
	if err := unix.Statfs(g.repo, &st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, int64(st.Bavail)*st.Bsize-20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	a := g.verb(t, on, "run", "--type", "full")
	if a.code == 0 || a.out != "" || !strings.Contains(a.err, "the repository "+g.repo+" is full") {
		t.Errorf("%+v", a)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	g.again(t)
	g.sound(t)
}

// secondaryDies: first the server that is copied dies, then the whole machine with the tool.
func secondaryDies(t *testing.T, g *backups) {
	on := g.preferred(t)
	a := g.during(t, on, func([]int) {
		if err := g.Kill(on, lab.WhatPostgres); err != nil {
			t.Fatal(err)
		}
	})
	if a.code == 0 || a.out != "" {
		t.Fatalf("a backup of a server that died: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	g.again(t)
	on = g.preferred(t)
	a = g.during(t, on, func(pids []int) {
		if err := g.Kill(on, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if a.code == 0 || a.out != "" {
		t.Fatalf("a backup of a node that died: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	if next := g.again(t); next == on {
		t.Errorf("the next one was made on %s, which is dead", next)
	}
	g.revive(t, on)
	g.sound(t)
}

// primaryDies: the primary's node dies, and another replica leads, while a backup is made of a secondary.
func primaryDies(t *testing.T, g *backups) {
	was, on := g.ready(t), g.preferred(t)
	a := g.during(t, on, func([]int) {
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	})
	if a.code == 0 || a.out != "" || !strings.Contains(a.err, "primary") {
		t.Fatalf("a backup whose primary died: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	now := g.newPrimary(t, was)
	t.Logf("%s led, %s leads, and the next backup is made on %s", *was.Primary, *now.Primary, g.again(t))
	g.revive(t, *was.Primary)
	g.sound(t)
	// A planned failover in the middle, too.
	was, on = g.ready(t), g.preferred(t)
	a = g.during(t, on, func([]int) { g.failover(t, otherThan(t, secondaries(was), on)) })
	if a.code == 0 || a.out != "" || !strings.Contains(a.err, "primary") {
		t.Fatalf("a backup during a failover: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	g.again(t)
	g.sound(t)
}

// otherThan returns the first of the nodes that is not the one named.
func otherThan(t *testing.T, nodes []string, not string) string {
	t.Helper()
	for _, n := range nodes {
		if n != not {
			return n
		}
	}
	t.Fatalf("there is none but %s", not)
	return ""
}

// wayCut: the secondary that makes the backup reaches nobody any more.
func wayCut(t *testing.T, g *backups) {
	if !g.Namespaced() {
		t.Skip("NOT RUN: a network of its own takes root")
	}
	on := g.preferred(t)
	a := g.during(t, on, func([]int) {
		if _, err := g.Cut(t.Context(), on, lab.AllEnds, false, false); err != nil {
			t.Fatal(err)
		}
	})
	if a.code == 0 || a.out != "" {
		t.Fatalf("a backup whose way to the primary was cut: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	if next := g.again(t); next == on {
		t.Errorf("the next one was made on %s, which is cut off", next)
	}
	if _, err := g.Heal(t.Context(), lab.AllEnds, lab.AllEnds, true); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
	g.sound(t)
}

// restoreAcknowledged restores a backup of a secondary, with the WAL behind it, into a new group, and looks there for
// each row of the ledger.
func restoreAcknowledged(t *testing.T, g *backups) {
	on := g.again(t)
	if on == g.primary(t) {
		t.Fatal("the last backup was made on the primary")
	}
	g.acknowledged(t, 50)
	g.end()
	if err := <-g.ended; err != nil {
		t.Fatal(err)
	}
	sql(t, g.ReadWrite(), "select pg_create_restore_point('all')::text")
	segment := sql(t, g.ReadWrite(), "select pg_walfile_name(pg_switch_wal())")
	g.await(t, "the segment in the archive", func(lab.Status) bool {
		time.Sleep(time.Second)
		return sql(t, g.ReadWrite(), "select (last_archived_wal >= '"+segment+"')::text from pg_stat_archiver") == "true"
	})
	dir, port := filepath.Join(filepath.Dir(g.Dir()), "new"), ports.Range(t, 4)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	a := coterie(t, "restore", "--to", "all", "--new-group", dir, "--node", g.node(on), "--name", "r1", "--address", "127.0.0.1", "--endpoint", at(0), "--read-write", at(1), "--read-only", at(2),
		"--http", at(3), "--no-start")
	if a.code != 0 {
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
	v, err := g.ledger.Verify(t.Context(), uri.String())
	if err != nil || !v.Sound() || v.Acknowledged == 0 {
		t.Errorf("the restored group: %v, %v, %v", v, err, v.LostIDs)
	}
	t.Log("the restored group: ", v)
	g.write(t)
}

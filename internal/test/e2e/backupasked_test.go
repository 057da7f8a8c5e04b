package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// metrics returns what a node measures.
func (g *group) metrics(t *testing.T, node string) string {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.AgentSock())
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = r.Body.Close() }()
	b, _ := io.ReadAll(r.Body) // the caller looks again
	return string(b)
}

// told waits until every node tells something by its status, by its list of backups, by the view and by a metric.
func (g *backups) told(t *testing.T, what, status, list, view, metric string) {
	t.Helper()
	ways := map[string]struct {
		want string
		say  func(node string) string
	}{
		"the status": {status, func(n string) string { return coterie(t, "status", "--node", g.node(n)).out }},
		"the list":   {list, func(n string) string { return g.verb(t, n, "list").out }},
		"the view": {view, func(n string) string {
			return coterie(t, "sql", "--node", g.node(n), "--csv", "-c", "SELECT node, running_type, interrupted_restore FROM coterie.backup ORDER BY node").out
		}},
		"the metric": {metric, func(n string) string { return g.metrics(t, n) }},
	}
	missing := ""
	defer func() {
		if t.Failed() {
			t.Log(missing)
		}
	}()
	g.await(t, "every node to tell "+what, func(s lab.Status) bool {
		time.Sleep(500 * time.Millisecond)
		for _, r := range s.Replicas {
			for way, x := range ways {
				if said := strings.Join(strings.Fields(x.say(r.Name)), " "); !strings.Contains(said, x.want) {
					missing = fmt.Sprintf("%s of %s has no %q: %s", way, r.Name, x.want, said)
					return false
				}
			}
		}
		return true
	})
}

// askedElsewhere has a backup made by a node that is not to make it, and looks on every node while it is under way.
func askedElsewhere(t *testing.T, g *backups) {
	primary, on := g.primary(t), g.preferred(t)
	a := g.during(t, primary, func(pids []int) {
		signal(t, pids[0], syscall.SIGSTOP) // it takes as long as it takes to look
		defer signal(t, pids[0], syscall.SIGCONT)
		g.told(t, "of the backup", "a full backup is under way on "+on+" for ", "a full backup is under way on "+on+" since ", on+",full,", `coterie_backup_running{replica="`+on+`"} 1`)
		if a := g.verb(t, on, "run", "--here"); a.code != 3 || !strings.Contains(a.err, "a backup is under way") {
			t.Errorf("a second one: %+v", a)
		}
		if a := g.verb(t, primary, "run"); a.code != 3 || !strings.Contains(a.err, "a backup is under way on "+on+" already") {
			t.Errorf("asked for a second time: %+v", a)
		}
	})
	if a.code != 0 || !strings.Contains(a.err, on+" makes the backup") || !strings.Contains(a.out, "F  full  ") {
		t.Fatalf("%+v", a)
	}
	if node, label := g.madeOn(t, primary); node != on || !strings.HasPrefix(a.out, label+" ") {
		t.Errorf("%s was made on %s, want %s: %s", label, node, on, a.out)
	}
	a = g.during(t, primary, func([]int) { must(t, "restart", "--node", g.node(on)) }) // the agent, whose process it is
	if a.code != 3 || a.out != "" || !strings.Contains(a.err, on) {
		t.Errorf("a backup whose agent was restarted: %+v", a)
	}
	t.Log(strings.TrimSpace(a.err))
	g.await(t, "nothing of it to be left", func(lab.Status) bool { return len(g.running("backup")) == 0 })
	g.again(t)
	if a := g.verb(t, primary, "run", "--here", "--type", "diff"); a.code != 0 {
		t.Errorf("%+v", a)
	}
	if node, _ := g.madeOn(t, on); node != primary {
		t.Errorf("it was made on %s, want %s", node, primary)
	}
}

// childrenOf returns the processes that a process has started and that live.
func childrenOf(pid int) (out []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is sound
	for _, task := range tasks {
		for _, f := range strings.Fields(read(task)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// restoreKilled kills a restore while it copies and while its server recovers, and takes back what it left.
func restoreKilled(t *testing.T, g *backups) {
	for name, begun := range map[string]func(dir string) bool{
		"copying": func(dir string) bool { _, err := os.Stat(filepath.Join(dir, "restoring.json")); return err == nil },
		"recovering": func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, "pgdata", "postmaster.pid"))
			return err == nil
		},
	} {
		t.Run(name, func(t *testing.T) { restoreKilledOnce(t, g, name, begun) })
	}
}

func restoreKilledOnce(t *testing.T, g *backups, name string, begun func(dir string) bool) {
	on, dir := g.preferred(t), filepath.Join(filepath.Dir(g.Dir()), "killed-"+name)
	cmd := exec.CommandContext(t.Context(), exe, "restore", "--to", "latest", "--new-group", dir, "--node", g.node(on), "--name", "r1", "--address", "127.0.0.1", "--no-start")
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !begun(dir); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is restored")
		}
	}
	for _, pid := range append(childrenOf(cmd.Process.Pid), cmd.Process.Pid) { // of root, the child is the one that restores
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the restore was not killed")
	}
	if len(scratches()) == 0 {
		t.Error("a restore that is killed leaves no directory with the key: this test shows nothing")
	}
	g.told(t, "of the restore", "a restore from "+on+" into "+dir+" was interrupted", "a restore from "+on+" into "+dir+" was interrupted", ","+dir, `coterie_restores_interrupted{replica="`+on+`"} 1`)
	again := []string{"restore", "--to", "latest", "--new-group", dir, "--node", g.node(on)}
	if a := coterie(t, again...); a.code != 4 || !strings.Contains(a.err, "coterie restore --undo "+dir) {
		t.Errorf("%+v", a)
	}
	g.await(t, "the server of the restore to end with it", func(lab.Status) bool {
		a := coterie(t, "restore", "--undo", dir, "--node", g.node(on))
		if a.code != 0 && !strings.Contains(a.err, "a PostgreSQL server runs on") {
			t.Fatalf("%+v", a)
		}
		return a.code == 0
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if left := scratches(); len(left) != 0 {
		t.Errorf("secrets are left: %v", left)
	}
	if left := processesOf(dir); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
	g.await(t, "nobody to tell of it", func(lab.Status) bool {
		time.Sleep(500 * time.Millisecond)
		return !strings.Contains(coterie(t, "status", "--node", g.node(on)).out, "was interrupted")
	})
	must(t, append(again, "--dry-run")...) // the directory can be used
}

// scratches returns the temporary directories of restores and of their servers.
func scratches() (all []string) {
	for _, name := range []string{"coterie-restore-*", "coterie-trial-*"} {
		some, _ := filepath.Glob(filepath.Join(os.TempDir(), name)) // the pattern is sound
		all = append(all, some...)
	}
	return all
}

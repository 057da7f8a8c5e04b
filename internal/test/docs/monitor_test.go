package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/node/metrics"
)

const monitorPage = "docs/how-to/monitor.md"

// metricOf is a metric in a page.
var metricOf = regexp.MustCompile(`coterie_[a-z_]+`)

// TestMonitorPageCanBeRead holds that a shell understands the blocks, which of them the long test runs, and that every
// metric of the page exists.
func TestMonitorPageCanBeRead(t *testing.T) {
	page, kinds := pages(t)[monitorPage], ""
	for _, b := range blocksOf(t, page) {
		if kinds += b.kind + " "; b.kind == "sql" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
		}
	}
	if kinds != "any sql promtool " {
		t.Errorf("the page has the blocks %s", kinds)
	}
	known := []string{"coterie_viewer"} // a role
	for _, s := range metrics.Definitions() {
		for _, d := range s.Metrics {
			known = append(known, d.Name)
		}
	}
	for _, name := range metricOf.FindAllString(page, -1) {
		if !slices.Contains(known, name) {
			t.Errorf("the page has %s, which is no metric", name)
		}
	}
}

// watcher is a person who looks at a lab as the page says.
type watcher struct {
	*reader
	said string // the last that was seen, for a failure
}

// http returns the address of a node's health checks and metrics.
func (w *watcher) http(node string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "lab", node, "coterie.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^http:\n(?: +.*\n)*? +listen: (\S+)`).FindSubmatch(text)
	if m == nil {
		w.t.Fatalf("no HTTP port in\n%s", text)
	}
	return strings.Trim(string(m[1]), `"`)
}

// code returns the exit code of a command on a node.
func (w *watcher) code(node, command string) string {
	w.t.Helper()
	out := w.run("export COTERIE_NODE=" + filepath.Join(w.dir, "lab", node) + "\ncode=0\n" + command + " >said 2>&1 || code=$?\ncat said\necho; echo \"code $code\"")
	w.said = out
	return regexp.MustCompile(`code (\d+)\n$`).FindStringSubmatch(out)[1]
}

// answers returns the status of a health check, 0 from a node that does not answer.
func (w *watcher) answers(node, path string) string {
	w.t.Helper()
	w.said = strings.TrimSpace(w.run("curl -s -m 10 -o body -w '%{http_code}' http://" + w.http(node) + path + " || true"))
	return w.said
}

// metric returns the value of a series of a node; "" if it is absent.
func (w *watcher) metric(node, series string) string {
	w.t.Helper()
	out := w.run("curl -s -m 10 http://" + w.http(node) + "/metrics || true")
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// until waits for what the page says of a state.
func (w *watcher) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(3 * time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not seen: %s\n%s\n%s", what, w.said, w.run("coterie lab status || true"))
		}
	}
}

// TestMonitorPage runs the commands of the page on a lab, and holds what its table says by faults.
func TestMonitorPage(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("breaks a lab in three ways; COTERIE_LONG=1 runs it")
	}
	for _, program := range []string{"psql", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %s is not installed", program)
		}
	}
	w := &watcher{reader: newReader(t)}
	w.prelude = lookup.FindString(pages(t)[breakIt])
	// A machine that is too busy is no host for a lab, which says so, and is asked again.
	w.run("k=0; until coterie lab up >up 2>&1; do k=$((k+1)); grep -q 'not as busy' up && test $k -lt 20 || { cat up; exit 1; }; sleep 1; done")
	w.run(script(t, "#see within 180s: every replica is synchronized\n"))
	primary := strings.TrimSpace(w.run("its primary"))
	others := slices.DeleteFunc([]string{"n1", "n2", "n3"}, func(n string) bool { return n == primary })
	for _, b := range blocksOf(t, pages(t)[monitorPage]) {
		began := time.Now()
		t.Logf("%s:\n%s%s(%v)", b.kind, b.text, w.block(primary, b), time.Since(began).Round(100*time.Millisecond))
	}
	if code := w.code(primary, "coterie status --check"); code != "0" || strings.Count(w.said, "\n") != 3 {
		t.Errorf("of a healthy group coterie status --check ends with %s:\n%s", code, w.said)
	}
	for _, series := range []string{"coterie_uptime_seconds", `coterie_certificate_expiry_timestamp_seconds{certificate="node"}`, "coterie_commits_blocked_seconds"} {
		if w.metric(primary, series) == "" {
			t.Errorf("a healthy primary has no %s", series)
		}
	}
	w.blocked(primary, others)
	w.degraded(primary, others[0])
	w.none(primary, others)
}

// block runs a block of the page on a node.
func (w *watcher) block(node string, b block) string {
	w.t.Helper()
	text := "export COTERIE_NODE=" + filepath.Join(w.dir, "lab", node) + "\n"
	switch b.kind {
	case "sql":
		return w.run(text + "coterie sql -f - <<'END'\n" + b.text + "END\n")
	case "promtool":
		if _, err := exec.LookPath("promtool"); err != nil {
			return "NOT RUN: promtool is not installed\n"
		}
		dir, err := filepath.Abs(filepath.Join(root, "packaging/prometheus"))
		if err != nil {
			w.t.Fatal(err)
		}
		return w.run("cd " + dir + "\n" + b.text)
	}
	// A check may end with 3 on a machine that is busy, which is what it is for.
	text += "coterie() { command coterie \"$@\" || test $? = 3; }\n" + strings.ReplaceAll(b.text, "127.0.0.1:8008", w.http(node))
	return w.run(text)
}

// blocked holds what the page says of a group in which no commit is acknowledged.
func (w *watcher) blocked(primary string, others []string) {
	w.t.Helper()
	for _, n := range others {
		w.run("coterie lab pause " + n + " --what postgres")
	}
	w.run("(timeout 300 psql -qw \"$(its read_write)\" -c 'create table waits ()' >/dev/null 2>&1 </dev/null &)")
	for _, n := range []string{primary, others[0]} {
		w.until("coterie_commits_blocked is 1 on "+n, func() bool { return w.metric(n, "coterie_commits_blocked") == "1" })
		w.until("coterie_commits_blocked_seconds grows on "+n, func() bool { return w.metric(n, "coterie_commits_blocked_seconds") > "0" })
	}
	w.until("coterie status ends with 3", func() bool { return w.code(primary, "coterie status") == "3" })
	if code := w.code(primary, "coterie status --check"); code != "3" {
		w.t.Errorf("while no commit is acknowledged coterie status --check ends with %s:\n%s", code, w.said)
	}
	for _, n := range others {
		w.run("coterie lab resume " + n)
	}
	w.run(script(w.t, "#see within 180s: every replica is synchronized\n"))
	w.until("commits are acknowledged again", func() bool { return w.metric(primary, "coterie_commits_blocked") == "0" })
}

// degraded holds what the page says of a group that has lost a secondary.
func (w *watcher) degraded(primary, lost string) {
	w.t.Helper()
	w.run("coterie lab kill " + lost)
	w.until("coterie status --check ends with 5", func() bool { return w.code(primary, "coterie status --check") == "5" })
	if code := w.code(primary, "coterie status"); code != "0" {
		w.t.Errorf("of a degraded group coterie status ends with %s", code)
	}
	for series, want := range map[string]string{
		"coterie_automatic_failover_ready":                   "0",
		`coterie_failure_survived{member="` + primary + `"}`: "0",
		`coterie_quorum_voter_up{member="` + lost + `"}`:     "0",
		`coterie_quorum_voter_up{member="` + primary + `"}`:  "1",
		"coterie_quorum": "1", "coterie_primary": "1", "coterie_commits_blocked": "0",
		`coterie_replica_synchronization_state{replica="` + lost + `",state="SYNCHRONIZED"}`: "0",
	} {
		w.until(series+" is "+want, func() bool { w.said = w.metric(primary, series); return w.said == want })
	}
	if w.metric(primary, `coterie_problems{severity="Critical"}`) == "0" && w.metric(primary, `coterie_problems{severity="Warning"}`) == "0" {
		w.t.Error("a dead secondary is no problem of coterie_problems")
	}
	if w.code(primary, "coterie sql -c 'SELECT * FROM coterie.problems'"); !strings.Contains(w.said, lost) {
		w.t.Errorf("coterie.problems does not name %s:\n%s", lost, w.said)
	}
	if got := w.answers(lost, "/liveness"); got != "000" {
		w.t.Errorf("/liveness of a node that is dead: %s", got)
	}
}

// none holds what the page says of a group without a primary.
func (w *watcher) none(primary string, others []string) {
	w.t.Helper()
	w.run("coterie lab kill " + primary)
	left := others[1]
	w.until("coterie status ends with 3", func() bool { return w.code(left, "coterie status") == "3" })
	for series, want := range map[string]string{"coterie_primary": "0", "coterie_quorum": "0", fmt.Sprintf("coterie_quorum_voter_up{member=%q}", primary): "0"} {
		w.until(series+" is "+want, func() bool { w.said = w.metric(left, series); return w.said == want })
	}
	if got := w.answers(left, "/primary"); got != "503" {
		w.t.Errorf("/primary of a secondary without a primary: %s", got)
	}
}

// TestOpenPathsAreDocumented holds that the page names each document that the port without a login shows.
func TestOpenPathsAreDocumented(t *testing.T) {
	text := source(t, "internal/admin/api/server.go")
	_, text, _ = strings.Cut(text, "func (s *Server) open() ")
	text, _, found := strings.Cut(text, "func (s Status) self()")
	_, page, told := strings.Cut(pages(t)["docs/how-to/monitor.md"], "### What a stranger sees")
	paths := regexp.MustCompile(`"GET (/[^"]+)"`).FindAllStringSubmatch(text, -1)
	if !found || !told || len(paths) < 3 {
		t.Fatalf("%d paths found", len(paths))
	}
	for _, m := range paths {
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("the page does not name %s", m[1])
		}
	}
}

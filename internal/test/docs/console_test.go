package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/action"
	"github.com/coteriedb/coterie/internal/lab"
)

// consoleAPI returns the block of docs/how-to/console.md that speaks with the API.
func consoleAPI(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile("(?s)```sh api\n(.*?)```").FindStringSubmatch(pages(t)["docs/how-to/console.md"])
	if m == nil {
		t.Fatal("docs/how-to/console.md has no block for the API")
	}
	return m[1]
}

// TestConsoleAPICanBeRead holds that a shell understands the block.
func TestConsoleAPICanBeRead(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-n")
	cmd.Stdin = strings.NewReader(consoleAPI(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestConsoleAPI runs the commands of docs/how-to/console.md on a lab, as a program that logs in by a password.
func TestConsoleAPI(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("makes a lab; COTERIE_LONG=1 runs it")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("NOT RUN: the page's commands need curl: apt-get install curl")
	}
	r := newReader(t)
	r.run("coterie lab up --replicas 1")
	var s lab.Status
	if err := json.Unmarshal([]byte(r.run("coterie lab status --json")), &s); err != nil || len(s.Replicas) != 1 || s.Replicas[0].Listener == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	n := s.Replicas[0]
	r.run("psql -Xqd '" + n.Listener.ReadWrite + "' -c \"CREATE ROLE vera LOGIN PASSWORD 'open sesame'\"")
	r.run("until psql -Xqd '" + n.Listener.ReadWrite + "' -c 'GRANT coterie_viewer TO vera'; do sleep 0.2; done") // once the primary has made that role
	r.run("coterie ca --node " + n.Dir + " > group.crt")
	out := r.run("set -e; NODE=" + strings.TrimSuffix(n.Console, "/") + " PASSWORD='open sesame'\n" + strings.ReplaceAll(consoleAPI(t), "curl ", "curl --fail-with-body "))
	for _, want := range []string{`"user":"vera"`, `"primary":"n1"`, `"n1"`, "PRIMARY", "event: status"} {
		if !strings.Contains(out, want) {
			t.Errorf("the answers do not have %s:\n%s", want, out)
		}
	}
	r.run("coterie lab down")
}

// TestConsoleChanges holds that the changes of docs/how-to/console.md are documents that the API takes, and that the
// page shows each kind of change.
func TestConsoleChanges(t *testing.T) {
	m := regexp.MustCompile("(?s)```sh changes\n(.*?)```").FindStringSubmatch(pages(t)["docs/how-to/console.md"])
	if m == nil {
		t.Fatal("docs/how-to/console.md has no block with changes")
	}
	shown := map[string]bool{"cancel-seed": true}
	for _, x := range regexp.MustCompile(`(?m)^change (\S+) '(.*)'$`).FindAllStringSubmatch(m[1], -1) {
		shown[x[1]] = true
		if _, err := action.Parse(x[1], "orders", []byte(x[2])); err != nil {
			t.Errorf("%s: %v", x[0], err)
		}
	}
	for _, name := range action.Names() {
		if !shown[name] {
			t.Errorf("%s is not shown", name)
		}
	}
}

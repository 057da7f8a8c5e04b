package e2e

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndHammerDB runs the scripts of docs/how-to/hammerdb.md, with one warehouse and for a minute, where HammerDB
// is installed.
func TestEndToEndHammerDB(t *testing.T) {
	program, err := exec.LookPath("hammerdbcli")
	if err != nil {
		t.Skip("NOT RUN: HammerDB is not installed here (no hammerdbcli in PATH), so nobody has tried the scripts of docs/how-to/hammerdb.md on this machine")
	}
	long(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	r, _ := s.Replica(*s.Primary)
	u, err := url.Parse(r.Listener.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	page, err := os.ReadFile("../../../docs/how-to/hammerdb.md")
	if err != nil {
		t.Fatal(err)
	}
	scripts := regexp.MustCompile("(?s)```tcl\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(scripts) != 2 {
		t.Fatalf("the page has %d scripts, want build.tcl and run.tcl", len(scripts))
	}
	change := strings.NewReplacer(
		"pg_host db1", "pg_host "+u.Hostname(), "pg_port 5432", "pg_port "+u.Port(), "pg_superuser postgres", "pg_superuser "+u.User.Username(),
		"pg_superuserpass secret", "pg_superuserpass "+password, "pg_count_ware 20", "pg_count_ware 1", "pg_num_vu 4", "pg_num_vu 1", "pg_rampup 1", "pg_rampup 0",
		"pg_duration 3", "pg_duration 1", "vuset vu 8", "vuset vu 2")
	for i, script := range scripts {
		path := filepath.Join(t.TempDir(), "script.tcl")
		if err := os.WriteFile(path, []byte(change.Replace(script[1])), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "tcl", "auto", path)
		cmd.Dir = filepath.Dir(program)
		out, err := cmd.CombinedOutput()
		want := []string{"TPCC SCHEMA COMPLETE", "NOPM"}[i]
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("script %d: %v, want %q in\n%s", i+1, err, want, out)
		}
	}
	g.down(t)
}

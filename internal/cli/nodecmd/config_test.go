package nodecmd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
)

// TestAWitnessHasNoServer holds that the help of a witness offers nothing about PostgreSQL, which it has none of.
func TestAWitnessHasNoServer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pg-bindir", "pg-major", "superuser"} {
		if Join(true).Flags().Lookup(name) != nil {
			t.Errorf("coterie witness takes --%s", name)
		}
		for _, c := range []*cobra.Command{Join(false), Init()} {
			if c.Flags().Lookup(name) == nil {
				t.Errorf("coterie %s does not take --%s", c.Name(), name)
			}
		}
	}
}

// TestAWitnessHasNoClients holds that a witness names no ports for clients, whatever uses them here, and refuses them.
func TestAWitnessHasNoClients(t *testing.T) {
	t.Parallel()
	c := Join(true)
	for _, name := range []string{"read-write", "read-only"} {
		if x := c.Flags().Lookup(name); !x.Hidden || x.Value.String() != "" {
			t.Errorf("coterie witness offers --%s %s", name, x.Value)
		}
	}
	f := NodeFlags{name: "w"}
	if cfg, err := f.config(t.Context(), "witness"); err != nil || cfg.ReadWrite.Advertise+cfg.ReadOnly.Advertise != "" {
		t.Errorf("%+v, %v", cfg, err)
	}
	f.ReadOnly = "127.0.0.1:0"
	if _, err := f.config(t.Context(), "witness"); err == nil || !strings.Contains(err.Error(), "serves no clients") {
		t.Errorf("%v", err)
	}
}

// TestConfigCheckForPrograms holds that a program is told of a good file and of a bad one on standard output, with the
// exit code that a person's shell gets.
func TestConfigCheckForPrograms(t *testing.T) {
	const witness = "node: n1\nkind: witness\ngroup: 0d9e8c5a\ngroup_name: sales\nendpoint:\n  listen: :5022\n"
	dir := t.TempDir()
	check := func(text string) (clitest.Ran, verdict) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, config.File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, v := clitest.Run(t, Config(), dir, "check", "--json"), verdict{}
		if err := json.Unmarshal([]byte(r.Out), &v); err != nil || v.File != filepath.Join(dir, config.File) {
			t.Errorf("%q: %q, %v", text, r.Out, err)
		}
		return r, v
	}
	if r, v := check(witness); r.Err != nil || !v.Good || v.Error != "" || v.Node != "n1" || v.Group != "sales" {
		t.Errorf("a good file: %v, %+v", r.Err, v)
	}
	hooked := witness + "webhooks:\n  - name: pager\n    url: https://alerts.example.com/TOKEN\n    secret_file: " + filepath.Join(dir, "secret") + "\n"
	for text, want := range map[string]string{"": "webhooks[0].secret_file: ", "whsec_c2hvcnQ=": "secret 1 is not", "whsec_" + strings.Repeat("QUJD", 10): ""} {
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.RemoveAll(filepath.Join(dir, "secret")); err != nil {
			t.Fatal(err)
		}
		if r, v := check(hooked); v.Good != (want == "") || (r.Code == 2) == v.Good || !strings.Contains(v.Error, want) || strings.Contains(v.Error, "TOKEN") {
			t.Errorf("the secret %q: %d, %+v", text, r.Code, v)
		}
	}
	for _, bad := range []string{"node: n1\n", witness + "nonsense: 1\n"} {
		if r, v := check(bad); r.Code != 2 || r.Err.Error() != "" || v.Good || v.Error == "" || strings.Contains(bad, "nonsense") != strings.Contains(v.Error, "nonsense") {
			t.Errorf("%q: %d, %v, %+v", bad, r.Code, r.Err, v)
		}
	}
}

// TestAgentWithoutRights holds that the agent, and the check of its file, say who may run them where the directory is
// another user's.
func TestAgentWithoutRights(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read every file")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.File), nil, 0); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]clitest.Ran{"agent": clitest.Run(t, Agent(), dir), "config": clitest.Run(t, Config(), dir, "check")} {
		if r.Code != 4 || !strings.Contains(r.Err.Error(), "may administer the node in "+dir) {
			t.Errorf("%s: %d, %v", name, r.Code, r.Err)
		}
	}
}

// TestPortsThatAreNone holds that a port which cannot be one is a mistake of the caller, who is not sent to look for a
// program that uses it.
func TestPortsThatAreNone(t *testing.T) {
	for _, port := range []string{"127.0.0.1:99999", ":nosuchservice"} {
		clitest.Run(t, Init(), filepath.Join(t.TempDir(), "n"), "--name", "n1", "--no-start", "--endpoint", port).Refused(t, 2, "is no port: choose a number")
	}
}

// TestConfigCheckReadsTheRules holds that a file of rules by which the agent would admit nobody is not called good.
func TestConfigCheckReadsTheRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules")
	for text, bad := range map[string]string{"host all all all md5\n": "", "host all all all pam\n": "line 1: method pam"} {
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkFiles(dir, config.Config{HBA: rules}); (err == nil) != (bad == "") || err != nil && !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, c := range []config.Config{{HBA: filepath.Join(dir, "absent")}, {ClientCA: rules}} {
		if err := checkFiles(dir, c); err == nil || !strings.Contains(err.Error(), "cannot be used") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestRulesOfACluster holds which rules of a cluster that is adopted are refused: before 16 a name that begins with a
// slash is no regular expression. Lines are joined as PostgreSQL joins them.
func TestRulesOfACluster(t *testing.T) {
	const text = "# none\nhost all /^a all md5\nlocal \\\r\r\n all all ldap\nhost all all samenet md5\\"
	for major, want := range map[int]string{
		15: "2 /^a is a name to PostgreSQL 15, and a regular expression to the listener|3 method ldap cannot be checked by the listener: use scram-sha-256 or cert|5 ",
		16: "2 |3 method ldap cannot be checked by the listener: use scram-sha-256 or cert|5 ",
	} {
		var got []string
		for _, r := range judgeRules(text, major) {
			got = append(got, fmt.Sprint(r.Line, " ", r.Problem))
		}
		if strings.Join(got, "|") != want {
			t.Errorf("PostgreSQL %d: %q", major, got)
		}
	}
}

// TestConfigSocket holds that a node on a machine with several is asked for the directory of its own server's socket,
// without an agent.
func TestConfigSocket(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{}
	for _, name := range []string{"n1", "n2"} {
		dir := t.TempDir()
		text := "node: " + name + "\nkind: replica\ngroup: 0d9e8c5a\ngroup_name: sales\nendpoint:\n  listen: :5022\nread_write:\n  listen: :5432\nread_only:\n  listen: :5433\npostgresql:\n  bin_dir: /usr/bin\n  data: " + dir + "/pgdata\n"
		if err := os.WriteFile(filepath.Join(dir, config.File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := config.NewLayout(dir)
		if err != nil {
			t.Fatal(err)
		}
		r := clitest.Run(t, Config(), dir, "socket")
		if r.Err != nil || r.Out != l.Sockets()+"\n" || dirs[r.Out] != "" {
			t.Errorf("%s: %q, %v", name, r.Out, r.Err)
		}
		dirs[r.Out] = name
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.File), []byte("node: w\nkind: witness\ngroup: 0d9e8c5a\ngroup_name: sales\nendpoint:\n  listen: :5022\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Config(), dir, "socket").Refused(t, 4, "has no PostgreSQL")
	clitest.Run(t, Config(), t.TempDir(), "socket").Refused(t, 2, config.File)
}

package hbacmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestFileOf holds which files become rules, and that what is wrong with one is said with its line.
func TestFileOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, refused := range map[string]string{
		"host all all all md5\n":                             "",
		"# office\r\nhost\tall all 10.0.0.0/8 md5\r\n\r\n":   "",
		"host all all all ldap\nhost all all 10.0.0.0/8 x\n": "line 1: method ldap",
		"":                             "would let nobody in",
		"# only a comment\n":           "would let nobody in",
		strings.Repeat("#", 1<<20+1):   "more than 1048576 bytes",
		"\ufeffhost all all all md5\n": "",
		strings.Repeat("host all all all md5\n", 501):                               "at most 500 lines",
		strings.Repeat("host all all all md5 # "+strings.Repeat("x", 400)+"\n", 99): "at most 500 lines and 32768 bytes",
	} {
		file := filepath.Join(dir, "rules")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{file, "-"} {
			a, err := fileOf(strings.NewReader(text), in)
			if (err == nil) != (refused == "") || err != nil && (!strings.Contains(err.Error(), refused) || fail.KindOf(err) != fail.Usage) {
				t.Errorf("%.40q from %s: %v", text, in, err)
			}
			if err == nil && len(a.Lines) == 0 {
				t.Errorf("%.40q: no rules", text)
			}
		}
	}
	for _, file := range []string{filepath.Join(dir, "absent"), dir} {
		if _, err := fileOf(nil, file); fail.KindOf(err) != fail.Usage {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestQueriesAreTheConsoles holds that each query of the commands is one that the console's grammar takes.
func TestQueriesAreTheConsoles(t *testing.T) {
	for _, q := range []string{list, show, history} {
		if ddl.Owns(q) {
			t.Errorf("%s is taken for a statement", q)
		}
	}
}

// TestWhatIsNotTold holds that a replica which does not say its rules is named, that rules which somebody else has
// changed meanwhile are not told as one's own, and that a witness does not say that nobody serves clients.
func TestWhatIsNotTold(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Group: "g", Replicas: []api.Replica{{Name: "n1"}, {Name: "n2"}, {Name: "w", Mode: ag.ConfigurationOnly}}})
	a.OnStatement("SET HBA", "ALTER AVAILABILITY GROUP")
	a.OnSQL("coterie.settings", []string{"node", "rules", "source"}, []any{"n1", "1 rule, 12", "the group"})
	a.OnSQL("FROM coterie.hba", []string{"line_number", "rule"}, []any{1, "host all all all md5"})
	file := filepath.Join(t.TempDir(), "rules")
	for rules, overtaken := range map[string]bool{"host all all all md5\n": false, "host all bob all md5\n": true} {
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		r := clitest.Run(t, HBA(), a.Layout.Dir, "set", file)
		if r.Code != 0 || !strings.Contains(r.Said, "n2 does not say which rules it has") || strings.Contains(r.Said, "w does not say") ||
			strings.Contains(r.Said, "n1 does not say") || strings.Contains(r.Said, "those of this command are not in force") != overtaken {
			t.Errorf("%s: %+v", rules, r)
		}
	}
	if r := clitest.Run(t, HBA(), a.Layout.Dir); r.Code != 0 || !strings.Contains(r.Said, "n2 does not say which rules it has") {
		t.Errorf("%+v", r)
	}
	w := clitest.NewAgent(t)
	w.SetStatus(api.Status{Node: "w", Group: "g"})
	w.OnSQL("coterie.settings", []string{"node", "rules", "source"})
	if r := clitest.Run(t, HBA(), w.Layout.Dir); r.Code != 0 || !strings.Contains(r.Said, "a witness is not told of them") || strings.Contains(r.Said, "does not say") {
		t.Errorf("%+v", r)
	}
}

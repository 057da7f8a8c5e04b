package settingscmd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// TestClauses holds that what is typed becomes a statement of the language, and that nothing typed leaves its literal.
func TestClauses(t *testing.T) {
	for _, name := range []string{"work_mem", "auto_explain.log_min_duration", " jit "} {
		for _, value := range []string{"64MB", "it's", "a, b", "x'); DROP", ""} {
			text := "ALTER AVAILABILITY GROUP g SET PARAMETER " + quoted(name) + " = " + ddl.Literal(value)
			s, err := ddl.Parse(text)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			a := s.Action.(ddl.SetParameters)
			if len(a.Parameters) != 1 || a.Parameters[0].Name != strings.TrimSpace(name) || a.Parameters[0].Value != value {
				t.Errorf("%s: %+v", text, a)
			}
		}
	}
	c := setCommand()
	c.Flags().String("node", t.TempDir(), "")
	c.SetArgs([]string{"work_mem"})
	c.SilenceUsage, c.SilenceErrors = true, true
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "NAME=VALUE") {
		t.Error(err)
	}
}

// TestQueriesAreTheConsoles holds that each query of the commands is one that the console's grammar takes.
func TestQueriesAreTheConsoles(t *testing.T) {
	for _, q := range []string{list, diff, history, answering} {
		if ddl.Owns(q) {
			t.Errorf("%s is taken for a statement", q)
		}
	}
}

// TestSilentReplicasAreNamed holds that a replica whose settings are not known is named, beside a table and where there
// is none.
func TestSilentReplicasAreNamed(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Group: "g", Replicas: []api.Replica{{Name: "n1"}, {Name: "n2"}, {Name: "w", Mode: ag.ConfigurationOnly}}})
	a.OnSQL("SELECT name, CASE WHEN hidden", []string{"name"}, []any{"work_mem"})
	a.OnSQL("SELECT name, node, CASE WHEN hidden", []string{"name"})
	a.OnSQL("SELECT DISTINCT node", []string{"node"}, []any{"n1"})
	for _, args := range [][]string{nil, {"list"}, {"diff"}} {
		r := clitest.Run(t, Settings(), a.Layout.Dir, args...)
		if r.Code != 0 || strings.Count(r.Said, "does not say") != 1 || !strings.Contains(r.Said, "n2 does not say which settings it has") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// TestHiddenValues holds that a table has no column for what (hidden) says in it, and that JSON has a field.
func TestHiddenValues(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Group: "g", Replicas: []api.Replica{{Name: "n1"}}})
	row := []any{"archive_command", "(hidden)", true}
	a.OnSQL("SELECT name, CASE WHEN hidden", []string{"name", "value", "hidden"}, row)
	a.OnSQL("SELECT name, node, CASE WHEN hidden", []string{"name", "value", "hidden"}, row)
	a.OnSQL("SELECT s.node, CASE WHEN s.hidden", []string{"name", "value", "hidden"}, row)
	a.OnSQL("SELECT DISTINCT node", []string{"node"}, []any{"n1"})
	for _, args := range [][]string{{"list"}, {"diff"}, {"get", "archive_command"}} {
		if r := clitest.Run(t, Settings(), a.Layout.Dir, args...); r.Err != nil || strings.Contains(r.Out, "HIDDEN") || strings.Contains(r.Out, "true") || !strings.Contains(r.Out, "(hidden)") {
			t.Errorf("%v: %v\n%s", args, r.Err, r.Out)
		}
		if r := clitest.Run(t, Settings(), a.Layout.Dir, append(args, "--json")...); r.Err != nil || !strings.Contains(r.Out, `"hidden": true`) {
			t.Errorf("%v: %v\n%s", args, r.Err, r.Out)
		}
	}
}

// rows keeps what a query answers, as lines.
type rows []string

func (r *rows) Columns([]catalog.Column) error { return nil }
func (r *rows) Notice(string)                  {}
func (r *rows) Row(values []any) error {
	*r = append(*r, fmt.Sprintf("%v %v %v", values[0], values[1], values[2]))
	return nil
}

// TestServersWithHiddenValuesAreCompared holds that settings diff says which servers agree in a value that may be
// secret.
func TestServersWithHiddenValuesAreCompared(t *testing.T) {
	t.Parallel()
	var f catalog.Facts
	f.Group.Replicas = []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}, {ID: "n4"}}
	of := func(command, open string) []catalog.Setting {
		return []catalog.Setting{
			{Name: "archive_command", Value: command},
			{Name: "restore_command", Value: "cp", Pending: true},
			{Name: "ssl_passphrase_command", Value: "x"},
			{Name: "work_mem", Value: open},
		}
	}
	f.Settings = func() map[ag.ReplicaID][]catalog.Setting {
		return map[ag.ReplicaID][]catalog.Setting{"n1": of("a", "1MB"), "n2": of("b", "1MB"), "n3": of("a", "2MB"), "n4": of("", "1MB")}
	}
	c := catalog.New(func(context.Context) catalog.Facts { return f })
	defer c.Close()
	var got rows
	if err := c.Query(t.Context(), catalog.Question{User: "me", Text: diff}, &got); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"archive_command n1 (hidden, differs)", "archive_command n2 (hidden, differs)", "archive_command n3 (hidden, same as n1)", "archive_command n4 ",
		"restore_command n1 (hidden, same)", "restore_command n2 (hidden, same)", "restore_command n3 (hidden, same)", "restore_command n4 (hidden, same)",
		"work_mem n1 1MB", "work_mem n2 1MB", "work_mem n3 2MB", "work_mem n4 1MB",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("it says\n%s", strings.Join(got, "\n"))
	}
}

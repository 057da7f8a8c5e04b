package settingscmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
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
	for _, q := range []string{list, diff, history} {
		if ddl.Owns(q) {
			t.Errorf("%s is taken for a statement", q)
		}
	}
}

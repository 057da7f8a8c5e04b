package ddl

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestHBA holds which rules a statement may have, and that the configuration gets them line by line.
func TestHBA(t *testing.T) {
	t.Parallel()
	many := "N'host all all all md5'" + strings.Repeat(", N'host all all all md5'", maxRuleLines-1)
	for text, want := range map[string]string{
		"SET HBA (N'host all all 10.0.0.0/8 md5')":                            "host all all 10.0.0.0/8 md5\n",
		"set hba ( 'local all all peer' , N'host all \"it''s\" all reject' )": "local all all peer\nhost all \"it's\" all reject\n",
		"SET HBA (N'# the office', N'', N'host\tall\tall all md5')":           "# the office\n\nhost\tall\tall all md5\n",
		"SET HBA (" + many + ")":                                              strings.Repeat("host all all all md5\n", maxRuleLines),
		"RESET HBA":                                                           "",
		"SET HBA (" + many + ", N'host all all all md5')":                     "refused",
		"SET HBA ()":                      "refused",
		"SET HBA (N'a' N'b')":             "refused",
		"SET HBA N'host all all all md5'": "refused",
		"SET HBA (N'host all all all md5\nhost all all all trust')": "refused",
		"SET HBA (N'" + strings.Repeat("x", maxRuleLine+1) + "')":   "refused",
		"SET HBA (host)":                      "refused",
		"RESET HBA (N'host all all all md5')": "refused",
		"SET HBA (N'" + strings.Repeat("x", 999) + "'" + strings.Repeat(", N'"+strings.Repeat("x", 999)+"'", 40) + ")": "refused",
	} {
		s, err := Parse("ALTER AVAILABILITY GROUP g " + text)
		if want == "refused" {
			if err == nil {
				t.Errorf("%.80s: taken", text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%.80s: %v", text, err)
			continue
		}
		g := ag.Group{Name: "g", HBA: "host all all all reject\n"}
		next, _, bad := s.Change(g, Context{Self: "a", Primary: "a"})
		if bad != nil || next.HBA != want {
			t.Errorf("%.80s: %q, %v", text, next.HBA, bad)
		}
		if s.Needs() != MayConfigureServers || len(s.Redacted()) > 300 {
			t.Errorf("%.80s: it needs %v, and a log gets %d bytes", text, s.Needs(), len(s.Redacted()))
		}
		if _, err := s.Checked(); err != nil {
			t.Errorf("%.80s: %v", text, err)
		}
	}
}

// TestRulesOf holds that a file becomes a statement, and a script gives a group its rules back, if a statement can.
func TestRulesOf(t *testing.T) {
	t.Parallel()
	if a := RulesOf("# one\r\nhost all all all md5\r\n\r\n"); !slices.Equal(a.Lines, []string{"# one", "host all all all md5"}) {
		t.Errorf("%q", a.Lines)
	}
	for text, want := range map[string]int{"": 1, "host all all all md5\n": 2, "host all all all md5 # \x01\n": 1, strings.Repeat("host all all all md5\n", maxRuleLines+1): 1} {
		if n := len(ScriptOf(ag.Group{Name: "g", HBA: text})); n != want {
			t.Errorf("%.40q: %d statements", text, n)
		}
	}
}

package ddl

import (
	"maps"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

func threeReplicas() ag.Group {
	g := ag.Group{Name: "g"}
	for _, id := range []ag.ReplicaID{"a", "b", "w"} {
		r := ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic}
		if id == "w" {
			r.AvailabilityMode, r.FailoverMode = ag.ConfigurationOnly, ag.Manual
		}
		g.Replicas = append(g.Replicas, r)
	}
	return g
}

func TestParameters(t *testing.T) {
	g := threeReplicas()
	where := Context{Self: "a", Primary: "a"}
	for _, tt := range []struct {
		text string
		want map[string]string // of replica b; nil: refused
	}{
		{"SET PARAMETER work_mem = '64MB', MAX_CONNECTIONS = 200", map[string]string{"work_mem": "64MB", "max_connections": "200"}},
		{"SET PARAMETER work_mem TO 1GB FOR REPLICA ON N'B'", map[string]string{"work_mem": "1GB", "max_connections": "200"}},
		{"SET PARAMETER auto_explain.log_min_duration = -1, random_page_cost = 1.1, jit = off", map[string]string{
			"work_mem": "1GB", "max_connections": "200", "auto_explain.log_min_duration": "-1", "random_page_cost": "1.1", "jit": "off",
		}},
		{"RESET PARAMETER [auto_explain].[log_min_duration], jit, random_page_cost", map[string]string{"work_mem": "1GB", "max_connections": "200"}},
		{"RESET PARAMETER work_mem FOR REPLICA b", map[string]string{"work_mem": "64MB", "max_connections": "200"}},
		{"SET PARAMETER log_line_prefix = N'%m ''x'' '", map[string]string{"work_mem": "64MB", "max_connections": "200", "log_line_prefix": "%m 'x' "}},
		{"SET PARAMETER work_mem = '1', work_mem = '2'", nil},
		{"SET PARAMETER work_mem = 64 MB", nil},
		{"SET PARAMETER work_mem", nil},
		{"SET PARAMETER [work mem] = 1", nil},
		{"SET PARAMETER \"a;b\" = 1", nil},
		{"SET PARAMETER a = 'x\ny'", nil},
		{"SET PARAMETER a = '" + strings.Repeat("x", 1001) + "'", nil},
		{"SET PARAMETER " + strings.Repeat("x.", 64) + "x = 1", nil},
		{"SET PARAMETER work_mem = 1 FOR REPLICA nobody", nil},
		{"SET PARAMETER work_mem = 1 FOR REPLICA w", nil},
	} {
		s, err := Parse("ALTER AVAILABILITY GROUP g " + tt.text)
		var next ag.Group
		if err == nil {
			if again, err := Parse(s.String()); err != nil || !again.Equal(s) {
				t.Errorf("%s is printed as %s: %v", tt.text, s, err)
			}
			next, _, err = s.Change(g, where)
		}
		switch {
		case tt.want == nil && err == nil:
			t.Errorf("%.60s: accepted", tt.text)
		case tt.want != nil && err != nil:
			t.Errorf("%s: %v", tt.text, err)
		case tt.want != nil:
			if got := next.ParametersOf("b"); !maps.Equal(got, tt.want) {
				t.Errorf("%s: b has %v, want %v", tt.text, got, tt.want)
			}
			g = next
		}
	}
	if _, _, err := mustParse(t, "ALTER AVAILABILITY GROUP g RESET PARAMETER work_mem, max_connections, log_line_prefix").Change(g, where); err != nil {
		t.Error(err)
	}
	if got := g.ParametersOf("b"); len(got) != 3 {
		t.Errorf("a change has changed the configuration that it was given: %v", got)
	}
}

func mustParse(t *testing.T, text string) Statement {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

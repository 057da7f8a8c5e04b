package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestRefusedClientsAreReported holds that a node reports why it refuses clients or does not serve the listener, at
// once when that changes, and with texts of bounded length.
func TestRefusedClientsAreReported(t *testing.T) {
	t.Parallel()
	why := []string{"nobody is admitted: " + strings.Repeat("é", reasonText)}
	for what, x := range map[string]struct {
		of   func(*Config) *func() []string
		said func(Status) [2][]string // to the others, and to the judgement
	}{
		"refused":  {func(c *Config) *func() []string { return &c.NoLogins }, func(s Status) [2][]string { return [2][]string{s.NoLogins, s.member().NoLogins} }},
		"unserved": {func(c *Config) *func() []string { return &c.Unserved }, func(s Status) [2][]string { return [2][]string{s.Unserved, s.member().Unserved} }},
	} {
		var now []string
		a := &Agent{cfg: Config{Self: "a"}}
		*x.of(&a.cfg) = func() []string { return now }
		before := a.status(ag.View{Self: "a"}, ag.Plan{})
		now = why
		after := a.status(ag.View{Self: "a"}, ag.Plan{})
		if before.Key() == after.Key() {
			t.Errorf("clients are %s, and the status counts as the one before", what)
		}
		said := x.said(after)
		if len(said[0]) != 1 || !strings.HasPrefix(said[0][0], "nobody is admitted: é") || len(said[0][0]) > reasonText || !slices.Equal(said[0], said[1]) {
			t.Errorf("%s: the judgement is told %q", what, said)
		}
	}
}

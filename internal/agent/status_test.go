package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestRefusedClientsAreReported holds that a node reports why it refuses clients, at once when that changes, and with
// a text of bounded length.
func TestRefusedClientsAreReported(t *testing.T) {
	t.Parallel()
	var refused []string
	a := &Agent{cfg: Config{Self: "a", NoLogins: func() []string { return refused }}}
	before := a.status(ag.View{Self: "a"}, ag.Plan{})
	refused = []string{"nobody is admitted: " + strings.Repeat("é", noLoginText)}
	after := a.status(ag.View{Self: "a"}, ag.Plan{})
	if before.Key() == after.Key() {
		t.Error("clients are refused, and the status counts as the one before")
	}
	said := after.member().NoLogins
	if len(said) != 1 || !strings.HasPrefix(said[0], "nobody is admitted: é") || len(said[0]) > noLoginText || !slices.Equal(said, after.NoLogins) {
		t.Errorf("the judgement is told %q", said)
	}
}

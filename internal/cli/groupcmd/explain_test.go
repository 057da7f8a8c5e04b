package groupcmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
)

// TestExplanationOfACutOffNode checks that a node without a majority prints its own decisions and a hint to ask another
// node. A node that misses only a minority prints no hint.
func TestExplanationOfACutOffNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked   []ag.ReplicaID
		missing map[ag.ReplicaID]string
		warns   bool
	}{
		"cut off":           {[]ag.ReplicaID{"n2"}, map[ag.ReplicaID]string{"n1": "refused", "n3": "refused"}, true},
		"one of two":        {[]ag.ReplicaID{"n2"}, map[ag.ReplicaID]string{"n1": "refused"}, true},
		"one of three down": {[]ag.ReplicaID{"n2", "n3"}, map[ag.ReplicaID]string{"n1": "refused"}, false},
		"all answer":        {[]ag.ReplicaID{"n1", "n2", "n3"}, nil, false},
	} {
		var b strings.Builder
		if err := printExplanation(&b, &decisions.Explanation{Node: "n2", Asked: c.asked, Missing: c.missing}, detail{}); err != nil {
			t.Fatal(err)
		}
		if warns := strings.Contains(b.String(), "ask another node"); warns != c.warns {
			t.Errorf("%s: %s", name, b.String())
		}
		for id := range c.missing {
			if !strings.Contains(b.String(), string(id)+" did not answer") {
				t.Errorf("%s: nothing of %s: %s", name, id, b.String())
			}
		}
	}
}

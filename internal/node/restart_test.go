package node

import (
	"slices"
	"testing"
)

// TestSuccessorArgs checks that an agent which init or join started in the foreground is followed by an agent.
func TestSuccessorArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want []string }{
		{[]string{"coterie", "agent", "-v", "--node", "/n"}, []string{"coterie", "agent", "-v", "--node", "/n"}},
		{[]string{"coterie", "--node", "/n", "agent"}, []string{"coterie", "--node", "/n", "agent"}},
		{[]string{"coterie", "init", "--group", "g"}, []string{"coterie", "agent", "--node", "/n"}},
		{[]string{"coterie", "init", "--group", "agent"}, []string{"coterie", "agent", "--node", "/n"}},
		{[]string{"coterie", "--node", "agent", "join", "-"}, []string{"coterie", "agent", "--node", "/n"}},
		{[]string{"coterie", "--node=/n", "agent"}, []string{"coterie", "--node=/n", "agent"}},
		{[]string{"coterie", "join", "-"}, []string{"coterie", "agent", "--node", "/n"}},
	} {
		if got := successorArgs(tt.args, "/n"); !slices.Equal(got, tt.want) {
			t.Errorf("after %v: %v, want %v", tt.args, got, tt.want)
		}
	}
}

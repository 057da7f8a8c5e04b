package operations

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
)

func TestAProfileThatAHostCannotHoldIsRefused(t *testing.T) {
	snap := &agent.Snapshot{
		Group:    ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}},
		Statuses: map[ag.ReplicaID]agent.Status{"n1": {Fence: 40 * time.Millisecond}, "n2": {Fence: 900 * time.Millisecond}},
	}
	if err := everyHostHolds(ag.Profiles["default"], snap); err != nil {
		t.Error(err)
	}
	err := everyHostHolds(ag.Profiles["fast"], snap)
	if err == nil {
		t.Fatal("n2 takes 0.9 s to fence, and fast was accepted")
	}
	for _, part := range []string{"n2", "900ms", "O/(1+rho)", "2.97s", "3.122s"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

package quorum

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestTransfereeIsInReach: the quorum's leadership goes to a voter in reach, a witness first.
func TestTransfereeIsInReach(t *testing.T) {
	voters := []ag.Replica{
		{ID: "n1", EtcdID: 1},
		{ID: "n2", EtcdID: 2},
		{ID: "n3"},
		{ID: "w", EtcdID: 4, AvailabilityMode: ag.ConfigurationOnly},
	}
	for _, c := range []struct {
		self  ag.ReplicaID
		among []ag.ReplicaID
		want  uint64
	}{
		{"n1", []ag.ReplicaID{"n2", "n3", "w"}, 4},
		{"n1", []ag.ReplicaID{"n2", "n3"}, 2},
		{"n2", []ag.ReplicaID{"n1"}, 1},
		{"n2", []ag.ReplicaID{"n3"}, 0}, // not a member of the quorum yet
		{"n2", nil, 0},
		{"n1", []ag.ReplicaID{"n1"}, 0},
	} {
		if got := transferee(voters, c.self, c.among); got != c.want {
			t.Errorf("from %s, with %v in reach: %d, want %d", c.self, c.among, got, c.want)
		}
	}
}

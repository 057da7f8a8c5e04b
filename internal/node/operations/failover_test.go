package operations

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestFailoverRefusals holds the numbers that administrators know against what is known before a failover begins.
func TestFailoverRefusals(t *testing.T) {
	snapshot := func() etcd.Snapshot {
		replica := func(id ag.ReplicaID) ag.Replica {
			return ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true}
		}
		w := replica("w")
		w.AvailabilityMode = ag.ConfigurationOnly
		return etcd.Snapshot{
			Group: ag.Group{Name: "DemoAG", Replicas: []ag.Replica{replica("a"), replica("b"), replica("c"), w}},
			Record: ag.Record{
				Epoch: ag.EpochRecord{Epoch: 7, Phase: ag.PhaseLead, Leader: "a"},
				State: ag.State{Leader: "a", V: []ag.Member{{ID: "b"}}, K: 1},
			},
		}
	}
	operation := func(e ag.Epoch) json.RawMessage {
		b, err := json.Marshal(ag.Op{Epoch: e})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name   string
		to     ag.ReplicaID
		force  bool
		change func(*etcd.Snapshot)
		want   int
	}{
		{"to a synchronized one", "b", false, nil, 0},
		{"to the primary", "a", false, nil, 41122},
		{"to one that is not synchronized", "c", false, nil, 41142},
		{"to one that is not synchronized, by force", "c", true, nil, 0},
		{"with nobody to wait for", "b", false, func(x *etcd.Snapshot) { x.Record.State.K = 0 }, 41142},
		{"to the witness", "w", true, nil, 41121},
		{"to nobody", "z", true, nil, 41167},
		{"to one that has not joined", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.NotJoined }, 41142},
		{"to a node without a part", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.Detached }, 41167},
		{"while one is under way", "b", false, func(x *etcd.Snapshot) { x.Op = operation(7) }, 41113},
		{"after one of an earlier epoch", "b", false, func(x *etcd.Snapshot) { x.Op = operation(6) }, 0},
	} {
		x := snapshot()
		if tt.change != nil {
			tt.change(&x)
		}
		got, hint := 0, "-"
		var known fail.Error
		if errors.As(failoverRefusal(x, ddl.Failover{Force: tt.force}, tt.to), &known) {
			got, hint = known.Number, known.Hint
		}
		if got != tt.want || hint == "" {
			t.Errorf("%s: %d (%s), want %d", tt.name, got, hint, tt.want)
		}
	}
	var noQuorum fail.Error
	if !errors.As(withSQLState(etcd.ErrNoQuorum), &noQuorum) || noQuorum.Number != 988 || noQuorum.Kind != fail.Unhealthy {
		t.Errorf("no quorum: %+v", noQuorum)
	}
}

package ag

import (
	"errors"
	"testing"
)

func TestAcknowledged(t *testing.T) {
	lead := func(v []Member, k int, p []ReplicaID, n int) View {
		return View{
			Self:  "a",
			Local: Local{Server: ServerWritable, Sync: Sync{P: p, N: n}},
			Record: Record{
				Epoch: EpochRecord{Epoch: 3, Phase: PhaseLead, Leader: "a"},
				State: State{Epoch: 3, Leader: "a", V: v, K: k},
			},
		}
	}
	both := []Member{{"b", "copy b"}, {"c", "copy c"}}
	b, c := Stream{Member: "b", Copy: "copy b", Open: true, Flush: 100}, Stream{Member: "c", Copy: "copy c", Open: true, Flush: 90}
	other := lead(both, 1, []ReplicaID{"b", "c"}, 1)
	other.Record.Epoch.Leader = "b"
	promoting := lead(both, 1, []ReplicaID{"b", "c"}, 1)
	promoting.Record.Epoch.Phase = PhasePromote
	older := lead(both, 1, []ReplicaID{"b", "c"}, 1)
	older.Record.State.Epoch = 2
	down := lead(both, 1, []ReplicaID{"b", "c"}, 1)
	down.Local.Server = ServerDown
	for _, x := range []struct {
		name    string
		view    View
		lsn     LSN
		streams []Stream
		want    bool
		err     error
	}{
		{"one of two", lead(both, 1, []ReplicaID{"b", "c"}, 1), 100, []Stream{b, c}, true, nil},
		{"not yet", lead(both, 1, []ReplicaID{"b", "c"}, 1), 101, []Stream{b, c}, false, nil},
		{"two asked, one has it", lead(both, 2, []ReplicaID{"b", "c"}, 2), 100, []Stream{b, c}, false, nil},
		{"two asked, both have it", lead(both, 2, []ReplicaID{"b", "c"}, 2), 90, []Stream{b, c}, true, nil},
		{"two streams of one member are one", lead(both, 2, []ReplicaID{"b", "c"}, 2), 90, []Stream{b, b}, false, nil},
		{"somebody who is not asked", lead(both, 1, []ReplicaID{"c"}, 1), 100, []Stream{b, c}, false, nil},
		{"another copy", lead([]Member{{"b", "copy 2"}, {"c", "copy c"}}, 1, []ReplicaID{"b", "c"}, 1), 100, []Stream{b, c}, false, nil},
		{"a closed stream", lead(both, 1, []ReplicaID{"b"}, 1), 100, []Stream{{Member: "b", Copy: "copy b", Flush: 100}}, false, nil},
		{"degraded on record", lead(nil, 0, nil, 0), 100, nil, true, nil},
		{"nobody is asked and the record says otherwise", lead(both, 1, nil, 0), 100, []Stream{b, c}, false, ErrNotCovered},
		{"the record wants more", lead(both, 2, []ReplicaID{"b", "c"}, 1), 50, []Stream{b, c}, false, ErrNotCovered},
		{"another leads", other, 50, []Stream{b, c}, false, ErrNotLeading},
		{"promoted, not leading yet", promoting, 50, []Stream{b, c}, false, ErrNotLeading},
		{"the state is of the epoch before", older, 50, []Stream{b, c}, false, ErrNotLeading},
		{"the server is down", down, 50, []Stream{b, c}, false, ErrNotLeading},
	} {
		if got, err := x.view.Acknowledged(x.lsn, x.streams); got != x.want || !errors.Is(err, x.err) {
			t.Errorf("%s: %v, %v", x.name, got, err)
		}
	}
}

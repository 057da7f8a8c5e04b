package agent

import (
	"context"
	"log/slog"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// node is a primary that b streams from.
type node struct {
	Store
	Downstream
	copy ag.CopyID
}

type nodeOthers struct { // not used
	Peers
	Sessions
}

type nodeUpstream struct{ Upstream }

func (nodeUpstream) Status() UpstreamStatus { return UpstreamStatus{} }

type nodeKeeper struct{ Keeper }

func (nodeKeeper) Status(context.Context) (KeeperState, error) { return KeeperState{ServerPID: 1}, nil }

type nodeInstance struct{ Instance }

func (nodeInstance) Data() ag.DataState             { return ag.DataPresent }
func (nodeInstance) InsideCopy() (ag.CopyID, error) { return "", nil }
func (nodeInstance) Observe(context.Context) (Observation, error) {
	return Observation{P: []ag.ReplicaID{"b"}, N: 1}, nil
}

func (n *node) Read(context.Context) (Snapshot, error) {
	return Snapshot{Group: ag.Group{Replicas: []ag.Replica{{ID: "a"}, {ID: "b"}}}}, nil
}

func (n *node) Streams() []Stream { return []Stream{{Member: "b", Copy: n.copy, Flush: 100}} }

// The flushed position of a member's old copy proves nothing about the new one. The proof of the setting is void in the
// very view that shows the new copy, and a proof under way counts no more.
func TestAnotherCopyVoidsTheProofAtOnce(t *testing.T) {
	n := &node{copy: "old"}
	a, err := New(Config{
		Self: "a", Marks: marks.Open(t.TempDir()), Store: n, Instance: nodeInstance{}, Keeper: nodeKeeper{}, Upstream: nodeUpstream{},
		Downstream: n, Peers: nodeOthers{}, Sessions: nodeOthers{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.leading = &leadership{1, map[ag.ReplicaID]*streamFacts{}}
	a.sync = ag.Sync{P: []ag.ReplicaID{"b"}, N: 1, Proven: true, Barrier: 50}
	if v := a.observe(t.Context()); !v.Local.Sync.Proven || len(v.Streams) != 1 {
		t.Fatalf("%+v", v)
	}
	before := a.voided
	n.copy = "new"
	if v := a.observe(t.Context()); v.Local.Sync.Proven || v.Streams[0].Copy != "new" {
		t.Errorf("%+v, %+v", v.Local.Sync, v.Streams)
	}
	if a.voided == before {
		t.Error("a proof under way would count")
	}
}

func (nodeInstance) FlushLSN(context.Context) (ag.LSN, error) { return 60, nil }

// A stray walsender that is found while a proof is under way may have acknowledged a commit behind the barrier of that
// proof. So that proof releases no answer.
func TestStrayVoidsAProofUnderWay(t *testing.T) {
	n := &node{copy: "b1"}
	a, err := New(Config{
		Self: "a", Marks: marks.Open(t.TempDir()), Store: n, Instance: nodeInstance{}, Keeper: nodeKeeper{}, Upstream: nodeUpstream{},
		Downstream: n, Peers: nodeOthers{}, Sessions: nodeOthers{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range []bool{false, true} {
		a.sync = ag.Sync{}
		applied, err := a.settleSync(a.observe(t.Context()))(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if found {
			a.suspected.Add(1)
			a.observe(t.Context())
		}
		if applied(); a.sync.Proven == found {
			t.Errorf("a stray was found: %t, and the proof counts: %t", found, a.sync.Proven)
		}
	}
}

// A member's report about another copy says nothing about the copy that is counted.
func TestSaysGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		said Status
		want bool
	}{
		{"it has its data", Status{Copy: "B", Data: ag.DataPresent, Rule: ag.RuleStandBy}, false},
		{"it has none", Status{Copy: "B", Data: ag.DataEmpty, Rule: ag.RuleSeed}, true},
		{"it waits to be dropped", Status{Copy: "B", Data: ag.DataPresent, Rule: ag.RuleAwaitDrop}, true},
		{"it had none, before it got this copy", Status{Data: ag.DataEmpty, Rule: ag.RuleSeed}, false},
		{"its last copy waited to be dropped", Status{Copy: "B1", Data: ag.DataPresent, Rule: ag.RuleAwaitDrop}, false},
	} {
		a := &Agent{}
		a.snapshot.Store(&Snapshot{Statuses: map[ag.ReplicaID]Status{"b": tt.said}})
		v := ag.View{Record: ag.Record{State: ag.State{V: []ag.Member{{ID: "b", Copy: "B"}}}}}
		if got := a.saysGone(v, "b"); got != tt.want || a.saysGone(v, "c") {
			t.Errorf("%s: gone is %v", tt.name, got)
		}
		if v.Record.State.V = nil; a.saysGone(v, "b") {
			t.Errorf("%s, and is not counted: gone", tt.name)
		}
	}
}

// TestSaysBare: a member's word that it has no whole copy of the group's cluster counts in the epoch in which it is
// given.
func TestSaysBare(t *testing.T) {
	for _, tt := range []struct {
		name string
		said Status
		want bool
	}{
		{"a copy of another cluster", Status{Epoch: 7, Data: ag.DataForeign, Copy: "B"}, true},
		{"no copy", Status{Epoch: 7, Data: ag.DataEmpty}, true},
		{"half a copy", Status{Epoch: 7, Data: ag.DataPartial}, true},
		{"a copy", Status{Epoch: 7, Data: ag.DataPresent, Copy: "B"}, false},
		{"another cluster's, in an earlier epoch", Status{Epoch: 6, Data: ag.DataForeign, Copy: "B"}, false},
		{"nothing about its data", Status{Epoch: 7}, false},
	} {
		a := &Agent{}
		a.snapshot.Store(&Snapshot{Statuses: map[ag.ReplicaID]Status{"b": tt.said}})
		v := ag.View{Record: ag.Record{Epoch: ag.EpochRecord{Epoch: 7}}}
		if got := a.saysBare(v, "b"); got != tt.want || a.saysBare(v, "c") {
			t.Errorf("%s: bare is %v", tt.name, got)
		}
	}
}

// committed is a store that keeps the last transaction.
type committed struct {
	Store
	last ag.Commit
}

func (s *committed) Commit(_ context.Context, c ag.Commit) error { s.last = c; return nil }

// TestCommitComparesTheConfiguration: a transaction that changes /epoch, /state or a vote takes effect under the
// configuration by which it was decided. The name in a vote may be another node's since. /lead does not depend on it.
func TestCommitComparesTheConfiguration(t *testing.T) {
	for name, tt := range map[string]struct {
		commit ag.Commit
		want   int64
	}{
		"/state":  {ag.Commit{State: &ag.State{}}, 7},
		"a vote":  {ag.Commit{Vote: &ag.Vote{}}, 7},
		"no vote": {ag.Commit{Unvote: "b"}, 7},
		"/lead":   {ag.Commit{Lead: &ag.Lead{}}, 0},
	} {
		store := &committed{}
		a := &Agent{cfg: Config{Store: store}}
		a.snapshot.Store(&Snapshot{GroupRev: 7})
		v := ag.View{Profile: ag.Profiles["default"]}
		if !a.commit(t.Context(), v, ag.Plan{Commit: &tt.commit}) || store.last.Group != tt.want {
			t.Errorf("%s: compared with %d, want %d", name, store.last.Group, tt.want)
		}
	}
}

// answers is a store that gives these answers, one after the other.
type answers struct {
	Store
	next []Snapshot
}

func (s *answers) Read(context.Context) (Snapshot, error) {
	x := s.next[0]
	s.next = s.next[1:]
	return x, nil
}

// TestRevisionOfAWitness: a revision that no replica's member has told, which may be a thief's, is not remembered: the
// store would be refused for ever. An earlier one is refused from every member.
func TestRevisionOfAWitness(t *testing.T) {
	of := func(rev int64, byWitness bool) Snapshot {
		return Snapshot{Group: ag.Group{Replicas: []ag.Replica{{ID: "a"}, {ID: "w"}}}, StoreID: 7, StoreRev: rev, ByWitness: byWitness}
	}
	store := &answers{next: []Snapshot{of(100, false), of(1<<62, true), of(101, false), of(90, true), of(102, true), of(101, false)}}
	a, err := New(Config{Self: "w", Marks: marks.Open(t.TempDir()), Store: store, Peers: nodeOthers{}, Sessions: nodeOthers{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, true, false, true, true} {
		if v := a.observe(t.Context()); v.Quorum != want {
			t.Errorf("read %d: believed %t: %s", i, v.Quorum, v.Untrusted)
		}
	}
}

// TestStorageThatNobodyCanAskIsNoProblem holds that a mirror whose state an ordinary user may not ask, as that of LVM,
// does not degrade the group for ever; one that has lost a side does.
func TestStorageThatNobodyCanAskIsNoProblem(t *testing.T) {
	v := storage.Volume{Dir: "/srv/pg", Kind: storage.LVM, Name: "vg/pg", Mirrored: true, State: storage.Unknown, Why: "lvs: permission denied"}
	if got := (Wellness{Storage: []storage.Volume{v}}).trouble(); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	v.State, v.Devices = storage.Degraded, []storage.Device{{Name: "/dev/sda", State: "ok"}, {Name: "/dev/sdb", State: "missing"}}
	if got := (Wellness{Storage: []storage.Volume{v}}).trouble(); len(got) != 1 || got[0].Run == "" {
		t.Errorf("%+v", got)
	}
}

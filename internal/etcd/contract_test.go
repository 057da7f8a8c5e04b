package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/standalone"
)

// world opens Stores of one fresh group.
type world struct {
	open func(t *testing.T, group ag.GroupID, replica ag.ReplicaID, attempt string) *Store
	put  func(t *testing.T, key string, value string) // without any guard, below the prefix of testGroup
}

// TestContract runs the same suite against etcd and against Memory, so that tests with Memory mean something.
func TestContract(t *testing.T) {
	tests := map[string]func(t *testing.T, w world){
		"bootstrap":          testBootstrap,
		"replace":            testReplace,
		"pass":               testPass,
		"commit":             testCommit,
		"takeover race":      testTakeoverRace,
		"votes":              testVotes,
		"renew":              testRenew,
		"release":            testRelease(false),
		"release by renewal": testRelease(true),
		"group and op":       testGroupAndOp,
		"status":             testStatus,
		"tokens":             testTokens,
		"two groups":         testTwoGroups,
		"unreadable values":  testCorrupt,
		"limits":             testLimits,
		"watch":              testWatch,
		"replica comes back": testReplicaComesBack,
	}
	t.Run("memory", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { test(t, memoryWorld()) })
		}
	})
	t.Run("etcd", func(t *testing.T) {
		c := newCluster(t, "n1")
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { test(t, etcdWorld(t, StoreConfig{Dial: c.dial, Endpoints: []string{"n1"}})) })
		}
	})
	t.Run("external", func(t *testing.T) {
		x := external(standalone.New(t, filepath.Join(shortDir(t), "etcd")))
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { test(t, etcdWorld(t, StoreConfig{Dial: x.Dial, Endpoints: x.Endpoints})) })
		}
	})
}

func memoryWorld() world {
	m := NewMemory(testGroup)
	return world{
		open: func(t *testing.T, group ag.GroupID, replica ag.ReplicaID, attempt string) *Store {
			s, err := m.Open(StoreConfig{Group: group, Replica: replica, Attempt: attempt})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		put: func(t *testing.T, key, value string) { m.Put(key, []byte(value)) },
	}
}

// etcdWorld empties the store first: one member serves all tests.
func etcdWorld(t *testing.T, reach StoreConfig) world {
	reach.CallTimeout, reach.Logger = 5*time.Second, testLogger(t)
	open := func(t *testing.T, group ag.GroupID, replica ag.ReplicaID, attempt string) *Store {
		c := reach
		c.Group, c.Replica, c.Attempt = group, replica, attempt
		return openTest(t, c)
	}
	raw, at := open(t, testGroup, "", "raw"), reach.Endpoints[0]
	force := func(t *testing.T, o op) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := raw.back.txn(ctx, at, txn{Then: []op{o}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, group := range []ag.GroupID{testGroup, otherGroup} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		res, err := raw.back.txn(ctx, at, txn{Then: []op{list("/coterie/v1/"+string(group)+"/", 0)}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range res.reads[0] {
			force(t, del(k.key))
		}
	}
	return world{
		open: open,
		put:  func(t *testing.T, key, value string) { force(t, put(raw.keys.prefix+key, []byte(value))) },
	}
}

const otherGroup ag.GroupID = "6f1c1f3e-6a2b-4c57-9d0a-0c9a3a5b7e1f"

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func firstGroup(id ag.GroupID) ag.Group {
	return ag.Group{ID: id, Name: "orders", Replicas: []ag.Replica{{ID: "n1", Voter: true}, {ID: "n2", Voter: true}, {ID: "n3", Voter: true}}}
}

var (
	firstEpoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "n1", TLI: 1, MaxTLI: 1}
	firstState = ag.State{Epoch: 1, Leader: "n1", Copy: "c1", Seq: 1}
)

// begun returns a Store whose group has its first record, and that record.
func begun(t *testing.T, w world) (*Store, ag.Record) {
	t.Helper()
	s := w.open(t, testGroup, "n1", "n1-1")
	ctx := testContext(t)
	if err := s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s, snap.Record
}

func want(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			return
		}
	}
	t.Fatalf("got error %v, want %v", err, targets)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testBootstrap(t *testing.T, w world) {
	ctx := testContext(t)
	s := w.open(t, testGroup, "n1", "n1-1")
	_, err := s.Read(ctx)
	want(t, err, ErrNoRecord)
	ok(t, s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	want(t, s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState), ErrConflict)
	snap, err := s.Read(ctx)
	ok(t, err)
	r := snap.Record
	if !reflect.DeepEqual(r.Epoch, firstEpoch) || r.State.Copy != "c1" || r.Revs.Epoch == 0 || r.Revs.Epoch != r.Revs.State || r.Revs.Lead != 0 {
		t.Fatalf("record after bootstrap: %+v", r)
	}
	if snap.Group.Name != "orders" || len(snap.Group.Replicas) != 3 || snap.GroupRev != r.Revs.Epoch || snap.StoreRev < snap.GroupRev || snap.Op != nil {
		t.Fatalf("snapshot after bootstrap: %+v", snap)
	}
}

func testReplace(t *testing.T, w world) {
	ctx := testContext(t)
	s := w.open(t, testGroup, "n1", "n1-1")
	later := ag.EpochRecord{Epoch: 7, Phase: ag.PhasePromote, Leader: "n2", TLI: 9, MaxTLI: 9, Forced: true}
	st := ag.State{Leader: "n2", Copy: "c2", Seq: 30}
	ok(t, s.Replace(ctx, firstGroup(testGroup), firstEpoch, firstState)) // an empty store
	snap, err := s.Read(ctx)
	ok(t, err)
	if _, err := s.Renew(ctx, snap.Record.Revs.Epoch, ag.Lead{Epoch: 1, Holder: "n1"}); err != nil {
		t.Fatal(err)
	}
	ok(t, s.Replace(ctx, firstGroup(testGroup), later, st)) // an old record
	ok(t, s.Replace(ctx, firstGroup(testGroup), later, st)) // again
	snap, err = s.Read(ctx)
	ok(t, err)
	if !reflect.DeepEqual(snap.Record.Epoch, later) || snap.Record.State.Seq != 30 || snap.Record.Revs.Lead != 0 || snap.Store == 0 {
		t.Fatalf("%+v", snap)
	}
	want(t, s.Replace(ctx, firstGroup(testGroup), firstEpoch, firstState), ErrConflict)
}

func testPass(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	_, err := s.Renew(ctx, r.Revs.Epoch, ag.Lead{Epoch: 1, Holder: "n1", Released: true})
	ok(t, err)
	from, err := s.Read(ctx)
	ok(t, err)
	g, e := from.Group, ag.EpochRecord{Epoch: 2, Phase: ag.PhasePromote, Leader: "n1", TLI: 3, MaxTLI: 3, Copy: "c9"}
	g.SystemID = "9"
	st := ag.State{Leader: "n1", Copy: "c9", V: []ag.Member{}, Seq: from.Record.State.Seq + 1}
	if err := s.Pass(ctx, from, g, ag.EpochRecord{Epoch: 3, Phase: ag.PhasePromote, Leader: "n1"}, st); err == nil {
		t.Fatal("an epoch was left out")
	}
	_, err = s.UpdateGroup(ctx, from.GroupRev, from.Group) // as another administrator would
	ok(t, err)
	want(t, s.Pass(ctx, from, g, e, st), ErrConflict)
	now, err := s.Read(ctx)
	ok(t, err)
	if now.Group.SystemID == "9" || now.Record.Epoch.Epoch != 1 || now.Record.State.Copy != from.Record.State.Copy {
		t.Fatalf("a part of it was written: %+v", now)
	}
	ok(t, s.Pass(ctx, now, g, e, st))
	got, err := s.Read(ctx)
	ok(t, err)
	if got.Group.SystemID != "9" || !reflect.DeepEqual(got.Record.Epoch, e) || got.Record.State.Copy != "c9" || got.Record.Revs.Lead != 0 {
		t.Fatalf("%+v", got)
	}
	want(t, s.Pass(ctx, now, g, e, st), ErrConflict)
}

func testCommit(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	st := r.State.Clone()
	st.V, st.K, st.Seq = []ag.Member{{ID: "n2", Copy: "c2"}}, 1, 2
	r2, err := s.Commit(ctx, r.Revs, Change{State: &st, Lead: &ag.Lead{Epoch: 1, Holder: "n1"}})
	ok(t, err)
	if r2.State.K != 1 || r2.Revs.State <= r.Revs.State || r2.Revs.Lead != r2.Revs.State || r2.Revs.Epoch != r.Revs.Epoch || r2.Lead.Holder != "n1" {
		t.Fatalf("record after commit: %+v", r2)
	}
	// the old revisions are refused, with the record as it is
	cur, err := s.Commit(ctx, r.Revs, Change{State: &st})
	want(t, err, ErrConflict)
	if cur.Revs != r2.Revs {
		t.Fatalf("conflict returned %+v, want %+v", cur.Revs, r2.Revs)
	}
	// -1 is not compared, 0 is absence
	_, err = s.Commit(ctx, ag.Revisions{Epoch: r2.Revs.Epoch, State: -1, Lead: -1}, Change{State: &st})
	ok(t, err)
	_, err = s.Commit(ctx, ag.Revisions{Epoch: r2.Revs.Epoch, State: -1, Lead: 0}, Change{State: &st})
	want(t, err, ErrConflict)
	// the epoch is always compared
	if _, err = s.Commit(ctx, ag.Revisions{Epoch: -1, State: -1, Lead: -1}, Change{State: &st}); err == nil {
		t.Fatal("a change without an epoch guard was accepted")
	}
	if _, err = s.Commit(ctx, r2.Revs, Change{}); err == nil {
		t.Fatal("an empty change was accepted")
	}
	// a takeover sees the state that its own transaction returned, not the one it read before
	next := ag.EpochRecord{Epoch: 2, Phase: ag.PhaseSeal, Leader: "n2"}
	other := w.open(t, testGroup, "n2", "n2-1")
	got, err := other.Commit(ctx, ag.Revisions{Epoch: r2.Revs.Epoch, State: -1, Lead: r2.Revs.Lead}, Change{Epoch: &next})
	ok(t, err)
	if !reflect.DeepEqual(got.Epoch, next) || got.State.K != 1 || got.Revs.State <= r2.Revs.State {
		t.Fatalf("takeover returned %+v", got)
	}
	_, err = s.Commit(ctx, ag.Revisions{Epoch: r2.Revs.Epoch, State: -1, Lead: -1}, Change{State: &st})
	want(t, err, ErrConflict)
}

func testTakeoverRace(t *testing.T, w world) {
	ctx := testContext(t)
	_, r := begun(t, w)
	names := []ag.ReplicaID{"n2", "n3", "n4", "n5"}
	for round := range 5 {
		var wins atomic.Int64
		var wg sync.WaitGroup
		for _, name := range names {
			s := w.open(t, testGroup, name, string(name)+"-1")
			wg.Go(func() {
				e := ag.EpochRecord{Epoch: r.Epoch.Epoch + 1, Phase: ag.PhaseSeal, Leader: name}
				got, err := s.Commit(ctx, r.Revs, Change{Epoch: &e})
				switch {
				case err == nil && reflect.DeepEqual(got.Epoch, e):
					wins.Add(1)
				case !errors.Is(err, ErrConflict):
					t.Errorf("round %d: %s got %+v, %v", round, name, got.Epoch, err)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d: %d candidates won epoch %d", round, wins.Load(), r.Epoch.Epoch+1)
		}
		snap, err := w.open(t, testGroup, "n1", "n1-2").Read(ctx)
		ok(t, err)
		r = snap.Record
	}
}

func testVotes(t *testing.T, w world) {
	ctx := testContext(t)
	_, r := begun(t, w)
	only := ag.Revisions{Epoch: r.Revs.Epoch, State: -1, Lead: -1}
	vote := func(id ag.ReplicaID) *ag.Vote {
		return &ag.Vote{Member: id, Epoch: 1, Incarnation: "n1-1", Waited: time.Second}
	}
	two, three := w.open(t, testGroup, "n2", "n2-1"), w.open(t, testGroup, "n3", "n3-1")
	for id, s := range map[ag.ReplicaID]*Store{"n2": two, "n3": three} {
		_, err := s.Commit(ctx, only, Change{Vote: vote(id)})
		ok(t, err)
	}
	w.put(t, "vote/n4", `{"member":"n2","epoch":1,"incarnation":"n1-1","waited":1}`)
	w.put(t, "vote/n5", "not json")
	snap, err := two.Read(ctx)
	ok(t, err)
	votes := snap.Record.Votes
	if len(votes) != 2 || votes[0].Member != "n2" || votes[0].Rev == 0 || votes[1].Member != "n3" || votes[1].Waited != time.Second {
		t.Fatalf("votes: %+v", votes)
	}
	// a vote that was withdrawn, and one that was given again, differ from those that were read
	_, err = three.Commit(ctx, only, Change{Unvote: "n3"})
	ok(t, err)
	next := ag.EpochRecord{Epoch: 2, Phase: ag.PhaseSeal, Leader: "n2"}
	_, err = two.Commit(ctx, snap.Record.Revs, Change{Epoch: &next, Votes: votes})
	want(t, err, ErrConflict)
	_, err = three.Commit(ctx, only, Change{Vote: vote("n3")})
	ok(t, err)
	_, err = two.Commit(ctx, snap.Record.Revs, Change{Epoch: &next, Votes: votes})
	want(t, err, ErrConflict)
	snap, err = two.Read(ctx)
	ok(t, err)
	_, err = two.Commit(ctx, snap.Record.Revs, Change{Epoch: &next, Votes: snap.Record.Votes})
	ok(t, err)
	// no vote is given or withdrawn in an epoch that is over
	_, err = three.Commit(ctx, only, Change{Vote: vote("n3")})
	want(t, err, ErrConflict)
	_, err = three.Commit(ctx, only, Change{Unvote: "n3"})
	want(t, err, ErrConflict)
	if _, err = three.Commit(ctx, only, Change{Vote: &ag.Vote{Member: "n3", Epoch: 1}}); err == nil {
		t.Fatal("a vote that names nobody was accepted")
	}
}

func testRenew(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	lead := ag.Lead{Epoch: 1, Holder: "n1", Incarnation: "1"}
	first, err := s.Renew(ctx, r.Revs.Epoch, lead)
	ok(t, err)
	second, err := s.Renew(ctx, r.Revs.Epoch, lead)
	ok(t, err)
	if second <= first {
		t.Fatalf("revisions %d, %d do not grow", first, second)
	}
	// a Store that does not know the lead's revision, and one that another Commit has moved, find it
	other := w.open(t, testGroup, "n1", "n1-2")
	third, err := other.Renew(ctx, r.Revs.Epoch, lead)
	ok(t, err)
	fourth, err := s.Renew(ctx, r.Revs.Epoch, lead)
	ok(t, err)
	if third <= second || fourth <= third {
		t.Fatalf("revisions %d, %d, %d do not grow", second, third, fourth)
	}
	e := ag.EpochRecord{Epoch: 2, Phase: ag.PhaseSeal, Leader: "n2"}
	r, err = other.Commit(ctx, ag.Revisions{Epoch: r.Revs.Epoch, State: -1, Lead: fourth}, Change{Epoch: &e})
	ok(t, err)
	if r.Revs.Lead != fourth {
		t.Fatalf("lead at %d, want %d", r.Revs.Lead, fourth)
	}
	_, err = s.Renew(ctx, r.Revs.Epoch-1, lead)
	want(t, err, ErrConflict)
}

// A holder's release of its epoch is final: a renewal that was under way at that time fails on it, and so do later
// ones. Others may have begun to claim by then.
func testRelease(byRenewal bool) func(t *testing.T, w world) {
	return func(t *testing.T, w world) {
		ctx := testContext(t)
		s, r := begun(t, w)
		lead := ag.Lead{Epoch: r.Epoch.Epoch, Holder: r.Epoch.Leader, Incarnation: "1"}
		_, err := s.Renew(ctx, r.Revs.Epoch, lead)
		ok(t, err)
		released := lead
		released.Released = true
		if byRenewal {
			_, err = s.Renew(ctx, r.Revs.Epoch, released)
		} else {
			_, err = s.Commit(ctx, ag.Revisions{Epoch: r.Revs.Epoch, State: -1, Lead: -1}, Change{Lead: &released})
		}
		ok(t, err)
		for range 2 {
			_, err = s.Renew(ctx, r.Revs.Epoch, lead)
			want(t, err, ErrConflict)
		}
		snap, err := s.Read(ctx)
		ok(t, err)
		if !snap.Record.Lead.Released {
			t.Fatalf("a renewal took a release back: %+v", snap.Record.Lead)
		}
		_, err = s.Renew(ctx, r.Revs.Epoch, released) // repeating it takes nothing back
		ok(t, err)
		next := lead
		next.Epoch++
		_, err = s.Renew(ctx, r.Revs.Epoch, next) // nor does the lease of another epoch
		ok(t, err)
	}
}

func testGroupAndOp(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	snap, err := s.Read(ctx)
	ok(t, err)
	g := snap.Group
	g.Replicas = append(g.Replicas, ag.Replica{ID: "n4"})
	rev, err := s.UpdateGroup(ctx, snap.GroupRev, g)
	ok(t, err)
	_, err = s.UpdateGroup(ctx, snap.GroupRev, g)
	want(t, err, ErrConflict)
	_, err = s.UpdateGroupIn(ctx, rev, r.Revs.Epoch+1000, g) // another leads by then
	want(t, err, ErrConflict)
	old := rev
	rev, err = s.UpdateGroupIn(ctx, rev, r.Revs.Epoch, g)
	ok(t, err)
	st := r.State.Clone()
	st.Seq++
	guards := ag.Revisions{Epoch: r.Revs.Epoch, State: r.Revs.State, Lead: -1}
	_, err = s.Commit(ctx, guards, Change{Group: old, State: &st}) // decided by the configuration before
	want(t, err, ErrConflict)
	_, err = s.Commit(ctx, guards, Change{Group: rev, State: &st})
	ok(t, err)
	if _, err := s.UpdateGroup(ctx, rev, firstGroup(otherGroup)); err == nil {
		t.Fatal("the configuration of another group was accepted")
	}
	request := json.RawMessage(`{"verb":"failover","to":"n2"}`)
	opRev, err := s.PutOp(ctx, 0, r.Revs.Epoch, request)
	ok(t, err)
	_, err = s.PutOp(ctx, 0, r.Revs.Epoch, request)
	want(t, err, ErrConflict)
	_, err = s.PutOp(ctx, opRev, r.Revs.Epoch+1000, request)
	want(t, err, ErrConflict)
	opRev, err = s.PutOp(ctx, opRev, -1, json.RawMessage(`{"verb":"failover","to":"n3"}`))
	ok(t, err)
	snap, err = s.Read(ctx)
	ok(t, err)
	if snap.GroupRev != rev || len(snap.Group.Replicas) != 4 || snap.OpRev != opRev || !strings.Contains(string(snap.Op), "n3") {
		t.Fatalf("snapshot: %+v", snap)
	}
	want(t, s.DeleteOp(ctx, opRev-1, -1), ErrConflict)
	ok(t, s.DeleteOp(ctx, opRev, r.Revs.Epoch))
	snap, err = s.Read(ctx)
	ok(t, err)
	if snap.Op != nil || snap.OpRev != 0 {
		t.Fatalf("the request is still there: %s", snap.Op)
	}
}

func testStatus(t *testing.T, w world) {
	ctx := testContext(t)
	s, _ := begun(t, w)
	ok(t, s.PutStatus(ctx, "n1", json.RawMessage(`{"a":1}`)))
	ok(t, s.PutStatus(ctx, "n2", json.RawMessage(`{"a":2}`)))
	ok(t, s.PutStatus(ctx, "n1", json.RawMessage(`{"a":3}`)))
	w.put(t, "status/n3", "not json")
	w.put(t, "status/N/4", `{"a":4}`)
	snap, err := s.Read(ctx)
	ok(t, err)
	if len(snap.Statuses) != 2 || string(snap.Statuses["n1"]) != `{"a":3}` || string(snap.Statuses["n2"]) != `{"a":2}` {
		t.Fatalf("statuses: %v", snap.Statuses)
	}
	ok(t, s.DeleteStrays(ctx, []ag.ReplicaID{"n2", "n3"}))
	snap, err = s.Read(ctx)
	ok(t, err)
	if len(snap.Statuses) != 1 {
		t.Fatalf("statuses: %v", snap.Statuses)
	}
	// A thief's reports and votes in invented names leave no place for those of members, until they are deleted.
	w.put(t, "vote/n2", `{"member":"n2","epoch":1,"incarnation":"n1-1","waited":1}`)
	for i := range maxStatuses {
		w.put(t, fmt.Sprintf("status/a%d", i), "{}")
		w.put(t, fmt.Sprintf("vote/a%d", i), "{}")
	}
	if snap, err = s.Read(ctx); err != nil || snap.Statuses["n2"] != nil || len(snap.Record.Votes) > 0 {
		t.Fatalf("%v, %v: %v", snap.Statuses, snap.Record.Votes, err)
	}
	ok(t, s.DeleteStrays(ctx, []ag.ReplicaID{"n20", "n2"}))
	if snap, err = s.Read(ctx); err != nil || len(snap.Statuses) != 1 || snap.Statuses["n2"] == nil || len(snap.Record.Votes) != 1 {
		t.Fatalf("%v, %v: %v", snap.Statuses, snap.Record.Votes, err)
	}
	if s.DeleteStrays(ctx, []ag.ReplicaID{"n1/../../x"}) == nil {
		t.Error("keys elsewhere are deleted")
	}
	if s.PutStatus(ctx, "n1/../../x", json.RawMessage(`{}`)) == nil || s.PutStatus(ctx, "n1", json.RawMessage(`{`)) == nil {
		t.Fatal("an unusable status was accepted")
	}
}

func testTokens(t *testing.T, w world) {
	ctx := testContext(t)
	s, _ := begun(t, w)
	now := time.Now()
	_, err := s.Token(ctx, "t1")
	want(t, err, ErrTokenUnknown)
	_, err = s.Token(ctx, "../config")
	want(t, err, ErrTokenUnknown)
	ok(t, s.PutToken(ctx, Token{ID: "t1", Value: json.RawMessage(`{"replica":"n4"}`), Expires: now.Add(time.Hour)}, nil))
	want(t, s.PutToken(ctx, Token{ID: "t1", Expires: now.Add(time.Hour)}, nil), ErrConflict)
	ok(t, s.PutToken(ctx, Token{ID: "t2", Expires: now.Add(-time.Hour)}, nil))
	ok(t, s.PutToken(ctx, Token{ID: "t3", Expires: now.Add(-48 * time.Hour)}, nil))
	got, err := s.Token(ctx, "t1")
	ok(t, err)
	if string(got.Value) != `{"replica":"n4"}` {
		t.Fatalf("token: %+v", got)
	}
	_, err = s.ConsumeToken(ctx, "t2")
	want(t, err, ErrTokenExpired)
	var wins, losses atomic.Int64
	var wg sync.WaitGroup
	for _, name := range []ag.ReplicaID{"n1", "n2", "n3"} {
		other := w.open(t, testGroup, name, string(name)+"-7")
		wg.Go(func() {
			switch _, err := other.ConsumeToken(ctx, "t1"); {
			case err == nil:
				wins.Add(1)
			case errors.Is(err, ErrTokenUsed):
				losses.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 || losses.Load() != 2 {
		t.Fatalf("%d consumed the token, %d were refused", wins.Load(), losses.Load())
	}
	_, err = s.Token(ctx, "t1")
	want(t, err, ErrTokenUsed)
	ok(t, s.PutToken(ctx, Token{ID: "t4", Expires: now.Add(time.Hour)}, nil)) // prunes t3
	_, err = s.Token(ctx, "t3")
	want(t, err, ErrTokenUnknown)
	w.put(t, "token/t5", `{"id":"t5","expires":"9999-01-01T00:00:00Z"}`)
	ok(t, s.PutToken(ctx, Token{ID: "t6", Expires: now.Add(time.Hour)}, func(t Token) bool { return t.ID != "t5" }))
	_, err = s.Token(ctx, "t5")
	want(t, err, ErrTokenUnknown)
	_, err = s.Token(ctx, "t2")
	want(t, err, ErrTokenExpired)
}

func testTwoGroups(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	other := w.open(t, otherGroup, "n1", "n1-1")
	_, err := other.Read(ctx)
	want(t, err, ErrNoRecord)
	ok(t, other.Bootstrap(ctx, firstGroup(otherGroup), firstEpoch, firstState))
	e := ag.EpochRecord{Epoch: 9, Phase: ag.PhaseSeal, Leader: "n3"}
	snap, err := other.Read(ctx)
	ok(t, err)
	_, err = other.Commit(ctx, snap.Record.Revs, Change{Epoch: &e})
	ok(t, err)
	mine, err := s.Read(ctx)
	ok(t, err)
	if mine.Record.Revs != r.Revs || mine.Record.Epoch.Epoch != 1 {
		t.Fatalf("one group's change reached another: %+v", mine.Record)
	}
}

func testCorrupt(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	for key, values := range map[string][]string{
		"epoch":  {"", "null", "{", `{"epoch":1,"phase":"LEAD","leader":"n1"} {}`, `{"epoch":0,"phase":"LEAD"}`, `{"epoch":1,"phase":"BOSS"}`, `{"epoch":1,"phase":"SEAL","leader":"../x"}`},
		"state":  {"[]", `{"k":1}`, `{"k":-1}`, `{"v":[{"id":"n1"},{"id":"n1"}]}`, `{"v":[{"id":""}]}`},
		"lead":   {`{"holder":"N1"}`, `{"epoch":-1}`},
		"config": {`{"id":"` + string(otherGroup) + `"}`, `{"id":"` + string(testGroup) + `","replicas":[{"id":"n1"},{"id":"n1"}]}`},
		"op":     {"x", ""},
	} {
		for _, v := range values {
			snap, err := w.open(t, testGroup, "n9", "n9-1").Read(ctx)
			ok(t, err)
			w.put(t, key, v)
			if _, err := s.Read(ctx); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s %q: read returned %v", key, v, err)
			}
			restore(t, w, key, snap)
		}
	}
	w.put(t, "epoch", strings.Repeat(" ", maxRecordBytes)+`{"epoch":1,"phase":"LEAD"}`)
	_, err := s.Read(ctx)
	want(t, err, ErrCorrupt)
	// a field of a later version is ignored
	w.put(t, "epoch", `{"epoch":1,"phase":"LEAD","leader":"n1","color":"blue"}`)
	_, err = s.Read(ctx)
	ok(t, err)
	for _, c := range []Change{
		{Epoch: &ag.EpochRecord{Epoch: 1, Phase: "BOSS"}},
		{State: &ag.State{K: 1}},
		{Lead: &ag.Lead{Holder: "N 1"}},
	} {
		if _, err := s.Commit(ctx, r.Revs, c); err == nil || errors.Is(err, ErrConflict) {
			t.Errorf("an invalid change was not refused: %v", err)
		}
	}
}

func restore(t *testing.T, w world, key string, snap Snapshot) {
	values := map[string]any{"epoch": snap.Record.Epoch, "state": snap.Record.State, "lead": ag.Lead{Holder: "n1"}, "config": snap.Group, "op": map[string]int{}}
	b, err := json.Marshal(values[key])
	ok(t, err)
	w.put(t, key, string(b))
}

func testLimits(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	big := json.RawMessage(`"` + strings.Repeat("x", maxOpBytes) + `"`)
	_, err := s.PutOp(ctx, 0, -1, big)
	want(t, err, ErrTooLarge)
	want(t, s.PutStatus(ctx, "n1", big), ErrTooLarge)
	_, err = s.Commit(ctx, r.Revs, Change{Lead: &ag.Lead{Holder: "n1", Progress: string(big)}})
	want(t, err, ErrTooLarge)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Read(cancelled); err == nil {
		t.Fatal("a cancelled read succeeded")
	}
	if _, err := s.Commit(cancelled, r.Revs, Change{Lead: &ag.Lead{Holder: "n1"}}); err == nil || errors.Is(err, ErrConflict) {
		t.Fatalf("a cancelled change returned %v", err)
	}
}

func testWatch(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	wctx, stop := context.WithCancel(ctx)
	events := s.Watch(wctx)
	await(t, events, Event{Record: true, Group: true, Op: true, Status: true})
	drain(events)
	ok(t, s.PutStatus(ctx, "n2", json.RawMessage(`{}`)))
	if got := await(t, events, Event{Reports: map[ag.ReplicaID]json.RawMessage{"n2": nil}}).Reports; string(got["n2"]) != "{}" {
		t.Errorf("told of %q", got)
	}
	ok(t, s.DeleteStrays(ctx, []ag.ReplicaID{"n1"}))
	await(t, events, Event{Status: true})
	lead := ag.Lead{Epoch: 3, Holder: "n1", Incarnation: "n1-1"}
	rev, err := s.Renew(ctx, r.Revs.Epoch, lead)
	ok(t, err)
	if got := await(t, events, Event{Renewal: &Renewal{}}).Renewal; got.Rev != rev || !got.Lead.Same(lead) {
		t.Errorf("told of %+v, written %+v at revision %d", got, lead, rev)
	}
	opRev, err := s.PutOp(ctx, 0, -1, json.RawMessage(`{}`))
	ok(t, err)
	await(t, events, Event{Op: true})
	ok(t, s.DeleteOp(ctx, opRev, -1))
	await(t, events, Event{Op: true})
	snap, err := s.Read(ctx)
	ok(t, err)
	_, err = s.UpdateGroup(ctx, snap.GroupRev, snap.Group)
	ok(t, err)
	await(t, events, Event{Group: true})
	stop()
	for range events { // must close
	}
}

// await takes events until all of want were seen, and returns the events seen.
func await(t *testing.T, events <-chan Event, want Event) (seen Event) {
	t.Helper()
	for {
		select {
		case e, open := <-events:
			if !open {
				t.Fatal("the watch ended")
			}
			seen.add(e)
			if (seen.Record || !want.Record) && (seen.Group || !want.Group) && (seen.Op || !want.Op) && (seen.Status || !want.Status) &&
				(seen.Renewal != nil || want.Renewal == nil) && len(seen.Reports) >= len(want.Reports) {
				return seen
			}
		case <-time.After(patience):
			t.Fatalf("saw %+v, want %+v", seen, want)
		}
	}
}

func drain(events <-chan Event) {
	for {
		select {
		case <-events:
		case <-time.After(50 * time.Millisecond):
			return
		}
	}
}

// testReplicaComesBack: a new incarnation of a replica does not know its attempt key; it finds out.
func testReplicaComesBack(t *testing.T, w world) {
	ctx := testContext(t)
	s, r := begun(t, w)
	for i := range 3 {
		again := w.open(t, testGroup, "n1", "n1-2")
		st := r.State.Clone()
		st.Seq = uint64(10 + i)
		var err error
		r, err = again.Commit(ctx, ag.Revisions{Epoch: r.Revs.Epoch, State: r.Revs.State, Lead: -1}, Change{State: &st})
		ok(t, err)
		st.Seq++
		r, err = s.Commit(ctx, ag.Revisions{Epoch: r.Revs.Epoch, State: r.Revs.State, Lead: -1}, Change{State: &st})
		ok(t, err)
	}
}

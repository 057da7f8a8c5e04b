package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd/standalone"
	"github.com/coteriedb/coterie/internal/node/endorsement"
)

// signers are two replicas and a thief, who has the member of a witness, on one store.
type signers struct {
	t          *testing.T
	ctx        context.Context
	ca         *certs.CA
	n1, n2     *Store
	thief      *Store
	judges     map[*Store]*endorsement.Judge
	openSigner func(id ag.ReplicaID, e Endorser) *Store
}

// newSigners begins a group whose record is signed. open opens a store of a replica; a nil Endorser is the thief's.
func newSigners(t *testing.T, open func(id ag.ReplicaID, e Endorser) *Store) *signers {
	t.Helper()
	ca, err := certs.NewCA(testGroup, "g")
	ok(t, err)
	s := &signers{t: t, ctx: testContext(t), ca: ca, judges: map[*Store]*endorsement.Judge{}, openSigner: open, thief: open("w", nil)}
	s.n1, s.n2 = s.replica("n1"), s.replica("n2")
	ok(t, s.n1.Bootstrap(s.ctx, signedGroup(), firstEpoch, firstState))
	s.good("")
	return s
}

func signedGroup() ag.Group {
	g := firstGroup(testGroup)
	g.SignedOnly, g.SignedRecord = true, true
	return g
}

// replica opens the store of a replica that knows of the group what its configuration says.
func (s *signers) replica(id ag.ReplicaID) *Store {
	s.t.Helper()
	dir := s.t.TempDir()
	ok(s.t, s.ca.Save(dir))
	node, err := certs.CreateNode(dir, s.ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: id}, []string{"127.0.0.1"})
	ok(s.t, err)
	j, err := endorsement.NewJudge(replicaKeys{s.ca, node}, signedGroup(), testLogger(s.t))
	ok(s.t, err)
	store := s.openSigner(id, j)
	s.judges[store] = j
	return store
}

// good returns the record that both replicas read.
func (s *signers) good(after string) ag.Record {
	s.t.Helper()
	x, err := s.n1.Read(s.ctx)
	y, err2 := s.n2.Read(s.ctx)
	if err != nil || err2 != nil || x.Record.Revs != y.Record.Revs {
		s.t.Fatalf("after %q: %v, %v", after, err, err2)
	}
	return x.Record
}

// refused fails unless no replica reads the record.
func (s *signers) refused(what string) {
	s.t.Helper()
	for name, store := range map[string]*Store{"n1": s.n1, "n2": s.n2} {
		if x, err := store.Read(s.ctx); !errors.Is(err, ErrForged) {
			s.t.Errorf("%s: %s reads %+v, %v", what, name, x.Record, err)
		}
	}
}

// raw returns the values of keys as they are in the store, in their order.
func (s *signers) raw(names ...string) [][]byte {
	s.t.Helper()
	var out [][]byte
	for _, key := range names {
		res, err := s.thief.read(s.ctx, get(s.thief.keys.prefix+key))
		ok(s.t, err)
		out = append(out, res.one(0).value)
	}
	return out
}

// put has the thief write keys and values in turn, in one transaction.
func (s *signers) put(pairs ...any) {
	s.t.Helper()
	var ops []op
	for i := 0; i < len(pairs); i += 2 {
		ops = append(ops, put(s.thief.keys.prefix+pairs[i].(string), pairs[i+1].([]byte)))
	}
	ok(s.t, s.thief.blind(s.ctx, ops...))
}

// commit has n1 change the record as its leader.
func (s *signers) commit(c Change) ag.Record {
	s.t.Helper()
	g := s.good("before a change").Revs
	g.Lead = -1
	_, err := s.n1.Commit(s.ctx, g, c)
	ok(s.t, err)
	return s.good("a change")
}

// state returns a state of n1's with a number, and with n2 in V or not.
func state(seq uint64, synchronized bool) *ag.State {
	st := firstState
	st.Seq = seq
	if synchronized {
		st.V, st.K = []ag.Member{{ID: "n2", Copy: "c2"}}, 1
	}
	return &st
}

func coded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	ok(t, err)
	return b
}

// TestThiefWritesTheRecord writes epochs and states into a real store and one in memory, as the thief of a witness
// could: its own, and earlier ones with their signatures. No replica uses one, and what stood before comes back.
func TestThiefWritesTheRecord(t *testing.T) {
	c := newCluster(t, "n1", "n2", "w")
	m := NewMemory(testGroup)
	x := external(standalone.New(t, filepath.Join(shortDir(t), "etcd")))
	for name, open := range map[string]func(id ag.ReplicaID, e Endorser) *Store{
		"etcd": func(id ag.ReplicaID, e Endorser) *Store {
			return openTest(t, StoreConfig{
				Group: testGroup, Dial: c.dial, Endpoints: []string{string(id), "n1", "n2", "w"}, Attempt: string(id) + "-1", CallTimeout: patience,
				Logger: testLogger(t), Endorser: e,
			})
		},
		"an administrator's etcd": func(id ag.ReplicaID, e Endorser) *Store {
			return openTest(t, StoreConfig{
				Group: testGroup, Dial: x.Dial, Endpoints: x.Endpoints, Attempt: string(id) + "-1", CallTimeout: patience, Logger: testLogger(t), Endorser: e,
			})
		},
		"memory": inMemory(t, m),
	} {
		t.Run(name, func(t *testing.T) { thiefWritesTheRecord(newSigners(t, open)) })
	}
}

func inMemory(t *testing.T, m *Memory) func(id ag.ReplicaID, e Endorser) *Store {
	return func(id ag.ReplicaID, e Endorser) *Store {
		t.Helper()
		s, err := m.Open(StoreConfig{Group: testGroup, Replica: id, Attempt: string(id) + "-1", Endorser: e})
		ok(t, err)
		return s
	}
}

func thiefWritesTheRecord(s *signers) {
	t := s.t
	t.Helper()
	oldEpoch, oldState := s.raw("epoch", "signature/epoch"), s.raw("state", "signature/state")
	s.commit(Change{State: state(2, true)})
	promising := s.raw("state", "signature/state")
	rec := s.commit(Change{State: state(3, false)})
	led := rec.Epoch
	led.Epoch++
	next := *state(4, false)
	next.Epoch++
	lost := s.proposal(rec, led) // one of n2's that the store did not take
	was := s.commit(Change{Epoch: &led, State: &next})
	own, err := certs.NewCA(testGroup, "g")
	ok(t, err)
	forged := coded(t, ag.EpochRecord{Epoch: 3, Phase: ag.PhasePromote, Leader: "n2", TLI: 2, MaxTLI: 2, Forced: true})
	byOwn, err := own.Endorse("record: epoch", place{1, 1, 1}.of(forged))
	ok(t, err)
	for _, x := range []struct {
		name  string
		pairs []any
	}{
		{"another synchronized set", []any{"state", coded(t, state(4, true))}},
		{"a forced failover", []any{"epoch", forged}},
		{"a forced failover, signed by an authority of its own", []any{"epoch", forged, "signature/epoch", byOwn}},
		{"the state of before", []any{"state", promising[0], "signature/state", promising[1]}},
		{"the first state", []any{"state", oldState[0], "signature/state", oldState[1]}},
		{"the first epoch", []any{"epoch", oldEpoch[0], "signature/epoch", oldEpoch[1]}},
		{"both of before", []any{"epoch", oldEpoch[0], "signature/epoch", oldEpoch[1], "state", oldState[0], "signature/state", oldState[1]}},
		{"a change that was not made", []any{"epoch", lost[0], "signature/epoch", lost[1]}},
		{"the present epoch once more", []any{"epoch", coded(t, led)}},
		{"no JSON", []any{"state", []byte("{")}},
		{"the signature of the other key", []any{"epoch", forged, "signature/epoch", oldState[1]}},
	} {
		s.put(x.pairs...)
		s.refused(x.name)
		if _, err := s.n1.Renew(s.ctx, was.Revs.Epoch, ag.Lead{Epoch: 2, Holder: "n1"}); x.pairs[0] == "epoch" && !errors.Is(err, ErrConflict) {
			t.Errorf("%s: the lease is renewed: %v", x.name, err)
		}
		if _, err := s.n1.Commit(s.ctx, ag.Revisions{Epoch: was.Revs.Epoch, State: was.Revs.State, Lead: -1}, Change{State: state(9, false)}); !errors.Is(err, ErrConflict) && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: a change is made over it: %v", x.name, err)
		}
		if done, err := s.n2.RestoreRecord(s.ctx); !done || err != nil {
			t.Fatalf("%s: restored %t, %v", x.name, done, err)
		}
		is := s.good(x.name)
		if string(coded(t, is.Epoch)) != string(coded(t, was.Epoch)) || string(coded(t, is.State)) != string(coded(t, was.State)) {
			t.Errorf("after %s: %+v", x.name, is)
		}
		was = is
	}
	s.signatureIsLost()
	s.writtenTwice(was)
}

// proposal returns what n2 would write of the epoch, without writing it.
func (s *signers) proposal(over ag.Record, e ag.EpochRecord) [][]byte {
	s.t.Helper()
	e.Leader = "n2"
	w, err := s.n2.recordWrite(over.Revs, Change{Epoch: &e})
	ok(s.t, err)
	ok(s.t, s.n2.sign(s.ctx, &w, over.Revs))
	return [][]byte{w.ops[0].value, w.ops[1].value}
}

// signatureIsLost: replicas that have verified a value go on, sign it again, and one that starts then finds it good.
func (s *signers) signatureIsLost() {
	s.t.Helper()
	s.put("signature/state", []byte("x"))
	s.good("a lost signature")
	fresh := s.replica("n2")
	if _, err := fresh.Read(s.ctx); !errors.Is(err, ErrForged) {
		s.t.Errorf("a replica that starts reads it: %v", err)
	}
	ok(s.t, fresh.SignRecordAgain(s.ctx))
	if _, err := fresh.Read(s.ctx); !errors.Is(err, ErrForged) {
		s.t.Errorf("it has signed what it has not verified: %v", err)
	}
	rev := s.good("a lost signature").Revs
	ok(s.t, s.n1.SignRecordAgain(s.ctx))
	if _, err := fresh.Read(s.ctx); err != nil || s.good("another signature").Revs != rev {
		s.t.Errorf("after it was signed again: %v", err)
	}
}

// writtenTwice: a value that was written over twice is not restored, since a replica's may be between the two.
func (s *signers) writtenTwice(was ag.Record) {
	s.t.Helper()
	key := s.thief.keys.prefix + "state"
	good := s.raw("state", "signature/state")
	s.put("state", []byte("{}"))
	s.put("state", good[0], "signature/state", good[1])
	s.refused("written twice")
	for _, n := range []*Store{s.n1, s.n2} {
		if done, err := n.RestoreRecord(s.ctx); done || err != nil {
			s.t.Errorf("it is restored: %t, %v", done, err)
		}
	}
	// Written anew, as often as before.
	ok(s.t, s.thief.blind(s.ctx, del(key)))
	if _, err := s.n1.Read(s.ctx); err == nil {
		s.t.Error("a deleted state is read")
	}
	for range 40 {
		s.put("state", good[0], "signature/state", good[1])
	}
	s.refused("written anew")
	if done, err := s.n1.RestoreRecord(s.ctx); done || err != nil {
		s.t.Errorf("it is restored: %t, %v", done, err)
	}
	// A recovery does not ask what a forged epoch says.
	huge := was.Epoch
	huge.Epoch = 1 << 60
	s.put("epoch", coded(s.t, huge))
	e, st := was.Epoch, was.State
	e.Epoch, st.Epoch = e.Epoch+1, e.Epoch+1
	ok(s.t, s.n1.Replace(s.ctx, signedGroup(), e, st))
	if r := s.good("a recovery"); r.Epoch.Epoch != e.Epoch {
		s.t.Errorf("after a recovery: %+v", r)
	}
}

// TestLostAnswersOfSignedChanges: a change whose answer was lost, or that came late, is signed for the place where it
// is.
func TestLostAnswersOfSignedChanges(t *testing.T) {
	m := NewMemory(testGroup)
	s := newSigners(t, inMemory(t, m))
	for i := range 3 {
		m.LoseAnswers(i)
		s.commit(Change{State: state(uint64(i+2), i == 1)})
	}
	rec := s.good("lost answers")
	m.Hold(1)
	_, err := s.n1.Commit(s.ctx, ag.Revisions{Epoch: rec.Revs.Epoch, State: rec.Revs.State, Lead: -1}, Change{State: state(9, false)})
	ok(t, err) // by a second copy of it
	s.commit(Change{State: state(10, false)})
	m.Deliver()
	if r := s.good("a late change"); r.State.Seq != 10 {
		t.Errorf("%+v", r.State)
	}
	// One that was not read is read first; one that is not there any more is a conflict.
	fresh := s.replica("n1")
	rec = s.good("before")
	_, err = fresh.Commit(s.ctx, ag.Revisions{Epoch: rec.Revs.Epoch, State: rec.Revs.State, Lead: -1}, Change{State: state(11, false)})
	ok(t, err)
	s.good("a change by one that has not read")
	_, err = s.replica("n1").Commit(s.ctx, ag.Revisions{Epoch: rec.Revs.Epoch, State: rec.Revs.State, Lead: -1}, Change{State: state(12, false)})
	want(t, err, ErrConflict)
	_, err = s.n1.Commit(s.ctx, ag.Revisions{Epoch: rec.Revs.Epoch, State: -1, Lead: -1}, Change{State: state(13, false)})
	if err == nil {
		t.Error("a state is written over one that nobody has read")
	}
}

// TestPlaces: what is signed tells the place, and is taken apart again.
func TestPlaces(t *testing.T) {
	p := place{9, 7, 1 << 40}
	if got, value, whole := unplaced(p.of([]byte("v"))); !whole || got != p || string(value) != "v" {
		t.Errorf("%+v %q", got, value)
	}
	if _, _, whole := unplaced(make([]byte, placeBytes-1)); whole {
		t.Error("too few bytes have no place")
	}
	if bytes.Equal(p.of(nil), p.next().of(nil)) || bytes.Equal(p.of(nil), place{8, 7, 1 << 40}.of(nil)) {
		t.Error("two places are the same")
	}
}

// TestRecordOfALostQuorum: a store that is made anew counts revisions and versions as the lost one did. A value that
// was signed for the lost one is good at no place of the new one.
func TestRecordOfALostQuorum(t *testing.T) {
	lost := newSigners(t, inMemory(t, NewMemory(testGroup)))
	lost.commit(Change{State: state(2, true)})
	was := lost.raw("state", "signature/state")
	m := NewMemory(testGroup)
	m.back.id++
	s := &signers{t: t, ctx: lost.ctx, ca: lost.ca, judges: map[*Store]*endorsement.Judge{}, openSigner: inMemory(t, m)}
	s.n1, s.n2, s.thief = s.replica("n1"), s.replica("n2"), inMemory(t, m)("w", nil)
	ok(t, s.n1.Bootstrap(s.ctx, signedGroup(), firstEpoch, firstState))
	s.good("a recovery")
	s.put("state", was[0], "signature/state", was[1])
	s.refused("a state of the lost quorum, at the same place")
	if done, err := s.n2.RestoreRecord(s.ctx); !done || err != nil {
		t.Errorf("restored %t, %v", done, err)
	}
	if r := s.good("a state of the lost quorum"); r.State.Seq != firstState.Seq {
		t.Errorf("%+v", r.State)
	}
}

// TestRecordLoadedIntoAnotherStore: no node uses a record that an administrator put together by hand, of what another
// store held. A recovery replaces it.
func TestRecordLoadedIntoAnotherStore(t *testing.T) {
	lost := newSigners(t, inMemory(t, NewMemory(testGroup)))
	lost.commit(Change{State: state(2, true)})
	m := NewMemory(testGroup)
	m.back.id++
	s := &signers{t: t, ctx: lost.ctx, ca: lost.ca, judges: map[*Store]*endorsement.Judge{}, openSigner: inMemory(t, m)}
	s.n1, s.n2 = s.replica("n1"), s.replica("n2")
	for key, k := range lost.n1.back.(*memoryView).keys {
		m.back.set(func() { m.back.apply(txn{Then: []op{put(key, k.value)}}) })
	}
	s.refused("a record of another store")
	e, st := firstEpoch, firstState
	e.Epoch, st.Epoch = e.Epoch+9, e.Epoch+9
	ok(t, s.n1.Replace(s.ctx, signedGroup(), e, st))
	if r := s.good("a recovery"); r.Epoch.Epoch != e.Epoch {
		t.Errorf("%+v", r)
	}
}

// TestHalfAChange: a thief who has kept the change from being made with which a leader begins, writes a half of it.
// Nobody leads by the state of the leader before.
func TestHalfAChange(t *testing.T) {
	s := newSigners(t, inMemory(t, NewMemory(testGroup)))
	was := s.commit(Change{State: state(2, true)})
	led, own := was.Epoch, *state(3, false)
	led.Epoch, led.Leader, own.Epoch, own.Leader = led.Epoch+1, "n2", own.Epoch+1, "n2"
	chosen := led
	chosen.Phase = ag.PhasePromote
	was = s.commit(Change{Epoch: &chosen})
	w, err := s.n2.recordWrite(was.Revs, Change{Epoch: &led, State: &own})
	ok(t, err)
	ok(t, s.n2.sign(s.ctx, &w, was.Revs))
	s.put("epoch", w.ops[0].value, "signature/epoch", w.ops[2].value)
	s.refused("an epoch that is led, with the state of before")
	s.put("state", w.ops[1].value, "signature/state", w.ops[3].value)
	if r := s.good("the other half"); r.Epoch.Phase != ag.PhaseLead || r.State.Leader != "n2" {
		t.Errorf("%+v", r)
	}
}

// TestPlaceOfARestoredStore: a revision that was read before a store was put back has another place afterwards.
func TestPlaceOfARestoredStore(t *testing.T) {
	m := NewMemory(testGroup)
	s := newSigners(t, inMemory(t, m))
	keys, rev := maps.Clone(m.back.keys), m.back.rev
	s.put("lead", []byte("{}"))
	s.commit(Change{State: state(2, true)})
	m.back.set(func() { m.back.keys, m.back.rev = keys, rev })
	s.good("the restore")
	for seq := range uint64(2) { // the second has the revision at which the one before the restore was
		revs := s.good("before a change of the other").Revs
		revs.Lead = -1
		_, err := s.n2.Commit(s.ctx, revs, Change{State: state(seq+3, false)})
		ok(t, err)
	}
	s.commit(Change{State: state(5, false)})
}
